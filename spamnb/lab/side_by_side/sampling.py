"""Draw messages that two filters file differently, and estimate from answers which is right.

The messages without a label of a user are divided into strata by both verdicts. Each stratum gets
its part of the sample; within it the order of a keyed hash decides, so the sample is the same on
each run and does not depend on the order of the messages. Weights are sizes: a drawn message
stands for `size / drawn` messages. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b

from spamnb.core.mail.filter_marks import OtherVerdict
from spamnb.core.model.evidence import CONFIDENCE
from spamnb.lab.side_by_side.intervals import exact_interval
from spamnb.lab.side_by_side.records import PairedVerdict, Truth


@dataclass(frozen=True, slots=True)
class Stratum:
    """The messages with one pair of verdicts, and its part of the sample."""

    own: OtherVerdict
    other: OtherVerdict
    size: int
    drawn: tuple[PairedVerdict, ...]

    @property
    def weight(self) -> float:
        """The number of messages that a drawn one stands for."""
        return self.size / len(self.drawn)


@dataclass(frozen=True, slots=True)
class SampleEstimate:
    """The number of messages in all strata on which only this filter is right."""

    messages: int
    answered: int
    own_right: float
    low: float
    high: float
    """95 % bounds of `own_right`: the sum of exact bounds of the strata (Bonferroni)"""

    def as_dict(self) -> dict[str, object]:
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def strata_of(pairs: Sequence[PairedVerdict], most: int, seed: int = 1) -> tuple[Stratum, ...]:
    """Draw at most `most` messages, but at least one of each stratum."""
    cells: dict[tuple[OtherVerdict, OtherVerdict], list[PairedVerdict]] = {}
    for pair in pairs:
        if pair.moves and pair.truth is None:
            cells.setdefault((pair.own, pair.other), []).append(pair)
    ordered = sorted(cells.items())
    counts = _shares([len(cell) for _, cell in ordered], most)
    return tuple(
        Stratum(*key, len(cell), tuple(sorted(cell, key=lambda one: _rank(one, seed))[:count]))
        for (key, cell), count in zip(ordered, counts, strict=True)
    )


def _rank(pair: PairedVerdict, seed: int) -> bytes:
    return blake2b(pair.ident.encode(), key=b"%d" % seed, digest_size=16).digest()


def _shares(sizes: list[int], most: int) -> list[int]:
    """Parts of the sample: for each stratum up to a tenth of `most`, then the rest by size."""
    least = max(1, most // 10)
    counts = [min(size, least) for size in sizes]
    for _ in range(most - sum(counts)):
        open_ones = [k for k, size in enumerate(sizes) if counts[k] < size]
        if not open_ones:
            break
        counts[max(open_ones, key=lambda k: (sizes[k] / (counts[k] + 1), -k))] += 1
    return counts


def estimate(strata: Sequence[Stratum], answers: Mapping[str, Truth]) -> SampleEstimate:
    """Estimate all messages of the strata from the answers on drawn messages, by `ident`."""
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(strata))
    answered, middle, low, high = 0, 0.0, 0.0, 0.0
    for stratum in strata:
        found = [answers[one.ident] for one in stratum.drawn if one.ident in answers]
        right = sum((truth == "spam") == (stratum.own == "spam") for truth in found)
        lowest, highest = exact_interval(right, len(found), confidence)
        if found and len(found) == stratum.size:
            lowest = highest = right / len(found)
        answered += len(found)
        middle += stratum.size * (right / len(found) if found else 0.5)
        low += stratum.size * lowest
        high += stratum.size * highest
    return SampleEstimate(sum(one.size for one in strata), answered, middle, low, high)
