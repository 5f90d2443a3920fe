"""The figures of a played world: errors, labels needed, decisions, ranking; with intervals.

Deliveries of one person depend on each other, and so do those of one message. Intervals are taken
over persons: each resampling draws as many persons as there are, with all of their deliveries.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby

import numpy as np

from spamnb.core.model.costs import Costs
from spamnb.core.model.decision import decide_many
from spamnb.core.model.events import Ints
from spamnb.core.model.scoring import Floats
from spamnb.lab.persons.run import Played
from spamnb.lab.persons.world import ATTACK, HAM, SPAM, World
from spamnb.lab.statistics.metrics import Bools, auc

RESAMPLES = 1000
FEWEST = 40
"""of each label: only persons with so many have a ranking of their own"""


@dataclass(frozen=True, slots=True)
class PersonShare:
    """A share in percent with its 95 % interval over persons."""

    percent: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.percent:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, slots=True)
class WorldFigures:
    """The figures of one kind of deliveries, or of all."""

    deliveries: int
    wrong: PersonShare | None
    """on the wrong side of even odds"""
    labels: int
    """labels given by persons"""
    ham_not_delivered: PersonShare | None
    ham_filed: PersonShare | None
    spam_delivered: PersonShare | None
    spam_filed: PersonShare | None
    auc_complement_percent: float | None
    """over all persons"""
    auc_complement_percent_by_person: float | None
    """mean over the persons with enough mail"""

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object."""
        return asdict(self)


def world_figures(world: World, played: Played, costs: Costs) -> dict[str, WorldFigures]:
    """Return the figures by kind of delivery, and those of all persons whose mail is measured."""
    kinds = np.array([delivery.kind for delivery in world.deliveries])
    measured = np.array([delivery.kind != ATTACK for delivery in world.deliveries])
    parts = {"all": measured}
    parts |= {str(kind): kinds == kind for kind in np.unique(kinds) if len(np.unique(kinds)) > 1}
    columns = _columns(world, played, costs)
    return {kind: _figures(columns, rows) for kind, rows in parts.items()}


@dataclass(frozen=True, slots=True)
class _DeliveryColumns:
    person: Ints
    spam: Bools
    log_odds: Floats
    decision: Ints
    taught: Bools


def _columns(world: World, played: Played, costs: Costs) -> _DeliveryColumns:
    odds = played.z[:, SPAM] - played.z[:, HAM]
    return _DeliveryColumns(
        person=np.array([delivery.person for delivery in world.deliveries]),
        spam=np.array([delivery.label == SPAM for delivery in world.deliveries]),
        log_odds=odds,
        decision=decide_many(odds, costs),
        taught=played.taught,
    )


def _figures(columns: _DeliveryColumns, rows: Bools) -> WorldFigures:
    person, spam = columns.person[rows], columns.spam[rows]
    odds, decision = columns.log_odds[rows], columns.decision[rows]
    return WorldFigures(
        deliveries=int(rows.sum()),
        wrong=_share((odds > 0) != spam, person),
        labels=int(columns.taught[rows].sum()),
        ham_not_delivered=_share(decision[~spam] > 0, person[~spam]),
        ham_filed=_share(decision[~spam] > 1, person[~spam]),
        spam_delivered=_share(decision[spam] == 0, person[spam]),
        spam_filed=_share(decision[spam] > 1, person[spam]),
        auc_complement_percent=_ranking(spam, odds, 1),
        auc_complement_percent_by_person=_by_person(person, spam, odds),
    )


def _ranking(spam: Bools, odds: Floats, fewest: int) -> float | None:
    if min(int(spam.sum()), int((~spam).sum())) < fewest:
        return None
    return 100 * (1 - auc(spam, odds))


def _by_person(person: Ints, spam: Bools, odds: Floats) -> float | None:
    every = (_ranking(spam[at], odds[at], FEWEST) for at in map(person.__eq__, np.unique(person)))
    found = [ranking for ranking in every if ranking is not None]
    return float(np.mean(found)) if found else None


def _share(errors: Bools, person: Ints) -> PersonShare | None:
    """Return the share of errors; None for no deliveries."""
    if not len(errors):
        return None
    wrong, count = np.bincount(person, errors), np.bincount(person)
    wrong, count = wrong[count > 0], count[count > 0]
    drawn = np.random.default_rng(1).integers(0, len(count), (RESAMPLES, len(count)))
    shares = 100 * wrong[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    low, high = np.percentile(shares, [2.5, 97.5]).tolist()
    return PersonShare(100 * float(errors.mean()), low, high)


def rules(world: World, played: Played) -> dict[str, float]:
    """Return wrong verdicts in percent where several recipients get the same verdict.

    "own" is the verdict for each recipient, the others are one verdict for all of them.
    """
    spam = np.array([delivery.label == SPAM for delivery in world.deliveries])
    odds, shared = (z[:, SPAM] - z[:, HAM] for z in (played.z, played.shared))
    wrong = dict.fromkeys(("own", "shared", "mildest", "median"), 0)
    count = start = 0
    for _, group in groupby(world.deliveries, lambda each: each.message):
        stop = start + len(list(group))
        truth, each = spam[start:stop], odds[start:stop]
        one = {"shared": shared[start], "mildest": each.min(), "median": np.median(each)}
        if len(each) > 1:
            count += len(each)
            wrong["own"] += int(((each > 0) != truth).sum())
            for name, verdict in one.items():
                wrong[name] += int(((verdict > 0) != truth).sum())
        start = stop
    return {name: 100 * errors / count for name, errors in wrong.items()} if count else {}
