"""Parameters, transfer encodings and shares of text in the parts of a message.

Nothing raises; what is broken is decoded as far as it can be and marked. Must not know structure or
charsets.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

import numpy as np

from spamnb.mail import limits
from spamnb.mail.charset import Text, clean_text, header_text, to_text, written_text
from spamnb.mail.limits import PARTLY

BLANKS = re.compile(rb"[ \t\r\n]{16,}")
_AS_BLANK = bytes.maketrans(b"\t\r\n", b"   ")
DATA_URI = re.compile(rb"base64,[A-Za-z0-9+/=%]{64,}")


def text_shares(parts: Sequence[tuple[int, int]]) -> list[int]:
    """The share of each part, given its rank and size.

    Parts of one rank get equal shares, plus what small ones leave; the next rank gets the rest.

    The shares of all parts are at most `limits.TEXT_BYTES`; a part that is smaller than a fair
    share stays whole, whatever the other parts.
    """
    shares = [0] * len(parts)
    left = limits.TEXT_BYTES
    for rank in sorted({rank for rank, _ in parts}):
        same_rank = [i for i, (other, _) in enumerate(parts) if other == rank]
        same_rank.sort(key=lambda i: parts[i][1])
        for done, i in enumerate(same_rank):
            shares[i] = min(parts[i][1], left // (len(same_rank) - done))
            left -= shares[i]
    return shares


def squeeze(data: bytes, *, html: bool) -> bytes:
    """A text without runs of blanks, and for html without inline picture data."""
    if b"\0" in data:  # of two or four bytes a character
        return data
    if b" " * 16 in data.translate(_AS_BLANK):  # a tenth of the time of a search by pattern
        data = BLANKS.sub(b"\n", data)
    return DATA_URI.sub(b"base64,", data) if html else data


def both_ends(data: bytes, share: int) -> bytes:
    """As much of a text as its share allows: half from its beginning, half from its end.

    The end of a page is visible too, and often follows hidden text. It is cut at the ends of
    lines, or where no character of UTF-8, UTF-16 or UTF-32 is split.
    """
    half = share // 2 & ~3
    head, tail = data[:half], data[len(data) - half & ~3 :]
    if b"\0" not in data[:_NEAR]:
        line = head.rfind(b"\n", -_NEAR)
        head = head[: line + 1] if line >= 0 else head[: len(head) - _split_character(head)]
        line = tail.find(b"\n", 0, _NEAR)
        tail = tail[line:] if line >= 0 else _CONTINUED.sub(b"", tail)
    return head + tail[: share - len(head)]


_NEAR = 256
"""Bytes in which the end of a line is looked for."""
_CONTINUED = re.compile(rb"\A[\x80-\xbf]{1,3}")


def _split_character(head: bytes) -> int:
    """How many bytes at the end may be the beginning of a character of UTF-8."""
    for back in range(1, min(4, len(head)) + 1):
        if head[-back] < 0x80:
            return 0
        if head[-back] >= 0xC0:
            return back
    return 0


BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
NOT_BASE64: Final = bytes(set(range(256)) - set(BASE64))
PLAIN: Final = frozenset(("", "7bit", "8bit", "binary"))
UU: Final = frozenset(("uuencode", "x-uuencode", "uue", "x-uue"))
YENC: Final = frozenset(("yenc", "x-yenc", "yencode", "x-yencode"))
KNOWN: Final = PLAIN | UU | YENC | {"base64", "quoted-printable"}

NO_ESCAPE = re.compile(rb"=(?![0-9A-Fa-f]{2}|[ \t\r]*+(?:\n|\Z))")
SOFT_END = re.compile(rb"=(?:[ \t]++\n|[ \t]*+\r\n?)")
"""soft line ends that binascii does not accept: with padding added in transport, or with a bare CR,
after which it would skip all text up to the next LF"""
UU_BEGIN = re.compile(rb"begin (?<=^begin )[0-7]{3,4} (\S[^\n]{0,255})\n?", re.MULTILINE)
Y_BEGIN = re.compile(
    rb"=ybegin (?<=^=ybegin )[^\n]{0,200}?name=([^\n]{0,255})\n(?:=ypart [^\n]{0,255}\n)?",
    re.MULTILINE,
)


FOLDED: Final = frozenset(
    ("text/calendar", "text/vcard", "text/x-vcard", "text/x-vcalendar", "text/directory")
)
FLOWED = re.compile(rb" \r?\n>*+ ?")
ESCAPES: Final = ((b"\\n", b"\n"), (b"\\N", b"\n"), (b"\\,", b","), (b"\\;", b";"))


def unfold_text(data: bytes, kind: str, *, delsp: bool) -> bytes:
    """Undo what wraps lines within words (RFC 5545 3.1, RFC 6350 3.2, RFC 3676 4.1)."""
    if kind in FOLDED:
        data = data.replace(b"\r\n", b"\n").replace(b"\n ", b"").replace(b"\n\t", b"")
        for escaped, plain in ESCAPES:
            data = data.replace(escaped, plain)
    elif delsp:
        data = FLOWED.sub(b"", data)
    return data


def _segment(run: bytes) -> bytes:
    return binascii.a2b_base64(run[: len(run) - (len(run) % 4 == 1)] + b"==")


def from_base64(data: bytes, marks: set[str]) -> bytes:
    """Decode base64 as far as possible; some senders join padded pieces.

    Where a padding character is inside a group of four, one decoder ends the piece there and
    another one skips the sign; both readings are returned, one after the other.
    """
    inner = data.rstrip(b"= \t\r\n")
    if b"=" not in inner:
        try:
            return binascii.a2b_base64(data)
        except binascii.Error:
            pass
    marks.add("base64:broken")
    runs = [run.translate(None, NOT_BASE64) for run in inner.split(b"=", limits.SEGMENTS)]
    found = b"".join([_segment(run) for run in runs])
    if any(len(run) % 4 == 1 for run in runs[:-1]) or len(runs) > limits.SEGMENTS:
        found += b"\n" + _segment(b"".join(runs))
    return found


def from_uu(data: bytes, marks: set[str]) -> bytes:
    """Decode the data after the first `begin` line, or all of it if there is none."""
    begin = UU_BEGIN.search(data)
    start = begin.end() if begin is not None else 0
    lines = data[start:].split(b"\n", limits.UU_LINES)
    if len(lines) > limits.UU_LINES:
        marks.add(PARTLY)
        lines.pop()
    out = []
    for line in lines:
        if line.rstrip() == b"end":
            break
        out.append(_uu_line(line.rstrip(b"\r"), marks))
    return b"".join(out)


def _uu_line(line: bytes, marks: set[str]) -> bytes:
    """Decode a line; some encoders append more than its length declares."""
    for text in (line, line[: (((line[:1] or b" ")[0] - 32 & 63) * 4 + 5) // 3]):
        try:
            return binascii.a2b_uu(text)
        except binascii.Error:
            marks.add("uuencode:broken")
    return b""


def from_yenc(data: bytes) -> bytes:
    """Decode the data between the first `=ybegin` line and `=yend`, or all of it."""
    begin = Y_BEGIN.search(data)
    start = begin.end() if begin is not None else 0
    end = data.find(b"\n=yend", start)
    signs = np.frombuffer(data[start : end if end >= 0 else len(data)], np.uint8)
    signs = signs[(signs != ord("\n")) & (signs != ord("\r"))]
    escapes = signs == ord("=")
    shifted = signs - np.uint8(42)
    shifted[1:][escapes[:-1]] -= np.uint8(64)
    found: bytes = shifted[~escapes].tobytes()
    return found


def decode_transfer(data: bytes, encoding: str, marks: set[str]) -> bytes:
    """Decode a transfer encoding, as far as possible.

    Base64, quoted-printable, uuencode and yEnc; work is linear in the input.
    """
    if encoding == "quoted-printable":
        if NO_ESCAPE.search(data) is not None:
            marks.add("qp:broken")
        return binascii.a2b_qp(SOFT_END.sub(b"=\n", data))
    if encoding == "base64":
        return from_base64(data, marks)
    if encoding in UU:
        return from_uu(data, marks)
    if encoding in YENC:
        return from_yenc(data)
    if encoding not in PLAIN:
        marks.add("encoding:unknown")
    return data


Special = dict[bytes, bytes]
Item = TypeVar("Item")

_TOKEN: Final = rb"[\w!#$&^.+-]{1,80}"
KIND = re.compile(rb"[ \t]*+(" + _TOKEN + rb")\s*+(/)\s*+(" + _TOKEN + rb")(?=[;,\s]|$)\s*+")
PARAM = re.compile(
    rb';\s*+([^\s=;*"]++)(\*\d{1,4})?(\*)?\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"?+|([^;]*+))', re.DOTALL
)
QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)
COMMENT_OR_QUOTE = re.compile(rb'[("]')
QUOTED_REST = re.compile(rb'(?:[^"\\]|\\.)*+"?+', re.DOTALL)
IN_COMMENT = re.compile(rb"[()]|\\.", re.DOTALL)
FIRST_WORD = re.compile(r"[\w-]+")
LITERAL: Final = ("name", "filename")
"""Senders write `name=report (1).pdf`, where the parentheses are no comment."""


class MediaType(NamedTuple):
    """A parsed Content-Type or Content-Disposition."""

    name: str
    params: dict[str, Text]
    boundaries: tuple[bytes, ...] = ()
    """what programs may take as the boundary; the one of the RFCs first"""

    def param(self, name: str) -> str:
        """A parameter as text, "" if missing."""
        value = self.params.get(name, "")
        return value.decode("ascii") if isinstance(value, bytes) else value


NO_KIND: Final = MediaType("", {})


@dataclass(slots=True)
class ParseBudget:
    """The remaining steps for the fields of one message.

    Invariants: every value is parsed in bounded steps: some for each value, the others from a
    budget of the message (`ParseBudget`); a value that needs more leaves the mark of a partly read
    message. Nothing raises.
    """

    left: int = limits.PARAM_STEPS
    own_left: int = limits.PARAMS
    """remaining steps of the present field alone"""

    def begin(self) -> None:
        """Start a new field."""
        self.own_left = limits.PARAMS

    def bounded(self, found: Iterator[Item], marks: set[str]) -> Iterator[Item]:
        """Yield items as long as the field's own steps and the message's budget allow."""
        for one in found:
            if self.own_left > 0:
                self.own_left -= 1
            elif self.left > 0:
                self.left -= 1
            else:
                marks.update(("param:many", PARTLY))
                return
            yield one


def without_comments(value: bytes, steps: ParseBudget, marks: set[str]) -> bytes:
    """A value without its comments (RFC 5322 3.2.2); an unclosed one is text."""
    if b"(" not in value:
        return value
    out = []
    start = at = 0
    for _ in steps.bounded(repeat(None), marks):
        found = COMMENT_OR_QUOTE.search(value, at)
        if found is None:
            break
        if found[0] == b'"':
            rest = QUOTED_REST.match(value, found.end())
            at = rest.end() if rest is not None else len(value)
            continue
        end = _comment_end(value, found.end(), steps, marks)
        if end < 0:
            break
        out.append(value[start : found.start()])
        start = at = end
    out.append(value[start:])
    return b" ".join(out)


def _comment_end(value: bytes, at: int, steps: ParseBudget, marks: set[str]) -> int:
    depth = 1
    for sign in steps.bounded(IN_COMMENT.finditer(value, at), marks):
        depth += {b"(": 1, b")": -1}.get(sign[0], 0)
        if depth == 0:
            return sign.end()
    return -1


@dataclass(slots=True)
class _Param:
    """All values of one parameter name."""

    pieces: dict[int, bytes]
    """by number; a plain value is number 0, unless there is one"""
    escaped: set[int]
    """the numbers of the pieces that are percent-encoded"""
    every: list[bytes]
    """each value, unchanged"""
    charset: str = ""

    def joined(self) -> bytes:
        """The whole value, percent-decoded where RFC 2231 says so."""
        return b"".join(
            unquote_to_bytes(self.pieces[n]) if self.charset and n in self.escaped
            else self.pieces[n]
            for n in sorted(self.pieces)
        )  # fmt: skip

    def text(self, marks: set[str]) -> Text:
        """The value without invisible characters."""
        if not self.charset:
            return header_text(self.joined(), marks)
        return clean_text(self.written(marks), marks)

    def written(self, marks: set[str]) -> Text:
        """Decode by RFC 2231 if the value declares it, else as encoded words, like many senders."""
        if self.charset:
            return to_text(self.joined(), self.charset, marks, "header")
        return written_text(self.joined(), marks)


def _parse_params(rest: bytes, steps: ParseBudget, marks: set[str]) -> dict[bytes, _Param]:
    params: dict[bytes, _Param] = {}
    for found in steps.bounded(PARAM.finditer(rest), marks):
        value = found[5].strip() if found[4] is None else QUOTED_PAIR.sub(rb"\1", found[4])
        number = int(found[2][1:]) if found[2] else 0
        param = params.setdefault(found[1].lower(), _Param({}, set(), []))
        param.every.append(value)
        if found[3]:
            param.escaped.add(number)
            charset, quote, tail = value.partition(b"'")
            if quote and number == 0:
                param.charset = charset.decode("latin-1") or "utf-8"
                value = tail.partition(b"'")[2]
        if number in param.pieces:
            marks.add("param:double")
        param.pieces.setdefault(number, value)
    return params


def params(
    rest: bytes, marks: set[str], steps: ParseBudget
) -> tuple[dict[str, Text], tuple[bytes, ...]]:
    """Read parameters, and the candidates for the boundary."""
    bare = without_comments(rest, steps, marks)
    found = _parse_params(bare, steps, marks)
    literal = found if bare is rest else _parse_params(rest, steps, marks)
    texts = {
        name: param.text(marks)
        for name, param in ((n.decode("latin-1"), p) for n, p in found.items())
        if name not in LITERAL
    }
    texts |= {
        name: literal[key].text(marks) for name in LITERAL if (key := name.encode()) in literal
    }
    if b"boundary" not in found:
        return texts, ()
    declared = found[b"boundary"]
    literally = literal[b"boundary"].every if b"boundary" in literal else []
    return texts, _boundaries([declared.joined(), *declared.every, *literally])


def _boundaries(values: list[bytes]) -> tuple[bytes, ...]:
    """The candidates for the boundary: by the RFCs, and as lenient programs read it."""
    every = []
    for value in values:
        every += [value, *value.split(None, 1)[:1], value.strip(b"'<> \t")]
    whole = (value.rstrip() for value in every)
    known = dict.fromkeys(value for value in whole if 0 < len(value) <= limits.BOUNDARY_BYTES)
    return tuple(known)[: limits.BOUNDARIES]


def parse_kind(value: bytes, marks: set[str], steps: ParseBudget) -> MediaType:
    """Read a Content-Type; its name is "" if it is invalid.

    The grammar of RFC 2045 and 2231 (comments, quoted pairs, continuations) and the other ways in
    which mail programs read a boundary.
    """
    steps.begin()
    if len(value) > limits.PARAM_BYTES:
        marks.add(PARTLY)
        value = value[: limits.PARAM_BYTES]
    found = KIND.match(value) or KIND.match(without_comments(value, steps, marks))
    if found is None:
        marks.add("mime:bad-type")
        rest = value.partition(b";")[2]
        if b"boundary" in value and b"boundary" not in rest:
            rest = value.partition(b" ")[2]
        return MediaType("", *params(b";" + rest, marks, steps))
    name = b"".join(found.groups()).decode("latin-1").lower()
    return MediaType(name, *params(found.string[found.end() :], marks, steps))


@lru_cache(maxsize=1024)
def _cached_kind(value: bytes) -> tuple[MediaType, tuple[str, ...]]:
    marks: set[str] = set()
    return parse_kind(value, marks, ParseBudget()), tuple(marks)


def kind_of(special: Special, marks: set[str], steps: ParseBudget) -> MediaType:
    """Find the Content-Type among some fields."""
    value = special.get(b"content-type")
    if value is None:
        return NO_KIND
    if len(value) > 80 or b"boundary" in value:
        return parse_kind(value, marks, steps)
    # most mail uses a few spellings: 0.1 us instead of 4
    kind, cached_marks = _cached_kind(value)
    marks.update(cached_marks)
    return kind


def encoding_of(special: Special, marks: set[str], steps: ParseBudget) -> str:
    """The transfer encoding, in lower case."""
    value = special.get(b"content-transfer-encoding")
    if value is None:
        return ""
    if b"(" in value:
        steps.begin()
        value = without_comments(value[: limits.PARAM_BYTES], steps, marks).strip()
    declared = value[:40].decode("latin-1").lower().strip(" \t\"'")
    if declared not in KNOWN:
        first = FIRST_WORD.match(declared)
        return first[0] if first is not None and first[0] in KNOWN else declared
    return declared


def disposition_of(
    special: Special, kind: MediaType, marks: set[str], steps: ParseBudget
) -> tuple[str, Text]:
    """The disposition of the part, and its file name."""
    value = special.get(b"content-disposition")
    name: Text = b""
    declared = ""
    if value is not None:
        steps.begin()
        value = value[: limits.PARAM_BYTES]
        first, _, rest = value.partition(b";")
        if b"(" in first:
            first, _, _ = without_comments(value, steps, marks).partition(b";")
        declared = first.strip()[:40].decode("latin-1").lower()
        name = params(b";" + rest, marks, steps)[0].get("filename", b"") if rest else b""
    return declared, (name or kind.params.get("name", b""))[: limits.NAME_TEXT]


def written_name(special: Special) -> Text:
    """The file name of a part with all of its characters, as it was written."""
    steps, marks = ParseBudget(), set[str]()
    for field, parameter in ((b"content-disposition", b"filename"), (b"content-type", b"name")):
        rest = special.get(field, b"")[: limits.PARAM_BYTES].partition(b";")[2]
        found = _parse_params(without_comments(b";" + rest, steps, marks), steps, marks)
        if name := found[parameter].written(marks) if parameter in found else b"":
            return name[: limits.NAME_TEXT]
    return b""
