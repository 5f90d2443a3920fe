"""Laws of reading: total, deterministic, one identity for one message."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from spamnb.mail import limits
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import Message, canonical, read
from spamnb.model.features import Key, extract
from spamnb.model.tokens import SHAPES, fields, location_shown, text_shown

WORDS = [
    *(b"\n", b"\n\n", b"\r\n", b"\r", b" ", b"\t", b":", b";", b"=", b'"', b"'", b"--", b"\0"),
    *(b"Content-Type: ", b"multipart/mixed; boundary=b", b"multipart/digest; boundary=b"),
    *(b"text/html", b"text/plain", b"message/rfc822", b"; charset=", b"utf-8", b"utf-7", b"hz"),
    *(b"utf-16", b"iso-2022-jp", b"rot13", b"\n--b\n", b"\n--b--\n", b"--bb"),
    *(b"Content-Transfer-Encoding: ", b"base64", b"quoted-printable", b"=3D", b"=\n", b"QUJD"),
    *(b"Subject: ", b"=?utf-8?q?", b"=?koi8-r?B?", b"?=", b"From ", b"Received: by h", b"X-Spam: "),
    *(b"name*0*=utf-8''", b"name*1=", b"%C3", b"\xc3\xa9", b"\xff", b"\xd0\xb0", b"a", b"word"),
    *(b"<", b">", b"</", b"<!--", b"-->", b"<a href=", b"<p>", b"<style>", b"</style>", b"&#0;"),
    *(b"<b style=", b"display:none", b"font-size:0", b".x{", b"}", b"@media{", b"color:white"),
    *(b"bgcolor=red", b"<font color=red>", b"<table>", b"<svg>", b"hidden", b"http://a.b.cd/"),
    *(b"<html ", b"<body ", b" hidden>", b"<td bgcolor=#12=456>"),
]
MAIL = st.lists(st.sampled_from(WORDS), max_size=60).map(b"".join)
HTML = MAIL.map(lambda body: b"Content-Type: text/html\n\n" + body)
ANY = st.binary(max_size=300) | MAIL | HTML

ADDED = st.sampled_from(
    [
        b"X-Spam-Status: Yes\n",
        b"X-Spamnb-Verdict: x\n\tfolded\n",
        b"Return-Path: <a@b>\n",
        b"Delivered-To: c@d\n",
        b"X-Original-To: c@d\n",
        b"Received: from x by mx.example.net; now\n",
        b"Authentication-Results: stranger; spf=pass\n",
        b"X-Mozilla-Status: 0001\n",
    ]
)
OURS = LocalHosts(hosts=("mx.example.net",), authserv_ids=("mx.example.net",))


def without_cr(raw: bytes) -> bytes:
    return raw.replace(b"\r", b"")


def is_text(value: object) -> bool:
    """Whether a text is bytes exactly when it is ASCII."""
    return (isinstance(value, bytes) and value.isascii()) or (
        isinstance(value, str) and not value.isascii()
    )


def lean_values(message: Message) -> list[object]:
    values: list[object] = []
    for part in message.parts:
        values += [part.name, part.text, part.hidden, *part.links, *part.images]
    return values


@given(ANY)
@example(b"Subject: \xff\n\n")
def test_reading_is_total_and_deterministic(raw: bytes) -> None:
    """Any bytes give a message, and the same bytes the same one."""
    message = read(raw)
    assert message == read(raw)
    assert message.parts
    assert len(message.digest) == 16
    assert message.oddities == sorted(set(message.oddities))


@given(ANY)
def test_the_canonical_form_is_stable(raw: bytes) -> None:
    """The canonical form is its own, and has the digest of the message."""
    form = canonical(raw)
    assert canonical(form) == form
    assert read(form).digest == read(raw).digest
    assert read(form).parts == read(raw).parts


@given(ANY.map(without_cr))
def test_line_ends_do_not_count(raw: bytes) -> None:
    """With LF or CRLF it is the same message."""
    assert read(raw.replace(b"\n", b"\r\n")) == read(raw)


@given(ANY.map(without_cr), st.lists(ADDED, min_size=1, max_size=4))
def test_delivery_changes_nothing(raw: bytes, added: list[bytes]) -> None:
    """What delivery and other filters put before a message is no part of it."""
    assume(not raw.startswith((b" ", b"\t", b"From ", b">From ")))
    # a text without any header is no message on the wire: the first hop gives it a header
    raw = b"Date: today\n" + raw
    assert read(b"".join(added) + raw, OURS) == read(raw, OURS)


@given(ANY)
def test_text_is_bytes_exactly_when_it_is_ascii(raw: bytes) -> None:
    """Everything downstream may choose its fast path by the type alone."""
    message = read(raw)
    for name, value in message.headers:
        assert isinstance(name, bytes)
        assert is_text(value)
    for value in lean_values(message):
        assert is_text(value)


@given(ANY, st.integers(1, 40))
def test_output_is_bounded(raw: bytes, times: int) -> None:
    """No message yields more text than the limits say, nor much more than it has."""
    message = read(raw * times)
    texts = sum(len(part.text) for part in message.parts)
    assert texts <= limits.TEXT_BYTES
    assert texts <= 4 * len(raw) * times + 10
    assert len(message.parts) <= limits.PARTS + 1


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_alone_and_in_a_row(byte: int) -> None:
    """No single byte, alone, repeated, or where text stands, is special enough to fail."""
    raw = bytes([byte])
    for source in (raw, raw * 99, b"Subject: " + raw * 9 + b"\n\n" + raw * 9):
        assert read(source).parts


HEADER = st.lists(
    st.sampled_from(
        [
            *(b"From: ", b"To: ", b"Reply-To: ", b"Received: from ", b"Message-ID: <", b"X-1: "),
            *(b"Ann Lee", b"<ann@a.example>", b"@", b"@@", b"<", b'"', b" (a.example [192.0.2.1])"),
            *(b" by b; now", b"[", b"]", b".", b"..", b"\xc3\xa9", b"=?utf-8?q?=C3=A9?=", b"\n "),
            *(
                b"\n",
                b"\n\n",
                b"http://a.example/b",
                b"://",
                b"\n> ",
                b"!",
                b"word",
                b"\0",
                b"7" * 99,
            ),
        ]
    ),
    max_size=60,
).map(b"".join)


@given(HEADER | ANY, st.sets(ADDED))
def test_shapes_are_total_bounded_and_the_same_everywhere(raw: bytes, added: set[bytes]) -> None:
    """No bytes fail; delivery and neighbours in a batch change no shape."""
    key = Key(bytes(32))
    message = fields(read(raw, OURS))
    assert len(message) < 600
    alone = extract(key, [message])
    beside = extract(key, [fields(read(b"Subject: x\n\nother\n")), message])
    for one, other in zip(alone.by_group(0), beside.by_group(1), strict=True):
        assert one.tolist() == other.tolist()
    delivered = b"".join(sorted(added)) + raw
    assume(read(delivered, OURS).digest == read(raw, OURS).digest)
    again = fields(read(delivered, OURS))
    assert [one for one in again if one[0] in SHAPES] == [
        one for one in message if one[0] in SHAPES
    ]
    shown = [alone.word(row) for row in alone.of(0).tolist()]
    assert all(location_shown(at) and isinstance(text_shown(at, text), str) for at, text in shown)
