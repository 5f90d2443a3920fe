"""The attached messages of a message, byte for byte.

Reading for features decodes and cuts; here the bytes of an attached message stay as they were, so
that its digest is the one it had when it was scored. Pure; must not know what the messages are used
for.

Invariants: attached messages are not opened (their attachments do not count); nesting, delimiters
and parts are bounded; nothing raises; all decoded bytes together are at most as many as the message
has.
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
"""the name that Outlook and web mailers give to a message attached as an untyped file"""


class AttachedMessage(NamedTuple):
    """A part that holds a message, the header of a message, or a machine's report on one."""

    carrier: Carrier
    raw: bytes
    """decoded; LF line ends if it was not encoded"""


class OpenedMessage(NamedTuple):
    """The type of a message, and its attached messages."""

    kind: str
    """its Content-Type"""
    report_type: str
    attached: list[AttachedMessage]


def open_message(raw: bytes) -> OpenedMessage:
    """Find the attached messages of a message."""
    buffer = raw.replace(b"\r\n", b"\n")
    state = ReadingState(set())
    block, body = headers.split(buffer, (0, len(buffer)), mime.NO_HOSTS, state.marks)
    kind = parameters.kind_of(block.special, state.marks, state.steps)
    entity = Entity(buffer, body, len(buffer), block.special, kind)
    found = list(_walk(state, entity))
    return OpenedMessage(kind.name, kind.param("report-type").lower(), found)


def _walk(state: ReadingState, whole: Entity) -> Iterator[AttachedMessage]:
    stack = [whole]
    while stack:
        entity = stack.pop()
        kind = entity.kind
        if kind.name.startswith("multipart/") and entity.depth < limits.DEPTH:
            stack += (mime.multipart(state, entity) or [])[::-1]
            continue
        _, name = parameters.disposition_of(entity.special, kind, state.marks, state.steps)
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        named = text.lower().endswith(FILE_ENDING) and entity.depth > 0
        carrier = KINDS.get(kind.name) or ("message" if named else None)
        if carrier is not None:
            encoding = parameters.encoding_of(entity.special, state.marks, state.steps)
            data = entity.buffer[entity.start : entity.end]
            yield AttachedMessage(carrier, transfer.decode_transfer(data, encoding, state.marks))
