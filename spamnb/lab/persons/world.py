"""A world: which message is delivered to which person, and what that person wants it to be.

Values only; `worlds` makes them, `run` plays them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

HAM, SPAM = 0, 1
"""indexes of the labels"""
NO_PERSON = -1
ATTACK = "attack"
"""the kind of an attacker's labels, which belong to no person's mail"""
Teaching = Literal["mistakes", "always", "never"]
"""which of their deliveries persons label: mistakes and unsure verdicts, all, or none"""


class Delivery(NamedTuple):
    """One message delivered to one person."""

    person: int
    message: int
    """index of the sample"""
    label: int
    """what the person wants it to be"""
    kind: str
    """figures are given for each kind"""
    teaching: Teaching = "mistakes"


class World(NamedTuple):
    """Deliveries in order; those of one message follow each other."""

    name: str
    persons: int
    deliveries: tuple[Delivery, ...]
    trained: tuple[tuple[int, int], ...] = ()
    """(message, label) that the administrator trains before the first delivery"""
