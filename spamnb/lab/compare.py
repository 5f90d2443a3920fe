"""Compare two evaluations of the same messages: paired differences with 95 % intervals.

Reads files of `evaluate --json FILE --scores`. Messages are paired by digest (the n-th copy with
the n-th), whatever their order; resampling pairs removes the variance that both runs share. Must
not know terminals. Failure: UserError for files that cannot be compared.
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
    """A metric of A minus that of B; below 0, A is better."""

    measure: str
    a: float
    b: float
    difference: float
    low: float
    high: float

    @property
    def better(self) -> str:
        """The better run, A or B; neither if the interval contains 0."""
        return "A" if self.high < 0 else "B" if self.low > 0 else "neither"

    def as_dict(self) -> dict[str, object]:
        """Return one entry of `differences` in `evaluate --compare --json`."""
        return asdict(self) | {"better": self.better}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences, over the messages that both runs scored."""

    messages: int
    only_a: int
    only_b: int
    differences: tuple[Difference, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object of `evaluate --compare --json`."""
        counts = {"messages": self.messages, "only_a": self.only_a, "only_b": self.only_b}
        return counts | {"differences": [found.as_dict() for found in self.differences]}


class _Scores(NamedTuple):
    keys: list[tuple[str, int]]
    truth: Bools
    odds: Floats
    P: Floats

    def take(self, rows: list[int]) -> _Scores:
        keys = [self.keys[row] for row in rows]
        return _Scores(keys, self.truth[rows], self.odds[rows], self.P[rows])


def compare(a: Path, b: Path, *, resamples: int = 1000, seed: int = 1) -> Comparison:
    """Compare two files of `evaluate --json FILE --scores`."""
    first, second = _read(a), _read(b)
    row_of = {key: row for row, key in enumerate(second.keys)}
    pairs = [(row, row_of[key]) for row, key in enumerate(first.keys) if key in row_of]
    scores_a = first.take([row for row, _ in pairs])
    scores_b = second.take([row for _, row in pairs])
    if not pairs or scores_a.truth.all() or not scores_a.truth.any():
        raise UserError(
            f"{a} and {b} have only {len(pairs)} messages in common",
            hint="evaluate both on the same mail, with ham and spam in it",
        )
    if (scores_a.truth != scores_b.truth).any():
        raise UserError(
            f"{a} and {b} do not agree on which messages are spam",
            hint="evaluate both on the same mail with the same labels",
        )
    resampling = {"resamples": resamples, "seed": seed}
    found = [
        _area(
            scores_a, scores_b, *paired(scores_a.truth, scores_a.odds, scores_b.odds, **resampling)
        )
    ]
    for name, losses in _LOSSES.items():
        losses_a, losses_b = losses(scores_a), losses(scores_b)
        mean, (low, high) = paired_mean(losses_a, losses_b, **resampling)
        found.append(
            Difference(name, float(losses_a.mean()), float(losses_b.mean()), mean, low, high)
        )
    sizes = len(pairs), len(first.keys) - len(pairs), len(second.keys) - len(pairs)
    return Comparison(*sizes, tuple(found))


def _area(
    scores_a: _Scores, scores_b: _Scores, difference: float, interval: Interval
) -> Difference:
    a, b = (100 * (1 - auc(scores.truth, scores.odds)) for scores in (scores_a, scores_b))
    return Difference("auc_complement_percent", a, b, difference, *interval)


def _errors(scores: _Scores) -> Floats:
    return np.asarray(100.0 * ((scores.P > 0.5) != scores.truth))


def _brier(scores: _Scores) -> Floats:
    return np.asarray((scores.P - scores.truth) ** 2)


def _log_loss(scores: _Scores) -> Floats:
    """Log loss of each message; a certain error counts as 36 nats, as in `metrics.log_loss`."""
    p_true = np.where(scores.truth, scores.P, 1 - scores.P)
    return np.asarray(-np.log(np.maximum(p_true, np.finfo(np.float64).eps)))


_LOSSES = {"error_percent": _errors, "brier": _brier, "log_loss": _log_loss}


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
            f"{path} contains no scores of messages", hint="write it with `--json FILE --scores`"
        ) from error
