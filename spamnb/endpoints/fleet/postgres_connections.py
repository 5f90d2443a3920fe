"""Connections to the PostgreSQL server of a fleet's log, with a limit on each answer.

A new connection is checked: a server that would lose acknowledged entries is refused. The tables
are created if they are missing.

The only module that imports psycopg. Failure: LogAwayError for every fault of server and network.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from spamnb.endpoints.fleet import postgres_sql as sql
from spamnb.endpoints.fleet.params import FleetParams
from spamnb.errors import FleetError, LogAwayError

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
    """Connections that are opened when they are needed; threads may share the object."""

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
            if connection.execute(sql.IS_THERE).fetchone() != (True,):
                connection.execute(sql.TABLES)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: PostgresConnection) -> None:
        """Refuse a server that answers before an entry is stored as `fleet.durable` demands."""
        if self._params.durable == "trust":
            return
        *settings, standbys = connection.execute(sql.CHECK).fetchone() or ()
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
