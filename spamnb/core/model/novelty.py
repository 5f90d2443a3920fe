"""How much higher the junk threshold is for a message of a kind that ham has not met. Pure.

If spam was the only mail of a kind, all that is peculiar to the kind speaks for spam: html, hidden
text, the header fields of bulk mail. After some thousand messages of technical lists the first ham
of a shop has up to 9 nats. No weight of the model shows this, but its features do: taught ham has
most of the transport features of usual mail, and about a third of those of such ham. So this share
is compared with what is usual:

    usual   = LOW + DOUBLING log2(ham / FEWEST), at most HIGHEST; ham: taught messages of ham
    novelty = NATS max(0, usual - share), at most MOST, in nats, added to the junk threshold

Of the spam of shuffled streams, few percent have a lower share, whether all messages or mistakes
alone are taught (docs/decisions/0076). Each message that is taught makes its features known, so a
kind is new only for some messages. The words of the text do not count: a sender could fill a text
with words that nobody knows. A sender can do the same with headers and hidden text, so novelty is
bounded: a message with strong evidence is junk in any case.
"""

from __future__ import annotations

from math import log2
from typing import Final, NamedTuple

from spamnb.core.model.costs import Costs, Decision
from spamnb.core.model.site_threshold import decide_stretched, stretched

FEWEST: Final = 20
"""With fewer taught ham, everything is new."""
LOW: Final = 0.35
DOUBLING: Final = 0.05
HIGHEST: Final = 0.85
NATS: Final = 25.0
MOST: Final = 6.0


class Novelty(NamedTuple):
    """How new the kind of a message is."""

    nats: float
    """by which the junk threshold is higher"""
    share: float
    """of the message's transport features, those that some taught ham has"""


USUAL: Final = Novelty(0.0, 1.0)
"""of a message whose kind is not new, or of which this is unknown"""


def novelty(share: float, ham: int) -> Novelty:
    """Return the novelty of a message from its share, and from the number of taught ham."""
    if ham < FEWEST:
        return USUAL
    usual = min(HIGHEST, LOW + DOUBLING * log2(ham / FEWEST))
    return Novelty(min(MOST, NATS * max(0.0, usual - share)), share)


NEW_KIND: Final = "new-kind"
"""the reason of a verdict"""
_FILED: Final = ("junk", "reject")


def reason_of(decision: Decision, log_odds: float, threshold: float, costs: Costs) -> str:
    """Return NEW_KIND if a message would be filed at the site's threshold, else nothing.

    The log-odds are those before stretching.
    """
    if decision in _FILED:
        return ""
    usual = decide_stretched(stretched(log_odds, threshold), threshold, costs)
    return NEW_KIND if usual in _FILED else ""


def novelty_text(found: Novelty, threshold: float) -> str:
    """Return a sentence on the novelty of a message; the threshold includes it."""
    return (
        f"a kind of mail that this filter has not met: ham has {found.share:.0%} of the features "
        f"of its transport; junk from {threshold:.2f} nats on instead of "
        f"{threshold - found.nats:.2f}"
    )
