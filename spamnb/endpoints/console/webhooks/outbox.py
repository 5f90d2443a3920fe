"""The events that wait for their receivers, on disk until a receiver has taken them.

    waiting    webhook, 8 bytes of a hash | event type u8 | number u64    next u64 | made u64 |
               attempts u16 | webhook-id, 24 characters | body
    meta       "state": what the events were made from, JSON; "dropped": numbers by webhook, JSON

`put` stores events together with the state that they were made from, in one synced transaction: a
killed process neither loses an event nor makes it twice, and the ID of the event stays the same. At
most `MOST` events of each webhook and type wait, so a flood of one type does not displace others.
Damaged files are replaced by empty ones. Failure: StoreError.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from struct import Struct
from typing import Any, Final, NamedTuple

from spamnb.endpoints.console.webhooks.params import EVENTS
from spamnb.service.engine.clock import iso
from spamnb.store.lmdb.environment import release
from spamnb.store.lmdb.renewal import share_or_renew
from spamnb.store.lmdb.table import LmdbTable
from spamnb.store.rows.id_codec import Buffer

MOST: Final = 1_000
"""events of one type for one webhook"""
FIRST_US: Final = 5_000_000
"""the pause after the first attempt; each attempt doubles it"""
KEPT_US: Final = 86_400_000_000
"""after this time an event is not tried again; each event gets at least one attempt"""
FOLDER: Final = "outbox"
_KEY: Final = Struct(">8sBQ")
_HEAD: Final = Struct(">QQH24s")
_STATE, _DROPPED = b"state", b"dropped"

Tables = dict[str, LmdbTable]
State = Mapping[str, Any]


class WebhookEvent(NamedTuple):
    """Something that has happened."""

    type: str
    """one of `EVENTS`"""
    time_us: int
    data: Mapping[str, Any]

    def body(self) -> bytes:
        """Return the body that a receiver gets."""
        value = {"type": self.type, "timestamp": iso(self.time_us), "data": dict(self.data)}
        return json.dumps(value).encode()


class WaitingEvent(NamedTuple):
    """An event that one receiver has not taken yet."""

    key: bytes
    id: str
    body: bytes
    made_us: int
    next_us: int
    """the time of the next attempt"""
    attempts: int = 0

    def encoded(self) -> bytes:
        """Return the stored form."""
        head = _HEAD.pack(self.next_us, self.made_us, self.attempts, self.id.encode())
        return head + self.body

    def after_failure(self, now_us: int) -> WaitingEvent | None:
        """Return it with the time of its next attempt; None if there is no further attempt."""
        next_us = now_us + FIRST_US * (1 << min(self.attempts, 20))
        if next_us > self.made_us + KEPT_US:
            return None
        return self._replace(next_us=next_us, attempts=self.attempts + 1)


class DueEvent(NamedTuple):
    """The oldest event that is due, or when the next one is."""

    event: WaitingEvent | None
    next_us: int
    """0 if none waits"""


class WebhookOutbox:
    """The waiting events of one home."""

    def __init__(self, home: Path) -> None:
        self._environment = share_or_renew(home / "console" / FOLDER, ("waiting", "meta"))

    def close(self) -> None:
        """Close the files."""
        release(self._environment)

    def state(self) -> State:
        """Return the state of the last `put`; empty before the first one."""
        with self._environment.read() as tables:
            return _json(tables["meta"].get(_STATE))

    def put(
        self,
        events: Sequence[WebhookEvent],
        state: State,
        wanted: Mapping[str, Collection[str]],
        now_us: int,
    ) -> None:
        """Store events for the webhooks that want them, and the state that they were made from."""
        named = [(event, f"msg_{token_hex(10)}".encode(), event.body()) for event in events]

        def run(tables: Tables) -> None:
            dropped: Counter[str] = Counter()
            for hook, types in wanted.items():
                for kind in types:
                    rows = [
                        _HEAD.pack(now_us, event.time_us, 0, name) + body
                        for event, name, body in named
                        if event.type == kind
                    ]
                    dropped[hook] += _add(tables["waiting"], hook, kind, rows)
            _count(tables["meta"], dropped)
            tables["meta"].put(_STATE, json.dumps(state).encode())

        self._environment.transact(run)

    def due(self, hook: str, now_us: int) -> DueEvent:
        """Return the oldest event of a webhook that is due."""
        oldest: WaitingEvent | None = None
        later = []
        with self._environment.read() as tables:
            for row in _of(tables["waiting"], _hash(hook)):
                if row.next_us > now_us:
                    later.append(row.next_us)
                elif oldest is None or row.made_us < oldest.made_us:
                    oldest = row
        return DueEvent(oldest, min(later, default=0))

    def taken(self, hook: str, event: WaitingEvent, now_us: int) -> None:
        """Delete an event that the receiver has accepted.

        If earlier attempts with this event failed, the receiver was away. Then its other events are
        due at once.
        """

        def run(tables: Tables) -> None:
            tables["waiting"].delete(event.key)
            rows = list(_of(tables["waiting"], _hash(hook))) if event.attempts else []
            for row in (one for one in rows if one.next_us > now_us):
                tables["waiting"].put(row.key, row._replace(next_us=now_us).encoded())

        self._environment.transact(run)

    def failed(self, hook: str, event: WaitingEvent, now_us: int) -> bool:
        """Postpone an event; whether there is a further attempt."""
        later = event.after_failure(now_us)

        def run(tables: Tables) -> None:
            if later is None:
                tables["waiting"].delete(event.key)
                _count(tables["meta"], {hook: 1})
            else:
                tables["waiting"].put(event.key, later.encoded())

        self._environment.transact(run)
        return later is not None

    def keep(self, hooks: Collection[str]) -> None:
        """Delete the events of webhooks that are not in the settings any more."""
        known = set(map(_hash, hooks))

        def run(tables: Tables) -> None:
            for key in [key for key, _ in tables["waiting"].scan() if key[:8] not in known]:
                tables["waiting"].delete(key)
            dropped = _json(tables["meta"].get(_DROPPED))
            kept = {hook: number for hook, number in dropped.items() if hook in hooks}
            tables["meta"].put(_DROPPED, json.dumps(kept).encode())

        self._environment.transact(run)

    def numbers(self, hook: str) -> tuple[int, int]:
        """Return how many events of a webhook wait, and how many were dropped."""
        with self._environment.read() as tables:
            waiting = sum(1 for _ in _keys(tables["waiting"], _hash(hook)))
            return waiting, int(_json(tables["meta"].get(_DROPPED)).get(hook, 0))


def _add(table: LmdbTable, hook: str, kind: str, rows: Sequence[bytes]) -> int:
    """Store events of one type; how many had no room."""
    head = _hash(hook) + bytes((EVENTS.index(kind),))
    keys = list(_keys(table, head)) if rows else []
    number = _KEY.unpack(keys[-1])[2] + 1 if keys else 0
    room = max(MOST - len(keys), 0)
    for at, row in enumerate(rows[:room], number):
        table.put(head + at.to_bytes(8, "big"), row)
    return len(rows[room:])


def _keys(table: LmdbTable, head: bytes) -> Iterator[bytes]:
    return (key for key, _ in _rows(table, head))


def _of(table: LmdbTable, head: bytes) -> Iterator[WaitingEvent]:
    for key, value in _rows(table, head):
        next_us, made_us, attempts, name = _HEAD.unpack_from(value)
        body = bytes(value[_HEAD.size :])
        yield WaitingEvent(key, name.decode(), body, made_us, next_us, attempts)


def _rows(table: LmdbTable, head: bytes) -> Iterator[tuple[bytes, Buffer]]:
    for key, value in table.scan(head):
        if not key.startswith(head):
            return
        yield key, value


def _count(meta: LmdbTable, dropped: Mapping[str, int]) -> None:
    if any(dropped.values()):
        total = Counter(_json(meta.get(_DROPPED)))
        total.update(dropped)
        meta.put(_DROPPED, json.dumps(total).encode())


def _json(value: Buffer | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(value)) if value is not None else {}
    return found


def _hash(hook: str) -> bytes:
    return blake2b(hook.encode("utf-8", "surrogatepass"), digest_size=8).digest()
