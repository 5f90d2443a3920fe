"""Costs of decisions, and the names of the kinds of models: what settings and the model share.

Plain numbers: commands that only send requests to a daemon read the settings, which hold a table of
costs, and do not need numpy, which would take half of their start time. Every label plays one of
two roles, ham or spam, so one table serves any number of labels. Must not know models, mail or the
actions that follow a decision.

Invariants: a harsher decision never costs less for ham nor more for spam, so the decisions come in
order as the probability of spam rises. Fails with SettingsError for an inconsistent table.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from math import exp, inf, isfinite, log
from typing import Final, Literal, NamedTuple

from spamnb.errors import SettingsError

Decision = Literal["deliver", "unsure", "junk", "reject"]
Role = Literal["ham", "spam"]
Pair = tuple[float, float]

DECISIONS: tuple[Decision, ...] = ("deliver", "unsure", "junk", "reject")
"""From the mildest to the harshest."""
ROUNDING: Final = 1e-12
"""More than the relative error of exp, log and the few sums between a threshold and its costs."""
BINARY: tuple[Role, ...] = ("ham", "spam")


@dataclass(frozen=True, slots=True)
class Costs:
    """What each decision costs if the message is ham, and if it is spam.

    The unit is one spam read in the inbox. A ham in the junk folder costs a hundred of them, and a
    rejected ham a thousand, because the recipient cannot recover it. A message marked unsure costs
    about half a unit in both cases, because the user has to look at it; so messages are delivered
    up to a probability of 0.5, marked up to 0.9945, and filed above. A filed spam costs little, so
    rejection is cheaper only above 0.99994.

    Over nine streams of mail, fewer than one ham in a thousand was filed as junk, except where nine
    messages in ten were spam; a lower cost of filed ham would leave less spam unsure
    (docs/decisions/0025). `spamnb evaluate` shows what the mail of a site allows.
    """

    deliver: Pair = (0.0, 1.0)
    unsure: Pair = (0.4, 0.6)
    junk: Pair = (100.0, 0.05)
    reject: Pair = (1000.0, 0.0)

    def __post_init__(self) -> None:
        for decision, pair in zip(DECISIONS, astuple(self), strict=True):
            if len(pair) != 2 or not all(isfinite(cost) and cost >= 0 for cost in pair):
                raise SettingsError(
                    f"the costs of {decision} are {pair}",
                    hint="give two numbers that are not negative: for ham, then for spam",
                )
        ham, spam = zip(*astuple(self), strict=True)
        if list(ham) != sorted(ham) or list(spam) != sorted(spam, reverse=True):
            raise SettingsError(
                "the costs do not fit the order deliver, unsure, junk, reject",
                hint="from one to the next, the cost of ham must not fall and the cost of spam "
                "must not rise",
            )

    def table(self) -> tuple[Pair, ...]:
        """[decision, role] the costs."""
        return self.deliver, self.unsure, self.junk, self.reject


class OwnCosts(NamedTuple):
    """Costs that replace those of the model for some recipients."""

    of: str
    """the section of the settings that gives them: `person.ann`, `domain.example.org`"""
    costs: Costs


class Threshold(NamedTuple):
    """Above this probability of spam the decision is taken, up to the next threshold inclusive."""

    decision: Decision
    probability: float
    log_odds: float
    """the same, exact where the probability rounds to 1; -inf for the first"""


@lru_cache(maxsize=64)
def roles_of(labels: tuple[str, ...], spam_like: tuple[str, ...] = ("spam",)) -> tuple[Role, ...]:
    """Give each label its role: a label that is not spam-like costs as ham does."""
    return tuple("spam" if label in spam_like else "ham" for label in labels)


def thresholds(costs: Costs) -> tuple[Threshold, ...]:
    """The thresholds along the probability of spam; the first starts at 0.

    The expected cost of a decision is a line over that probability, so the cheapest decisions are
    the lower edge of four lines. A decision that is never the cheapest has no threshold.
    """
    table = dict(zip(DECISIONS, astuple(costs), strict=True))
    # From the mildest to the harshest decision, the cost of ham rises and that of spam falls. So of
    # the decisions with the lowest cost at probability 0, the one with the lowest cost of spam is
    # the cheapest just above 0; of equal ones the mildest.
    now = min(DECISIONS, key=lambda decision: table[decision])
    edge = [Threshold(now, 0.0, -inf)]
    while True:
        ham, spam = table[now]
        crossings = [
            (log(table[other][0] - ham) - log(spam - table[other][1]), table[other][1], i)
            for i, other in enumerate(DECISIONS)
            if table[other][1] < spam and table[other][0] > ham
        ]
        if not crossings:
            return tuple(edge)
        log_odds, _, i = min(crossings)
        now = DECISIONS[i]
        dearer, cheaper = table[now][0] - ham, spam - table[now][1]
        # Where three lines cross in one point, rounding must not put the thresholds out of order.
        log_odds = max(log_odds, edge[-1].log_odds)
        edge.append(Threshold(now, dearer / (dearer + cheaper), log_odds))


def log_odds_of(probability: float) -> float:
    """Return the log-odds of a probability between 0 and 1."""
    return log(probability / (1 - probability))


def junk_from(costs: Costs, log_odds: float) -> Costs:
    """Return the costs with the cost of ham in junk that makes `log_odds` the threshold of junk.

    A message with exactly these log-odds is not junk. The junk threshold is never below the unsure
    threshold. The ratio between the costs of rejecting a ham and of filing it as junk is kept, but
    rejecting never becomes cheaper.
    """
    deliver, unsure, junk, reject = costs.deliver, costs.unsure, costs.junk, costs.reject
    first = log((unsure[0] - deliver[0]) / (deliver[1] - unsure[1])) if unsure != deliver else 0.0
    # Without ROUNDING, the threshold of these costs could lie a hair below the wanted one.
    odds = exp(min(max(log_odds, first), 40.0)) * (1 + ROUNDING)
    ham = unsure[0] + odds * (unsure[1] - junk[1])
    reject_ratio = reject[0] / junk[0] if junk[0] else 1.0
    return replace(
        costs, junk=(ham, junk[1]), reject=(max(ham * reject_ratio, reject[0]), reject[1])
    )


KINDS: Final = ("corrected", "multinomial", "bernoulli")
"""the default, and the two classical event models"""
