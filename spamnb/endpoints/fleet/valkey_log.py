"""`ValkeyLog`: the log of a fleet on a Valkey or Redis server.

    {NAME}:state   hash      epoch, seq, chain; said:HOST, how many events a host has appended
    {NAME}:log     stream    entries: id SEQ-0 of the last event; host, upto, first, chain, body
    {NAME}:pen     string    the host that holds the pen
    {NAME}:snapshot    list      a copy of a host's model, in parts

Each change is one script, which the server runs atomically. Before the first command, and after
each fault, the server's settings are read: one that would lose acknowledged entries is refused.

The only module that imports valkey. Failure: LogAwayError for every fault of server and network.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from spamnb.endpoints.fleet import scripts
from spamnb.endpoints.fleet.params import FleetParams
from spamnb.errors import FleetError, LogAwayError
from spamnb.store.fleet.fleet_log import Draft, Head, LogEntry, Outcome

FIRST_PAGE, LAST_PAGE = 16, 1024
"""Entries read at a time: more and more, because a page of large ones takes much memory."""
PAGE_BYTES = 8 << 20
LONGEST_WAIT_S = 5.0
SNAPSHOT_S = 2 * 86_400
"""how long a snapshot is kept"""
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}

Result = TypeVar("Result")


class ValkeyLog:
    """`FleetLog` on a server; connections are opened when they are needed."""

    def __init__(self, params: FleetParams, password: str = "") -> None:
        try:
            import valkey  # noqa: PLC0415 - an extra; hosts without a fleet lack it
        except ImportError as error:
            raise FleetError(
                "fleet.url is set, and the package valkey is not installed",
                hint="install spamnb[fleet]",
            ) from error
        self._faults: tuple[type[Exception], ...] = (valkey.ValkeyError, OSError)
        self._params = params
        self._keys = [f"{{{params.name}}}:{part}" for part in ("state", "log", "pen")]
        self._client: Any
        self._waiting: Any
        """its server answers late: when there is a new entry"""
        self._snapshot = f"{{{params.name}}}:snapshot"
        options: dict[str, Any] = {"password": password} if password else {}
        if params.is_encrypted:
            # The library does not compare the name of the server with its certificate unasked.
            options |= {"ssl_check_hostname": True, "ssl_ca_certs": params.ca_file or None}
        # Without retries of its own: the caller has to know which append it repeats.
        options |= {"socket_connect_timeout": params.append_s, "retry": None}
        try:
            self._client, self._waiting = (
                valkey.Valkey.from_url(params.url, socket_timeout=timeout_s, **options)
                for timeout_s in (params.append_s, params.append_s + LONGEST_WAIT_S)
            )
        except ValueError as error:
            raise FleetError(
                f"fleet.url is invalid: {error}", hint="valkeys://USER@HOST:PORT"
            ) from error
        self._is_checked = False

    def head(self) -> Head | None:
        return self._call(
            lambda: _head(self._client.hmget(self._keys[0], ["epoch", "seq", "chain"]))
        )

    def make(self, head: Head) -> bool:
        return bool(self._script(scripts.MAKE, head.epoch, head.seq, head.chain))

    def append(self, draft: Draft) -> Outcome:
        keep = self._params.keep_events
        return Outcome(self._script(scripts.APPEND, *draft, keep).decode())

    def entries(self, after: int, wait_s: float = 0.0) -> Iterator[LogEntry]:
        page = FIRST_PAGE
        while found := self._page(after, page, wait_s):
            yield from found
            after, wait_s = found[-1].last, 0.0
            if sum(len(entry.body) for entry in found) < PAGE_BYTES // 2:
                page = min(2 * page, LAST_PAGE)

    def _page(self, after: int, count: int, wait_s: float) -> list[LogEntry]:
        block = max(int(min(wait_s, LONGEST_WAIT_S) * 1000), 1) if wait_s else None
        client = self._waiting if wait_s else self._client
        stream = {self._keys[1]: f"{after}-0"}
        return self._call(lambda: _entries(client.xread(stream, count=count, block=block)))

    def take_pen(self, host: str, ms: int) -> bool:
        return bool(self._script(scripts.TAKE_PEN, host, ms))

    def give_pen(self, host: str) -> None:
        self._script(scripts.GIVE_PEN, host)

    def put_snapshot(self, parts: Iterable[bytes]) -> None:
        made = f"{self._snapshot}.{secrets.token_hex(8)}"
        for part in parts:
            self._call(partial(self._waiting.rpush, made, part))
            # Also if this is interrupted, the parts do not stay.
            self._call(partial(self._client.expire, made, SNAPSHOT_S))
        self._call(partial(self._client.rename, made, self._snapshot))

    def snapshot(self) -> Iterator[bytes]:
        for index in itertools.count():
            part = self._call(partial(self._waiting.lindex, self._snapshot, index))
            if part is None:
                return
            yield part

    def close(self) -> None:
        self._client.close()
        self._waiting.close()

    def _script(self, text: str, *args: Any) -> Any:
        script = self._client.register_script(text)
        return self._call(lambda: script(keys=self._keys, args=args))

    def _call(self, run: Callable[[], Result]) -> Result:
        try:
            if not self._is_checked:
                self._check_server()
                self._is_checked = True
            return run()
        except (KeyError, ValueError, TypeError) as error:
            raise FleetError(
                f"the keys of {self._keys[0]} on the server are not a fleet's log: {error!r}",
                hint="set fleet.name to a name that no other program uses",
            ) from error
        except self._faults as error:
            self._is_checked = False
            raise LogAwayError(
                f"the log of the fleet does not answer: {error}",
                hint="mail goes on; check fleet.url and its server",
            ) from error

    def _check_server(self) -> None:
        """Refuse a server that answers before an entry is on its disk."""
        if self._params.durable == "trust":
            return
        found = self._client.config_get(*_DURABLE)
        for name, value in _DURABLE.items():
            if found.get(name) != value:
                raise LogAwayError(
                    f"the server of the fleet's log may lose entries: {name} is {found.get(name)}",
                    hint=f"set {name} {value}, or fleet.durable to trust",
                )


def _head(state: list[Any]) -> Head | None:
    if state[0] is None:
        return None
    return Head(state[0].decode(), int(state[1]), state[2].decode())


def _entries(streams: Any) -> list[LogEntry]:
    return [_entry(name, fields) for _, entries in streams or () for name, fields in entries]


def _entry(name: bytes, fields: dict[bytes, bytes]) -> LogEntry:
    return LogEntry(
        fields[b"host"].decode(),
        int(fields[b"upto"]),
        int(fields[b"first"]),
        int(name.partition(b"-")[0]),
        fields[b"chain"].decode(),
        fields[b"body"],
    )
