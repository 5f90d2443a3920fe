"""`PostgresLog`: the log of a fleet on a PostgreSQL server.

    spamnb_log        epoch, seq, chain; run: the run of the server in which the log was settled
    spamnb_entry      entries by the seq of their last event
    spamnb_recorded       how many events each host has appended
    spamnb_lease      the host that does a task for all hosts; the write lease has an empty name
    spamnb_beat       what each host reports about itself
    spamnb_report     after a restart of the server: the last event of each host
    spamnb_skipped    permits to skip an entry
    spamnb_snapshot, spamnb_part    a copy of a host's model
    spamnb_question, spamnb_answer  between hosts; empty after a crash of the server

The first column of each table is the name of the fleet, so fleets can share a database.

Failure: LogAwayError for every fault of server and network.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from spamnb.endpoints.fleet import postgres_sql as sql
from spamnb.endpoints.fleet.paging import paged
from spamnb.endpoints.fleet.params import FleetParams
from spamnb.endpoints.fleet.postgres_connections import (
    LONGEST_WAIT_S,
    Connections,
    PostgresConnection,
)
from spamnb.errors import FleetError, LogAwayError
from spamnb.store.fleet.fleet_log import (
    ASKED_S,
    DAY_S,
    FRESH_S,
    SNAPSHOT_S,
    Asked,
    Beat,
    Draft,
    Head,
    LogEntry,
    Outcome,
    outcome_of,
)
from spamnb.store.fleet.position import next_chain

Row = tuple[Any, ...]


class PostgresLog:
    """`FleetLog` on a server; connections are opened when they are needed."""

    def __init__(self, params: FleetParams, password: str = "") -> None:
        self._connections = Connections(params, password)
        self._fleet = params.name
        self._keep_events = params.keep_events

    def head(self) -> Head | None:
        found = self._rows(sql.HEAD)
        return Head(*found[0]) if found else None

    def make(self, head: Head) -> bool:
        return self._changed(sql.MAKE, **head._asdict())

    def append(self, draft: Draft) -> Outcome:
        while True:
            found = self._rows(sql.STATE, host=draft.host)
            head = Head(*found[0][:4]) if found else None
            writer, recorded = found[0][4:] if found else ("", 0)
            outcome = outcome_of(draft, head, writer, recorded)
            if outcome is not Outcome.APPENDED or head is None:
                return outcome
            chain = next_chain(head.chain, draft.body)
            entry = LogEntry(draft.host, draft.upto, draft.base + 1, draft.last, chain, draft.body)
            # If the statement changes nothing, the log has changed since the first one.
            if self._add(draft.epoch, head.chain, entry, settled=True):
                return outcome

    def _add(self, epoch: str, before: str, entry: LogEntry, *, settled: bool) -> bool:
        values = entry._asdict() | {"epoch": epoch, "before": before, "settled": settled}
        oldest = entry.last - self._keep_events
        return bool(self._rows(sql.ADD, **values, base=entry.first - 1, oldest=oldest))

    def settle(self, host: str, seq: int, wait_s: float) -> bool:
        head = self.head()
        if head is None or head.settled:
            return head is not None
        self._changed(sql.REPORT, host=host, seq=seq)
        self._changed(sql.SETTLE, wait_s=wait_s, fresh_s=FRESH_S, day_s=DAY_S)
        head = self.head()
        return head is not None and head.settled

    def restore(self, epoch: str, before: str, entry: LogEntry) -> bool:
        return self._add(epoch, before, entry, settled=False)

    def renew(self, epoch: str, seq: int, renewed: str) -> bool:
        return self._changed(sql.RENEW, epoch=epoch, seq=seq, renewed=renewed)

    def put_level(self, level: int) -> None:
        self._changed(sql.LEVEL, level=level)

    def clear(self) -> None:
        self._transact(sql.CLEAR)

    def beat(self, beat: Beat) -> int:
        found = self._rows(sql.BEAT, **beat._asdict(), fresh_s=FRESH_S)
        if not found:
            raise FleetError(
                f"another host of the fleet has the name {beat.host}",
                hint="set fleet.host, a different name on each host",
            )
        self._transact([sql.TRIM], day_s=DAY_S, keep_s=SNAPSHOT_S)
        return int(found[0][0])

    def beats(self) -> list[Beat]:
        return [Beat(*row) for row in self._rows(sql.BEATS)]

    def skip(self, last: int, permit: bytes) -> None:
        self._changed(sql.SKIP, last=last, permit=permit)

    def skipped(self, last: int) -> bytes | None:
        found = self._rows(sql.SKIPPED, last=last)
        return found[0][0] if found else None

    def recorded(self, host: str) -> int:
        found = self._rows(sql.RECORDED, host=host)
        return int(found[0][0]) if found else 0

    def lease(self, what: str, host: str, hold_s: float) -> bool:
        return self._changed(sql.LEASE, what=what, host=host, hold_s=hold_s)

    def entries(self, after: int, wait_s: float = 0.0) -> Iterator[LogEntry]:
        return paged(self._page, after, wait_s)

    def _page(self, after: int, count: int, wait_s: float) -> list[LogEntry]:
        values = {"after": after, "count": count}
        found = self._rows(sql.PAGE, **values)
        if not found and wait_s:
            found = self._awaited("spamnb_log", wait_s, sql.PAGE, values)
        return [LogEntry(*row) for row in found]

    def _awaited(
        self, channel: str, wait_s: float, statement: str, values: dict[str, Any], least: int = 1
    ) -> list[Row]:
        """Read again after each notice, until there are `least` rows or the time is over."""
        wait_s = min(wait_s, LONGEST_WAIT_S)
        end = time.monotonic() + wait_s
        with self._connections.lend(wait_s) as connection:
            connection.execute(f"LISTEN {channel}".encode())
            while len(found := self._read(connection, statement, values)) < least:
                left_s = end - time.monotonic()
                if left_s <= 0:
                    break
                list(connection.notifies(timeout=left_s, stop_after=1))
            connection.execute(f"UNLISTEN {channel}".encode())
        return found

    def take_write_lease(self, host: str, ms: int) -> bool:
        return self.lease("", host, ms / 1000)

    def give_write_lease(self, host: str) -> None:
        self._changed(sql.GIVE_WRITE_LEASE, host=host)

    def put_snapshot(self, parts: Iterable[bytes], seq: int = 0) -> None:
        ident, count = secrets.token_hex(8), 0
        for number, part in enumerate(parts):
            self._transact([sql.PUT_PART], ident=ident, number=number, body=part)
            count = number + 1
        self._transact(sql.PUT_SNAPSHOT, ident=ident, seq=seq, parts=count)

    def snapshot(self) -> Iterator[bytes]:
        for ident, count, _ in self._rows(sql.SNAPSHOT, keep_s=SNAPSHOT_S):
            for number in range(count):
                values = {"ident": ident, "number": number}
                with self._connections.lend(LONGEST_WAIT_S) as connection:
                    found = self._read(connection, sql.PART, values)
                if not found:
                    raise LogAwayError(
                        "the snapshot of the fleet was replaced while it was read", hint="try again"
                    )
                yield found[0][0]

    def snapshot_age_s(self) -> float:
        found = self._rows(sql.SNAPSHOT, keep_s=SNAPSHOT_S)
        return float(found[0][2]) if found else math.inf

    def ask(self, hosts: Collection[str], question: Asked, wait_s: float) -> dict[str, bytes]:
        about = question._asdict()
        self._transact(sql.ASK, **about, hosts=list(hosts), keep_s=ASKED_S)
        values = {"ident": question.ident}
        found = self._awaited("spamnb_asked", wait_s, sql.ANSWERS, values, len(hosts))
        return {host: bytes(body) for host, body in found}

    def next_question(self, host: str, wait_s: float) -> Asked | None:
        found = self._awaited("spamnb_asked", wait_s, sql.QUESTION, {"host": host})
        return Asked(*found[0]) if found else None

    def answer(self, host: str, answer: Asked) -> None:
        self._transact(sql.ANSWER, **answer._asdict(), host=host)

    def close(self) -> None:
        self._connections.close()

    def _rows(self, statement: str, **values: Any) -> list[Row]:
        with self._connections.lend() as connection:
            return self._read(connection, statement, values)

    def _read(
        self, connection: PostgresConnection, statement: str, values: dict[str, Any]
    ) -> list[Row]:
        values = values | {"fleet": self._fleet}
        return connection.execute(statement.encode(), values, binary=True).fetchall()

    def _changed(self, statement: str, **values: Any) -> bool:
        """Return whether the statement has changed a row."""
        with self._connections.lend() as connection:
            return (
                connection.execute(statement.encode(), values | {"fleet": self._fleet}).rowcount > 0
            )

    def _transact(self, statements: Iterable[str], **values: Any) -> None:
        with self._connections.lend(LONGEST_WAIT_S) as connection, connection.transaction():
            for statement in statements:
                connection.execute(statement.encode(), values | {"fleet": self._fleet})
