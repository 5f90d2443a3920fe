"""Share the limit on readable text between the parts of a message.

Holds arithmetic and what is left out of a part that is too large; must not know structure.
Invariant: the shares of all parts are at most `limits.TEXT_BYTES`; a part that is smaller than a
fair share stays whole, whatever the other parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from spamnb.core.mail import limits

BLANKS = re.compile(rb"[ \t\r\n]{16,}")
_AS_BLANK = bytes.maketrans(b"\t\r\n", b"   ")
DATA_URI = re.compile(rb"base64,[A-Za-z0-9+/=%]{64,}")


def text_shares(parts: Sequence[tuple[int, int]]) -> list[int]:
    """The share of each part, given its rank and size.

    Parts of one rank get equal shares, plus what small ones leave; the next rank gets the rest.
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
