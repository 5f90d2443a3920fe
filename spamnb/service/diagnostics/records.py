"""`ModelRecords`: what a home's records contain about one message.

Reads the journal, the history, the review queue and the quarantine of one home, while other
processes may write them. Its only changes: it asks the feedback service to forget the message, and
deletes the message from review queue and quarantine.

Must not know mailboxes, sockets or terminals. Failure: StoreError.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.model.events import NO_LABEL, Totals
from spamnb.core.model.verdict import Verdict, signature_bytes
from spamnb.core.persons.names import PersonNames
from spamnb.errors import RefError, SpamnbError
from spamnb.service.engine.clock import now_us
from spamnb.service.engine.filter import Filter
from spamnb.service.feedback.review_queue import ReviewItem, ReviewQueue
from spamnb.service.feedback.types import Answer, Feedback
from spamnb.service.scanning.quarantine import Quarantine
from spamnb.store.history.entry import HistoryEntry

Forget = Callable[[Feedback], Answer]
"""passes a feedback to the feedback service; raises if it is refused"""


_LOOKED_BACK = 1000
"""newest events, of which the users are checked"""


class JournalEntry(NamedTuple):
    """One journal event of a message."""

    event: int
    label: str | None
    """None if the message was forgotten"""
    user: str
    channel: str


class Snapshot(NamedTuple):
    """The model's sums at a time."""

    time_us: int
    totals: Totals


class ModelRecords:
    """The records of one home."""

    def __init__(
        self,
        opened: Callable[[], Filter],
        home: Path,
        forget: Forget,
        names: PersonNames | None = None,
    ) -> None:
        self._names = names
        self._opened = opened
        self._model = opened()
        self._home = home
        self._forget = forget
        self.labels = self._model.labels

    def close(self) -> None:
        self._model.close()

    def snapshot(self) -> Snapshot:
        """Return the current sums of the model."""
        with self._model.store.read() as view:
            return Snapshot(now_us(), view.totals())

    def learnt(self) -> dict[str, int]:
        """Return the number of messages of each label."""
        counts: list[int] = self.snapshot().totals.messages.tolist()
        return dict(zip(self.labels, counts, strict=True))

    def own(self, most: int) -> dict[str, int]:
        """Return the number of messages of each label without imports, at most `most` of each."""
        with self._model.store.read() as view:
            return dict(zip(self.labels, view.learnt(most), strict=True))

    def events_since(self, message_id: str, since: Snapshot) -> list[JournalEntry]:
        """Return the journal events of a message since a snapshot, oldest first."""
        with self._model.store.read() as view:
            return [
                JournalEntry(event.seq, self._name(event.after), event.user, event.channel)
                for event in view.events(since.totals.last_seq + 1)
                if event.message_id == message_id
            ]

    def _name(self, label: int) -> str | None:
        return None if label == NO_LABEL else self.labels[label]

    def teachers(self) -> set[str]:
        """Return the users of the newest labels of persons."""
        with self._model.store.read() as view:
            newest = (view.event(seq) for seq, _ in view.last_events(_LOOKED_BACK))
            return {event.user for event in newest if event and event.person}

    def verdict(self, raw: bytes, signature: str, user: str) -> Verdict:
        """Return the current verdict for a user, with the features as scanned if known."""
        person = self._model.person(self._names.of(user)) if self._names else 0
        with suppress(RefError):
            return self._model.explain(signature, person=person)
        return self._model.score(raw, remember=False, person=person)

    @property
    def local(self) -> LocalHosts:
        """Return the names of the site, with the key of the model."""
        return self._model.reader.local

    def history_entry(self, signature: str) -> HistoryEntry | None:
        """Return the history entry of a signature; None if there is none."""
        history = self._model.history
        found = history.find(signature=signature_bytes(signature)) if history else []
        return found[0] if found else None

    def in_review(self, message_id: str) -> list[ReviewItem]:
        """Return the feedback on the message in the review queue."""
        entries = ReviewQueue(self._home / "review").entries()
        return [entry for entry in entries if entry.message_id == message_id]

    def quarantined(self, message_id: str, since: Snapshot) -> list[str]:
        """Return the ids of the message in quarantine."""
        kept = Quarantine(self._home / "quarantine")
        found, wanted = [], message_id.encode()
        for entry in kept.messages():
            if entry.time_us >= since.time_us:
                with suppress(RefError):
                    if wanted in kept.raw(entry.id):
                        found.append(entry.id)
        return found

    # -- removal --------------------------------------------------------------------------------

    def take_back(self, message_id: str, since: Snapshot) -> list[str]:
        """Forget the message and delete it from review queue and quarantine; return what failed."""
        steps = (self._forget_it, self._drop_reviews, self._drop_quarantined)
        faults = []
        for step in steps:
            try:
                step(message_id, since)
            except SpamnbError as error:
                faults.append(str(error))
        return faults

    def _forget_it(self, message_id: str, since: Snapshot) -> None:
        live = self._live(message_id, since)
        if not live:
            return
        # Without a daemon this process writes, which it cannot while its own store is read-only.
        self._model.close()
        try:
            for digest, person in live:
                self._forget(Feedback("", refs=(digest.hex(),), person=person))
        finally:
            self._model = self._opened()

    def _live(self, message_id: str, since: Snapshot) -> list[tuple[bytes, str]]:
        """Return digest and user of each label of a person, and the digest of each shared one."""
        with self._model.store.read() as view:
            taught = {
                event.label_key: (event.digest, event.user if event.person else "")
                for event in view.events(since.totals.last_seq + 1)
                if event.message_id == message_id
            }
            states = {key: view.live(key) for key in taught}
        live = [key for key, state in states.items() if state and state.label != NO_LABEL]
        return list(dict.fromkeys(taught[key] for key in live))

    def _drop_reviews(self, message_id: str, _: Snapshot) -> None:
        for entry in self.in_review(message_id):
            ReviewQueue(self._home / "review").drop(entry.name)

    def _drop_quarantined(self, message_id: str, since: Snapshot) -> None:
        for identity in self.quarantined(message_id, since):
            Quarantine(self._home / "quarantine").delete(identity)

    def difference(self, message_id: str, since: Snapshot) -> str:
        """Return how the message still affects the model; empty if it does not.

        Compares the sums with those of the snapshot, unless other messages were learnt meanwhile.
        """
        if self._live(message_id, since):
            return "the message is still learnt"
        with self._model.store.read() as view:
            now = view.totals()
            events = view.events(since.totals.last_seq + 1, now.last_seq + 1)
            others = any(event.message_id != message_id for event in events)
        return "" if others or _same(since.totals, now) else "the model's sums have changed"


def _same(one: Totals, other: Totals) -> bool:
    """Return whether two totals are equal except for the number of the last event."""
    names = ("messages", "tokens", "bias", "temperatures", "histogram")
    alike = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
    return alike and one.known == other.known
