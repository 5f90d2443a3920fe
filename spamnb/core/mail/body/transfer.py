"""Decode transfer encodings: base64, quoted-printable, uuencode and yEnc.

Holds what turns the bytes of a part, as they travelled, into the bytes that the sender wrote. It
must not know structure or charsets.

Invariants: work is linear in the input; nothing raises; what is broken is decoded as far as it can
be and marked.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

import numpy as np

from spamnb.core.mail import limits
from spamnb.core.mail.marks import PARTLY

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
    """Decode a transfer encoding, as far as possible."""
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
