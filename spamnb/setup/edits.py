"""Marked blocks of lines in configuration files: put in, and taken out exactly. Pure.

    # >>> spamnb setup: NAME
    #- a line that the block replaces
    lines of the block
    # <<< spamnb setup: NAME

`without_blocks` returns the text as it was, also if other lines were changed meanwhile. If the file
did not end with a line feed, the first marker says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

_BEGIN, _END = "# >>> spamnb setup: ", "# <<< spamnb setup: "
_NO_END = " (the file had no line feed at its end)"
_OLD = "#- "
_MARKER = re.compile(
    rf"(?m)^(?P<prefix>(?:dnl )?){re.escape(_BEGIN)}"
    rf"(?P<name>.+?)(?P<no_end>{re.escape(_NO_END)})?\n"
    rf"(?P<lines>(?:.*\n)*?)(?P=prefix){re.escape(_END)}(?P=name)(?:\n|\Z)"
)
_ONE_MARKER = re.compile(rf"(?m)^[ \t]*(?:dnl )?(?:{re.escape(_BEGIN)}|{re.escape(_END)})")


class Block(NamedTuple):
    """A block in a file."""

    name: str
    lines: tuple[str, ...]
    """without the markers; replaced lines begin with `#- `"""


def blocks(text: str) -> list[Block]:
    """The blocks of a text."""
    return [
        Block(found["name"], tuple(found["lines"].split("\n")[:-1]))
        for found in _MARKER.finditer(text)
    ]


def has_torn_block(text: str) -> bool:
    """Whether a marker stands without its other one, so a block was edited."""
    return _ONE_MARKER.search(without_blocks(text)) is not None


def with_block(
    text: str,
    name: str,
    lines: Sequence[str],
    replaced: range | None = None,
    *,
    prefix: Literal["", "dnl "] = "",
) -> str:
    """The text with a new block in the place of some lines, which it keeps as comments.

    An empty range is a place before its first line, None the end of the text. `prefix` begins the
    markers: without it, m4 would copy them.
    """
    had_no_end = text != "" and not text.endswith("\n")
    old = text.split("\n") if had_no_end else text.split("\n")[:-1]
    place = range(len(old), len(old)) if replaced is None else replaced
    touches_end = had_no_end and place.stop >= len(old)
    block = [
        f"{prefix}{_BEGIN}{name}{_NO_END if touches_end else ''}",
        *(_OLD + line for line in old[place.start : place.stop]),
        *lines,
        f"{prefix}{_END}{name}",
    ]
    new = [*old[: place.start], *block, *old[place.stop :]]
    return "\n".join(new) + ("" if had_no_end and not touches_end else "\n")


def without_blocks(text: str) -> str:
    """The text without its blocks, with the lines that they had replaced."""
    out, at, unended = "", 0, -1
    for found in _MARKER.finditer(text):
        kept = [
            line.removeprefix(_OLD) + "\n"
            for line in found["lines"].split("\n")[:-1]
            if line.startswith(_OLD)
        ]
        out, at = out + text[at : found.start()] + "".join(kept), found.end()
        if found["no_end"]:
            unended = len(out)
    out += text[at:]
    return out.removesuffix("\n") if len(out) == unended else out
