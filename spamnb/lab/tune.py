"""Tuning: constants of the model that suit some mail better, and the proof that they do.

The messages come in the order they arrived in. The first two thirds choose: each set of constants
is run online over them, and the mean surprise (log loss, in nats, without the first tenth) is
compared, one constant at a time, step by step in the direction that helps. The last third was not
looked at until then and decides: the chosen constants and the old ones are run over everything and
compared there, message by message. A gain that its interval does not confirm is no gain. Must not
know terminals; writes nothing.

Log loss and not 1-AUC: it counts every message and not only the few that overlap, so differences
show on hundreds of messages instead of tens of thousands. Failure: UserError for too little mail.

Not searched: the groups, which are made with the features, so a model would have to read all its
mail anew (experiment 0001 settled them); and the costs, which move no score: where junk may begin
is told by the `HamLossBound`, and follows from the promise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np

from spamnb.core.model.events import Recipe
from spamnb.core.model.scoring import Floats
from spamnb.errors import UserError
from spamnb.lab.protocols import run
from spamnb.lab.statistics.loss_bound import HamLossBound, assured
from spamnb.lab.statistics.metrics import Bools, Interval, auc, paired, paired_mean
from spamnb.lab.trial import Labelled, Options, Samples, read_samples, recipe_of
from spamnb.service.training.worker_pool import Pool

Constants = dict[str, float]

STEPS: dict[str, tuple[float, float]] = {
    "eta": (2.0, 0.25),
    "r": (3.0, 0.01),
    "alpha": (3.0, 0.0001),
    "kappa": (1.12, 0.5),
    "rate_temper": (3.0, 0.001),
    "rate_bias": (4.0, 0.0001),
}
"""Factor of one step, and the least value. In the order of what they changed most."""
OF_KIND = {"corrected": tuple(STEPS), "multinomial": ("alpha",), "bernoulli": ("alpha",)}
LEAST_GAIN = 0.002
"""Share of the log loss that a step must save to be taken: less is the noise of the search."""
FEWEST = 60
_WARM = 10
"""the first tenth is not counted: there every model guesses"""
_TRIES = 40


@dataclass(frozen=True, slots=True)
class Gain:
    """A measure with the chosen constants less that with the old ones, on the held-back part."""

    before: float
    after: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the search found, and what the held-back part says to it."""

    old: Constants
    chosen: Constants
    """only those that differ"""
    tries: int
    searched: int
    held_back: int
    search_loss: tuple[float, float]
    """with the old constants and with the chosen ones, where they were chosen"""
    log_loss: Gain
    auc_complement_percent: Gain
    assurance: HamLossBound
    """where junk may begin with the constants that hold"""
    seconds: float
    cpu_seconds: float

    @property
    def confirmed(self) -> bool:
        """Whether the held-back part agrees: less surprise for sure, and no worse ranking."""
        return bool(self.chosen and self.log_loss.high < 0 and self.auc_complement_percent.low <= 0)

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return asdict(self) | {"confirmed": self.confirmed}


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search."""

    one_in: int = 1000
    tries: int = _TRIES
    progress: Callable[[int, int], None] | None = None


def tune(
    messages: Iterable[Labelled],
    options: Options | None = None,
    search: SearchOptions | None = None,
) -> Tuning:
    """Search on the first two thirds of the messages, confirm on the last third."""
    options = replace(options or Options(), protocol="online", progress=None)
    search = search or SearchOptions()
    began, cpu = time.perf_counter(), sum(os.times()[:4])
    samples = read_samples(messages, options)
    first = 2 * len(samples.items) // 3
    _refuse_few(samples.truth == 1, first)

    def judged(task: tuple[Constants, int]) -> Floats:
        constants, count = task
        part = Samples(samples.items[:count], samples.truth[:count])
        z = run(part, replace(options, constants=constants)).z
        return np.asarray(z[:, 1] - z[:, 0])

    truth, old = samples.truth == 1, _old(recipe_of(options))
    with Pool(lambda: judged, max(options.jobs, 1)) as pool:
        climb = _HillClimb(
            truth[:first], old, search, lambda sets: pool.map((s, first) for s in sets)
        )
        climb.run()
        odds = list(pool.map((one, len(truth)) for one in (old, climb.best)))
    held = slice(first, None)
    before, after = (part[held] for part in odds)
    tuning = Tuning(
        old=old,
        chosen={name: value for name, value in climb.best.items() if value != old[name]},
        tries=climb.tries,
        searched=first,
        held_back=len(truth) - first,
        search_loss=(climb.first_loss, climb.loss),
        log_loss=_mean_gain(truth[held], before, after),
        auc_complement_percent=_area_gain(truth[held], before, after),
        assurance=assured(truth[held], after, search.one_in),
        seconds=time.perf_counter() - began,
        cpu_seconds=sum(os.times()[:4]) - cpu,
    )
    if tuning.confirmed:
        return tuning
    return replace(tuning, assurance=assured(truth[held], before, search.one_in))


def _old(recipe: Recipe) -> Constants:
    return {name: float(getattr(recipe, name)) for name in OF_KIND[recipe.kind]}


def _refuse_few(spam: Bools, first: int) -> None:
    for name, part in (("first two thirds", spam[:first]), ("last third", spam[first:])):
        ham, held = int((~part).sum()), int(part.sum())
        if min(ham, held) < FEWEST // 3:
            raise UserError(
                f"the {name} of the messages have {ham} ham and {held} spam: too few to tune by",
                hint=f"give at least {FEWEST} of each; if they come from different times, add "
                "--order shuffle",
            )


class _HillClimb:
    """From the old constants step by step to better ones, on the part that chooses."""

    def __init__(
        self,
        truth: Bools,
        start: Constants,
        search: SearchOptions,
        judge: Callable[[list[Constants]], Iterable[Floats]],
    ) -> None:
        self._truth = truth
        self._judge = judge
        self._search = search
        self._seen: dict[tuple[float, ...], float] = {}
        self.tries = 0
        self.best = start
        self.loss = self.first_loss = self._losses([start])[0]

    def run(self) -> None:
        """Go round the constants until none helps any more, or the tries are used up."""
        moved = True
        while moved and self.tries < self._search.tries:
            moved = False
            for name in self.best:
                moved |= self._along(name)
        self._tell(done=True)

    def _along(self, name: str) -> bool:
        """Look to both sides, then go on in the better direction while it helps."""
        if self.tries >= self._search.tries:
            return False
        up, down = (self._stepped(name, direction) for direction in (1, -1))
        if not self._take([up, down]):
            return False
        direction = 1 if self.best == up else -1
        while self.tries < self._search.tries and self._take([self._stepped(name, direction)]):
            pass
        return True

    def _stepped(self, name: str, direction: int) -> Constants:
        factor, least = STEPS[name]
        value = max(self.best[name] * factor**direction, least)
        return self.best | {name: float(f"{value:.4g}")}

    def _take(self, candidates: list[Constants]) -> bool:
        """Take the best of them, if it is better by more than the noise."""
        losses = self._losses(candidates)
        at = int(np.argmin(losses))
        if losses[at] >= self.loss * (1 - LEAST_GAIN):
            return False
        self.best, self.loss = candidates[at], losses[at]
        return True

    def _losses(self, candidates: list[Constants]) -> list[float]:
        new = [one for one in candidates if tuple(one.values()) not in self._seen]
        for one, odds in zip(new, self._judge(new), strict=True):
            warm = len(self._truth) // _WARM
            loss = float(_surprise(self._truth, odds)[warm:].mean())
            self._seen[tuple(one.values())] = loss
            self.tries += 1
            self._tell()
        return [self._seen[tuple(one.values())] for one in candidates]

    def _tell(self, *, done: bool = False) -> None:
        if self._search.progress:
            most = max(self._search.tries, self.tries)
            self._search.progress(most if done else self.tries, most)


def _surprise(truth: Bools, odds: Floats) -> Floats:
    """Nats by which each label surprised; bounded as in `measures.log_loss`."""
    return np.asarray(np.minimum(np.logaddexp(0, np.where(truth, -odds, odds)), 36.0))


def _mean_gain(truth: Bools, before: Floats, after: Floats) -> Gain:
    old, new = _surprise(truth, before), _surprise(truth, after)
    return _gain(float(old.mean()), float(new.mean()), *paired_mean(new, old))


def _area_gain(truth: Bools, before: Floats, after: Floats) -> Gain:
    old, new = (100 * (1 - auc(truth, odds)) for odds in (before, after))
    return _gain(old, new, *paired(truth, after, before))


def _gain(before: float, after: float, difference: float, interval: Interval) -> Gain:
    return Gain(before, after, difference, *interval)
