"""Which of the labels of a message is in force. Pure.

Every owner of a label (`Event.owner`) has one label for each message, and only this owner, an
administrator or an undo takes it back. Each label counts as evidence. The label in force decides
the verdict on this very message: the administrator's; else the one that most users have given, the
one given first if several have as many users; else the same among unverified owners.

Labels of persons are not among them: they decide only the verdicts on the mail of their person.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from spamnb.model.events import NO_LABEL, UNVERIFIED


class Reason(StrEnum):
    """Why a label is in force."""

    NONE = "no label"
    ADMINISTRATOR = "the administrator's label"
    ALONE = "the label of one user"
    AGREED = "all users agree"
    MAJORITY = "the label of most users"
    FIRST = "as many users gave another label, later"
    UNVERIFIED = "reports that nothing proves"


def owner_kind(owner: int, person: int = 0) -> str:
    """Return what the owner of a label is, in a word."""
    if person:
        return "person"
    if not owner:
        return "administrator"
    return "unverified" if owner & UNVERIFIED else "user"


class LabelInForce(NamedTuple):
    """The label that decides the verdict on a message."""

    label: int
    """NO_LABEL if there is none"""
    reason: Reason
    contradicted: bool = False
    """whether another owner has given another label"""


def label_in_force(labels: Mapping[int, int], since: Callable[[int], int]) -> LabelInForce:
    """Return the label in force, given the label of each owner.

    `since` returns the event by which an owner gave the label; only a tie asks for it.
    """
    given = {owner: label for owner, label in labels.items() if label != NO_LABEL}
    if not given:
        return LabelInForce(NO_LABEL, Reason.NONE)
    contradicted = len(set(given.values())) > 1
    if 0 in given:
        return LabelInForce(given[0], Reason.ADMINISTRATOR, contradicted)
    users = {owner: label for owner, label in given.items() if not owner & UNVERIFIED}
    label, reason = _of_most(users or given, since)
    return LabelInForce(label, reason if users else Reason.UNVERIFIED, contradicted)


def _of_most(labels: Mapping[int, int], since: Callable[[int], int]) -> tuple[int, Reason]:
    """Return the label that most of these owners have given."""
    votes = Counter(labels.values())
    most = max(votes.values())
    first = [label for label, count in votes.items() if count == most]
    if len(first) == 1:
        if len(votes) > 1:
            return first[0], Reason.MAJORITY
        return first[0], Reason.ALONE if len(labels) == 1 else Reason.AGREED
    begun = {
        label: min(since(owner) for owner, given in labels.items() if given == label)
        for label in first
    }
    return min(first, key=begun.__getitem__), Reason.FIRST
