"""Decode bytes to characters: by charset, and by the encoded words of headers (RFC 2047).

Marks characters that are used to deceive. Holds the only table of codecs that may read mail: no
name from a message ever reaches Python's codec registry, which has `rot13`, `zlib` and
`unicode_escape` besides `utf-8`. It must not know where the bytes stood in a message.

Invariants: ASCII stays `bytes`, everything else becomes `str`; `to_text` never raises; work is
linear and the detector sees a bounded sample. A wrong or missing declaration leaves a mark.
"""

from __future__ import annotations

import binascii
import re
from functools import lru_cache
from typing import Final

import cchardet

from spamnb.mail import limits

Text = bytes | str
"""bytes when pure ASCII (the fast path for all callers), str otherwise"""

_SAME: Final = re.findall(
    r"\w+",
    """
    utf_8 utf_16 utf_16_le utf_16_be utf_32 utf_32_le utf_32_be utf_7 koi8_r koi8_u koi8_t big5
    big5hkscs gb18030 hz euc_jp euc_kr cp932 cp949 cp874 cp437 cp737 cp775 cp850 cp852 cp855 cp857
    cp858 cp860 cp861 cp862 cp863 cp864 cp865 cp866 cp869 cp1006 cp1125 cp1250 cp1251 cp1252 cp1253
    cp1254 cp1255 cp1256 cp1257 cp1258 iso8859_2 iso8859_3 iso8859_4 iso8859_5 iso8859_6 iso8859_7
    iso8859_8 iso8859_10 iso8859_13 iso8859_14 iso8859_15 iso8859_16 iso2022_jp iso2022_jp_1
    iso2022_jp_2 iso2022_jp_3 iso2022_kr johab ptcp154 kz1048 mac_roman mac_cyrillic mac_greek
    mac_turkish mac_latin2 cp037 cp273 cp424 cp500 cp875 cp1026 cp1140
    """,
)
_OTHER: Final = {
    # the name in mail -> the codec that reads what it stands for: the larger set of its family,
    # as in the WHATWG table (a "gb2312" message holds gbk, a "latin-1" message holds cp1252)
    "ascii": "",
    "usascii": "",
    "ansix341968": "",
    "646": "",
    "iso646us": "",
    "iso88591": "cp1252",
    "latin1": "cp1252",
    "l1": "cp1252",
    "iso8859111": "cp874",
    "iso88599": "cp1254",
    "latin5": "cp1254",
    "iso885911": "cp874",
    "tis620": "cp874",
    "latin2": "iso8859_2",
    "latin9": "iso8859_15",
    "iso88598i": "iso8859_8",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "cp936": "gb18030",
    "euccn": "gb18030",
    "gb231280": "gb18030",
    "hzgb2312": "hz",
    "windows936": "gb18030",
    "xgbk": "gb18030",
    "shiftjis": "cp932",
    "sjis": "cp932",
    "xsjis": "cp932",
    "mskanji": "cp932",
    "windows31j": "cp932",
    "ksc56011987": "cp949",
    "ksc5601": "cp949",
    "euckr": "cp949",
    "uhc": "cp949",
    "ks_c_56011987": "cp949",
    "windows949": "cp949",
    "xeucjp": "euc_jp",
    "unicode11utf8": "utf_8",
    "utf8mb4": "utf_8",
    "u8": "utf_8",
    "unicode11utf7": "utf_7",
    "macintosh": "mac_roman",
    "xmacroman": "mac_roman",
    "xmaccyrillic": "mac_cyrillic",
    "big5": "big5hkscs",
    "cnbig5": "big5hkscs",
    "xxbig5": "big5hkscs",
    "cp950": "big5hkscs",
    "koi8": "koi8_r",
    "cskoi8r": "koi8_r",
    "windows874": "cp874",
    "ibm866": "cp866",
    "iso2022jpms": "iso2022_jp_3",
    "csiso2022jp": "iso2022_jp",
    "ucs2": "utf_16",
    "unicode": "utf_16",
    "csunicode": "utf_16",
    "csutf16": "utf_16",
    "iso10646ucs2": "utf_16",
    "unicodefffe": "utf_16_be",
    "unicodefeff": "utf_16_le",
    "ucs4": "utf_32",
    "csucs4": "utf_32",
    "iso10646ucs4": "utf_32",
    "csutf32": "utf_32",
    "csutf7": "utf_7",
    # EBCDIC: the other pages have the same letters and digits as one of those that Python knows
    "ebcdiccpus": "cp037",
    "ebcdiccpca": "cp037",
    "ebcdiccpwt": "cp037",
    "ebcdiccpnl": "cp037",
    "ebcdiccpbe": "cp500",
    "ebcdiccpch": "cp500",
    "csibm037": "cp037",
    "csibm500": "cp500",
    "utfebcdic": "cp037",
    "cp1047": "cp037",
    "cp01047": "cp037",
    **{f"cp{page}": "cp500" for page in (277, 278, 280, 284, 285, 297, 870, 871)},
    **{f"cp0{page}": "cp1140" for page in range(1140, 1150)},
    **{f"cp{page}": "cp1140" for page in range(1141, 1150)},
}
_NO_SIGNS: Final = str.maketrans("", "", "-_ .:'\"")
_DIGITS = re.compile(r"(?:windows|ibm|dos|xcp|mswin|win)(?=\d)")
_UNKNOWN: Final = "?"
_WORD = re.compile(rb"=\?([^?\s]{1,60})\?([bBqQ])\?([^?]*+)\?=")
_ASCII: Final = bytes(range(128))


def _spelling(label: str) -> str:
    return _DIGITS.sub("cp", label.lower().translate(_NO_SIGNS))


CODECS: Final[dict[str, str]] = {
    **{_spelling(name): name for name in _SAME},
    **{_spelling(name): codec for name, codec in _OTHER.items()},
}
SHIFTED: Final = frozenset(
    name
    for name in _SAME
    if name in {"hz", "cp037", "cp273", "cp424", "cp500", "cp875", "cp1026", "cp1140"}
    or name.startswith(("utf_7", "utf_16", "utf_32", "iso2022"))
)
"""codecs in which bytes that look like ASCII mean something else"""

_UNSEEN: Final = (
    "\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Control characters, and those that Unicode calls default ignorable: programs show nothing for
them, so they can split a word invisibly."""
ZERO_WIDTH = re.compile(f"[{_UNSEEN}]+")
_EUROPEAN: Final = "[A-Za-z\u00c0-\u024f\u0370-\u052f]"
SPLIT_WORD = re.compile(f"{_EUROPEAN}{ZERO_WIDTH.pattern}{_EUROPEAN}")
BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_OVERRIDDEN = re.compile("\u202e([^\u202a-\u202e\u2066-\u2069\n]*+)")
"""what an override shows from right to left, up to the next bidi control or line"""
_STYLED: Final = "\U0001d400-\U0001d7ff\uff21-\uff3a\uff41-\uff5a\u24b6-\u24e9\U0001f130-\U0001f189"
LETTERS = re.compile(f"[{_STYLED}]")
STYLED = re.compile(f"[{_STYLED}]{{3}}")
# Letters that look like Latin ones: Cyrillic, Armenian, Cherokee, and some of Greek (kΩ, μm and Δx
# are legitimate). Ranges in `re` take 12 ns a character, properties in `regex` 30.
_LATIN: Final = "A-Za-zÀ-ÖØ-öø-ɏ"
_LOOKS: Final = "\u0400-\u052f\u0531-\u0587\u13a0-\u13ff\uab70-\uabbfΑΒΕΖΗΙΚΜΝΟΡΤΥΧοικνρυ"
# Any character of interest: one search instead of five.
NOTABLE = re.compile(f"[{_LOOKS}{_STYLED}{_UNSEEN}]")
CONTROLS: Final = bytes((*range(9), *range(14, 32), 127))

LOOKS = re.compile(f"[{_LOOKS}]")
# The look-alike comes first: a search that starts at any Latin letter took ten times as long.
MIXED = re.compile(
    f"[{_LOOKS}](?:[\u0300-\u036f]?[{_LATIN}]|(?<=[{_LATIN}].)|(?<=[{_LATIN}][\u0300-\u036f].))"
)


def codec_of(label: str) -> str:
    """Find the codec for a declared charset: "" for ASCII or nothing declared, "?" if unknown."""
    return _codec_of(label[:60]) if label else ""


@lru_cache(maxsize=256)
def _codec_of(label: str) -> str:
    return CODECS.get(_spelling(label), _UNKNOWN)


def is_wide(label: str) -> bool:
    """Whether a charset does not read ASCII bytes as ASCII, even without an escape sequence."""
    codec = codec_of(label)
    return codec in SHIFTED and not codec.startswith(("iso2022", "hz"))


def _ordered(raw: bytes, codec: str) -> str:
    """Find the byte order of UTF-16 and UTF-32 without a mark, from the positions of zero bytes.

    RFC 2781 says big, the WHATWG little, and Python takes that of the machine.
    """
    unit = {"utf_16": 2, "utf_32": 4}.get(codec, 0)
    if not unit or raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        return codec
    sample = raw[: limits.SAMPLE_BYTES]
    is_big = sample[::unit].count(0) > sample[unit - 1 :: unit].count(0)
    return codec + ("_be" if is_big else "_le")


def _strict(raw: bytes, codec: str) -> str | None:
    try:
        return raw.decode(codec)
    except UnicodeError:
        return None


def _guessed(raw: bytes) -> str:
    """Decode bytes without a declared charset, or with a wrong one."""
    text = _strict(raw, "utf_8")
    if text is not None:
        return text
    found = cchardet.detect(raw[: limits.SAMPLE_BYTES]).get("encoding")
    codec = codec_of(found or "")
    if codec not in {"", _UNKNOWN}:
        text = _strict(raw, codec)
        if text is not None and codec in SHIFTED:
            return f"{text}\n{raw.decode('cp1252', 'replace')}"  # other programs may guess another
        if text is not None:
            return text
    return _strict(raw, "cp1252") or raw.decode("latin-1")


def compact_text(text: str) -> Text:
    """The text as bytes if it is ASCII."""
    return text.encode("ascii") if text.isascii() else text


def to_text(raw: bytes, label: str, marks: set[str], where: str) -> Text:
    """Decode `raw` by the declared charset if that fits, else by the best guess."""
    codec = codec_of(label)
    if codec == _UNKNOWN:
        marks.add("charset:unknown")
    if codec not in SHIFTED and raw.isascii():
        return raw
    if codec not in {"", _UNKNOWN}:
        codec = _ordered(raw, codec)
        text = _strict(raw, codec)
        if text is not None:
            return compact_text(text)
        marks.add("charset:wrong")
        if is_wide(codec) and (b"\0" in raw or not codec.startswith("utf_")):
            return compact_text(raw.decode(codec, "replace"))
    elif not codec and where == "text":
        marks.add("charset:undeclared-8bit")
    return compact_text(_guessed(raw))


def non_ascii(text: str) -> str:
    """The characters beyond ASCII, joined. Takes 1 ns for an ASCII character, `re` takes 8."""
    raw = text.encode("utf-8", "surrogatepass").translate(None, _ASCII)
    return raw.decode("utf-8", "surrogatepass")


def clean_text(text: Text, marks: set[str]) -> Text:
    """Remove invisible characters from a text; mark the misuse of these and of look-alikes.

    A no-break space becomes a space: most html is ASCII except for no-break spaces, and so stays
    bytes.
    """
    if isinstance(text, bytes):
        bare = text.translate(None, CONTROLS)
        if len(bare) < len(text):
            marks.add("text:zero-width")
        return bare
    text = text.replace("\xa0", " ")
    if text.isascii():
        return compact_text(text)
    # each character once, in any order: 0.4 us for most texts, 16 ms for 262,144 characters
    signs = "".join(set(non_ascii(text)))
    if NOTABLE.search(signs) is None:
        return text
    if ZERO_WIDTH.search(signs) is not None:
        if SPLIT_WORD.search(text) is not None:
            marks.add("text:zero-width")
        if "\u202e" in signs:
            text = _OVERRIDDEN.sub(lambda part: part[1][::-1], text)
        text = ZERO_WIDTH.sub("", text)
    if BIDI.search(signs) is not None:
        marks.add("text:bidi")
    sample = text[: limits.SCRIPT_SAMPLE]
    if LOOKS.search(signs) is not None and MIXED.search(sample) is not None:
        marks.add("text:mixed-script")
    if LETTERS.search(signs) is not None and STYLED.search(sample) is not None:
        marks.add("text:styled-letters")
    return compact_text(text)


def _word(charset: bytes, kind: bytes, text: bytes, marks: set[str]) -> tuple[str, bytes]:
    label = charset.partition(b"*")[0].decode("latin-1").lower()
    if kind in b"qQ":
        # binascii skips what follows a bare CR.
        return label, binascii.a2b_qp(text.replace(b"\r", b""), header=True)
    try:
        return label, binascii.a2b_base64(text + b"==")
    except binascii.Error:
        marks.add("header:broken-word")
        return label, text


def _words(value: bytes, marks: set[str]) -> str:
    """Read a value with encoded words (RFC 2047).

    Blanks between two words are dropped, and words of one charset are joined before decoding, as
    many senders split within a character.
    """
    out: list[str] = []
    pending: list[bytes] = []
    label, at = "", 0
    for count, match in enumerate(_WORD.finditer(value)):
        if count == limits.WORDS:
            marks.add("header:many-words")
            break
        between = value[at : match.start()]
        name, raw = _word(match[1], match[2], match[3], marks)
        glued = bool(pending) and not between.strip()
        if pending and not (glued and name == label):
            out.append(_string(b"".join(pending), label, marks))
            pending = []
        if not glued:
            out.append(_string(between, "", marks))
        label, at = name, match.end()
        pending.append(raw)
    out.append(_string(b"".join(pending), label, marks))
    rest = value[at:]
    if b"=?" in rest:
        marks.add("header:broken-word")
    out.append(_string(rest, "", marks))
    return "".join(out)


def _string(raw: bytes, label: str, marks: set[str]) -> str:
    text = to_text(raw, label, marks, "header")
    return text.decode("ascii") if isinstance(text, bytes) else text


def header_text(value: bytes, marks: set[str]) -> Text:
    """Decode a field's value, and remove invisible characters."""
    if b"=?" not in value and value.isascii():
        return value
    return clean_text(written_text(value, marks), marks)


def written_text(value: bytes, marks: set[str]) -> Text:
    """Decode a field's value, with all characters, in the order in which they were written."""
    if b"=?" in value:
        return compact_text(_words(value, marks))
    if value.isascii():
        return value
    marks.add("header:8bit")
    return to_text(value, "", marks, "header")
