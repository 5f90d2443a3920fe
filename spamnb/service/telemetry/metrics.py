"""What a daemon counts: one row of numbers for each of its processes, summed when asked for.

The rows may lie in shared memory, so a number counted is a number seen, also if the process that
counted it was killed right after. `COUNTERS` and `HISTOGRAMS` are the tables of names; a row is
their numbers in that order. Must not know processes or sockets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

COUNTERS: dict[str, str] = {
    "connections": "connections accepted from peers",
    "connections_refused": "connections turned away: limits, trust",
    "messages": "messages that the next hop, a Maildir or the quarantine took",
    "bytes": "bytes of those messages",
    "deferred": "messages answered with 4xx at their end",
    "refused": "messages answered with 5xx at their end",
    "scanned": "messages judged",
    "unscanned": "messages passed without being judged",
    "unscanned_bypass": "of these, because the bypass was on",
    "unscanned_large": "of these, because they were above the scan limit",
    "unscanned_busy": "of these, because no scan could begin in time",
    "unscanned_overrun": "of these, because their scan took too long",
    "unscanned_known_crasher": "of these, because an earlier scan of them ended its process",
    "unscanned_model": "of these, because no model could be used",
    "unscanned_fault": "of these, because of another fault",
    "unscanned_deferred": "messages answered with 4xx because they could not be judged",
    "scanned_head": "messages judged by their first part alone",
    "decision_deliver": "judged: deliver",
    "decision_unsure": "judged: unsure",
    "decision_junk": "judged: junk",
    "decision_reject": "judged: reject",
    "handling_headers": "handled by headers alone",
    "handling_tag": "handled by a tag in the subject",
    "handling_redirect": "handled by a redirect header",
    "handling_quarantine": "kept in quarantine",
    "handling_reject": "refused for what they are",
    "observed": "judged, but passed with nothing but the signature",
    "learned_ham": "messages learnt as ham",
    "learned_spam": "messages learnt as spam",
    "learned_other": "messages learnt under other labels",
    "forgotten": "trainings taken back",
    "feedback_unchanged": "feedback that changed nothing",
    "feedback_review": "feedback that waits for review",
    "feedback_refused": "feedback that was refused",
    "faults": "faults of our own",
    "scan_overruns": "scans broken off at their deadline",
    "upstream_failures": "next hops that could not be reached, or were lost",
    "duplicates_likely": "clients that left between the next hop's 250 and ours",
    "delivered": "messages that the post office laid into Maildirs",
    "delivered_junk": "of these, into the junk folder",
    "reports": "reports that the feedback addresses took",
    "logins_refused": "wrong passwords at the post office",
    "restarts": "processes replaced after they died",
}
"""name -> what it counts"""

BOUNDS_S: tuple[float, ...] = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""upper bounds of the histograms' buckets; one more takes the rest"""

HISTOGRAMS: dict[str, str] = {
    "scan_seconds": "time to judge a message",
    "upstream_seconds": "time from the end of a message to the next hop's reply",
    "learn_seconds": "time to learn from one feedback, with the disk",
}

_AT = {name: index for index, name in enumerate(COUNTERS)}
_EACH = len(BOUNDS_S) + 2
_FIRST = {name: len(COUNTERS) + index * _EACH for index, name in enumerate(HISTOGRAMS)}
WIDTH = len(COUNTERS) + len(HISTOGRAMS) * _EACH
"""numbers in a row, each an unsigned 64-bit"""

Row = memoryview | list[int]


class Meters:
    """One process's row."""

    __slots__ = ("row",)

    def __init__(self, row: Row | None = None) -> None:
        self.row: Row = [0] * WIDTH if row is None else row

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        self.row[_AT[name]] += by

    def observe(self, name: str, seconds: float) -> None:
        """Put a time into a histogram."""
        first = _FIRST[name]
        self.row[first + bisect_left(BOUNDS_S, seconds)] += 1
        self.row[first + _EACH - 1] += max(0, round(seconds * 1e6))

    def value(self, name: str) -> int:
        """A counter's number."""
        return self.row[_AT[name]]


def summed(rows: Sequence[Row]) -> Meters:
    """Add rows up."""
    return Meters([sum(numbers) for numbers in zip(*rows, strict=True)] if rows else None)


def as_dict(meters: Meters) -> dict[str, object]:
    """Name every number: counters, and per histogram its buckets, count and sum."""
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


def prometheus(meters: Meters, gauges: dict[str, float] | None = None) -> str:
    """Write the numbers in Prometheus' text format."""
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
        plain = name.partition("{")[0]  # one line of type for all labels of a name
        lines += [f"# TYPE spamnb_{plain} gauge"] if plain != typed else []
        lines.append(f"spamnb_{name} {value}")
        typed = plain
    return "\n".join(lines) + "\n"
