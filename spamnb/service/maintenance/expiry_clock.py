"""The time by which things expire: the clock's, as far as it has passed.

A clock that jumps ahead makes everything too old at once, and what expires cannot be brought back.
So what is known of the clock is kept in the home, in a small file: the time that is confirmed, and
the machine's uptime then (CLOCK_BOOTTIME, which no setting of the clock changes).

    in line      the clock went on as the uptime did, give or take 5 minutes and 2 %; over a start
                 of the machine, up to 4 days more, a long weekend: it is confirmed
    ahead        expiry goes on by the confirmed time and the uptime since, so that a machine that
                 was off for a month still expires; the log and the status warn
    behind       expiry goes by the clock; what is kept meanwhile bears the confirmed time
    steady       after 30 days of uptime at the new time a clock that is ahead is confirmed. Not
                 earlier, for it may have been behind before: what was kept then bears too old a
                 time, and has had its 30 days by now. One that is behind is confirmed after 10
                 minutes, for that deletes nothing
    no file      the newest entry of quarantine and review list is what is known to have passed

An administrator confirms the clock at once: `spamnb expire --trust-clock`.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from spamnb.service.engine.clock import now_us
from spamnb.store.files import durable_write

LOG = logging.getLogger("spamnb.clock")

FILE: Final = "clock"
MINUTE_US: Final = 60_000_000
DAY_US: Final = 1_440 * MINUTE_US
SLACK_US: Final = 5 * MINUTE_US
RATE: Final = 50
"""a clock whose rate is wrong by less than 2 % is in line"""
OFF_US: Final = 4 * DAY_US
"""so long a machine may be off between two starts without a warning"""
AHEAD_US: Final = 30 * DAY_US
BEHIND_US: Final = 10 * MINUTE_US
STEP_US: Final = 60 * MINUTE_US
"""between two records, or slack would add up"""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What the clocks of the machine say."""

    clock_us: int
    boot: str
    up_us: int


@dataclass(frozen=True, slots=True)
class ClockMark:
    """What was known of the clock at a reading."""

    time_us: int
    """confirmed; by this things expire"""
    clock_us: int
    boot: str
    up_us: int
    steady_us: int = 0
    """uptime for which the clock has gone on steadily, out of line"""
    off_us: int = 0
    """for which the machine may have been off, while the clock of this boot was never in line"""

    @property
    def expires_us(self) -> int:
        """The time by which things expire."""
        return min(self.time_us, self.clock_us)

    @property
    def ahead_us(self) -> int:
        """By how much the clock is ahead of the time that is confirmed."""
        return max(0, self.clock_us - self.time_us)

    @property
    def behind_us(self) -> int:
        """By how much the clock is behind; what is kept now adds it to its time, or it is old."""
        return max(0, self.time_us - self.clock_us)

    @property
    def waits_us(self) -> int:
        """Uptime until a clock that is ahead is confirmed."""
        return AHEAD_US - self.steady_us if self.ahead_us else 0


def first(now: ClockReading, newest_us: int = 0) -> ClockMark:
    """What is known without a record: that the newest entry was made."""
    known = newest_us if 0 < newest_us < now.clock_us - OFF_US else now.clock_us
    return ClockMark(known, now.clock_us, now.boot, now.up_us)


def advanced(mark: ClockMark, now: ClockReading) -> ClockMark:
    """What is known after another reading."""
    same = now.boot == mark.boot and now.up_us >= mark.up_us
    passed = now.up_us - mark.up_us if same else now.up_us
    slack = SLACK_US + passed // RATE
    off = mark.off_us if same else OFF_US
    most = slack + off
    due, went = mark.time_us + passed, now.clock_us - mark.clock_us - passed
    fresh = ClockMark(now.clock_us, now.clock_us, now.boot, now.up_us)
    if -slack <= now.clock_us - due <= most:
        return fresh
    steady = mark.steady_us + passed if -slack <= went <= most else 0
    if steady >= (AHEAD_US if now.clock_us > due else BEHIND_US):
        return fresh
    return replace(fresh, time_us=due, steady_us=steady, off_us=off)


def expiry_mark(home: Path, newest_us: int = 0, *, trust: bool = False) -> ClockMark:
    """Read the clock, and keep what is known of it.

    `newest_us`: an entry that is known to be made, for homes without a record. `trust`: an
    administrator says that the clock is right.
    """
    now, path = _reading(), home / FILE
    old = None if trust else _read(path)
    if old is None:
        known = (at for at in (newest_us, *_entries(home)) if at <= now.clock_us)
        new = first(now, 0 if trust else max(known, default=0))
    else:
        new = advanced(old, now)
    if old is None or _is_news(old, new):
        _tell(old, new)
        _write(path, new)
    return new


def warning(mark: ClockMark) -> str:
    """What an administrator should know of a clock that is ahead; empty if it is in line."""
    if not mark.ahead_us:
        return ""
    days, wait = mark.ahead_us / DAY_US, mark.waits_us / DAY_US
    return (
        f"the clock is {days:.1f} days ahead of the time that has passed: nothing expires by it "
        f"for {wait:.0f} days of uptime; if it is right, `spamnb expire --trust-clock`"
    )


def _is_news(old: ClockMark, new: ClockMark) -> bool:
    """Whether a record is due: by time, or since the clock has not gone on as the uptime did."""
    passed = new.up_us - old.up_us
    steps = (new.clock_us - old.clock_us - passed, new.time_us - old.time_us - passed)
    return new.boot != old.boot or not 0 <= passed < STEP_US or max(map(abs, steps)) > SLACK_US


def _tell(old: ClockMark | None, new: ClockMark) -> None:
    if new.ahead_us and not (old and old.ahead_us):
        LOG.warning("%s", warning(new))
    elif old and old.ahead_us and not new.ahead_us:
        LOG.warning("the clock is confirmed: things expire again, by %s", _shown(new.time_us))


def _shown(time_us: int) -> str:
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="minutes")
    return str(time_us)


def _reading() -> ClockReading:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ClockReading(now_us(), boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)


def _read(path: Path) -> ClockMark | None:
    with suppress(OSError, ValueError, TypeError):
        found = json.loads(path.read_text("ascii"))
        mark = ClockMark(**found)
        numbers = (mark.time_us, mark.clock_us, mark.up_us, mark.steady_us, mark.off_us)
        if isinstance(mark.boot, str) and all(isinstance(one, int) for one in numbers):
            return mark
    return None


def _write(path: Path, mark: ClockMark) -> None:
    """Keep a record; without room for it the old one stays, by which nothing expires too early."""
    try:
        durable_write(path, json.dumps(asdict(mark)).encode("ascii"), mode=0o644)
    except OSError as error:
        LOG.warning("%s cannot be written: %s", path, error.strerror)


def _entries(home: Path) -> list[int]:
    """Times of the entries in quarantine and review list, by their names."""
    times = []
    for path in (*home.glob("quarantine/*.json"), *home.glob("review/*-*")):
        with suppress(ValueError):
            times.append(_time_of(path.name))
    return times


def _time_of(name: str) -> int:
    if name.endswith(".json"):
        second = datetime.strptime(name[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        return int(second.timestamp()) * 1_000_000 + int(name[15:21])
    return int(name[:13], 16)
