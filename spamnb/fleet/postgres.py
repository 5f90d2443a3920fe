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

The first column of each table is the name of the fleet, so fleets can share a database. Each
statement is atomic. A run of the server is identified by its start time, which changes with each
restart; the log counts as settled if it was settled in the current run. All times are from the
clock of the server.

The only module that imports psycopg. Failure: LogAwayError for every fault of server and network.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from spamnb.errors import FleetError, LogAwayError
from spamnb.fleet.log import (
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
from spamnb.fleet.valkey import paged
from spamnb.settings.values import FleetParams
from spamnb.store.values import next_chain

CHECK = """
SELECT current_setting('fsync'), current_setting('full_page_writes'),
       current_setting('synchronous_commit'), current_setting('synchronous_standby_names')
"""

IS_THERE = "SELECT to_regclass('spamnb_answer') IS NOT NULL"

TABLES = """
SELECT pg_advisory_xact_lock(7233164);
CREATE TABLE IF NOT EXISTS spamnb_log (
    fleet text PRIMARY KEY, epoch text NOT NULL, seq bigint NOT NULL, chain text NOT NULL,
    run timestamptz NOT NULL, level integer NOT NULL);
CREATE TABLE IF NOT EXISTS spamnb_entry (
    fleet text, last bigint, host text NOT NULL, upto bigint NOT NULL, first bigint NOT NULL,
    chain text NOT NULL, body bytea NOT NULL, PRIMARY KEY (fleet, last));
CREATE TABLE IF NOT EXISTS spamnb_recorded (
    fleet text, host text, events bigint NOT NULL, PRIMARY KEY (fleet, host));
CREATE TABLE IF NOT EXISTS spamnb_lease (
    fleet text, what text, host text NOT NULL, ends timestamptz NOT NULL,
    PRIMARY KEY (fleet, what));
CREATE TABLE IF NOT EXISTS spamnb_beat (
    fleet text, host text, made timestamptz NOT NULL, ident text NOT NULL, seq bigint NOT NULL,
    chain text NOT NULL, fingerprint text NOT NULL, level integer NOT NULL, version text NOT NULL,
    clock_us bigint NOT NULL, waiting bigint NOT NULL, epoch text NOT NULL,
    PRIMARY KEY (fleet, host));
CREATE TABLE IF NOT EXISTS spamnb_report (
    fleet text, host text, run timestamptz NOT NULL, seq bigint NOT NULL,
    since timestamptz NOT NULL, made timestamptz NOT NULL, PRIMARY KEY (fleet, host));
CREATE TABLE IF NOT EXISTS spamnb_skipped (
    fleet text, last bigint, permit bytea NOT NULL, PRIMARY KEY (fleet, last));
CREATE TABLE IF NOT EXISTS spamnb_snapshot (
    fleet text PRIMARY KEY, ident text NOT NULL, seq bigint NOT NULL, parts integer NOT NULL,
    made timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS spamnb_part (
    fleet text, ident text, number integer, made timestamptz NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (fleet, ident, number));
CREATE UNLOGGED TABLE IF NOT EXISTS spamnb_question (
    fleet text, host text, ident text, made timestamptz NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (fleet, host, ident));
CREATE UNLOGGED TABLE IF NOT EXISTS spamnb_answer (
    fleet text, ident text, host text, made timestamptz NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (fleet, ident, host))
"""

HEAD = """
SELECT epoch, seq, chain, run = pg_postmaster_start_time(), level
FROM spamnb_log WHERE fleet = %(fleet)s
"""

MAKE = """
INSERT INTO spamnb_log
SELECT %(fleet)s, %(epoch)s, %(seq)s, %(chain)s,
       CASE WHEN %(settled)s THEN pg_postmaster_start_time() ELSE '-infinity' END, %(level)s
ON CONFLICT DO NOTHING
"""

# The first statement waits for an append in progress; the others then see what it has added.
CLEAR = (
    "DELETE FROM spamnb_log WHERE fleet = %(fleet)s",
    "DELETE FROM spamnb_entry WHERE fleet = %(fleet)s",
    "DELETE FROM spamnb_recorded WHERE fleet = %(fleet)s",
    "DELETE FROM spamnb_report WHERE fleet = %(fleet)s",
    "DELETE FROM spamnb_lease WHERE fleet = %(fleet)s AND what = ''",
    "UPDATE spamnb_snapshot SET seq = 0 WHERE fleet = %(fleet)s",
)

RENEW = """
UPDATE spamnb_log SET epoch = %(renewed)s
WHERE fleet = %(fleet)s AND epoch = %(epoch)s AND seq = %(seq)s
"""

LEVEL = "UPDATE spamnb_log SET level = %(level)s WHERE fleet = %(fleet)s"

STATE = """
SELECT epoch, seq, chain, run = pg_postmaster_start_time(),
       coalesce((SELECT host FROM spamnb_lease WHERE fleet = log.fleet AND what = ''
                 AND ends > clock_timestamp()), ''),
       coalesce((SELECT events FROM spamnb_recorded WHERE fleet = log.fleet AND host = %(host)s), 0)
FROM spamnb_log log WHERE fleet = %(fleet)s
"""

# Compare and append. An update waits for another update of the same row, and then compares.
ADD = """
WITH moved AS (
    UPDATE spamnb_log SET seq = %(last)s, chain = %(chain)s
    WHERE fleet = %(fleet)s AND epoch = %(epoch)s AND seq = %(base)s AND chain = %(before)s
          AND (run = pg_postmaster_start_time() OR NOT %(settled)s)
    RETURNING fleet
), added AS (
    INSERT INTO spamnb_entry (fleet, last, host, upto, first, chain, body)
    SELECT fleet, %(last)s, %(host)s, %(upto)s, %(base)s + 1, %(chain)s, %(body)s FROM moved
), recorded AS (
    INSERT INTO spamnb_recorded AS old SELECT fleet, %(host)s, %(upto)s FROM moved
    ON CONFLICT (fleet, host) DO UPDATE SET events = greatest(old.events, excluded.events)
), dropped AS (
    DELETE FROM spamnb_entry
    WHERE fleet = %(fleet)s AND last <= %(oldest)s AND EXISTS (SELECT FROM moved)
)
SELECT pg_notify('spamnb_log', '') FROM moved
"""

REPORT = """
INSERT INTO spamnb_report AS old
VALUES (%(fleet)s, %(host)s, pg_postmaster_start_time(), %(seq)s, clock_timestamp(),
        clock_timestamp())
ON CONFLICT (fleet, host) DO UPDATE SET
    run = excluded.run, seq = excluded.seq, made = excluded.made,
    since = CASE WHEN old.run = excluded.run THEN old.since ELSE excluded.since END
"""

SETTLE = """
WITH report AS (
    SELECT *, made > clock_timestamp() - make_interval(secs => %(fresh_s)s) AS is_fresh
    FROM spamnb_report WHERE fleet = %(fleet)s AND run = pg_postmaster_start_time()
), missing AS (
    SELECT FROM spamnb_beat WHERE fleet = %(fleet)s
        AND made >= clock_timestamp() - make_interval(secs => %(day_s)s)
        AND host NOT IN (SELECT host FROM report WHERE is_fresh)
)
UPDATE spamnb_log SET run = pg_postmaster_start_time()
WHERE fleet = %(fleet)s AND seq >= (SELECT max(seq) FROM report WHERE is_fresh)
    AND (NOT EXISTS (SELECT FROM missing)
         OR (SELECT min(since) FROM report)
            <= clock_timestamp() - make_interval(secs => %(wait_s)s))
"""

BEAT = """
INSERT INTO spamnb_beat AS old
VALUES (%(fleet)s, %(host)s, clock_timestamp(), %(ident)s, %(seq)s, %(chain)s, %(fingerprint)s,
        %(level)s, %(version)s, %(clock_us)s, %(waiting)s, %(epoch)s)
ON CONFLICT (fleet, host) DO UPDATE SET made = excluded.made, ident = excluded.ident,
    seq = excluded.seq, chain = excluded.chain, fingerprint = excluded.fingerprint,
    level = excluded.level, version = excluded.version, clock_us = excluded.clock_us,
    waiting = excluded.waiting, epoch = excluded.epoch
WHERE old.ident = excluded.ident
    OR old.made <= clock_timestamp() - make_interval(secs => %(fresh_s)s)
RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
"""

TRIM = """
WITH dropped AS (
    DELETE FROM spamnb_part WHERE fleet = %(fleet)s
        AND made < clock_timestamp() - make_interval(secs => %(keep_s)s)
)
DELETE FROM spamnb_entry WHERE fleet = %(fleet)s
    AND last <= (SELECT seq FROM spamnb_snapshot WHERE fleet = %(fleet)s)
    AND last <= (SELECT min(seq) FROM spamnb_beat WHERE fleet = %(fleet)s
                 AND made >= clock_timestamp() - make_interval(secs => %(day_s)s))
"""

BEATS = """
SELECT host, ident, seq, chain, fingerprint, level, version, clock_us, waiting, epoch,
       extract(epoch FROM clock_timestamp() - made)::float8
FROM spamnb_beat WHERE fleet = %(fleet)s
"""

SKIP = """
INSERT INTO spamnb_skipped VALUES (%(fleet)s, %(last)s, %(permit)s)
ON CONFLICT (fleet, last) DO UPDATE SET permit = excluded.permit
"""
SKIPPED = "SELECT permit FROM spamnb_skipped WHERE fleet = %(fleet)s AND last = %(last)s"

RECORDED = "SELECT events FROM spamnb_recorded WHERE fleet = %(fleet)s AND host = %(host)s"

PAGE = """
SELECT host, upto, first, last, chain, body FROM spamnb_entry
WHERE fleet = %(fleet)s AND last > %(after)s ORDER BY last LIMIT %(count)s
"""

# The write lease has an empty name; its holder may renew it.
LEASE = """
INSERT INTO spamnb_lease AS old
VALUES (%(fleet)s, %(what)s, %(host)s, clock_timestamp() + make_interval(secs => %(hold_s)s))
ON CONFLICT (fleet, what) DO UPDATE SET host = excluded.host, ends = excluded.ends
WHERE old.ends <= clock_timestamp() OR (old.what = '' AND old.host = excluded.host)
"""
GIVE_WRITE_LEASE = (
    "DELETE FROM spamnb_lease WHERE fleet = %(fleet)s AND what = '' AND host = %(host)s"
)

PUT_PART = """
INSERT INTO spamnb_part
VALUES (%(fleet)s, %(ident)s, %(number)s, clock_timestamp(), %(body)s)
"""
PUT_SNAPSHOT = (
    """
DELETE FROM spamnb_part part USING spamnb_snapshot old
WHERE part.fleet = %(fleet)s AND old.fleet = part.fleet AND old.ident = part.ident
""",
    """
INSERT INTO spamnb_snapshot
VALUES (%(fleet)s, %(ident)s, %(seq)s, %(parts)s, clock_timestamp())
ON CONFLICT (fleet) DO UPDATE SET ident = excluded.ident, seq = excluded.seq,
    parts = excluded.parts, made = excluded.made
""",
)
SNAPSHOT = """
SELECT ident, parts, extract(epoch FROM clock_timestamp() - made)::float8 FROM spamnb_snapshot
WHERE fleet = %(fleet)s AND made >= clock_timestamp() - make_interval(secs => %(keep_s)s)
"""
PART = """
SELECT body FROM spamnb_part
WHERE fleet = %(fleet)s AND ident = %(ident)s AND number = %(number)s
"""

# A new question deletes old questions and answers.
ASK = (
    """
DELETE FROM spamnb_question WHERE fleet = %(fleet)s
    AND made < clock_timestamp() - make_interval(secs => %(keep_s)s)
""",
    """
DELETE FROM spamnb_answer WHERE fleet = %(fleet)s
    AND made < clock_timestamp() - make_interval(secs => %(keep_s)s)
""",
    """
INSERT INTO spamnb_question
SELECT %(fleet)s, host, %(ident)s, clock_timestamp(), %(body)s FROM unnest(%(hosts)s::text[]) host
""",
    "SELECT pg_notify('spamnb_asked', '')",
)
QUESTION = """
DELETE FROM spamnb_question WHERE fleet = %(fleet)s AND host = %(host)s AND ident = (
    SELECT ident FROM spamnb_question WHERE fleet = %(fleet)s AND host = %(host)s
    ORDER BY made LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING ident, body
"""
ANSWER = (
    """
INSERT INTO spamnb_answer
VALUES (%(fleet)s, %(ident)s, %(host)s, clock_timestamp(), %(body)s) ON CONFLICT DO NOTHING
""",
    "SELECT pg_notify('spamnb_asked', '')",
)
ANSWERS = "SELECT host, body FROM spamnb_answer WHERE fleet = %(fleet)s AND ident = %(ident)s"


LONGEST_WAIT_S = 5.0
"""time limit for an entry, and for large statements"""
_SAFE = {
    "fsync": {"on"},
    "full_page_writes": {"on"},
    "synchronous_commit": {"on", "local", "remote_write", "remote_apply"},
}
_REPLICATED = {"on", "remote_apply"}


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed if the server does not answer in time."""

    limit_s = math.inf

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        try:
            return super().wait(_until(gen, time.monotonic() + self.limit_s), *args, **options)
        except TimeoutError:
            self.close()
            raise


def _until(gen: Generator[Any, Any, Any], end: float) -> Generator[Any, Any, Any]:
    """Run a generator of psycopg; TimeoutError if there is no answer before `end`."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= end:
                raise TimeoutError("no answer in time")
            wanted = gen.send(ready)
    except StopIteration as done:
        return done.value


class Connections:
    """Connections that are opened when they are needed; threads may share the object.

    A new connection is checked: a server that would lose acknowledged entries is refused. The
    tables are created if they are missing.
    """

    def __init__(self, params: FleetParams, password: str) -> None:
        self._params = params
        self._idle: deque[PostgresConnection] = deque()
        try:
            self._options = _options(params, password)
        except psycopg.Error as error:
            raise FleetError(
                f"fleet.url is invalid: {error}", hint="postgresql://USER@HOST/DATABASE"
            ) from error

    @contextmanager
    def lend(self, more_s: float = 0.0) -> Iterator[PostgresConnection]:
        """Lend a connection; after a fault all connections are opened anew.

        Each answer may take `append_s` plus `more_s`.
        """
        try:
            with self._lent() as connection:
                connection.limit_s = self._params.append_s + more_s
                yield connection
        except (psycopg.Error, OSError) as error:
            self.close()
            raise LogAwayError(
                f"the log of the fleet does not answer: {error}",
                hint="mail is still scanned; check fleet.url and its server",
            ) from error

    @contextmanager
    def _lent(self) -> Iterator[PostgresConnection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _open(self) -> PostgresConnection:
        connection = PostgresConnection.connect(autocommit=True, **self._options)
        try:
            connection.limit_s = self._params.append_s
            self._check(connection)
            if connection.execute(IS_THERE).fetchone() != (True,):
                connection.execute(TABLES)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: PostgresConnection) -> None:
        """Refuse a server that answers before an entry is stored as `fleet.durable` demands."""
        if self._params.durable == "trust":
            return
        *settings, standbys = connection.execute(CHECK).fetchone() or ()
        for (name, safe), value in zip(_SAFE.items(), settings, strict=True):
            if value not in safe:
                raise LogAwayError(
                    f"the server of the fleet's log may lose entries: {name} is {value}",
                    hint=f"set {name} to on, or fleet.durable to trust",
                )
        if self._params.durable == "replica" and not (standbys and settings[-1] in _REPLICATED):
            raise LogAwayError(
                "the server of the fleet's log does not wait for a standby:"
                f" synchronous_standby_names is {standbys!r}, synchronous_commit {settings[-1]}",
                hint="set synchronous_standby_names, or fleet.durable to local",
            )

    def close(self) -> None:
        """Close the connections that are not in use."""
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return


def _options(params: FleetParams, password: str) -> dict[str, Any]:
    """Return the parameters of a connection, encrypted unless the url says otherwise."""
    options: dict[str, Any] = dict(conninfo_to_dict(params.url))
    if "password" in options:
        raise FleetError(
            "fleet.url has a password, which other users may read", hint="set fleet.password_file"
        )
    if "sslmode" not in options:
        options |= {"sslmode": "verify-full", "sslrootcert": params.ca_file or "system"}
    elif params.ca_file:
        options["sslrootcert"] = params.ca_file
    if password:
        options["password"] = password
    options |= {"application_name": "spamnb", "client_encoding": "utf8"}
    # libpq waits at least two seconds. The server ends a statement that this host has given up.
    options["connect_timeout"] = max(math.ceil(params.append_s), 2)
    limit = f"-c statement_timeout={math.ceil((params.append_s + LONGEST_WAIT_S) * 1000)}"
    options["options"] = f"{options.get('options', '')} {limit}"
    return options


Row = tuple[Any, ...]


class PostgresLog:
    """`FleetLog` on a server; connections are opened when they are needed."""

    def __init__(self, params: FleetParams, password: str = "") -> None:
        self._connections = Connections(params, password)
        self._fleet = params.name
        self._keep_events = params.keep_events

    def head(self) -> Head | None:
        found = self._rows(HEAD)
        return Head(*found[0]) if found else None

    def make(self, head: Head) -> bool:
        return self._changed(MAKE, **head._asdict())

    def append(self, draft: Draft) -> Outcome:
        while True:
            found = self._rows(STATE, host=draft.host)
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
        return bool(self._rows(ADD, **values, base=entry.first - 1, oldest=oldest))

    def settle(self, host: str, seq: int, wait_s: float) -> bool:
        head = self.head()
        if head is None or head.settled:
            return head is not None
        self._changed(REPORT, host=host, seq=seq)
        self._changed(SETTLE, wait_s=wait_s, fresh_s=FRESH_S, day_s=DAY_S)
        head = self.head()
        return head is not None and head.settled

    def restore(self, epoch: str, before: str, entry: LogEntry) -> bool:
        return self._add(epoch, before, entry, settled=False)

    def renew(self, epoch: str, seq: int, renewed: str) -> bool:
        return self._changed(RENEW, epoch=epoch, seq=seq, renewed=renewed)

    def put_level(self, level: int) -> None:
        self._changed(LEVEL, level=level)

    def clear(self) -> None:
        self._transact(CLEAR)

    def beat(self, beat: Beat) -> int:
        found = self._rows(BEAT, **beat._asdict(), fresh_s=FRESH_S)
        if not found:
            raise FleetError(
                f"another host of the fleet has the name {beat.host}",
                hint="set fleet.host, a different name on each host",
            )
        self._transact([TRIM], day_s=DAY_S, keep_s=SNAPSHOT_S)
        return int(found[0][0])

    def beats(self) -> list[Beat]:
        return [Beat(*row) for row in self._rows(BEATS)]

    def skip(self, last: int, permit: bytes) -> None:
        self._changed(SKIP, last=last, permit=permit)

    def skipped(self, last: int) -> bytes | None:
        found = self._rows(SKIPPED, last=last)
        return found[0][0] if found else None

    def recorded(self, host: str) -> int:
        found = self._rows(RECORDED, host=host)
        return int(found[0][0]) if found else 0

    def lease(self, what: str, host: str, hold_s: float) -> bool:
        return self._changed(LEASE, what=what, host=host, hold_s=hold_s)

    def entries(self, after: int, wait_s: float = 0.0) -> Iterator[LogEntry]:
        return paged(self._page, after, wait_s)

    def _page(self, after: int, count: int, wait_s: float) -> list[LogEntry]:
        values = {"after": after, "count": count}
        found = self._rows(PAGE, **values)
        if not found and wait_s:
            found = self._awaited("spamnb_log", wait_s, PAGE, values)
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
        self._changed(GIVE_WRITE_LEASE, host=host)

    def put_snapshot(self, parts: Iterable[bytes], seq: int = 0) -> None:
        ident, count = secrets.token_hex(8), 0
        for number, part in enumerate(parts):
            self._transact([PUT_PART], ident=ident, number=number, body=part)
            count = number + 1
        self._transact(PUT_SNAPSHOT, ident=ident, seq=seq, parts=count)

    def snapshot(self) -> Iterator[bytes]:
        for ident, count, _ in self._rows(SNAPSHOT, keep_s=SNAPSHOT_S):
            for number in range(count):
                values = {"ident": ident, "number": number}
                with self._connections.lend(LONGEST_WAIT_S) as connection:
                    found = self._read(connection, PART, values)
                if not found:
                    raise LogAwayError(
                        "the snapshot of the fleet was replaced while it was read", hint="try again"
                    )
                yield found[0][0]

    def snapshot_age_s(self) -> float:
        found = self._rows(SNAPSHOT, keep_s=SNAPSHOT_S)
        return float(found[0][2]) if found else math.inf

    def ask(self, hosts: Collection[str], question: Asked, wait_s: float) -> dict[str, bytes]:
        about = question._asdict()
        self._transact(ASK, **about, hosts=list(hosts), keep_s=ASKED_S)
        values = {"ident": question.ident}
        found = self._awaited("spamnb_asked", wait_s, ANSWERS, values, len(hosts))
        return {host: bytes(body) for host, body in found}

    def next_question(self, host: str, wait_s: float) -> Asked | None:
        found = self._awaited("spamnb_asked", wait_s, QUESTION, {"host": host})
        return Asked(*found[0]) if found else None

    def answer(self, host: str, answer: Asked) -> None:
        self._transact(ANSWER, **answer._asdict(), host=host)

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
