"""Small files of the home: costs that apply where the settings have none, and the clock of expiry.

    # ham_loss.toml
    junk = [47.74, 0.05]
    reject = [1000.0, 0.0]
    one_in = 1000                   if `spamnb evaluate --apply` found them for this ham loss target
    by = "ann"                      if an administrator chose them in the console
    at = "2026-05-31T07:15:00Z"
    [[before]]                      what was in the file before, the newest first: the same keys

The file is ignored if any cost is set elsewhere. What was found for a target is ignored if
`ham_loss.one_in` is another target. Only an evaluation finds costs for a target: users label mainly
errors, and a bound from the labels of a running filter would be too optimistic.

Failure: SettingsError for a file that exists and is invalid; StoreAccessError if it cannot be
written.
"""

from __future__ import annotations

import json
import os
import stat
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from math import isclose
from pathlib import Path
from typing import Any, Final, NamedTuple

from spamnb.errors import RefError, RefusedError, SettingsError
from spamnb.mail.limits import visible
from spamnb.model.costs import Costs, junk_from, log_odds_of, thresholds
from spamnb.store.files import durable_write, refused
from spamnb.telemetry import Log, now_us, silent

FILE: Final = "ham_loss.toml"
MOST_BEFORE: Final = 10
"""earlier costs that are kept"""
_MODE: Final = 0o600
_MOST_BYTES: Final = 8192
_MOST_NAME: Final = 128
_KEYS: Final = frozenset(("junk", "reject", "one_in", "by", "at"))


@dataclass(frozen=True, slots=True)
class CostRules:
    """What the settings say about costs."""

    set_at: str = ""
    """where they set a cost, so that the file is ignored; empty if they do not"""
    one_in: int = 1000
    """the ham loss target"""


@dataclass(frozen=True, slots=True)
class StoredCosts:
    """Costs of the file."""

    costs: Costs
    one_in: int | None = None
    """the target that they were found for; None if an administrator chose them"""
    by: str = ""
    at: str = ""
    before: tuple[StoredCosts, ...] = field(default=())
    """the newest first"""

    @property
    def earlier(self) -> StoredCosts | None:
        """What was in the file before, with all before it; None if there was no file."""
        if not self.before:
            return None
        return replace(self.before[0], before=self.before[1:])


class CostChange(NamedTuple):
    """What an administrator changed."""

    before: Costs
    after: Costs

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return the probabilities from which each decision is taken."""
        return {"before": thresholds_of(self.before), "after": thresholds_of(self.after)}


def thresholds_of(costs: Costs) -> dict[str, float]:
    """Return the probability above which each decision is taken."""
    return {one.decision: one.probability for one in thresholds(costs)}


def stored_facts(home: Path, rules: CostRules) -> dict[str, Any] | None:
    """Return the costs in the file, and the earlier ones; None without a file."""
    if (stored := read_stored(home)) is None:
        return None
    earlier = stored.earlier
    return {
        "by": stored.by,
        "at": stored.at,
        "one_in": stored.one_in,
        "thresholds": thresholds_of(stored.costs),
        "before": thresholds_of(_in_force(earlier, rules.one_in) or Costs()),
    }


class CostChoice(NamedTuple):
    """A threshold of junk that an administrator chooses."""

    junk: float
    expect: float
    """the threshold that it is to replace"""
    by: str
    at: str


def choose(home: Path, rules: CostRules, choice: CostChoice) -> CostChange:
    """Store the costs with a threshold of junk.

    Failure: RefusedError if the settings set costs, or if another threshold is to be replaced.
    """
    _require_free(rules)
    before = read_costs(home, rules.one_in) or Costs()
    if not isclose(thresholds_of(before)["junk"], choice.expect, rel_tol=1e-12):
        raise RefusedError("the costs have changed since then", hint="look at them again")
    after, stored = junk_from(before, log_odds_of(choice.junk)), read_stored(home)
    earlier = (stored, *stored.before) if stored else ()
    comments = (
        "Written by the console, page What if. Delete it to use the costs of the settings.",
    )
    write_stored(home, StoredCosts(after, by=choice.by, at=choice.at, before=earlier), comments)
    return CostChange(before, after)


def take_back(home: Path, rules: CostRules, at: str) -> CostChange:
    """Bring back what was there before the costs that an administrator chose at this time.

    Failure: RefError if these are not stored any more; RefusedError if the settings set costs.
    """
    _require_free(rules)
    stored = read_stored(home)
    if stored is None or not stored.by or stored.at != at:
        raise RefError(f"no costs of {at} are stored", hint="look at them again")
    if (earlier := stored.earlier) is None:
        remove_costs(home)
    else:
        write_stored(home, earlier, ("Brought back by the console, page What if.",))
    return CostChange(stored.costs, read_costs(home, rules.one_in) or Costs())


def _require_free(rules: CostRules) -> None:
    if rules.set_at:
        raise RefusedError(
            f"costs are set at {rules.set_at}", hint="change them there, or remove them there"
        )


def write_stored(home: Path, stored: StoredCosts, comments: tuple[str, ...] = ()) -> Path:
    """Write the file atomically; return its path."""
    lines = [f"# {one}" for one in comments]
    lines += _lines(stored)
    for one in stored.before[:MOST_BEFORE]:
        lines += ["", "[[before]]", *_lines(one)]
    try:
        durable_write(home / FILE, "\n".join([*lines, ""]).encode(), mode=_MODE)
    except OSError as error:
        raise refused(error, home / FILE) from error
    return home / FILE


def _lines(stored: StoredCosts) -> Iterator[str]:
    costs = stored.costs
    yield f"junk = {list(costs.junk)}"
    yield f"reject = {list(costs.reject)}"
    if stored.one_in is not None:
        yield f"one_in = {stored.one_in}"
    if stored.by:
        name = visible(stored.by[:_MOST_NAME])
        yield f"by = {json.dumps(name, ensure_ascii=False)}"
        yield f"at = {json.dumps(stored.at)}"


def remove_costs(home: Path) -> None:
    """Delete the file, so that the costs of the settings apply."""
    try:
        (home / FILE).unlink(missing_ok=True)
    except OSError as error:
        raise refused(error, home / FILE) from error


def read_costs(home: Path, one_in: int) -> Costs | None:
    """Read the costs that apply for this target; None if there are none or they are unreadable."""
    return _in_force(read_stored(home), one_in)


def _in_force(stored: StoredCosts | None, one_in: int) -> Costs | None:
    return stored.costs if stored and stored.one_in in (None, one_in) else None


def read_stored(home: Path) -> StoredCosts | None:
    """Read the file; None if there is none or it is unreadable."""
    path = home / FILE
    try:
        text = _text(path)
        return None if text is None else _stored(tomllib.loads(text))
    except (SettingsError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(
            f"{path} is invalid: {error}",
            hint="remove it, or rewrite it with `spamnb evaluate --apply`",
        ) from error


def _stored(plain: Mapping[str, Any]) -> StoredCosts:
    before = tuple(map(_costs, plain.get("before", ())))
    return replace(_costs({name: plain[name] for name in plain if name != "before"}), before=before)


def _costs(plain: Mapping[str, Any]) -> StoredCosts:
    if not ({"junk", "reject"} < plain.keys() <= _KEYS and ("one_in" in plain) != ("by" in plain)):
        raise ValueError(f"its keys are {', '.join(sorted(plain)) or 'missing'}")
    junk, reject = ((float(ham), float(spam)) for ham, spam in (plain["junk"], plain["reject"]))
    costs = replace(Costs(), junk=junk, reject=reject)
    return StoredCosts(
        costs, plain.get("one_in"), str(plain.get("by", "")), str(plain.get("at", ""))
    )


def _text(path: Path) -> str | None:
    """Read the file without following links: root may read it in another user's home."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return file.read(_MOST_BYTES).decode("utf-8")


CLOCK_FILE: Final = "clock"
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
    """The recorded state of the clock: expiry uses the system clock, unless it has jumped ahead.

    If the clock jumps ahead, all data looks too old, and expired data cannot be restored. Therefore
    a small file in the home records the confirmed time and the machine's uptime at that moment
    (CLOCK_BOOTTIME, which setting the clock does not change).

        in line      the clock advanced as the uptime did, within 5 minutes plus 2 %, and after a
                     reboot up to 4 days more (a long weekend): the clock is confirmed
        ahead        expiry uses the confirmed time plus the uptime since, so that a machine that
                     was off for a month still expires data; log and status warn
        behind       expiry uses the clock; data stored meanwhile gets the confirmed time
        steady       a clock that is ahead is confirmed after 30 days of uptime at the new time. Not
                     earlier, because the clock may have been behind before: data stored then has
                     too old a time, and gets its 30 days this way. A clock that is behind is
                     confirmed after 10 minutes, because that deletes nothing
        no file      the newest entry of quarantine and review queue is the confirmed time

    The administrator confirms the clock immediately with `spamnb expire --trust-clock`.
    """

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
    now, path = _reading(), home / CLOCK_FILE
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
