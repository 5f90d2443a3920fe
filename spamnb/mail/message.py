"""Read raw bytes into a `Message`.

Defines the canonical form and the digest taken from it, and joins header block and parts into one
value. It must not know tokens, features or the model.

Canonical form: LF line ends, no mbox line, unfolded fields without those that are not part of the
message (see `headers`), one blank line, the body without blank lines at its end. The canonical form
of a canonical form is the same. A message has the same digest before and after delivery, with CRLF
or LF, and the same `Message`. Results of authentication are never in the digest, because they are
added at different places; those that the site wrote (`site_results`) are in the `Message`.

`read` never raises, whatever the bytes, and its work is bounded by `limits`; `oddities` lists what
is unusual.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from spamnb.mail import headers, limits
from spamnb.mail.charset import Text, to_text
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.limits import PARTLY
from spamnb.mail.mime import DecodedPart, Part, ReadingState, read_body
from spamnb.mail.site_results import prove

__all__ = ["LocalHosts", "Message", "Part", "Text", "bare_id", "canonical", "read", "without_mbox"]

NO_HOSTS = LocalHosts()


@dataclass(slots=True)
class Message:
    """The parsed parts of a message."""

    headers: list[tuple[bytes, Text]]
    """(lower-case name, decoded unfolded value) in order; those of inner messages as inner-*"""
    parts: list[Part]
    """leaves in order"""
    oddities: list[str]
    """sorted distinct short marks"""
    digest: bytes
    """16 bytes of blake2b of the canonical form"""
    message_id: str
    """Message-ID without <>, "" if there is none"""


def _without_runs(raw: bytes) -> bytes:
    """Replace CR CR LF, from programs that convert twice, and longer runs.

    Replaces in the whole text first: a list of lines takes thirty times the memory if the lines are
    short.
    """
    for _ in range(8):
        raw = raw.replace(b"\r\n", b"\n")
        if b"\r\n" not in raw:
            return raw
    return b"\n".join([line.rstrip(b"\r") for line in raw.split(b"\n")])


_MBOX = re.compile(rb"(?:>?+From [^\n]*+(?:\n|\Z))*+")


def without_mbox(raw: bytes) -> bytes:
    """The message without mbox lines at its start, in one pass: an attacker may send 40,000."""
    if not raw.startswith((b"From ", b">From ")):
        return raw
    found = _MBOX.match(raw)
    assert found is not None, "the pattern matches nothing, too"
    return raw[found.end() :]


def _lines(raw: bytes) -> bytes:
    """Convert line ends to LF and remove mbox lines."""
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n")
        if b"\r\n" in raw:
            raw = _without_runs(raw)
        if b"\n" not in raw:
            raw = raw.replace(b"\r", b"\n")
    return without_mbox(raw)


def parted(raw: bytes, local: LocalHosts, marks: set[str]) -> tuple[headers.Block, bytes]:
    """The header block, with the results of authentication that the site wrote, and the body."""
    message = _lines(raw)
    block, start = headers.split(message, (0, len(message)), local, marks)
    body = message[start:].rstrip(b"\r\n")
    if block.traces and local.authserv_ids:
        prove(block, body, local)
    return block, body


def canonical(raw: bytes, local: LocalHosts = NO_HOSTS) -> bytes:
    """The canonical form of a message."""
    block, body = parted(raw, local, set())
    return block.canonical() + body + b"\n" if body else block.canonical()


def bare_id(text: str) -> str:
    """A Message-ID without brackets and blanks, as it is stored and looked up."""
    return text[: limits.MESSAGE_ID_BYTES].strip().strip("<>").strip()


def text_of(raw: bytes) -> str:
    """The text of a document that is not mail, by the best guess at its charset."""
    text = to_text(raw, "", set(), "text")
    return text.decode("ascii", "replace") if isinstance(text, bytes) else text


def read_document(raw: bytes) -> Message:
    """A `Message` with the digest of the bytes and nothing else, for a document that is no mail."""
    return Message([], [], [], blake2b(raw, digest_size=16).digest(), "")


def read(raw: bytes, local: LocalHosts = NO_HOSTS) -> Message:
    """Read a message from any bytes."""
    return read_with_sources(raw, local).message


class MessageSources(NamedTuple):
    """A message, and what it was read from."""

    message: Message
    parts: list[DecodedPart]
    """as they were before their text was read"""
    fields: list[tuple[bytes, bytes]]
    """as they were written, those of messages inside under the prefix inner-"""


def read_with_sources(raw: bytes, local: LocalHosts = NO_HOSTS) -> MessageSources:
    """Read a message, and give what it was read from."""
    marks: set[str] = set()
    block, body = parted(raw, local, marks)
    head = block.canonical()
    digest = blake2b(head, digest_size=16)
    digest.update(body)
    if body:
        digest.update(b"\n")
    if block.other_body >= 0:
        block.other_body = -1
        if block.other:
            marks.add(PARTLY)
            block.other = {}
    if b"\r" in raw:
        if b"\r" in head:
            marks.add("header:bare-cr")
            block.other |= headers.content_fields(head.replace(b"\r", b"\n"))
        if b"\r" in body:
            marks.add("text:bare-cr")
    plain = head.isascii() and b"=?" not in head
    if plain and len(head) < limits.VALUE_BYTES:
        few = len(block.fields) <= limits.FIELDS
        fields: list[tuple[bytes, Text]] = list(
            block.fields if few else headers.visible_first(block.fields)
        )
    else:
        fields = headers.features(block, marks)
    if len(head) > limits.SHOWN_BYTES and headers.has_long_visible(block):
        marks.add(PARTLY)
    state = ReadingState(marks)
    special = block.special
    read_body(state, block, body)
    fields.extend(state.inner)
    message_id = bare_id(special.get(b"message-id", b"").decode("latin-1"))
    message = Message(fields, state.parts, sorted(marks), digest.digest(), message_id)
    return MessageSources(message, state.decoded, block.fields + state.inner_fields)
