"""`ValkeyLog`: the log of a fleet on a Valkey or Redis server.

    {NAME}:state   hash      epoch, seq, chain, level; recorded:HOST, how many events a host has
                             appended; run, the run id of the server when it was settled; snapshot,
                             its last event
    {NAME}:log     stream    entries: id SEQ-0 of the last event; host, upto, first, chain, body
    {NAME}:writer  string    the host that holds the write lease
    {NAME}:beats   hash      HOST: time, ident, seq, chain, and other facts of the host
    {NAME}:settling    hash  after a restart of the server: at:HOST, the last event of each host
    {NAME}:lease.WHAT  string    the host that does a task for all hosts
    {NAME}:skipped    hash   SEQ: permit to skip the entry that ends with this event
    {NAME}:snapshot    string    random name and number of parts of a copy of a host's model
    {NAME}:snapshot.*  list      its parts, under its name
    {NAME}:questions.* list      questions to a host; answers.*: the answers to a question

Each change is one script, which the server runs atomically. Before the first command, and after
each fault, the settings of the server are read: a server that would lose acknowledged entries is
refused. The server has a new run id after each restart: the log counts as settled if the state has
the current run id.

The only module that imports valkey. Failure: LogAwayError for every fault of server and network.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

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
)
from spamnb.settings.values import FleetParams

FIRST_PAGE, LAST_PAGE = 16, 1024
"""entries"""
PAGE_BYTES = 8 << 20


def paged(
    page_of: Callable[[int, int, float], list[LogEntry]], after: int, wait_s: float
) -> Iterator[LogEntry]:
    """Yield the entries after an event; `page_of(after, count, wait_s)` reads at most `count`.

    Only the first page waits for an entry.
    """
    count = FIRST_PAGE
    while found := page_of(after, count, wait_s):
        yield from found
        after, wait_s = found[-1].last, 0.0
        if sum(len(entry.body) for entry in found) < PAGE_BYTES // 2:
            count = min(2 * count, LAST_PAGE)


_RUN = """
local function run() return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') end
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end
"""

MAKE = f"""{_RUN}
-- ARGV: epoch, seq, chain, 1 if it is settled, level
if redis.call('HEXISTS', KEYS[1], 'epoch') == 1 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[5])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'seq', ARGV[2], 'chain', ARGV[3],
           'run', ARGV[4] == '1' and run() or '', 'level', ARGV[5])
return 1
"""

CLEAR = """
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[5])
return 1
"""

RENEW = """
-- ARGV: epoch, seq, new epoch
local state = redis.call('HMGET', KEYS[1], 'epoch', 'seq')
if state[1] ~= ARGV[1] or state[2] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[3])
return 1
"""

HEAD = f"""{_RUN}
local state = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'chain', 'run', 'level')
if not state[1] then return nil end
return {{state[1], state[2], state[3], state[4] == run() and 1 or 0, state[5]}}
"""

APPEND = f"""{_RUN}
-- ARGV: epoch, host, base, last, start, upto, body, keep
local recorded = 'recorded:' .. ARGV[2]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'chain', recorded, 'run')
if state[1] ~= ARGV[1] then return 'epoch' end
if state[5] ~= run() then return 'unsettled' end
local writer = redis.call('GET', KEYS[3])
if writer and writer ~= ARGV[2] then return 'leased' end
local base, last, seq = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(state[2])
if base > seq then return 'behind' end
if tonumber(ARGV[5]) < tonumber(state[4] or '0') then return 'recorded' end
if base < seq then return 'stale' end
local chain = redis.sha1hex(state[3] .. ARGV[7])
redis.call('XADD', KEYS[2], ARGV[4] .. '-0', 'host', ARGV[2], 'upto', ARGV[6],
           'first', string.format('%.0f', base + 1), 'chain', chain, 'body', ARGV[7])
redis.call('HSET', KEYS[1], 'seq', ARGV[4], 'chain', chain, recorded, ARGV[6])
local oldest = last - tonumber(ARGV[8])
if oldest > 0 then
  redis.call('XTRIM', KEYS[2], 'MINID', '~', string.format('%.0f-1', oldest))
end
return 'appended'
"""

RESTORE = """
-- ARGV: epoch, chain before, host, upto, first, last, chain, body
local recorded = 'recorded:' .. ARGV[3]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'chain', recorded)
if state[1] ~= ARGV[1] or state[3] ~= ARGV[2] then return 0 end
if tonumber(state[2]) + 1 ~= tonumber(ARGV[5]) then return 0 end
redis.call('XADD', KEYS[2], ARGV[6] .. '-0', 'host', ARGV[3], 'upto', ARGV[4],
           'first', ARGV[5], 'chain', ARGV[7], 'body', ARGV[8])
redis.call('HSET', KEYS[1], 'seq', ARGV[6], 'chain', ARGV[7])
if tonumber(ARGV[4]) > tonumber(state[4] or '0') then
  redis.call('HSET', KEYS[1], recorded, ARGV[4])
end
return 1
"""

SETTLE = f"""{_RUN}
-- ARGV: host, seq, seconds to wait, seconds that a report counts, seconds that a beat counts
local state = redis.call('HMGET', KEYS[1], 'seq', 'run')
local run, now = run(), now()
if not state[1] then return 0 end
if state[2] == run then return 1 end
if redis.call('HGET', KEYS[5], 'run') ~= run then
  redis.call('DEL', KEYS[5])
  redis.call('HSET', KEYS[5], 'run', run, 'since', string.format('%.6f', now))
end
redis.call('HSET', KEYS[5], 'at:' .. ARGV[1], string.format('%s %.6f', ARGV[2], now))
local most, all = 0, true
local function report(host)
  local found = redis.call('HGET', KEYS[5], 'at:' .. host)
  local seq, at = string.match(found or '', '(%S+) (%S+)')
  return tonumber(seq), at and now - tonumber(at) <= tonumber(ARGV[4])
end
local fields = redis.call('HKEYS', KEYS[5])
for _, field in ipairs(fields) do
  if string.sub(field, 1, 3) == 'at:' then
    local seq, fresh = report(string.sub(field, 4))
    if fresh and seq > most then most = seq end
  end
end
local beats = redis.call('HGETALL', KEYS[4])
for index = 1, #beats, 2 do
  local at = tonumber(string.match(beats[index + 1], '%S+'))
  local _, fresh = report(beats[index])
  if now - at <= tonumber(ARGV[5]) and not fresh then all = false end
end
local since = tonumber(redis.call('HGET', KEYS[5], 'since'))
if most > tonumber(state[1]) then return 0 end
if not all and now - since < tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], 'run', run)
redis.call('DEL', KEYS[5])
return 1
"""

BEAT = f"""{_RUN}
-- ARGV: host, ident, facts (seq first), seconds that a beat is fresh, seconds that it keeps entries
local now = now()
local old = redis.call('HGET', KEYS[4], ARGV[1])
local at, ident = string.match(old or '', '(%S+) (%S+)')
if at and ident ~= ARGV[2] and now - tonumber(at) < tonumber(ARGV[4]) then return 'twin' end
redis.call('HSET', KEYS[4], ARGV[1], string.format('%.6f %s %s', now, ARGV[2], ARGV[3]))
local beats = redis.call('HGETALL', KEYS[4])
local lowest = tonumber(redis.call('HGET', KEYS[1], 'snapshot') or '0')
for index = 1, #beats, 2 do
  local at, seq = string.match(beats[index + 1], '(%S+) %S+ (%S+)')
  if now - tonumber(at) <= tonumber(ARGV[5]) then lowest = math.min(lowest, tonumber(seq)) end
end
if lowest > 0 then
  redis.call('XTRIM', KEYS[2], 'MINID', '~', string.format('%.0f-1', lowest))
end
return string.format('%.0f', now * 1000000)
"""

BEATS = f"""{_RUN}
local now, found = now(), {{}}
local beats = redis.call('HGETALL', KEYS[4])
for index = 1, #beats, 2 do
  local at, ident, facts = string.match(beats[index + 1], '(%S+) (%S+) (.*)')
  found[#found + 1] = {{beats[index], ident, facts, tostring(now - tonumber(at))}}
end
return found
"""

TAKE_WRITE_LEASE = """
-- ARGV: host, milliseconds
local writer = redis.call('GET', KEYS[3])
if writer and writer ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return 1
"""

GIVE_WRITE_LEASE = """
-- ARGV: host
if redis.call('GET', KEYS[3]) == ARGV[1] then redis.call('DEL', KEYS[3]) end
return 1
"""

PUT = """
-- KEYS: a list of questions or answers; ARGV: what to add, seconds until the list is dropped
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""

LEVEL = """
-- ARGV: level
if redis.call('HEXISTS', KEYS[1], 'epoch') == 1 then
  redis.call('HSET', KEYS[1], 'level', ARGV[1])
end
return 1
"""


LONGEST_WAIT_S = 5.0
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}

Result = TypeVar("Result")


class ValkeyLog:
    """`FleetLog` on a server; connections are opened when they are needed."""

    def __init__(self, params: FleetParams, password: str = "") -> None:
        try:
            import valkey  # noqa: PLC0415 - an extra; hosts without a fleet lack it
        except ImportError as error:
            raise FleetError(
                "fleet.url is set, but the package valkey is not installed",
                hint="install spamnb[fleet]",
            ) from error
        self._faults: tuple[type[Exception], ...] = (valkey.ValkeyError, OSError)
        self._params = params
        self._keys = [
            f"{{{params.name}}}:{part}" for part in ("state", "log", "writer", "beats", "settling")
        ]
        self._client: Any
        self._waiting: Any
        """for commands that the server answers late, such as when a new entry arrives"""
        self._snapshot, self._skipped, self._lease, self._questions, self._answers = (
            f"{{{params.name}}}:{part}"
            for part in ("snapshot", "skipped", "lease", "questions", "answers")
        )
        options: dict[str, Any] = {"password": password} if password else {}
        if params.is_encrypted:
            # By default the library does not compare the name of the server with its certificate.
            options |= {"ssl_check_hostname": True, "ssl_ca_certs": params.ca_file or None}
        # No retries by the library: the caller has to know that it repeats an append.
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
        state = self._script(HEAD)
        return self._call(lambda: _head(state))

    def make(self, head: Head) -> bool:
        return bool(self._script(MAKE, *head[:3], int(head.settled), head.level))

    def append(self, draft: Draft) -> Outcome:
        values = *draft, self._params.keep_events
        if self._params.durable != "replica":
            return Outcome(self._script(APPEND, *values).decode())
        return self._call(lambda: self._append_and_copy(*values))

    def _append_and_copy(self, *values: Any) -> Outcome:
        # `WAIT` counts only the changes of its own connection.
        with self._client.client() as connection:
            outcome = Outcome(self._script(APPEND, *values, client=connection).decode())
            if outcome is not Outcome.APPENDED:
                return outcome
            copies = connection.wait(1, int(self._params.append_s * 500))
        return outcome if copies else Outcome.UNCOPIED

    def settle(self, host: str, seq: int, wait_s: float) -> bool:
        return bool(self._script(SETTLE, host, seq, wait_s, FRESH_S, DAY_S))

    def restore(self, epoch: str, before: str, entry: LogEntry) -> bool:
        return bool(self._script(RESTORE, epoch, before, *entry))

    def renew(self, epoch: str, seq: int, renewed: str) -> bool:
        return bool(self._script(RENEW, epoch, seq, renewed))

    def put_level(self, level: int) -> None:
        self._script(LEVEL, level)

    def clear(self) -> None:
        self._script(CLEAR)

    def beat(self, beat: Beat) -> int:
        facts = f"{beat.seq} {beat.chain} {beat.fingerprint or '-'} {beat.level} {beat.clock_us}"
        facts += f" {beat.waiting} {beat.epoch or '-'} {beat.version}"
        found = self._script(BEAT, beat.host, beat.ident, facts, FRESH_S, DAY_S)
        if found == b"twin":
            raise FleetError(
                f"another host of the fleet has the name {beat.host}",
                hint="set fleet.host, a different name on each host",
            )
        return self._call(lambda: int(found))

    def beats(self) -> list[Beat]:
        found = self._script(BEATS)
        return self._call(lambda: [_beat(*fields) for fields in found])

    def skip(self, last: int, permit: bytes) -> None:
        self._call(lambda: self._client.hset(self._skipped, last, permit))

    def skipped(self, last: int) -> bytes | None:
        found: bytes | None = self._call(lambda: self._client.hget(self._skipped, last))
        return found

    def recorded(self, host: str) -> int:
        return self._call(lambda: int(self._client.hget(self._keys[0], f"recorded:{host}") or 0))

    def lease(self, what: str, host: str, hold_s: float) -> bool:
        name, hold_ms = f"{self._lease}.{what}", int(hold_s * 1000)
        return bool(self._call(lambda: self._client.set(name, host, nx=True, px=hold_ms)))

    def entries(self, after: int, wait_s: float = 0.0) -> Iterator[LogEntry]:
        return paged(self._page, after, wait_s)

    def _page(self, after: int, count: int, wait_s: float) -> list[LogEntry]:
        block = max(int(min(wait_s, LONGEST_WAIT_S) * 1000), 1) if wait_s else None
        client = self._waiting if wait_s else self._client
        stream = {self._keys[1]: f"{after}-0"}
        return self._call(lambda: _entries(client.xread(stream, count=count, block=block)))

    def take_write_lease(self, host: str, ms: int) -> bool:
        return bool(self._script(TAKE_WRITE_LEASE, host, ms))

    def give_write_lease(self, host: str) -> None:
        self._script(GIVE_WRITE_LEASE, host)

    def put_snapshot(self, parts: Iterable[bytes], seq: int = 0) -> None:
        ident, count = secrets.token_hex(8), 0
        made = f"{self._snapshot}.{ident}"
        for part in parts:
            self._call(partial(self._waiting.rpush, made, part))
            # So the server deletes the parts even if this function is interrupted.
            self._call(partial(self._client.expire, made, SNAPSHOT_S))
            count += 1
        old, _ = self._newest_snapshot()
        self._call(partial(self._client.set, self._snapshot, f"{ident} {count}", ex=SNAPSHOT_S))
        self._call(partial(self._client.hset, self._keys[0], "snapshot", seq))
        self._call(partial(self._client.delete, f"{self._snapshot}.{old}"))

    def _newest_snapshot(self) -> tuple[str, int]:
        """Return the name and the number of parts of the newest snapshot."""
        return self._call(lambda: _snapshot(self._client.get(self._snapshot) or b" 0"))

    def snapshot(self) -> Iterator[bytes]:
        ident, count = self._newest_snapshot()
        for index in range(count):
            part = self._call(partial(self._waiting.lindex, f"{self._snapshot}.{ident}", index))
            if part is None:
                raise LogAwayError(
                    "the snapshot of the fleet was replaced while it was read", hint="try again"
                )
            yield part

    def snapshot_age_s(self) -> float:
        left_ms = self._call(lambda: int(self._client.pttl(self._snapshot)))
        return SNAPSHOT_S - left_ms / 1000 if left_ms >= 0 else math.inf

    def ask(self, hosts: Collection[str], question: Asked, wait_s: float) -> dict[str, bytes]:
        for host in hosts:
            self._put(f"{self._questions}.{host}", question.ident, question.body)
        answers: dict[str, bytes] = {}
        end = time.monotonic() + wait_s
        while len(answers) < len(hosts) and (left_s := end - time.monotonic()) > 0:
            found = self._take(f"{self._answers}.{question.ident}", left_s)
            answers |= dict([found] if found else [])
        return answers

    def next_question(self, host: str, wait_s: float) -> Asked | None:
        found = self._take(f"{self._questions}.{host}", wait_s)
        return Asked(*found) if found else None

    def answer(self, host: str, answer: Asked) -> None:
        self._put(f"{self._answers}.{answer.ident}", host, answer.body)

    def _put(self, name: str, who: str, body: bytes) -> None:
        self._script(PUT, who.encode() + b" " + body, ASKED_S, keys=[name])

    def _take(self, name: str, wait_s: float) -> tuple[str, bytes] | None:
        """Take the first value of a list. The server would wait without end for a wait of 0."""
        timeout_s = min(max(wait_s, 0.001), LONGEST_WAIT_S)
        found = self._call(lambda: self._waiting.blpop(name, timeout_s))
        who, _, body = found[1].partition(b" ") if found else (b"", b"", b"")
        return (who.decode(), body) if found else None

    def close(self) -> None:
        self._client.close()
        self._waiting.close()

    def _script(self, text: str, *args: Any, keys: Sequence[str] = (), client: Any = None) -> Any:
        script = self._client.register_script(text)
        return self._call(lambda: script(keys=keys or self._keys, args=args, client=client))

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
                hint="mail is still scanned; check fleet.url and its server",
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


def _head(state: list[Any] | None) -> Head | None:
    if state is None:
        return None
    level = int(state[4] or 1)
    return Head(state[0].decode(), int(state[1]), state[2].decode(), bool(state[3]), level)


def _snapshot(found: bytes) -> tuple[str, int]:
    ident, _, count = found.decode().partition(" ")
    return ident, int(count)


def _beat(host: bytes, ident: bytes, facts: bytes, age_s: bytes) -> Beat:
    seq, chain, fingerprint, level, clock_us, waiting, epoch, version = (
        "" if fact == "-" else fact for fact in facts.decode().split(" ", 7)
    )
    known = host.decode(), ident.decode(), int(seq), chain, fingerprint, int(level), version
    return Beat(*known, int(clock_us), int(waiting), epoch, float(age_s))


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
