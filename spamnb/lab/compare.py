"""Two evaluations of the same messages against each other: paired differences with intervals.

Reads what `evaluate --json FILE --scores` wrote. Messages are paired by their digests (the n-th
copy with the n-th), whatever their order; resampling both together takes out how hard the messages
are. Must not know terminals. Failure: UserError for files that cannot be compared.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spamnb.core.model.scoring import Floats
from spamnb.errors import UserError
from spamnb.lab.statistics.metrics import Bools, Interval, auc, paired, paired_mean


@dataclass(frozen=True, slots=True)
class Difference:
    """A measure of A less that of B; below 0, A is better."""

    measure: str
    a: float
    b: float
    difference: float
    low: float
    high: float

    @property
    def better(self) -> str:
        """Which one the interval says is better; neither if it holds 0."""
        return "A" if self.high < 0 else "B" if self.low > 0 else "neither"

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return asdict(self) | {"better": self.better}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences, over the messages that both judged."""

    messages: int
    only_a: int
    only_b: int
    differences: tuple[Difference, ...]

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        counts = {"messages": self.messages, "only_a": self.only_a, "only_b": self.only_b}
        return counts | {"differences": [found.as_dict() for found in self.differences]}


class _Scores(NamedTuple):
    keys: list[tuple[str, int]]
    truth: Bools
    odds: Floats
    P: Floats

    def take(self, rows: list[int]) -> _Scores:
        """Some of the messages."""
        keys = [self.keys[row] for row in rows]
        return _Scores(keys, self.truth[rows], self.odds[rows], self.P[rows])


def compare(a: Path, b: Path, *, resamples: int = 1000, seed: int = 1) -> Comparison:
    """Compare two files of `evaluate --json FILE --scores`."""
    first, second = _read(a), _read(b)
    place = {key: row for row, key in enumerate(second.keys)}
    both = [(row, place[key]) for row, key in enumerate(first.keys) if key in place]
    ours = first.take([row for row, _ in both])
    theirs = second.take([row for _, row in both])
    if not both or ours.truth.all() or not ours.truth.any():
        raise UserError(
            f"{a} and {b} have {len(both)} messages in common",
            hint="evaluate both on the same mail, some of it ham and some spam",
        )
    if (ours.truth != theirs.truth).any():
        raise UserError(f"{a} and {b} do not agree which messages are spam")
    how = {"resamples": resamples, "seed": seed}
    found = [_area(ours, theirs, *paired(ours.truth, ours.odds, theirs.odds, **how))]
    for name, losses in _LOSSES.items():
        mine, other = losses(ours), losses(theirs)
        mean, (low, high) = paired_mean(mine, other, **how)
        found.append(Difference(name, float(mine.mean()), float(other.mean()), mean, low, high))
    sizes = len(both), len(first.keys) - len(both), len(second.keys) - len(both)
    return Comparison(*sizes, tuple(found))


def _area(ours: _Scores, theirs: _Scores, difference: float, interval: Interval) -> Difference:
    a, b = (100 * (1 - auc(one.truth, one.odds)) for one in (ours, theirs))
    return Difference("auc_complement_percent", a, b, difference, *interval)


def _mistakes(scores: _Scores) -> Floats:
    return np.asarray(100.0 * ((scores.P > 0.5) != scores.truth))


def _brier(scores: _Scores) -> Floats:
    return np.asarray((scores.P - scores.truth) ** 2)


def _surprise(scores: _Scores) -> Floats:
    """As `measures.log_loss`: a certain error counts as 36 nats, not infinity."""
    said = np.where(scores.truth, scores.P, 1 - scores.P)
    return np.asarray(-np.log(np.maximum(said, np.finfo(np.float64).eps)))


_LOSSES = {"error_percent": _mistakes, "brier": _brier, "log_loss": _surprise}


def _read(path: Path) -> _Scores:
    try:
        plain: dict[str, Any] = json.loads(path.read_text())
        rows = plain["messages"]
        seen: Counter[str] = Counter()
        keys = []
        for row in rows:
            keys.append((row["id"], seen[row["id"]]))
            seen[row["id"]] += 1
        columns = ([row[name] for row in rows] for name in ("spam", "log_odds", "probability"))
        spam, odds, P = columns
        return _Scores(keys, np.array(spam, bool), np.array(odds, float), np.array(P, float))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} holds no scores of messages", hint="write it with `--json FILE --scores`"
        ) from error
