"""Fields: where a block ends, what values say, what is odd."""

import pytest

from spamnb.mail import headers, limits
from spamnb.mail.message import Message, read


def subject(value: bytes) -> Message:
    return read(b"Subject: " + value + b"\n\nbody\n")


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        (b"plain", b"plain"),
        (b"  outer blanks \t", b"outer blanks"),
        (b"a\n b\n\tc", b"a b\tc"),
        (b"=?utf-8?q?a_b=21?=", b"a b!"),
        (b"=?utf-8?B?w6k=?=", "é"),
        (b"=?utf-8?B?w6k?=", "é"),
        (b"=?UTF-8*en?Q?=C3=A9?=", "é"),
        (b"=?utf-8?B?ww==?= =?utf-8?b?qQ==?=", "é"),
        (b"=?utf-8?q?=C3?= =?utf-8?q?=A9?=", "é"),
        (b"=?utf-8?q?=C3=A9?=\n =?iso-8859-1?q?=E9?=", "éé"),
        (b"=?utf-8?q?=C3=A9?= and =?utf-8?q?=C3=A9?=", "é and é"),
        (b"x=?utf-8?q?=C3=A9?=y", "xéy"),
        (b"=?gb2312?B?xOO6ww==?=", "你好"),
        (b"=?iso-2022-jp?B?GyRCRnxLXBsoQg==?=", "日本"),
        (b"=?rot13?q?uryyb?=", b"uryyb"),
        (b"caf\xc3\xa9", "café"),
        (b"caf\xe9", "café"),
        (b"=?utf-8?q?open", b"=?utf-8?q?open"),
        (b"=?utf-8?x?a?=", b"=?utf-8?x?a?="),
    ],
)
def test_values_are_decoded_as_their_senders_meant(value: bytes, decoded: bytes | str) -> None:
    """Encoded words are read, joined by RFC 2047, and ASCII stays bytes."""
    assert subject(value).headers == [(b"subject", decoded)]


@pytest.mark.parametrize(
    ("value", "mark"),
    [
        (b"=?utf-8?q?open", "header:broken-word"),
        (b"=?utf-8?b?A?=", "header:broken-word"),
        (b"=?nonsense?q?=E9?=", "charset:unknown"),
        (b"=?utf-8?q?=E9?=", "charset:wrong"),
        (b"caf\xe9", "header:8bit"),
        (b"=?utf-8?b?UNCweVBhbA==?=", "text:mixed-script"),
        (b"a\rb", "header:bare-cr"),
        (b"=?utf-8?q?a?= " * (limits.WORDS + 1), "header:many-words"),
        (b"x" * (limits.VALUE_BYTES + 1), "header:long"),
        (b"x\n" * 5 + b"y", "header:junk"),
    ],
)
def test_odd_values_leave_marks(value: bytes, mark: str) -> None:
    """Broken and deceptive fields are kept and marked."""
    assert mark in subject(value).oddities


def test_names_are_lower_case_and_blanks_before_the_colon_are_forgiven() -> None:
    """A field is known by its name, however that is spelled."""
    message = read(b"SUBJECT : x\nX-Thing:y\n\n")
    assert message.headers == [(b"subject", b"x"), (b"x-thing", b"y")]


@pytest.mark.parametrize(
    ("raw", "fields", "text", "mark"),
    [
        (b"hello\nworld\n", [], b"hello\nworld", "header:none"),
        (b" indented\n\nx", [], b"indented\n\nx", "header:none"),
        (b"A: b\nno field\nC: d\n\nx", [b"a"], b"no field\nC: d\n\nx", "header:junk"),
        (b"A: b\n c\nno field", [b"a"], b"no field", "header:junk"),
        (b"A: b\nSubject\n\nx", [b"a"], b"Subject\n\nx", "header:junk"),
        (b"A: b", [b"a"], b"", None),
        (b"A: b\n", [b"a"], b"", None),
        (b"\nx", [], b"x", None),
        (b"y" * 2000 + b": z\n\nx", [], b"y" * 2000 + b": z\n\nx", "header:none"),
    ],
)
def test_a_line_that_is_no_field_ends_the_block(
    raw: bytes, fields: list[bytes], text: bytes, mark: str | None
) -> None:
    """Header and body part where Postfix parts them, and no text is lost."""
    message = read(raw)
    assert [name for name, _ in message.headers] == fields
    found = message.parts[0].text
    assert isinstance(found, bytes)
    assert found.strip() == text.strip()
    assert mark is None or mark in message.oddities


def test_double_fields_are_reported_and_the_first_one_counts() -> None:
    """Two subjects are odd; structure is read by either of two types, since programs differ."""
    message = read(
        b"Subject: a\nSubject: b\nContent-Type: text/html\nContent-Type: text/plain\n\nx"
    )
    assert message.oddities == [
        "header:double-content-type", "header:double-subject", "read:partly"
    ]  # fmt: skip
    assert message.parts[0].kind == "text/html"


@pytest.mark.parametrize(
    ("value", "found"),
    [(b"<a@b>", "a@b"), (b" a@b ", "a@b"), (b"<" + b"x" * 999, "x" * 254), (b"<\xe9>", "é")],
)
def test_the_message_id_is_bare_and_short(value: bytes, found: str) -> None:
    """The Message-ID is stored without brackets, and its length is limited."""
    assert read(b"Message-ID: " + value + b"\n\n").message_id == found
    assert read(b"A: b\n\n").message_id == ""


def test_fields_beyond_the_limits_are_left_out_of_features() -> None:
    """Values are cut to a limit, and so are the bytes and the number of fields of a block."""
    message = read(b"A: " + b"x" * 9000 + b"\n\n")
    assert len(message.headers[0][1]) == limits.VALUE_BYTES
    message = read(b"A: " + b"x" * 8000 + b"\n" + (b"B: " + b"y" * 8000 + b"\n") * 20 + b"\n")
    assert sum(len(value) for _, value in message.headers) < limits.HEADER_BYTES
    assert "header:huge" in message.oddities
    assert len(read(b"A: b\n" * 4000 + b"\n").headers) == limits.FIELDS


def test_known_names_do_not_fill_the_memory() -> None:
    """The cache of classified field names stays bounded, and does not store long names."""
    for start in range(0, 2 * limits.NAMES_KNOWN, 1000):
        read(b"".join(b"N%d: b\n" % i for i in range(start, start + 1000)) + b"\n")
    assert len(headers._classes) <= limits.NAMES_KNOWN
    name = b"x" * (limits.NAME_BYTES + 1)
    assert len(read(name + b": b\n\n").headers[0][0]) == limits.NAME_BYTES
    assert name not in headers._classes
