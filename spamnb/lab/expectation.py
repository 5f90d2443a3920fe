"""What to expect of a model that was trained with sorted mail, by cross-validation on that mail.

The scores of messages that their model did not learn are the first ones that set the threshold of
the site (`core.model.site_threshold`), before there are verdicts. How many messages would have been
filed is counted with the threshold of the other folds, so no message decides on itself. Must not
know terminals or stores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np

from spamnb.core.model.costs import Costs
from spamnb.core.model.scoring import Floats
from spamnb.core.model.site_threshold import (
    BINS,
    NO_SCORES,
    SHIPPED,
    ScoreCounts,
    bin_of,
    decide_stretched,
    site_threshold,
    stretched,
)
from spamnb.lab.protocols import FOLDS, run
from spamnb.lab.statistics.metrics import Bools
from spamnb.lab.trial import Labelled, Options, Samples, read_samples

MOST = 4000
"""messages that are judged; of more mail so many are drawn"""
FEWEST = 20
"""messages of each label; of fewer nothing can be said"""
_FILED = ("junk", "reject")


@dataclass(frozen=True, slots=True)
class Expectation:
    """How much of the mail would have been filed as junk, and the scores that say so."""

    ham: int
    spam: int
    ham_filed: int
    spam_filed: int
    threshold: float
    """the junk threshold of the trained model, in nats"""
    counts: ScoreCounts

    def as_dict(self) -> dict[str, object]:
        """Return what `train --json` shows."""
        plain = asdict(self)
        del plain["counts"]
        return plain

    def __str__(self) -> str:
        """Return the sentence that `train` shows."""
        ham = f"{self.ham_filed:,}" if self.ham_filed else "none"
        return (
            f"of your {self.spam:,} spam {self.spam_filed:,} would have been filed as junk, of "
            f"{self.ham:,} ham {ham} (cross-validation; junk from {self.threshold:.2f} nats on)"
        )


def expect(messages: Iterable[Labelled], options: Options, one_in: int) -> Expectation | None:
    """Return what to expect of a model of these messages; None if a label has too few of them.

    `one_in`: the target of the threshold of the site; 0: the threshold is the shipped one.
    """
    samples = _distinct(read_samples(messages, options))
    spam = samples.truth == 1
    if not min(spam.sum(), (~spam).sum()) >= FEWEST:
        return None
    z = run(samples, replace(options, protocol="folds")).z
    odds = z[:, 1] - z[:, 0]
    taught = int(min(spam.sum(), (~spam).sum()))
    costs, folds = options.costs or Costs(), np.arange(len(odds)) % FOLDS
    filed = np.zeros(len(odds), bool)
    for fold in range(FOLDS):
        others = folds != fold
        threshold = _threshold(_counts(odds[others], spam[others]), taught, one_in)
        for index in np.flatnonzero(~others).tolist():
            shown = stretched(float(odds[index]), threshold)
            filed[index] = decide_stretched(shown, threshold, costs) in _FILED
    counts = _counts(odds, spam)
    return Expectation(
        ham=int((~spam).sum()),
        spam=int(spam.sum()),
        ham_filed=int((filed & ~spam).sum()),
        spam_filed=int((filed & spam).sum()),
        threshold=_threshold(counts, taught, one_in),
        counts=counts,
    )


def _distinct(samples: Samples) -> Samples:
    """Return each message once: a copy in another fold would be scored by a model that knows it."""
    first: dict[bytes, int] = {}
    for index, sample in enumerate(samples.items):
        first.setdefault(sample.example.digest, index)
    kept = list(first.values())
    return Samples([samples.items[index] for index in kept], samples.truth[kept])


def _threshold(counts: ScoreCounts, taught: int, one_in: int) -> float:
    return site_threshold(NO_SCORES, taught, one_in, counts) if one_in else SHIPPED


def _counts(odds: Floats, spam: Bools) -> ScoreCounts:
    steps = np.array([bin_of(score) for score in odds.tolist()], np.int64)
    ham, junk = (np.bincount(steps[side], minlength=BINS).tolist() for side in (~spam, spam))
    return NO_SCORES._replace(ham=tuple(ham), spam=tuple(junk))
