"""Which message is meant: raw bytes, a digest, a message id, or our signature header's value.

A message that was scored or taught is found again without its body: in the history by signature,
digest or message id, in the journal by digest or message id. Nothing is guessed: a message id that
matches several different messages is an error that lists them.
"""

from __future__ import annotations

import re
from base64 import b32decode
from itertools import product

from spamnb.core.mail.message import bare_id
from spamnb.errors import RefError
from spamnb.service.engine.requests import Example
from spamnb.store.contract import ReadView
from spamnb.store.history.entry import HistoryEntry
from spamnb.store.history.verdict_history import History

SIGNATURE_BYTES = 16
"""128 unguessable bits; law 8 asks for 96."""

_DIGEST = re.compile(r"[0-9a-f]{32}")
_SIGNATURE = re.compile(r"s[a-z2-7]{26}")


_PAIRS = ["".join(pair) for pair in product("abcdefghijklmnopqrstuvwxyz234567", repeat=2)]
"""two signs of base32 by their ten bits: half the time of the standard library's five bytes"""
_SHIFTS = range(120, -1, -10)


def signature_text(signature: bytes) -> str:
    """A signature as our header shows it: base32 in lower case, safe in every header."""
    bits = int.from_bytes(signature) << 2
    return "s" + "".join([_PAIRS[bits >> shift & 1023] for shift in _SHIFTS])


def signature_bytes(text: str) -> bytes:
    """The signature behind the header's value."""
    return b32decode(text[1:].upper() + "======")


def find_example(view: ReadView, history: History | None, ref: str) -> Example:
    """The message that a reference names, as far as its ids are kept."""
    digest = find_digest(view, history, ref)
    for entry in history.find(digest=digest) if history else ():
        return _remembered(entry)
    live = view.live(digest)
    event = view.event(live.seq) if live and not live.folded else None
    if event is None:
        raise RefError(
            f"of the message {ref} only its digest is left", hint="give the message itself"
        )
    return Example(event.digest, event.message_id, event.ids, event.times)


def find_digest(view: ReadView, history: History | None, ref: str) -> bytes:
    """The digest of the one message that a reference names."""
    ref = ref.strip()
    # A Message-ID may look like one of ours.
    return _only(ref, _named_by_us(view, history, ref) or _with_id(view, history, bare_id(ref)))


def _named_by_us(view: ReadView, history: History | None, ref: str) -> list[bytes]:
    if _SIGNATURE.fullmatch(ref):
        entries = history.find(signature=signature_bytes(ref)) if history else []
        return [entry.digest for entry in entries]
    if _DIGEST.fullmatch(ref):
        digest = bytes.fromhex(ref)
        if view.live(digest) is not None or (history and history.find(digest=digest)):
            return [digest]
    return []


def _with_id(view: ReadView, history: History | None, message_id: str) -> list[bytes]:
    found = list(view.digests(message_id))
    if history and message_id:
        found += [entry.digest for entry in history.find(message_id=message_id)]
    return found


def _only(ref: str, digests: list[bytes]) -> bytes:
    distinct = list(dict.fromkeys(digests))
    if not distinct:
        raise RefError(
            f"no message is known by {ref!r}",
            hint="give a file, or a message id, digest or signature that `spamnb history` lists",
        )
    if len(distinct) > 1:
        listed = ", ".join(digest.hex() for digest in distinct[:8])
        raise RefError(
            f"{len(distinct)} different messages have the id {ref!r}",
            hint=f"name one by its digest: {listed}",
        )
    return distinct[0]


def _remembered(entry: HistoryEntry) -> Example:
    return Example(entry.digest, entry.message_id, entry.ids, entry.times)
