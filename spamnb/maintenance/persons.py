"""List the persons of a model, and erase one.

An erased person leaves no name, message digest, Message-ID, feature, correction or listed sender in
the model, the history and the review queue. What the person's labels had added to the shared model
is taken back; only labels that are part of the checkpoint stay in its sums, which name no person.
If the process is killed, erasing again ends in the same state. Must not know settings or
terminals.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.feedback.review import ReviewQueue
from spamnb.maintenance.expiry import persons_with_lists
from spamnb.model.events import NO_LABEL, Event, erased
from spamnb.model.persons import person_id
from spamnb.policy.actions import PersonNames
from spamnb.records.correspondents import Correspondents, has_correspondents
from spamnb.records.verdicts import HistoryEntry, rewrite
from spamnb.settings.values import HistoryLimits
from spamnb.store.maintenance import Change, rebuild, replay
from spamnb.store.model_store import open_store
from spamnb.store.table_views import ReadView, Store
from spamnb.telemetry import iso


@dataclass(frozen=True, slots=True)
class PersonFacts:
    """What a model holds of one person."""

    person: int
    name: str
    """as the newest label or the list of senders gives it; empty if all labels are in the
    checkpoint"""
    labels: dict[str, int]
    """number of messages with each label"""
    last_us: int
    """time of the newest label or entry; 0 if it is in the checkpoint"""
    places: int
    """corrections that are not zero"""
    senders: int
    """entries of the list of senders"""
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as values that JSON can represent."""
        return {
            "person": f"{self.person:016x}",
            "name": self.name,
            "labels": self.labels,
            "last": iso(self.last_us) if self.last_us else None,
            "places": self.places,
            "senders": self.senders,
            "bytes": self.bytes,
        }


def persons_of(view: ReadView, labels: tuple[str, ...]) -> list[PersonFacts]:
    """Return all persons with corrections, labels or senders, the last one to change any first."""
    newest: dict[int, Event] = {}
    counts: dict[int, Counter[str]] = {}
    for event in view.events(newest_first=True):
        if not event.person:
            continue
        newest.setdefault(event.person, event)
        live = view.live(event.label_key)
        if live is not None and live.seq == event.seq and event.after != NO_LABEL:
            counts.setdefault(event.person, Counter())[labels[event.after]] += 1
    sizes, lists = view.person_sizes(), persons_with_lists(view)
    places = {person: len(filled.places) for person, filled in view.persons()}
    found = []
    for person in newest.keys() | sizes.keys() | lists.keys():
        last, senders = newest.get(person), lists.get(person)
        name, last_us = (last.user, last.time_us) if last else ("", 0)
        found.append(
            PersonFacts(
                person,
                name or (senders.name if senders else ""),
                dict(counts.get(person, {})),
                max(last_us, senders.last_us if senders else 0),
                places.get(person, 0),
                len(senders) if senders else 0,
                sizes.get(person, 0),
            )
        )
    return sorted(found, key=lambda one: (-one.last_us, one.person))


class Erased(NamedTuple):
    """What was removed with a person."""

    events: int
    verdicts: int
    """entries of the history that were removed, or no longer name the person"""
    reviews: int
    senders: int
    """entries of the list of senders"""
    correspondents: int
    """addresses and messages by which authors were known"""


@dataclass(frozen=True, slots=True)
class Erasing:
    """A person to be erased from a home that no process uses."""

    home: Path
    names: PersonNames
    name: str
    history: HistoryLimits
    reviews: ReviewQueue

    def run(self) -> Erased:
        """Erase the person; history and reviews first, because they hold the message texts."""
        reviews = self._drop_reviews()
        verdicts = rewrite(self.home / "history", self.history, self._without_name)
        shutil.rmtree(self.home / "console" / "lookup", ignore_errors=True)  # of the old history
        with closing(open_store(self.home, readonly=True)) as store:
            person = person_id(self.name, store.recipe.key)
            correspondents = self._drop_correspondents(store.recipe.key)
            with store.read() as view:
                senders = len(persons_with_lists(view).get(person, ()))
        done = rebuild(self.home, Change(partial(self._replay, person), without=person))
        done.kept.unlink()
        return Erased(done.result, verdicts, reviews, senders, correspondents)

    def _drop_correspondents(self, secret: bytes) -> int:
        if not has_correspondents(self.home):
            return 0
        with closing(Correspondents(self.home, secret)) as known:
            return known.erase(self.name)

    def still_named(self) -> list[Path]:
        """Return the files of the home that still contain an address of the person."""
        domains = self.names.logins if "@" not in self.name else ()
        wanted = [f"{self.name}@{domain}".encode() for domain in domains] or [self.name.encode()]
        return [path for path in sorted(self.home.rglob("*")) if _contains(path, wanted)]

    def _is_name(self, text: str) -> bool:
        return bool(text) and self.names.of(text) == self.name

    def _drop_reviews(self) -> int:
        mine = [entry.name for entry in self.reviews.entries() if self._is_name(entry.user)]
        for name in mine:
            self.reviews.drop(name)
        return len(mine)

    def _without_name(self, entry: HistoryEntry) -> HistoryEntry | None:
        recipients = entry.notes.get("to", "").split()
        others = [one for one in recipients if not self._is_name(one)]
        if len(others) == len(recipients):
            return entry
        return replace(entry, notes=entry.notes | {"to": " ".join(others)}) if others else None

    def _replay(self, person: int, old: ReadView, new: Store) -> int:
        counted = 0

        def events() -> Iterator[Event]:
            nonlocal counted
            for event in old.events():
                mine = event.person == person
                counted += mine
                if mine:
                    yield erased(event)
                elif self._is_name(event.user):
                    yield event._replace(user="")
                else:
                    yield event

        replay(events(), old, new)
        return counted


def _contains(path: Path, wanted: list[bytes]) -> bool:
    if not path.is_file() or path.is_symlink() or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return any(data.find(one) >= 0 for one in wanted)
