"""Search model constants that suit some mail better, and test them on messages held back.

Messages come in order of arrival. The search uses the first two thirds: it runs each set of
constants online over them and compares the mean log loss (in nats, without the first tenth),
moving one constant at a time in the direction that lowers it. Then the chosen and the current
constants are run over all messages and compared on the last third, message by message. The gain
counts only if its 95 % interval confirms it. Must not know terminals; writes nothing.

The search compares log loss and not 1-AUC, because log loss uses every message and not only the few
that overlap: differences show on hundreds of messages instead of tens of thousands. Failure:
UserError for too few messages.

Not searched: feature groups, which would require extracting all mail again (decision 0001
settled them); and costs, which change no score (`HamLossBound` gives the junk threshold).
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
from spamnb.lab.statistics.loss_bound import HamLossBound, ham_loss_bound
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
"""Constant -> (factor of one step, smallest value); the most effective constants first."""
OF_KIND = {"corrected": tuple(STEPS), "multinomial": ("alpha",), "bernoulli": ("alpha",)}
MIN_GAIN = 0.002
"""A step is accepted if it saves this share of the log loss; smaller gains are noise."""
MIN_MESSAGES = 60
_WARM_UP = 10
"""1 / the share of messages at the start that do not count, because there every model guesses"""
_TRIES = 40


@dataclass(frozen=True, slots=True)
class Gain:
    """A metric with the current and the chosen constants, on the held-back messages."""

    before: float
    after: float
    difference: float
    """after - before; below 0 is better"""
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """Result of a search: the chosen constants and their test on the held-back messages."""

    old: Constants
    chosen: Constants
    """only those that differ from `old`"""
    tries: int
    searched: int
    held_back: int
    search_loss: tuple[float, float]
    """mean log loss on the searched messages with the old and with the chosen constants"""
    log_loss: Gain
    auc_complement_percent: Gain
    loss_bound: HamLossBound
    """junk threshold with the chosen constants, or with the old ones if not confirmed"""
    seconds: float
    cpu_seconds: float

    @property
    def confirmed(self) -> bool:
        """Whether log loss is lower at 95 % confidence, with no significant loss of 1-AUC."""
        return bool(self.chosen and self.log_loss.high < 0 and self.auc_complement_percent.low <= 0)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object of `tune --json`."""
        return asdict(self) | {"confirmed": self.confirmed}


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of the search."""

    one_in: int = 1000
    tries: int = _TRIES
    progress: Callable[[int, int], None] | None = None


def tune(
    messages: Iterable[Labelled],
    options: Options | None = None,
    search: SearchOptions | None = None,
) -> Tuning:
    """Search on the first two thirds of the messages, test on the last third."""
    options = replace(options or Options(), protocol="online", progress=None)
    search = search or SearchOptions()
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    samples = read_samples(messages, options)
    first = 2 * len(samples.items) // 3
    _refuse_few(samples.truth == 1, first)

    def score_task(task: tuple[Constants, int]) -> Floats:
        constants, count = task
        part = Samples(samples.items[:count], samples.truth[:count])
        z = run(part, replace(options, constants=constants)).z
        return np.asarray(z[:, 1] - z[:, 0])

    truth, old = samples.truth == 1, _current_constants(recipe_of(options))
    with Pool(lambda: score_task, max(options.jobs, 1)) as pool:
        climb = _HillClimb(
            truth[:first], old, search, lambda sets: pool.map((s, first) for s in sets)
        )
        climb.run()
        odds = list(pool.map((one, len(truth)) for one in (old, climb.best)))
    held_back = slice(first, None)
    before, after = (part[held_back] for part in odds)
    tuning = Tuning(
        old=old,
        chosen={name: value for name, value in climb.best.items() if value != old[name]},
        tries=climb.tries,
        searched=first,
        held_back=len(truth) - first,
        search_loss=(climb.first_loss, climb.loss),
        log_loss=_mean_gain(truth[held_back], before, after),
        auc_complement_percent=_area_gain(truth[held_back], before, after),
        loss_bound=ham_loss_bound(truth[held_back], after, search.one_in),
        seconds=time.perf_counter() - started,
        cpu_seconds=sum(os.times()[:4]) - cpu,
    )
    if tuning.confirmed:
        return tuning
    return replace(tuning, loss_bound=ham_loss_bound(truth[held_back], before, search.one_in))


def _current_constants(recipe: Recipe) -> Constants:
    return {name: float(getattr(recipe, name)) for name in OF_KIND[recipe.kind]}


def _refuse_few(spam: Bools, first: int) -> None:
    for name, part in (("first two thirds", spam[:first]), ("last third", spam[first:])):
        ham_count, spam_count = int((~part).sum()), int(part.sum())
        if min(ham_count, spam_count) < MIN_MESSAGES // 3:
            raise UserError(
                f"the {name} of the messages have {ham_count} ham and {spam_count} spam: "
                "too few to tune",
                hint=f"give at least {MIN_MESSAGES} of each; add --order shuffle if ham and spam "
                "come from different times",
            )


class _HillClimb:
    """Coordinate search for the constants of least log loss, from the current ones."""

    def __init__(
        self,
        truth: Bools,
        start: Constants,
        search: SearchOptions,
        score: Callable[[list[Constants]], Iterable[Floats]],
    ) -> None:
        self._truth = truth
        self._score = score
        self._search = search
        self._seen: dict[tuple[float, ...], float] = {}
        self.tries = 0
        self.best = start
        self.loss = self.first_loss = self._losses([start])[0]

    def run(self) -> None:
        """Cycle through the constants until none helps or the tries are used up."""
        moved = True
        while moved and self.tries < self._search.tries:
            moved = False
            for name in self.best:
                moved |= self._search_constant(name)
        self._report_progress(done=True)

    def _search_constant(self, name: str) -> bool:
        """Try both directions, then continue in the better one while it helps."""
        if self.tries >= self._search.tries:
            return False
        up, down = (self._stepped(name, direction) for direction in (1, -1))
        if not self._accept_best([up, down]):
            return False
        direction = 1 if self.best == up else -1
        while self.tries < self._search.tries and self._accept_best(
            [self._stepped(name, direction)]
        ):
            pass
        return True

    def _stepped(self, name: str, direction: int) -> Constants:
        factor, least = STEPS[name]
        value = max(self.best[name] * factor**direction, least)
        return self.best | {name: float(f"{value:.4g}")}

    def _accept_best(self, candidates: list[Constants]) -> bool:
        """Accept the best candidate if it gains at least MIN_GAIN."""
        losses = self._losses(candidates)
        at = int(np.argmin(losses))
        if losses[at] >= self.loss * (1 - MIN_GAIN):
            return False
        self.best, self.loss = candidates[at], losses[at]
        return True

    def _losses(self, candidates: list[Constants]) -> list[float]:
        new = [one for one in candidates if tuple(one.values()) not in self._seen]
        for one, odds in zip(new, self._score(new), strict=True):
            warm_up = len(self._truth) // _WARM_UP
            loss = float(_log_losses(self._truth, odds)[warm_up:].mean())
            self._seen[tuple(one.values())] = loss
            self.tries += 1
            self._report_progress()
        return [self._seen[tuple(one.values())] for one in candidates]

    def _report_progress(self, *, done: bool = False) -> None:
        if self._search.progress:
            most = max(self._search.tries, self.tries)
            self._search.progress(most if done else self.tries, most)


def _log_losses(truth: Bools, odds: Floats) -> Floats:
    """Log loss of each message in nats, at most 36 as in `metrics.log_loss`."""
    return np.asarray(np.minimum(np.logaddexp(0, np.where(truth, -odds, odds)), 36.0))


def _mean_gain(truth: Bools, before: Floats, after: Floats) -> Gain:
    old, new = _log_losses(truth, before), _log_losses(truth, after)
    return _gain(float(old.mean()), float(new.mean()), *paired_mean(new, old))


def _area_gain(truth: Bools, before: Floats, after: Floats) -> Gain:
    old, new = (100 * (1 - auc(truth, odds)) for odds in (before, after))
    return _gain(old, new, *paired(truth, after, before))


def _gain(before: float, after: float, difference: float, interval: Interval) -> Gain:
    return Gain(before, after, difference, *interval)
