"""The parts of a message that carry other messages, byte for byte.

Reading for features decodes and cuts; here the bytes of an attached message come out as they were
put in, so that its digest is the one it had when it was scored. Pure; must not know what the
messages are good for.

Invariants: messages inside are not entered (what is attached to them is not attached to us);
nesting, delimiters and parts are bounded; nothing raises; decoded bytes together are at most the
message's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from spamnb.core import headers, limits, mime

Carrier = Literal["message", "headers", "report"]

KINDS: Final[dict[str, Carrier]] = {
    "message/rfc822": "message",
    "message/global": "message",
    "text/rfc822-headers": "headers",
    "text/rfc822-header": "headers",
    "message/feedback-report": "report",
}
"""RFC 2046 and 6532, RFC 6522, RFC 5965"""
FILE_ENDING: Final = ".eml"
"""what Outlook and web mailers call a message that they attach as a file of no type"""


class Attached(NamedTuple):
    """One part that carries a message, the header of one, or a machine's report about one."""

    carrier: Carrier
    raw: bytes
    """decoded; LF line ends if it was not encoded"""


class Opened(NamedTuple):
    """What is in a message."""

    kind: str
    """its Content-Type"""
    report_type: str
    attached: list[Attached]


def open_message(raw: bytes) -> Opened:
    """Find what is attached to a message."""
    buffer = raw.replace(b"\r\n", b"\n")
    seen = mime.Reading(set())
    block, body = headers.split(buffer, (0, len(buffer)), mime.NOBODY, seen.odd)
    kind = mime.kind_of(block.special, seen.odd)
    found = list(_walk(seen, buffer, (body, len(buffer)), (block.special, kind), 0))
    return Opened(kind.name, kind.param("report-type").lower(), found)


def _walk(
    seen: mime.Reading,
    buffer: bytes,
    span: tuple[int, int],
    what: tuple[mime.Special, mime.Kind],
    depth: int,
) -> Iterator[Attached]:
    special, kind = what
    if kind.name.startswith("multipart/") and depth < limits.DEPTH:
        yield from _multipart(seen, buffer, span, kind, depth)
        return
    _, name = mime.disposition_of(special, kind, seen.odd)
    text = name.decode("latin-1") if isinstance(name, bytes) else name
    named = text.lower().endswith(FILE_ENDING) and depth > 0
    carrier = KINDS.get(kind.name) or ("message" if named else None)
    if carrier is not None:
        data = mime.unpacked(buffer[slice(*span)], mime.encoding_of(special), seen.odd)
        yield Attached(carrier, data)


def _multipart(
    seen: mime.Reading, buffer: bytes, span: tuple[int, int], kind: mime.Kind, depth: int
) -> Iterator[Attached]:
    boundary = kind.param("boundary").encode("utf-8", "replace").rstrip()
    if not 0 < len(boundary) <= limits.BOUNDARY_BYTES:
        return
    found = mime.delimiters(seen, buffer, span, boundary)
    default = mime.MESSAGE if kind.name == "multipart/digest" else mime.NO_KIND
    for index, (_, start, closes) in enumerate(found):
        if closes:
            return
        end = found[index + 1][0] - 1 if index + 1 < len(found) else span[1]
        block, body = headers.split(buffer, (start, max(start, end)), mime.NOBODY, seen.odd)
        inside = mime.kind_of(block.special, seen.odd)
        where = (body, max(body, end))
        yield from _walk(
            seen, buffer, where, (block.special, inside if inside.name else default), depth + 1
        )
