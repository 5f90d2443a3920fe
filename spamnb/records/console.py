"""Logins of the console, and the growth of counters.

Must not know passwords, rights or what is counted. A damaged folder is deleted and started anew.
Failure: StoreError.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import islice, takewhile
from pathlib import Path
from typing import Final, Literal, NamedTuple

from spamnb.store.codec import Buffer
from spamnb.store.model_store import LmdbTable, release, share_or_renew

_TIME = struct.Struct(">Q")
_DAY_S: Final = 86_400
_FORGOTTEN_AT_ONCE: Final = 100


class SeriesStep(NamedTuple):
    """The length of a step, and how long its points are kept."""

    seconds: int
    keep_s: int


STEPS: Final[dict[str, SeriesStep]] = {
    "minute": SeriesStep(60, 2 * _DAY_S),
    "quarter": SeriesStep(900, 90 * _DAY_S),
    "day": SeriesStep(_DAY_S, 3650 * _DAY_S),
}
_LAST: Final = b"last"


class SeriesStore:
    """The series in one folder: 2 days by minute, 90 days by quarter hour, 10 years by day.

        minute, quarter, day  unix time u64 (big-endian)  JSON: name -> growth, without zeros
        meta                  "last"                      JSON: the counters at the last `add`

    For one process.
    """

    def __init__(self, folder: Path) -> None:
        self._environment = share_or_renew(folder, (*STEPS, "meta"))

    def close(self) -> None:
        """Close the files."""
        release(self._environment)

    def add(self, now_s: int, run: str, counters: Mapping[str, int]) -> None:
        """Add what the counters have grown by; in another `run` of the daemon they began at 0."""

        def write(tables: dict[str, LmdbTable]) -> None:
            last = json.loads(bytes(tables["meta"].get(_LAST) or b"{}"))
            before = last.get("counters", {}) if last.get("run") == run else {}
            growth = {name: value - before.get(name, 0) for name, value in counters.items()}
            for name, step in STEPS.items():
                _add(tables[name], now_s - now_s % step.seconds, growth)
                _forget(tables[name], now_s - step.keep_s)
            value = {"run": run, "counters": dict(counters)}
            tables["meta"].put(_LAST, json.dumps(value).encode())

        self._environment.transact(write)

    def points(self, name: str, step: str, since_s: int, until_s: int) -> list[tuple[int, int]]:
        """Return (time, growth of a counter) of each step that began in a span of time."""
        return [(at, one.get(name, 0)) for at, one in self.growth(step, since_s, until_s)]

    def growth(self, step: str, since_s: int, until_s: int) -> list[tuple[int, dict[str, int]]]:
        """Return (time, growth by counter, without zeros) of each step in a span of time."""
        with self._environment.read() as tables:
            rows = tables[step].scan(_TIME.pack(since_s))
            timed = ((_TIME.unpack(key)[0], value) for key, value in rows)
            within = takewhile(lambda row: row[0] < until_s, timed)
            return [(at, json.loads(bytes(value))) for at, value in within]


def _add(table: LmdbTable, at: int, growth: Mapping[str, int]) -> None:
    key = _TIME.pack(at)
    found: dict[str, int] = json.loads(bytes(table.get(key) or b"{}"))
    for name, value in growth.items():
        if value:
            found[name] = found.get(name, 0) + value
    table.put(key, json.dumps(found).encode())


def _forget(table: LmdbTable, before_s: int) -> None:
    oldest = [key for key, _ in islice(table.scan(), _FORGOTTEN_AT_ONCE)]
    for key in oldest:
        if _TIME.unpack(key)[0] < before_s:
            table.delete(key)


Kind = Literal["sessions", "links", "tickets"]
KINDS: Final[tuple[Kind, ...]] = ("sessions", "links", "tickets")
_STEPS: Final = "steps"
KNOWN_US: Final = 90 * 86_400 * 1_000_000
"""how long a login is known to be right from a network"""
_DAY_US: Final = 86_400 * 1_000_000
MOST: Final = 10_000
"""of each kind; if there are more, those that were used least recently end"""
MOST_OF_ONE: Final = 100
"""of one login, so that no user can end the sessions of others"""
_SECRET_BYTES: Final = 32

Tables = dict[str, LmdbTable]


@dataclass(frozen=True, slots=True)
class LoginSession:
    """What is stored of one session or link."""

    login: str
    proof: str
    """the proof of the login: the fingerprint of the password's hash; empty if it was a link"""
    began_us: int
    used_us: int
    ends_us: int


class SessionStore:
    """The sessions and links of one home.

    A session belongs to a browser, a link is valid for one login, and a ticket is for a login that
    still lacks its second factor.

        sessions, links, tickets  BLAKE2b of the text that the browser has  JSON: LoginSession
        known                     BLAKE2b of login and network              JSON: LoginSession
        steps                     BLAKE2b of the login                      the last step, 8 bytes

    The text has 256 random bits and is not stored. The console and the commands open the folder at
    the same time. If it is damaged, everyone logs in again.
    """

    def __init__(self, home: Path) -> None:
        self._environment = share_or_renew(home / "console" / "sessions", (*KINDS, "known", _STEPS))

    def close(self) -> None:
        """Close the files."""
        release(self._environment)

    def add(self, kind: Kind, session: LoginSession) -> str:
        """Store a session or link; return its text."""
        text = secrets.token_urlsafe(_SECRET_BYTES)

        def run(tables: Tables) -> None:
            _make_room(tables[kind], session)
            _put(tables[kind], _hash(text), session)

        self._environment.transact(run)
        return text

    def find(self, text: str, kind: Kind = "sessions") -> LoginSession | None:
        """Return the session, link or ticket with this text."""
        with self._environment.read() as tables:
            found = tables[kind].get(_hash(text))
            return _session(found) if found else None

    def use(self, text: str, now_us: int) -> None:
        """Note that a session is used."""

        def run(tables: Tables) -> None:
            if found := tables["sessions"].get(_hash(text)):
                _put(tables["sessions"], _hash(text), replace(_session(found), used_us=now_us))

        self._environment.transact(run)

    def take(self, kind: Kind, text: str) -> LoginSession | None:
        """Delete a session or link; return it. Of several callers, only one gets it."""

        def run(tables: Tables) -> LoginSession | None:
            found = tables[kind].get(_hash(text))
            taken = _session(found) if found else None
            if taken is not None:
                tables[kind].delete(_hash(text))
            return taken

        return self._environment.transact(run)

    def knows(self, login: str, network: str, now_us: int) -> bool:
        """Whether a login was right from this network in the last 90 days."""
        with self._environment.read() as tables:
            found = tables["known"].get(_hash(f"{login}\0{network}"))
            return found is not None and now_us < _session(found).ends_us

    def remember(self, login: str, network: str, now_us: int) -> None:
        """Note that a login is right from this network; written once a day at most."""
        key = _hash(f"{login}\0{network}")
        with self._environment.read() as tables:
            found = tables["known"].get(key)
            if found is not None and now_us - _session(found).used_us < _DAY_US:
                return

        def run(tables: Tables) -> None:
            noted = LoginSession(login, "", now_us, now_us, now_us + KNOWN_US)
            _make_room(tables["known"], noted)
            _put(tables["known"], key, noted)

        self._environment.transact(run)

    def use_step(self, login: str, step: int) -> bool:
        """Note the step of a code; False if a code of this step or a later one was used before."""

        def run(tables: Tables) -> bool:
            key, new = _hash(login.casefold()), step.to_bytes(8, "big")
            if bytes(tables[_STEPS].get(key) or b"") >= new:
                return False
            tables[_STEPS].put(key, new)
            return True

        return self._environment.transact(run)

    def end_all(self, login: str) -> int:
        """Delete all sessions and links of a login; return how many."""

        def run(tables: Tables) -> int:
            mine = [
                (kind, key)
                for kind in KINDS
                for key, one in _all(tables[kind])
                if one.login.casefold() == login.casefold()
            ]
            for kind, key in mine:
                tables[kind].delete(key)
            return len(mine)

        return self._environment.transact(run)

    def sessions(self) -> list[LoginSession]:
        """Return all sessions, those that were used last first."""
        with self._environment.read() as tables:
            return sorted(
                (one for _, one in _all(tables["sessions"])), key=lambda one: -one.used_us
            )


def _make_room(table: LmdbTable, new: LoginSession) -> None:
    """Delete what has ended, and then the least recently used of what is above the limits."""
    rows, now_us = list(_all(table)), new.began_us
    for key, _ in (row for row in rows if row[1].ends_us <= now_us):
        table.delete(key)
    kept = sorted((row for row in rows if row[1].ends_us > now_us), key=lambda row: -row[1].used_us)
    own = [row for row in kept if row[1].login.casefold() == new.login.casefold()]
    for key, _ in (*kept[MOST - 1 :], *own[MOST_OF_ONE - 1 :]):
        table.delete(key)


def _all(table: LmdbTable) -> Iterator[tuple[bytes, LoginSession]]:
    return ((bytes(key), _session(value)) for key, value in table.scan())


def _put(table: LmdbTable, key: bytes, session: LoginSession) -> None:
    table.put(key, json.dumps(asdict(session)).encode())


def _session(value: Buffer) -> LoginSession:
    return LoginSession(**json.loads(bytes(value)))


def _hash(text: str) -> bytes:
    """The text has 256 random bits, so a fast hash is as good as a slow one."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=32).digest()
