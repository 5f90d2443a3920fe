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

from spamnb.core.mail import headers, limits
from spamnb.core.mail.body import mime, parameters, transfer
from spamnb.core.mail.body.parts import Entity, ReadingState

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


class AttachedMessage(NamedTuple):
    """One part that carries a message, the header of one, or a machine's report about one."""

    carrier: Carrier
    raw: bytes
    """decoded; LF line ends if it was not encoded"""


class OpenedMessage(NamedTuple):
    """What is in a message."""

    kind: str
    """its Content-Type"""
    report_type: str
    attached: list[AttachedMessage]


def open_message(raw: bytes) -> OpenedMessage:
    """Find what is attached to a message."""
    buffer = raw.replace(b"\r\n", b"\n")
    seen = ReadingState(set())
    block, body = headers.split(buffer, (0, len(buffer)), mime.NOBODY, seen.odd)
    kind = seen.kind_of(block.special)
    entity = Entity(buffer, body, len(buffer), block.special, kind)
    found = list(_walk(seen, entity))
    return OpenedMessage(kind.name, kind.param("report-type").lower(), found)


def _walk(seen: ReadingState, whole: Entity) -> Iterator[AttachedMessage]:
    stack = [whole]
    while stack:
        entity = stack.pop()
        kind = entity.kind
        if kind.name.startswith("multipart/") and entity.depth < limits.DEPTH:
            stack += (mime.multipart(seen, entity) or [])[::-1]
            continue
        _, name = parameters.disposition_of(entity.special, kind, seen.odd, seen.steps)
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        named = text.lower().endswith(FILE_ENDING) and entity.depth > 0
        carrier = KINDS.get(kind.name) or ("message" if named else None)
        if carrier is not None:
            encoding = parameters.encoding_of(entity.special, seen.odd, seen.steps)
            data = entity.buffer[entity.start : entity.end]
            yield AttachedMessage(carrier, transfer.unpacked(data, encoding, seen.odd))
