"""Find a message by reference: a digest, a Message-ID, or the value of the signature header.

A message that was scored or learnt is found without its body: in the history by signature, digest
or Message-ID, in the journal by digest or Message-ID. A Message-ID that matches several different
messages raises an error that lists them.
"""

from __future__ import annotations

import re
from typing import Protocol

from spamnb.core.mail.message import bare_id
from spamnb.core.model.verdict import SIGNATURE, signature_bytes
from spamnb.errors import RefError
from spamnb.service.engine.requests import Example
from spamnb.store.contract import Store
from spamnb.store.history.entry import HistoryEntry

_DIGEST = re.compile(r"[0-9a-f]{32}")


class Verdicts(Protocol):
    """Where verdicts are found: a `History`, or those of several hosts."""

    def find(
        self, *, signature: bytes = b"", message_id: str = "", digest: bytes = b""
    ) -> list[HistoryEntry]:
        """Return the entries with one of the three keys, newest first."""


def find_example(store: Store, history: Verdicts | None, ref: str) -> Example:
    """Return the ids of the message that a reference names; RefError if they are not stored."""
    digest, entries = _find(store, history, ref)
    if entries:
        return entry_example(entries[0])
    with store.read() as view:
        events = (view.event(state.seq) for state in view.labels(digest).values())
        event = next((one for one in events if one is not None), None)
    if event is None:
        raise RefError(
            f"the features of message {ref} are no longer stored, only its digest",
            hint="give the message file instead of the reference",
        )
    return Example(event.digest, event.message_id, event.ids, event.times)


def find_entry(store: Store, history: Verdicts | None, ref: str) -> HistoryEntry | None:
    """Return the newest history entry of the message that a reference names; None without one."""
    return next(iter(_find(store, history, ref)[1]), None)


def entry_example(entry: HistoryEntry) -> Example:
    """Return the message of a history entry."""
    return Example(entry.digest, entry.message_id, entry.ids, entry.times)


def find_digest(store: Store, history: Verdicts | None, ref: str) -> bytes:
    """Return the digest of the message that a reference names; RefError if not exactly one."""
    return _find(store, history, ref)[0]


def _find(store: Store, history: Verdicts | None, ref: str) -> tuple[bytes, list[HistoryEntry]]:
    """Return the digest of the one message, and its history entries, newest first.

    The store is read only if the history alone does not identify the message.
    """
    ref = ref.strip()
    # A Message-ID may look like a signature or a digest.
    if SIGNATURE.fullmatch(ref) and history:
        if entries := history.find(signature=signature_bytes(ref)):
            return entries[0].digest, entries
    elif _DIGEST.fullmatch(ref):
        digest = bytes.fromhex(ref)
        entries = history.find(digest=digest) if history else []
        if entries or _is_live(store, digest):
            return digest, entries
    message_id = bare_id(ref)
    entries = history.find(message_id=message_id) if history and message_id else []
    with store.read() as view:
        known = [*view.digests(message_id), *(entry.digest for entry in entries)]
    return _only(ref, known), entries


def _is_live(store: Store, digest: bytes) -> bool:
    with store.read() as view:
        return bool(view.labels(digest))


def _only(ref: str, digests: list[bytes]) -> bytes:
    distinct = list(dict.fromkeys(digests))
    if not distinct:
        raise RefError(
            f"no message with the reference {ref!r} is known",
            hint="give a file, or a Message-ID, digest or signature that `spamnb history` lists",
        )
    if len(distinct) > 1:
        listed = ", ".join(digest.hex() for digest in distinct[:8])
        raise RefError(
            f"{len(distinct)} different messages have the Message-ID {ref!r}",
            hint=f"give the digest of one of them: {listed}",
        )
    return distinct[0]
