"""How far a user's earlier labels are confirmed: the credit of the user, an integer.

A user starts with no credit. At each new label, one earlier label of the same user is checked,
chosen by the number of the event: against the labels that administrators and users with enough
credit have given the same message, or, without labels of others, against what the model says of
the message as if the user had never labelled it. The credit rises by one if they agree and falls
by two if they contradict. It is kept in the event, so undo, relearn and the hosts of a fleet have
the same number. Must not know the journal.
"""

from __future__ import annotations

from collections.abc import Iterable

from spamnb.core.model.scoring import DOUBT, Prediction, softmax

CONFIRMED = 2
"""Users with this credit have a budget of their own; all others together share one."""
MOST = 8
"""A user that was right for a long time is doubted after (MOST - CONFIRMED) / 2 wrong labels."""
WRONG = 2


def moved(credit: int, *, agrees: bool | None) -> int:
    """Return a user's credit after a check; None changes nothing."""
    if agrees is None:
        return credit
    return max(-MOST, min(MOST, credit + (1 if agrees else -WRONG)))


def is_believed(credit: int) -> bool:
    """Return whether a user has an own budget, and may confirm or contradict other users."""
    return credit >= CONFIRMED


def weight(credit: int) -> float:
    """Return the factor of the steps of a user: halved by each contradiction not made up for."""
    return 1 / (1 << max(-credit, 0) // WRONG)


def agreement(label: int, others: Iterable[int]) -> bool | None:
    """Return whether most labels of others are this one; None without a majority."""
    votes = [1 if other == label else -1 for other in others]
    return sum(votes) > 0 if sum(votes) else None


def model_agreement(seen: Prediction, label: int) -> bool | None:
    """Return whether the model gives a message this label; None if it is not sure enough."""
    shares = softmax(seen.joint)
    if shares[label] == max(shares) and shares[label] > 1 / len(shares):
        return True
    return False if shares[label] * len(shares) < DOUBT else None
