"""The growth of counters: by minute for 2 days, by quarter hour for 90 days, by day for 10 years.

    minute, quarter, day    unix time u64 (big-endian)    JSON: name -> growth, without zeros
    meta                    "last"                        JSON: the counters at the last `add`

A damaged folder is deleted and started anew. For one process. Must not know what is counted.
Failure: StoreError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import Final, NamedTuple

from spamnb.store.lmdb.environment import release
from spamnb.store.lmdb.renewal import share_or_renew
from spamnb.store.lmdb.table import LmdbTable

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
    """The series in one folder."""

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
