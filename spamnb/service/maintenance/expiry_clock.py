"""The time for expiry: the system clock, unless it has jumped ahead.

If the clock jumps ahead, all data looks too old, and expired data cannot be restored. Therefore a
small file in the home records the confirmed time and the machine's uptime at that moment
(CLOCK_BOOTTIME, which setting the clock does not change).

    in line      the clock advanced as the uptime did, within 5 minutes plus 2 %, and after a reboot
                 up to 4 days more (a long weekend): the clock is confirmed
    ahead        expiry uses the confirmed time plus the uptime since, so that a machine that was
                 off for a month still expires data; log and status warn
    behind       expiry uses the clock; data stored meanwhile gets the confirmed time
    steady       a clock that is ahead is confirmed after 30 days of uptime at the new time. Not
                 earlier, because the clock may have been behind before: data stored then has too
                 old a time, and gets its 30 days this way. A clock that is behind is confirmed
                 after 10 minutes, because that deletes nothing
    no file      the newest entry of quarantine and review queue is the confirmed time

The administrator confirms the clock immediately with `spamnb expire --trust-clock`.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from spamnb.service.engine.clock import now_us
from spamnb.service.telemetry.log import Log, silent
from spamnb.store.files import durable_write

FILE: Final = "clock"
MINUTE_US: Final = 60_000_000
DAY_US: Final = 1_440 * MINUTE_US
SLACK_US: Final = 5 * MINUTE_US
RATE: Final = 50
"""the reciprocal of 2 %: a clock with a smaller rate error is in line"""
OFF_US: Final = 4 * DAY_US
"""how long a machine may be off without a warning"""
AHEAD_US: Final = 30 * DAY_US
BEHIND_US: Final = 10 * MINUTE_US
STEP_US: Final = 60 * MINUTE_US
"""minimum time between two records, because the slack of each would add up"""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of the machine's clocks."""

    clock_us: int
    boot: str
    up_us: int


@dataclass(frozen=True, slots=True)
class ClockMark:
    """The recorded state of the clock."""

    time_us: int
    """the confirmed time"""
    clock_us: int
    boot: str
    up_us: int
    steady_us: int = 0
    """uptime during which the clock advanced steadily, but out of line"""
    off_us: int = 0
    """how long the machine may have been off, while the clock was never in line since boot"""

    @property
    def expires_us(self) -> int:
        """Return the time to use for expiry."""
        return min(self.time_us, self.clock_us)

    @property
    def ahead_us(self) -> int:
        """Return by how much the clock is ahead of the confirmed time."""
        return max(0, self.clock_us - self.time_us)

    @property
    def behind_us(self) -> int:
        """Return by how much the clock is behind; new data adds it to its time stamps."""
        return max(0, self.time_us - self.clock_us)

    @property
    def waits_us(self) -> int:
        """Return the uptime until a clock that is ahead is confirmed."""
        return AHEAD_US - self.steady_us if self.ahead_us else 0


def first(now: ClockReading, newest_us: int = 0) -> ClockMark:
    """Return the first state without a record; the newest entry's time is known to have passed."""
    known = newest_us if 0 < newest_us < now.clock_us - OFF_US else now.clock_us
    return ClockMark(known, now.clock_us, now.boot, now.up_us)


def advanced(mark: ClockMark, now: ClockReading) -> ClockMark:
    """Return the state after another reading."""
    same = now.boot == mark.boot and now.up_us >= mark.up_us
    passed = now.up_us - mark.up_us if same else now.up_us
    slack = SLACK_US + passed // RATE
    off = mark.off_us if same else OFF_US
    most = slack + off
    expected, drift = mark.time_us + passed, now.clock_us - mark.clock_us - passed
    confirmed = ClockMark(now.clock_us, now.clock_us, now.boot, now.up_us)
    if -slack <= now.clock_us - expected <= most:
        return confirmed
    steady = mark.steady_us + passed if -slack <= drift <= most else 0
    if steady >= (AHEAD_US if now.clock_us > expected else BEHIND_US):
        return confirmed
    return replace(confirmed, time_us=expected, steady_us=steady, off_us=off)


def expiry_mark(
    home: Path, newest_us: int = 0, *, trust: bool = False, log: Log = silent
) -> ClockMark:
    """Read the clock, record its state, and return it.

    `newest_us` is the time of the newest known entry, for homes without a record. `trust` confirms
    the clock, on request of the administrator.
    """
    now, path = _reading(), home / FILE
    old = None if trust else _read(path)
    if old is None:
        known = (at for at in (newest_us, *_entries(home)) if at <= now.clock_us)
        new = first(now, 0 if trust else max(known, default=0))
    else:
        new = advanced(old, now)
    if old is None or _record_is_due(old, new):
        if change := _change(old, new):
            log({"event": "clock", "level": "warning", "text": change})
        _write(path, new, log)
    return new


def warning(mark: ClockMark) -> str:
    """Return the warning about a clock that is ahead; empty if it is in line."""
    if not mark.ahead_us:
        return ""
    days, wait = mark.ahead_us / DAY_US, mark.waits_us / DAY_US
    return (
        f"the clock is {days:.1f} days ahead of the confirmed time: nothing expires by "
        f"the clock for {wait:.0f} days of uptime; if the clock is right, run "
        "`spamnb expire --trust-clock`"
    )


def _record_is_due(old: ClockMark, new: ClockMark) -> bool:
    """Return whether an hour has passed, or the clock did not advance as the uptime did."""
    passed = new.up_us - old.up_us
    steps = (new.clock_us - old.clock_us - passed, new.time_us - old.time_us - passed)
    return new.boot != old.boot or not 0 <= passed < STEP_US or max(map(abs, steps)) > SLACK_US


def _change(old: ClockMark | None, new: ClockMark) -> str:
    if new.ahead_us and not (old and old.ahead_us):
        return warning(new)
    if old and old.ahead_us and not new.ahead_us:
        return f"the clock is confirmed: expiry uses it again, {_iso(new.time_us)}"
    return ""


def _iso(time_us: int) -> str:
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


def _write(path: Path, mark: ClockMark, log: Log) -> None:
    """Write the record; if that fails the old one stays, and nothing expires too early."""
    try:
        durable_write(path, json.dumps(asdict(mark)).encode("ascii"), mode=0o644)
    except OSError as error:
        log(
            {"event": "clock not recorded", "level": "warning", "file": str(path)}
            | {"error": error.strerror}
        )


def _entries(home: Path) -> list[int]:
    """Return the times of the entries in quarantine and review queue, from their names."""
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
