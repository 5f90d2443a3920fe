"""A store in memory, for tests. Nothing is written to disk.

It shares no code with `table_views` on purpose: two stores that agree on random histories are
evidence that both are correct. A transaction writes to overlays, which are merged into the state
when it ends. A changed row takes a new slot in the arrays, so an open snapshot keeps the old slots,
and the old dicts, which are copied once. Writers wait for each other; readers never wait.

Failure: BugError for misuse, and what `apply_event` raises.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np

from spamnb.errors import BugError
from spamnb.model.events import (
    NO_LABEL,
    Event,
    EventKind,
    Ids,
    Recipe,
    Records,
    Totals,
    label_key,
    person_of_key,
)
from spamnb.model.features import Words
from spamnb.model.persons import (
    FilledPlaces,
    PersonalCorrections,
    PersonalRows,
    filled_places,
)
from spamnb.model.training_rows import TrainingRows
from spamnb.policy.senders import SenderList
from spamnb.store.codec import empty_rows, no_records
from spamnb.store.journal import (
    MOST_DIGESTS,
    count_labels,
    event_ids,
    first_totals,
    older,
)
from spamnb.store.person_tables import encode_personal
from spamnb.store.table_views import ReadView, WriteView
from spamnb.store.values import FleetPosition, MessageState, RowSums, Word, refuse_apart, unpacked

_BLOCK = 16_384
_TABLES = (
    *("rows", "base", "words", "live", "owners", "mids", "events", "sums"),
    *("persons", "base_persons", "senders"),
)

Result = TypeVar("Result")
Dicts = dict[str, dict[Any, Any]]


class _Slots:
    """Rows in growing arrays; slots of replaced rows are reused if no snapshot is open."""

    def __init__(self, labels: int) -> None:
        self.size = 0
        self.free: list[int] = []
        self._records = no_records(1024, labels)

    def take(self, slots: list[int]) -> Records:
        """Return the rows in these slots; zeros for slot -1."""
        at = np.array(slots, np.intp)
        rows = self._records
        out = Records(rows.n[at], rows.w[at], rows.day[at])
        missing = at < 0
        if missing.any():
            out.n[missing], out.w[missing], out.day[missing] = 0, 0, 0
        return out

    def put(self, records: Records) -> list[int]:
        """Store new rows; return their slots."""
        count = len(records.day)
        slots = [self.free.pop() for _ in range(min(count, len(self.free)))]
        missing = count - len(slots)
        slots += range(self.size, self.size + missing)
        self.size += missing
        rows = self._records
        while self.size > len(rows.day):
            rows = self._records = Records(*(
                np.concatenate([a, np.zeros_like(a)]) for a in (rows.n, rows.w, rows.day)
            ))  # fmt: skip
        at = np.array(slots, np.intp)
        rows.n[at], rows.w[at], rows.day[at] = records.n, records.w, records.day
        return slots


class _View:
    """The read view and the write view; reads look into the overlay first."""

    def __init__(self, store: MemoryStore, state: Dicts) -> None:
        self._store = store
        self._recipe = store.recipe
        self._state = state
        self._change = store.last_change()
        self.over: Dicts = {name: {} for name in _TABLES}

    def _get(self, table: str, key: Any) -> Any:
        over = self.over[table]
        return over[key] if key in over else self._state[table].get(key)

    def _keys(self, table: str) -> list[Any]:
        over = self.over[table]
        gone = {key for key, value in over.items() if value is None}
        return sorted((self._state[table].keys() | over.keys()) - gone)

    def last_change(self) -> int:
        return self._change

    def totals(self) -> Totals:
        sums: Totals = self._get("sums", "live")
        return sums.copy()

    def base_totals(self) -> Totals:
        sums: Totals = self._get("sums", "base")
        return sums.copy()

    def gather(self, ids: Ids) -> Records:
        return self._gather("rows", ids)

    def _gather(self, table: str, ids: Ids) -> Records:
        over, state = self.over[table], self._state[table]
        slots = (over[i] if i in over else state.get(i) for i in ids.tolist())
        return self._store.slots.take([-1 if slot is None else slot for slot in slots])

    def features(self) -> Iterator[tuple[Ids, Records]]:
        return self._features("rows")

    def base_features(self) -> Iterator[tuple[Ids, Records]]:
        return self._features("base")

    def _features(self, table: str) -> Iterator[tuple[Ids, Records]]:
        ids = np.array(self._keys(table), np.uint64)
        for start in range(0, len(ids), _BLOCK):
            block = ids[start : start + _BLOCK]
            yield block, self._gather(table, block)

    def words(self, ids: Ids) -> list[Word | None]:
        return [self._get("words", i) for i in ids.tolist()]

    def all_words(self) -> Iterator[Word]:
        for key in self._keys("words"):
            yield self._get("words", key)

    def live(self, key: bytes) -> MessageState | None:
        line: MessageState | None = self._get("live", key)
        return line

    def labels(self, digest: bytes) -> dict[int, MessageState]:
        owners: tuple[int, ...] = self._get("owners", digest) or ()
        states = {owner: self.live(label_key(digest, 0, owner)) for owner in (0, *owners)}
        return {owner: state for owner, state in states.items() if state is not None}

    def learnt(self, most: int) -> list[int]:
        states = (self._get("live", digest) for digest in self._keys("live"))
        labels = len(self._store.recipe.labels)
        return count_labels((state.label for state in states), labels, most)

    def digests(self, message_id: str) -> list[bytes]:
        return list(self._get("mids", message_id) or ())[:MOST_DIGESTS]

    def event(self, seq: int) -> Event | None:
        event: Event | None = self._get("events", seq)
        return event

    def events(
        self, start: int = 1, stop: int | None = None, *, newest_first: bool = False
    ) -> Iterator[Event]:
        last = self._last()
        seqs = range(max(start, 1), last + 1 if stop is None else min(stop, last + 1))
        for seq in reversed(seqs) if newest_first else seqs:
            event = self._get("events", seq)
            if event is not None:
                yield event

    def _last(self) -> int:
        return int(self._get("sums", "seq"))

    def live_at(self, label: int, seq: int) -> int:
        kept: list[int] = self._get("sums", ("kept", label)) or []
        if not kept:
            return 0
        return kept[bisect.bisect_left(kept, seq) % len(kept)]

    def personal(self, person: int) -> FilledPlaces | None:
        return self._personal("persons", person)

    def _personal(self, table: str, person: int) -> FilledPlaces | None:
        found: PersonalCorrections | None = self._get(table, person)
        return None if found is None else filled_places(found)

    def persons(self) -> Iterator[tuple[int, FilledPlaces]]:
        return self._persons("persons")

    def person_sizes(self) -> dict[int, int]:
        every = self._keys("persons")
        return {one: len(encode_personal(self._get("persons", one))) for one in every}

    def base_persons(self) -> Iterator[tuple[int, FilledPlaces]]:
        return self._persons("base_persons")

    def _persons(self, table: str) -> Iterator[tuple[int, FilledPlaces]]:
        for person in self._keys(table):
            if (filled := self._personal(table, person)) is not None:
                yield person, filled

    def senders(self, owner: bytes) -> SenderList | None:
        found: SenderList | None = self._get("senders", owner)
        return found

    def sender_lists(self) -> Iterator[tuple[bytes, SenderList]]:
        for owner in self._keys("senders"):
            yield owner, self._get("senders", owner)

    def last_events(self, count: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for event in self.events(newest_first=True):
            if len(found) >= count:
                break
            if event.kind in (EventKind.LEARN, EventKind.MOVE):
                found.append((event.seq, event.after))
        return found

    def position(self) -> FleetPosition | None:
        position: FleetPosition | None = self._get("sums", "position")
        return position

    def sums(self) -> RowSums | None:
        return None if self.position() is None else self.scanned_sums()

    def scanned_sums(self) -> RowSums:
        return ReadView.scanned_sums(cast("ReadView", self))

    def scanned_rows(self) -> int:
        return ReadView.scanned_rows(cast("ReadView", self))

    # --- writing ---

    def put_totals(self, totals: Totals) -> None:
        self.over["sums"]["live"] = totals.copy()

    def scatter(self, ids: Ids, records: Records) -> None:
        self._scatter("rows", ids, records)
        for key in ids[empty_rows(records)].tolist():
            if self._get("words", key) is not None:
                self.over["words"][key] = None

    def _scatter(self, table: str, ids: Ids, records: Records) -> None:
        gone = empty_rows(records)
        kept = Records(records.n[~gone], records.w[~gone], records.day[~gone])
        over = self.over[table]
        over.update(dict.fromkeys(ids[gone].tolist()))
        over.update(zip(ids[~gone].tolist(), self._store.slots.put(kept), strict=True))

    def put_words(self, words: Words) -> None:
        if not self._store.recipe.vocabulary:
            return
        if int(words.sizes.sum(dtype=np.int64)) != len(words.texts):
            raise BugError("the sizes of the words do not sum to the length of their texts")
        for word in unpacked(words):
            if self._get("words", word.id) is None:
                self.over["words"][word.id] = word

    def put_personal(self, person: int, personal: PersonalCorrections | None) -> None:
        self.over["persons"][person] = personal

    def drop_persons(self, persons: Collection[int]) -> None:
        for person in persons:
            self.over["persons"][person] = self.over["base_persons"][person] = None
        for key in [*self._keys("live")]:
            if person_of_key(key) in persons:
                self.over["live"][key] = None

    def put_senders(self, owner: bytes, senders: SenderList | None) -> None:
        self.over["senders"][owner] = senders or None

    def append(self, *events: Event) -> None:
        for event in events:
            self._append(event)

    def _append(self, event: Event) -> None:
        if event.seq != self._last() + 1:
            raise BugError(f"event {event.seq} is appended, expected {self._last() + 1}")
        self.over["sums"]["seq"] = event.seq
        self.over["events"][event.seq] = event
        if not event.digest:
            return
        key = event.label_key
        old = self.live(key)
        if old is not None and not old.folded:
            self._unkeep(old)
        self.over["live"][key] = MessageState(event.after, event.seq, folded=False)
        if event.owner and old is None:
            owners = self._get("owners", event.digest) or ()
            self.over["owners"][event.digest] = (*owners, event.owner)
        if event.after != NO_LABEL:
            kept = ("kept", event.after)
            self.over["sums"][kept] = [*(self._get("sums", kept) or []), event.seq]
        if event.message_id:
            old_digests = self._get("mids", event.message_id) or {}
            self.over["mids"][event.message_id] = old_digests | {event.digest: None}

    def _unkeep(self, line: MessageState) -> None:
        if line.label != NO_LABEL:
            key = ("kept", line.label)
            self.over["sums"][key] = [seq for seq in self._get("sums", key) if seq != line.seq]

    def fold(self, before_us: int, most: int) -> int:
        batch = [*islice(self.events(), most)]
        del batch[older([event.time_us for event in batch], before_us) :]
        for event in batch:
            self._fold(event)
        return len(batch)

    def put_position(self, position: FleetPosition | None) -> None:
        self.over["sums"]["position"] = position

    def finish(self) -> None:
        if self.over["events"]:
            refuse_apart(self.position(), self._last())

    def _fold(self, event: Event) -> None:
        ids, totals = event_ids(event), self.base_totals()
        records = self._gather("base", ids)
        apply_event(event, totals, ids, records)
        totals.last_seq = event.seq
        self._scatter("base", ids, records)
        self.over["sums"]["base"] = totals
        personal_rows = PersonalRows(len(totals.messages), partial(self._personal, "base_persons"))
        personal_rows.apply(event)
        self.over["base_persons"].update(personal_rows.changed())
        self.over["events"][event.seq] = None
        line = self.live(event.label_key)
        if line is not None and line.seq == event.seq:
            self._unkeep(line)
            self.over["live"][event.label_key] = line._replace(folded=True)


def apply_event(event: Event, totals: Totals, ids: Ids, records: Records, *, sign: int = 1) -> None:
    """Add an event to totals and records, or subtract it (sign -1); `ids` holds all of its ids."""
    training_rows = TrainingRows(totals, ids, records)
    training_rows.apply(event, sign=sign)
    to_records = training_rows.to_records()
    records.n[:], records.w[:], records.day[:] = to_records.n, to_records.w, to_records.day
    totals.messages, totals.tokens = training_rows.totals.messages, training_rows.totals.tokens
    totals.bias, totals.temperatures = training_rows.totals.bias, training_rows.totals.temperatures
    totals.known, totals.histogram = training_rows.totals.known, training_rows.totals.histogram


class MemoryStore:
    """A store that exists as long as its process."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.slots = _Slots(len(recipe.labels))
        self._state: Dicts = {name: {} for name in _TABLES}
        self._state["sums"] = {
            "live": first_totals(recipe), "base": first_totals(recipe), "seq": 0
        }  # fmt: skip
        self._writer = threading.Lock()
        self._writing_thread = 0
        self._swap = threading.Lock()
        self._readers = 0
        self._changes = 0

    @property
    def recipe(self) -> Recipe:
        return self._recipe

    @property
    def scores_host(self) -> str:
        return "this host"

    @property
    def limit_bytes(self) -> int:
        """Return 0: the size is unlimited."""
        return 0

    def last_change(self) -> int:
        return self._changes

    @contextlib.contextmanager
    def read(self) -> Iterator[ReadView]:
        with self._swap:
            self._readers += 1
            view = _View(self, self._state)
        try:
            yield view
        finally:
            with self._swap:
                self._readers -= 1

    @contextlib.contextmanager
    def write(self) -> Iterator[WriteView]:
        if self._writing_thread == threading.get_ident():
            raise BugError("this thread already has a write transaction open")
        with self._writer:
            self._writing_thread = threading.get_ident()
            try:
                view = _View(self, self._state)
                yield view
                view.finish()
                self._commit(view)
            finally:
                self._writing_thread = 0

    def transact(self, run: Callable[[WriteView], Result]) -> Result:
        with self.write() as view:
            return run(view)

    def _commit(self, view: _View) -> None:
        with self._swap:
            read = self._readers > 0
            state = {k: dict(v) for k, v in self._state.items()} if read else self._state
            for name, over in view.over.items():
                slotted = name in ("rows", "base") and not read
                for key, value in over.items():
                    old = state[name].pop(key, None) if value is None else state[name].get(key)
                    if value is not None:
                        state[name][key] = value
                    if slotted and old is not None:
                        self.slots.free.append(old)
            self._state = state
            self._changes += 1

    def close(self) -> None:
        """Do nothing; there are no files to close."""
