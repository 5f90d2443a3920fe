"""Find a message by reference, and the labels that it has.

A reference is a digest, a Message-ID, or the value of the signature header. A message that was
scored or learnt is found without its body: in the history by any of the three, in the journal by
digest or Message-ID. A Message-ID that matches several different messages raises an error that
lists them.

Labels of persons are not among the labels of a message: they decide only the verdicts on the mail
of their person.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from spamnb.engine.planner import LabelInForce, PendingJournal, own_key
from spamnb.engine.receipt import Receipt
from spamnb.engine.values import Example, Source, stored_example
from spamnb.errors import RefError
from spamnb.mail.message import bare_id
from spamnb.model.events import NO_LABEL, Event
from spamnb.model.verdict import SIGNATURE, signature_bytes
from spamnb.records.verdicts import HistoryEntry
from spamnb.store.table_views import ReadView, Store
from spamnb.store.values import MessageState

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
    return stored_example(event)


def find_entry(store: Store, history: Verdicts | None, ref: str) -> HistoryEntry | None:
    """Return the newest history entry of the message that a reference names; None without one."""
    return next(iter(_find(store, history, ref)[1]), None)


def entry_example(entry: HistoryEntry) -> Example:
    """Return the message of a history entry."""
    return stored_example(entry)


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


class OwnersLabel(NamedTuple):
    """The label that one owner has given a message."""

    owner: int
    """0 for an administrator"""
    label: int
    event: Event | None
    """the event that set the label; None if it is in the checkpoint"""


def in_force(view: ReadView, digest: bytes, owners: Collection[int] | None = None) -> LabelInForce:
    """Return the label that decides the verdict on a message, or that of some `owners` alone."""
    pending = PendingJournal(view, [], 0)
    others = set() if owners is None else pending.labels_of(digest).keys() - set(owners)
    return pending.in_force(digest, dict.fromkeys(others, NO_LABEL))


def labels_of(view: ReadView, digest: bytes) -> list[OwnersLabel]:
    """Return the labels of a message, the oldest first."""
    states = sorted(view.labels(digest).items(), key=lambda item: item[1].seq)
    return [
        OwnersLabel(owner, state.label, view.event(state.seq))
        for owner, state in states
        if state.label != NO_LABEL
    ]


def own_label(view: ReadView, digest: bytes, source: Source) -> int:
    """Return the label that a source has given a message; NO_LABEL without one."""
    pending = PendingJournal(view, [], 0)
    state = pending.state(own_key(source, digest, pending))
    return state.label if state else NO_LABEL


def newest_state(view: ReadView, digest: bytes) -> MessageState | None:
    """Return the state of the label that was changed last; None if the message has none."""
    return max(view.labels(digest).values(), key=lambda state: state.seq, default=None)


def trainings(view: ReadView, digest: bytes) -> Iterator[Event]:
    """Yield the events of a message's labels, newest first."""
    heads = {state.seq for state in view.labels(digest).values()}
    while heads:
        seq = max(heads)
        heads.remove(seq)
        if (event := view.event(seq)) is not None:
            yield event
            if event.previous:
                heads.add(event.previous)


def each_owner(view: ReadView, digest: bytes, source: Source) -> list[Source]:
    """Return a source for each label of a message, so that a request reaches all of them.

    It is the source itself if the message has no label.
    """
    owners = [owner for owner, state in view.labels(digest).items() if state.label != NO_LABEL]
    return [source._replace(owner=owner) for owner in owners] or [source]


def joined(receipts: Sequence[Receipt]) -> Receipt:
    """Return one receipt for several changes of one message: the first one that changed it."""
    first = next((one for one in receipts if one.changed), receipts[0])
    others = [str(one.event) for one in receipts if one.changed and one is not first]
    if not others:
        return first
    reason = f"the labels of users were taken back, too: events {', '.join(others)}"
    return first._replace(reason=reason, in_force=receipts[-1].in_force, why=receipts[-1].why)
