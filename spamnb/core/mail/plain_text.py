"""Read plain text documents that are not mail: their text and their digest."""

from __future__ import annotations

from hashlib import blake2b

from spamnb.core.mail.charset import to_text
from spamnb.core.mail.message import Message


def text_of(raw: bytes) -> str:
    """The text in these bytes, by the best guess at their charset."""
    text = to_text(raw, "", set(), "text")
    return text.decode("ascii", "replace") if isinstance(text, bytes) else text


def read_document(raw: bytes) -> Message:
    """A `Message` with the digest of the bytes and nothing else."""
    return Message([], [], [], blake2b(raw, digest_size=16).digest(), "")
