"""Log, counters, wall clock and environment of a process. Must not know processes or sockets.

The engine takes every time as an argument, so that events can be replayed.
"""

from __future__ import annotations

import os
import site
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from spamnb.errors import incident_id

Log = Callable[[dict[str, object]], None]
"""a record has the key `event`; it may have `level`, and facts"""


def silent(_: dict[str, object]) -> None:
    """Log nothing."""


def incident(log: Log, where: str, error: BaseException) -> str:
    """Log an internal fault; returns its incident id."""
    name = incident_id()
    log(
        {
            "event": "fault",
            "level": "error",
            "incident": name,
            "where": where,
            "error": f"{type(error).__name__}: {error}",
            "trace": "".join(traceback.format_exception(error, limit=-8)),
        }
    )
    return name


COUNTERS: dict[str, str] = {
    "connections": "connections accepted from clients",
    "connections_refused": "connections refused because of limits or trust",
    "messages": "messages accepted by the next hop, a Maildir or the quarantine",
    "bytes": "bytes of those messages",
    "deferred": "messages answered with 4xx after their data",
    "refused": "messages answered with 5xx after their data",
    "scanned": "messages scanned",
    "unscanned": "messages passed unscanned",
    "unscanned_bypass": "messages passed unscanned because bypass was on",
    "unscanned_large": "messages passed unscanned because they exceeded the scan limit",
    "unscanned_busy": "messages passed unscanned because no scan could start in time",
    "unscanned_overrun": "messages passed unscanned because the scan exceeded its time limit",
    "unscanned_known_crasher": "messages passed unscanned because an earlier scan crashed",
    "unscanned_model": "messages passed unscanned because the model could not be used",
    "unscanned_fault": "messages passed unscanned because of another fault",
    "unscanned_deferred": "messages answered with 4xx because they could not be scanned",
    "scanned_head": "messages scanned only in their first part",
    "senders_checked": "messages whose sender was checked by SPF, DKIM and DMARC",
    "senders_unanswered": "checked messages for which a name server did not answer in time",
    "decision_deliver": "messages with the decision deliver",
    "decision_unsure": "messages with the decision unsure",
    "decision_junk": "messages with the decision junk",
    "decision_reject": "messages with the decision reject",
    "mail_action_headers": "messages passed with headers only",
    "mail_action_tag": "messages passed with a tag in the subject",
    "mail_action_redirect": "messages passed with a redirect header",
    "mail_action_quarantine": "messages stored in quarantine",
    "mail_action_reject": "messages refused because of their verdict",
    "mailboxes_together": "messages for several recipients in front of the mailboxes, with persons",
    "observed": "messages scanned and passed with the signature header only",
    "observed_local": "observed messages because of scan.local = observe",
    "observed_own_clients": "observed messages because of scan.own_clients",
    "observed_listener": "observed messages because of listener.*.observe",
    "learned_ham": "messages learnt as ham",
    "learned_spam": "messages learnt as spam",
    "learned_other": "messages learnt under other labels",
    "learned_limited": "labels given after half of the daily budget of shared steps was spent",
    "forgotten": "trainings removed",
    "feedback_unchanged": "feedback that changed nothing",
    "feedback_waiting": "feedback that waits for the log of the fleet",
    "feedback_review": "feedback queued for review",
    "feedback_refused": "feedback refused",
    "faults": "internal faults",
    "scan_overruns": "scans aborted at their time limit",
    "upstream_failures": "next hops that were unreachable, or lost the connection",
    "duplicates_likely": "clients that disconnected before the next hop's 250 reached them",
    "delivered": "messages that the delivery agent wrote to Maildirs",
    "delivered_junk": "messages that the delivery agent wrote to a junk folder",
    "reports": "reports accepted at the feedback addresses",
    "logins_refused": "failed logins at the delivery agent",
    "restarts": "crashed processes that were restarted",
}
"""name -> what it counts"""

BOUNDS_S: tuple[float, ...] = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""upper bounds of the histograms' buckets; one more bucket takes larger values"""

HISTOGRAMS: dict[str, str] = {
    "scan_seconds": "time to scan a message",
    "upstream_seconds": "time from the end of a message to the next hop's reply",
    "learn_seconds": "time to learn one feedback, including the sync to disk",
}

_AT = {name: index for index, name in enumerate(COUNTERS)}
_EACH = len(BOUNDS_S) + 2
_FIRST = {name: len(COUNTERS) + index * _EACH for index, name in enumerate(HISTOGRAMS)}
WIDTH = len(COUNTERS) + len(HISTOGRAMS) * _EACH
"""numbers in a row, each unsigned with 64 bits"""

Row = memoryview | list[int]


class Meters:
    """The counters and histograms of one process: a row of numbers, summed on request.

    Rows may be in shared memory, so that other processes see a number immediately, even if the
    counting process is killed. `COUNTERS` and `HISTOGRAMS` define the names; a row has their
    numbers in that order.
    """

    __slots__ = ("row",)

    def __init__(self, row: Row | None = None) -> None:
        self.row: Row = [0] * WIDTH if row is None else row

    def count(self, name: str, by: int = 1) -> None:
        self.row[_AT[name]] += by

    def observe(self, name: str, seconds: float) -> None:
        """Add a time to a histogram."""
        first = _FIRST[name]
        self.row[first + bisect_left(BOUNDS_S, seconds)] += 1
        self.row[first + _EACH - 1] += max(0, round(seconds * 1e6))

    def value(self, name: str) -> int:
        return self.row[_AT[name]]


def summed(rows: Sequence[Row]) -> Meters:
    """Return the sums of these rows."""
    return Meters([sum(numbers) for numbers in zip(*rows, strict=True)] if rows else None)


def as_dict(meters: Meters) -> dict[str, object]:
    """Return all numbers by name: counters, and for each histogram its buckets, count and sum."""
    found: dict[str, object] = {name: meters.value(name) for name in COUNTERS}
    for name, first in _FIRST.items():
        buckets = list(meters.row[first : first + _EACH - 1])
        found[name] = {
            "bounds": list(BOUNDS_S),
            "buckets": buckets,
            "count": sum(buckets),
            "sum": meters.row[first + _EACH - 1] / 1e6,
        }
    return found


def growing(meters: Meters) -> dict[str, int]:
    """Return all numbers that only grow: counters, and the buckets of each histogram."""
    found = {name: meters.value(name) for name in COUNTERS}
    for name, first in _FIRST.items():
        for place, bound in enumerate((*BOUNDS_S, inf)):
            found[bucket(name, bound)] = meters.row[first + place]
    return found


def bucket(name: str, bound: float) -> str:
    """Return the name of a histogram's bucket in the series."""
    return f"{name}_to_{bound:g}"


def prometheus(meters: Meters, gauges: dict[str, float] | None = None) -> str:
    """Return the numbers in the text format of Prometheus."""
    lines: list[str] = []
    for name, meaning in COUNTERS.items():
        full = f"spamnb_{name}_total"
        lines += [f"# HELP {full} {meaning}", f"# TYPE {full} counter"]
        lines.append(f"{full} {meters.value(name)}")
    for name, meaning in HISTOGRAMS.items():
        full, first, running = f"spamnb_{name}", _FIRST[name], 0
        lines += [f"# HELP {full} {meaning}", f"# TYPE {full} histogram"]
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        for bound, number in zip(bounds, meters.row[first:], strict=False):
            running += number
            lines.append(f'{full}_bucket{{le="{bound}"}} {running}')
        lines.append(f"{full}_sum {meters.row[first + _EACH - 1] / 1e6}")
        lines.append(f"{full}_count {running}")
    typed = ""
    for name, value in (gauges or {}).items():
        plain = name.partition("{")[0]  # one TYPE line for all labels of a name
        lines += [f"# TYPE spamnb_{plain} gauge"] if plain != typed else []
        lines.append(f"spamnb_{name} {value}")
        typed = plain
    return "\n".join(lines) + "\n"


def now_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


def duration(seconds: float) -> str:
    """Return a duration in its largest fitting unit."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def iso(time_us: int) -> str:
    """Return a time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="microseconds")


def lower_priority(steps: int) -> None:
    """Lower the priority of this process, if the system allows that.

    A filter of system calls may forbid it.
    """
    with suppress(OSError):
        os.nice(steps)


def package_environment(without: Container[str] = ()) -> dict[str, str]:
    """Return the environment of a child, in which it finds this same package."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    root = str(Path(__file__).resolve().parents[1])
    places = [*site.getsitepackages(), site.getusersitepackages()]
    if root not in places:
        # Run from a checkout: the child's working directory differs.
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH", "")]))
    return kept
