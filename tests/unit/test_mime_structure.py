"""Multiparts, inner messages and file names."""

import base64

import pytest

from spamnb.mail import limits
from spamnb.mail.limits import PARTLY
from spamnb.mail.message import Message, read


def multipart(*pieces: bytes, boundary: bytes = b"b", kind: bytes = b"mixed") -> bytes:
    body = b"".join(b"--" + boundary + b"\n" + piece + b"\n" for piece in pieces)
    head = b"Content-Type: multipart/" + kind + b'; boundary="' + boundary + b'"\n\n'
    return head + body + b"--" + boundary + b"--\n"


def texts(message: Message) -> list[bytes | str]:
    return [part.text for part in message.parts]


def test_leaves_come_in_order_with_their_depth() -> None:
    """Every leaf is reached once, in the order in which a reader sees them."""
    inner = multipart(b"\ntwo", b"\nthree", boundary=b"c", kind=b"alternative")
    message = read(multipart(b"\none", inner, b"\nfour"))
    assert texts(message) == [b"one", b"two", b"three", b"four"]
    assert [part.depth for part in message.parts] == [1, 2, 2, 1]
    assert message.oddities == []


def test_preamble_and_epilogue_are_not_read() -> None:
    """Text before and after the parts is not read, because no mail program shows it."""
    raw = multipart(b"\none").replace(b"\n\n--b\n", b"\n\nbefore\n--b\n") + b"after\n"
    assert texts(read(raw)) == [b"one"]


@pytest.mark.parametrize("line", [b"--bb", b"--b-", b" --b", b"x--b", b"--b x", b"--b--x"])
def test_what_only_resembles_a_boundary_is_text(line: bytes) -> None:
    """A boundary line is the boundary and nothing else, since inner ones may extend outer ones."""
    assert texts(read(multipart(b"\none\n" + line + b"\ntwo"))) == [b"one\n" + line + b"\ntwo"]


@pytest.mark.parametrize("line", [b"--b  ", b"--b\t", b"--b"])
def test_blanks_after_a_boundary_are_forgiven(line: bytes) -> None:
    """Transport may pad a boundary line."""
    assert texts(read(multipart(b"\none\n" + line + b"\n\ntwo"))) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("head", "mark"),
    [
        (b"multipart/mixed", "boundary:missing"),
        (b"multipart/mixed; boundary=other", "boundary:missing"),
        (b"multipart/mixed; boundary=" + b"x" * 1300, "boundary:missing"),
        (b'multipart/mixed; boundary=""', "boundary:missing"),
        (b"nonsense", "mime:bad-type"),
        (b"", "mime:bad-type"),
        (b"; charset=utf-8", "mime:bad-type"),
    ],
)
def test_broken_structure_is_read_as_text(head: bytes, mark: str) -> None:
    """Broken structure loses no text and leaves a mark."""
    message = read(b"Content-Type: " + head + b"\n\nhello\n")
    assert texts(message) == [b"hello"]
    assert mark in message.oddities


def test_an_unclosed_multipart_gives_its_parts() -> None:
    """A message cut off on its way is read as far as it goes."""
    message = read(b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\none\n--b\n\ntwo")
    assert texts(message) == [b"one", b"two"]
    assert message.oddities == ["boundary:unclosed"]
    assert texts(read(b"Content-Type: multipart/mixed; boundary=b\n\n--b")) == [b""]


def test_a_message_inside_gives_inner_headers_and_parts() -> None:
    """Headers of a forwarded message are kept apart from those of the outer message."""
    inner = b"From: eve@x\nSubject: =?utf-8?q?=C3=A9?=\nX-Other: no\n\ninner text"
    message = read(b"Subject: s\n" + multipart(b"Content-Type: message/rfc822\n\n" + inner))
    assert message.headers[-2:] == [(b"inner-from", b"eve@x"), (b"inner-subject", "é")]
    assert texts(message) == [b"inner text"]
    assert message.parts[0].depth == 2


def test_an_encoded_message_inside_is_unpacked() -> None:
    """RFC 2046 forbids to encode inner messages; encoded ones are read, too."""
    inner = base64.encodebytes(b"Subject: in\r\n\r\ntext\r\n")
    head = b"Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n"
    message = read(head + inner)
    assert message.headers[-1] == (b"inner-subject", b"in")
    assert texts(message) == [b"text\n"]


def test_parts_of_a_digest_are_messages() -> None:
    """In a digest a part without a type is a message (RFC 2046 5.1.5)."""
    message = read(multipart(b"\nSubject: one\n\ntext", kind=b"digest"))
    assert message.headers[-1] == (b"inner-subject", b"one")
    assert texts(message) == [b"text"]


def test_other_kinds_of_messages_are_text() -> None:
    """Delivery reports are read as they stand."""
    raw = b"Content-Type: message/delivery-status\n\nStatus: 5.1.1\n"
    assert texts(read(raw)) == [b"Status: 5.1.1"]


@pytest.mark.parametrize(
    "step",
    [
        "Content-Type: multipart/mixed; boundary=b{0}\n\n--b{0}\n",
        "Content-Type: message/rfc822\n\n",
    ],
)
def test_nesting_is_bounded(step: str) -> None:
    """Beyond the limit, structure is text."""
    steps = (step.format(f"-{i}-") for i in range(limits.DEPTH + 10))
    message = read("".join(steps).encode())
    assert {"mime:depth", PARTLY} <= set(message.oddities)
    assert len(message.parts) == 1
    assert message.parts[0].depth == limits.DEPTH


def test_parts_are_bounded() -> None:
    """Parts beyond the limit are not read and leave a mark."""
    message = read(multipart(*[b"\nx"] * 1000))
    assert len(message.parts) <= limits.PARTS + 1
    assert "mime:parts" in message.oddities
    message = read(multipart(*[multipart(*[b"\nx"] * 150, boundary=b"c")] * 3))
    assert len(message.parts) <= limits.PARTS + 1
    message = read(multipart(b"\n" + b"--bx\n" * (limits.DELIMITERS + 9), b"\nend"))
    assert "mime:parts" in message.oddities


def test_text_of_all_parts_has_one_limit() -> None:
    """Text beyond the message's share is not looked at; small parts are read whole."""
    half = b"x" * (limits.TEXT_BYTES // 2 + 10)
    message = read(multipart(b"\n" + half, b"\n" + half, b"\nmore"))
    assert limits.TEXT_BYTES - 8 <= sum(map(len, texts(message))) <= limits.TEXT_BYTES
    assert texts(message)[2] == b"more"
    assert message.oddities == [PARTLY, "text:huge"]
    assert [part.size for part in message.parts] == [len(half), len(half), 4]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (b'Content-Type: image/gif; name="a b.gif"', b"a b.gif"),
        (b"Content-Type: image/gif; NAME=a.gif ; x=y", b"a.gif"),
        (b'Content-Type: image/gif; name="a\\"b.gif"', b'a"b.gif'),
        (b'Content-Type: image/gif; name="open.gif', b"open.gif"),
        (b"Content-Type: image/gif; name==?utf-8?q?=C3=A9?=", "é"),
        (b'Content-Type: image/gif; name="=?utf-8?B?w6k=?=.gif"', "é.gif"),
        (b"Content-Type: image/gif; name=x\nContent-Disposition: inline; filename=y", b"y"),
        (b"Content-Type: image/gif; name=x\nContent-Disposition: inline", b"x"),
        (b"Content-Type: image/gif; name*=utf-8''%C3%A9.gif", "é.gif"),
        (b"Content-Type: image/gif; name*=''%C3%A9", "é"),
        (b"Content-Type: image/gif; name*=%C3%A9", b"%C3%A9"),
        (b"Content-Type: image/gif; name*1=b; name*0=a; name*2=c", b"abc"),
        (b"Content-Type: image/gif; name*0*=utf-8''%C3; name*1*=%A9", "é"),
        (b"Content-Type: image/gif; name*0*=bogus''%e9", "é"),
        (b"Content-Type: image/gif; name=" + b"x" * 999, b"x" * limits.NAME_TEXT),
        (b"Content-Type: image/gif", b""),
    ],
)
def test_file_names_are_read_in_every_spelling(fields: bytes, name: bytes | str) -> None:
    """A name is found by RFC 2231, encoded words, quotes, or bare, in either field."""
    assert read(fields + b"\n\nx").parts[0].name == name


@pytest.mark.parametrize(
    ("value", "mark"),
    [
        (b"a/b; name=x; name=y", "param:double"),
        (b"a/b" + b"; n=1" * 2 * limits.PARAM_STEPS, "param:many"),
    ],
)
def test_odd_parameters_leave_marks(value: bytes, mark: str) -> None:
    """Parameters that contradict each other or never end leave a mark."""
    assert mark in read(b"Content-Type: " + value + b"\n\nx").oddities


def test_parts_that_are_no_text_give_digest_and_head() -> None:
    """An attachment is known by its decoded content, not by how it travelled."""
    content = b"%PDF-1.4 and more"
    head = b"Content-Type: application/pdf\n"
    plain = read(head + b"\n" + content).parts[0]
    packed = head + b"Content-Transfer-Encoding: BASE64\n\n" + base64.encodebytes(content)
    part = read(packed).parts[0]
    assert (part.digest, part.head, part.size) == (plain.digest, b"%PDF-1.4", len(content))
    assert len(part.digest) == 8
    assert (part.text, part.encoding) == (b"", "base64")


def test_kind_and_disposition_are_normal() -> None:
    """Case, comments of old programs and blanks do not make another kind."""
    raw = b'Content-Type: TEXT/Html ; Charset="UTF-8"\nContent-Disposition: ATTACHMENT; x=y\n\n<p>a'
    part = read(raw).parts[0]
    assert (part.kind, part.charset, part.disposition) == ("text/html", "utf-8", "attachment")
    assert read(b"A: b\n\n<!DOCTYPE html><p>hi").parts[0].markup == b"p"
    assert read(b"Content-Type: text/plain\n\n<html><p>hi").parts[0].markup == b""
