"""Transfer encodings and charsets -> text."""

import base64
import codecs

import pytest

from spamnb.mail import charset, limits
from spamnb.mail.content import squeeze
from spamnb.mail.message import Part, read


def part(body: bytes, encoding: bytes = b"8bit", label: bytes = b"") -> tuple[Part, list[str]]:
    kind = b"text/plain" + (b"; charset=" + label if label else b"")
    head = b"Content-Type: " + kind + b"\nContent-Transfer-Encoding: " + encoding + b"\n\n"
    message = read(head + body)
    return message.parts[0], message.oddities


@pytest.mark.parametrize(
    ("body", "text", "odd"),
    [
        (b"aGVsbG8=", b"hello", []),
        (b"aGVs\nbG8=\n", b"hello", []),
        (b"aGVsbG8", b"hello", ["base64:broken"]),
        (b"aGVsbG8!", b"hello", ["base64:broken"]),
        (b"aGVsb", b"hel", ["base64:broken"]),
        (b"aGVsbG8=IHlvdQ==", b"hello you", ["base64:broken"]),
        (b"aGVs\nbG8=\n-- (YWR2) --\n", b"helloadv", ["base64:broken"]),
        (b"", b"", []),
        (b"====", b"", []),
    ],
)
def test_base64_is_read_as_far_as_it_goes(body: bytes, text: bytes, odd: list[str]) -> None:
    """Junk, missing padding and joined pieces lose nothing that can be read."""
    found, marks = part(body, b"base64", b"iso-8859-15")
    wanted = text.decode("iso-8859-15")
    assert found.text == (text if wanted.isascii() else wanted)
    assert [mark for mark in marks if mark.startswith("base64")] == odd


@pytest.mark.parametrize(
    ("body", "text", "odd"),
    [
        (b"a=20b=\n c=3D", b"a b c=", []),
        (b"a=  \nb", b"ab", []),
        (b"a=ZZb", b"a=ZZb", ["qp:broken"]),
        (b"a=", b"a", []),
        (b"a=3", b"a=3", ["qp:broken"]),
        (b"=3c=3C", b"<<", []),
    ],
)
def test_quoted_printable_is_read_as_far_as_it_goes(
    body: bytes, text: bytes, odd: list[str]
) -> None:
    """Soft line ends are joined, and text that is no escape stays."""
    found, marks = part(body, b"Quoted-Printable")
    assert (found.text, marks) == (text, odd)


def test_unknown_encodings_are_text_as_it_stands() -> None:
    """An unknown encoding leaves a mark, and the text is read."""
    assert part(b"hello", b"x-rot26") == (
        Part("text/plain", encoding="x-rot26", size=5, text=b"hello"),
        ["encoding:unknown"],
    )


@pytest.mark.parametrize(
    ("label", "raw", "text"),
    [
        (b"utf-8", b"caf\xc3\xa9", "café"),
        (b"UTF8", b"caf\xc3\xa9", "café"),
        (b"iso-8859-1", b"\x93caf\xe9\x94", "“café”"),
        (b"windows-1252", b"caf\xe9", "café"),
        (b"x-cp1251", b"\xef\xf0\xe8", "при"),
        (b"koi8-r", b"\xd0\xd2\xc9", "при"),
        (b"ISO_8859-5", b"\xdf\xe0\xd8", "при"),
        (b"gb2312", b"\xc4\xe3\xba\xc3", "你好"),
        (b"big5", b"\xa7A\xa6n", "你好"),
        (b"ks_c_5601-1987", b"\xb0\xa1", "가"),
        (b"shift_jis", b"\x93\xfa", "日"),
        (b"iso-2022-jp", b"\x1b$BF|\x1b(B", "日"),
        (b"hz-gb-2312", b"~{<:Ky~}", "己所"),
        (b"utf-7", b"+AOk-", "é"),
        (b"utf-16", b"\xff\xfe\xe9\0", "é"),
        (b"us-ascii", b"plain", b"plain"),
        (b"utf-16", b"a\0b\0", b"ab"),
    ],
)
def test_declared_charsets_are_believed_when_true(
    label: bytes, raw: bytes, text: bytes | str
) -> None:
    """A true declaration is followed, in the spelling of any program, and leaves no mark."""
    found, odd = part(raw, b"8bit", label)
    assert found.text == text
    assert [mark for mark in odd if mark != "text:nul"] == []


@pytest.mark.parametrize(
    ("label", "raw", "text", "mark"),
    [
        (b"utf-8", b"caf\xe9", "café", "charset:wrong"),
        (b"utf-16", b"abc", b"abc", "charset:wrong"),
        (b"", b"caf\xc3\xa9", "café", "charset:undeclared-8bit"),
        (b"us-ascii", b"caf\xc3\xa9", "café", "charset:undeclared-8bit"),
        (b"x-what", b"caf\xe9", "café", "charset:unknown"),
        (b"x-what", b"cafe", b"cafe", "charset:unknown"),
        (b"", b"\xa1", "\xa1", "charset:undeclared-8bit"),
        (b"", "Привет, как дела у вас".encode("koi8-r"), None, "charset:undeclared-8bit"),
        (b"", "こんにちは世界。これは試験です。".encode("euc-jp"), None, "charset:undeclared-8bit"),
    ],
)
def test_wrong_charsets_are_guessed_and_reported(
    label: bytes, raw: bytes, text: str | bytes | None, mark: str
) -> None:
    """Without a true declaration: utf-8 if it fits, else the detector, else western."""
    found, odd = part(raw, b"8bit", label)
    assert found.text
    assert text is None or found.text == text
    assert mark in odd


@pytest.mark.parametrize(
    "name",
    [
        *("rot13", "rot_13", "zlib", "bz2", "base64", "hex", "quopri", "uu", "idna", "punycode"),
        "unicode_escape",
        "raw_unicode_escape",
        "undefined",
        "mbcs",
        "utf-8-sig\x00",
        "../x",
        "é",
    ],
)
def test_only_codecs_of_text_are_used(name: str) -> None:
    """No name from a message reaches Python's registry of codecs."""
    assert charset.codec_of(name) == "?"
    found, odd = part(b"uryyb \xff", b"8bit", name.encode())
    assert isinstance(found.text, str)
    assert found.text.startswith("uryyb ")
    assert "charset:unknown" in odd


def test_every_codec_of_the_table_exists() -> None:
    """The table names codecs that Python has and that read text."""
    for codec in {codec for codec in charset.CODECS.values() if codec}:
        assert codecs.lookup(codec)._is_text_encoding


def test_a_cut_within_a_character_is_not_the_senders_fault() -> None:
    """Where the limit of spamnb splits a character, the rest is still read as declared."""
    found, odd = part("aé".encode() * limits.TEXT_BYTES, b"8bit", b"utf-8")
    assert odd == ["read:partly", "text:huge"]
    assert found.text[:4] == "aéaé"


@pytest.mark.parametrize(
    ("text", "seen", "odd"),
    [
        ("pass\u200bword", b"password", ["text:zero-width"]),
        ("end\u200b. ok", b"end. ok", []),
        ("a\u00adb", b"ab", ["text:zero-width"]),
        ("no\u00a0break", b"no break", []),
        ("\u202egnp.exe", b"exe.png", ["text:bidi"]),
        ("p\u0430ypal", "p\u0430ypal", ["text:mixed-script"]),
        ("\u0440aypal", "\u0440aypal", ["text:mixed-script"]),
        ("Ap\u03c1le", "Ap\u03c1le", ["text:mixed-script"]),
        ("10 k\u03a9, 5 \u03bcm, \u0394x", "10 k\u03a9, 5 \u03bcm, \u0394x", []),
        ("mail для всех", "mail для всех", []),
        (
            "\U0001d413\U0001d421\U0001d422",
            "\U0001d413\U0001d421\U0001d422",
            ["text:styled-letters"],
        ),
        ("ＦＲＥＥ", "ＦＲＥＥ", ["text:styled-letters"]),
    ],
)
def test_characters_that_deceive_are_reported(text: str, seen: bytes | str, odd: list[str]) -> None:
    """Unseen characters go, and tricks with scripts and directions leave a mark."""
    found, marks = part(text.encode(), b"8bit", b"utf-8")
    assert (found.text, marks) == (seen, odd)


def test_nul_and_uuencode_are_reported() -> None:
    """Bytes and blocks that do not belong into text leave a mark."""
    assert part(b"a\0b")[1] == ["text:nul"]
    assert part(b"x\nbegin 644 a.exe\nM")[1] == ["text:uuencode"]
    assert part(b"to begin 1 x")[1] == []
    assert part(b"a\rb")[1] == ["text:bare-cr"]


def test_html_may_declare_its_charset_itself() -> None:
    """Where the field says nothing, the page's own declaration counts."""
    body = '<meta http-equiv=x content="text/html; charset=windows-1251"><p>при'.encode("cp1251")
    assert read(b"Content-Type: text/html\n\n" + body).parts[0].text == "при"
    raw = b"Content-Type: text/html\n\n<p>caf\xe9"
    assert read(raw).parts[0].text == "café"


def test_large_content_is_decoded_whole() -> None:
    """Size and digest are those of all the content, whatever of it is looked at."""
    content = bytes(range(256)) * 5000
    raw = b"Content-Type: image/png\nContent-Transfer-Encoding: base64\n\n"
    assert read(raw + base64.encodebytes(content)).parts[0].size == len(content)


@pytest.mark.parametrize(
    ("blanks", "left"),
    [(b" " * 16, b"\n"), (b" \t\r\n" * 4, b"\n"), (b"\t" * 500, b"\n"), (b" \t" * 7 + b" ",) * 2],
)
def test_long_blanks_are_no_text(blanks: bytes, left: bytes) -> None:
    """In a text that is too long, sixteen blanks of any kind are one line feed, fewer stay."""
    assert squeeze(b"one" + blanks + b"two", html=False) == b"one" + left + b"two"
