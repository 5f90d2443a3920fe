"""Worlds of persons: who gets which mail, what they want, and how results are counted."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from spamnb.errors import UserError
from spamnb.lab import persons
from spamnb.lab.persons import (
    ATTACK,
    HAM,
    SPAM,
    Delivery,
    Played,
    World,
    rules,
    sender_of,
    world_figures,
)
from spamnb.model.costs import Costs

DICE = Random(3)
MAIL = persons.Mail(
    [HAM] * 300 + [SPAM] * 200,
    [DICE.choice(("a list", "another", "third", "fourth", f"rare {n}")) for n in range(300)]
    + [""] * 200,
)
ONE = World(
    "one", 2, tuple(Delivery(p, 0, label, "mail") for p, label in ((0, HAM), (1, SPAM), (1, HAM)))
)


@pytest.mark.parametrize("name", persons.WORLDS)
def test_a_seed_makes_one_world(name):
    """The same seed makes the same worlds, and another seed other ones."""
    first, again, other = (list(persons.WORLDS[name](MAIL, 20, seed)) for seed in (1, 1, 2))
    assert first == again != other
    for world in first:
        assert all(0 <= each.person < world.persons for each in world.deliveries)
        messages = [each.message for each in world.deliveries if each.kind != ATTACK]
        changes = 1 + sum(a != b for a, b in pairwise(messages))
        assert changes == len(set(messages))


def test_readers_of_a_sender_disagree_in_conflict_alone():
    """In conflict some ham is unwanted, in peace none; spam is spam for all of its recipients."""
    conflict, peace = (next(make(MAIL, 20, 1)) for make in (persons.conflict, persons.peace))
    assert {each.kind for each in peace.deliveries} == {"agreed"}
    assert all(each.label == MAIL.labels[each.message] for each in peace.deliveries)
    kinds = {e.kind for n in range(5) for e in next(persons.conflict(MAIL, 20, n)).deliveries}
    assert kinds == {"agreed", "disputed"}
    assert all(each.label == SPAM for each in conflict.deliveries if each.message >= 300)


def test_false_labels_come_in_the_second_half():
    """Attackers label from the middle on; the mail of the others is that without an attack."""
    every = {world.name: world for world in persons.attack(MAIL, 20, 1)}
    honest = every["no attack"].deliveries
    for name, world in every.items():
        if name.startswith("no attack"):
            continue
        others = tuple(each for each in world.deliveries if each.kind != ATTACK)
        assert others == honest
        first = [each.kind for each in world.deliveries].index(ATTACK)
        assert first >= len(honest) // 2
        attackers = {each.person for each in world.deliveries if each.kind == ATTACK}
        assert len(attackers) == (5 if name.endswith("5") else 1)
        assert min(attackers) == 20


def test_too_little_mail_is_refused():
    """A world that the mail does not allow is refused in words."""
    few = persons.Mail([HAM, SPAM], ["a", ""])
    for make in (persons.newsletters, persons.attack):
        with pytest.raises(UserError):
            list(make(few, 20, 1))


def test_the_sender_is_the_list_or_the_author():
    """Mail of a list is of one sender, whatever its authors; folded fields are read whole."""
    assert sender_of(b"From: Ann <a@x>\r\nList-Id: The list\r\n <l.x>\r\n\r\n") == "l.x"
    assert sender_of(b"From: Ann\n <A@x>\n\nList-Id: <no>\n") == "ann <a@x>"
    assert sender_of(b"\n\n") == ""


def played(odds, shared):
    z, for_all = (np.array([[0.0, value] for value in values]) for values in (odds, shared))
    taught = np.array([True, False, True])
    return Played(z, for_all, taught)


def test_wrong_verdicts_are_counted_for_each_recipient():
    """A verdict is wrong if it is on the other side of even odds than what the person wants."""
    found = world_figures(ONE, played([-1, 9, 2], [1, 1, 1]), Costs())["all"]
    assert found.wrong is not None
    assert found.wrong.percent == pytest.approx(100 / 3)
    assert found.wrong.low <= found.wrong.percent <= found.wrong.high
    assert (found.deliveries, found.labels) == (3, 2)
    assert found.ham_filed is not None
    assert found.ham_filed.percent == 0
    assert found.spam_delivered is not None
    assert found.spam_delivered.percent == 0


def test_one_verdict_for_several_recipients_is_wrong_for_some():
    """The rules for one verdict are counted over the messages with several recipients."""
    found = rules(ONE, played([-1, 9, 2], [1, 1, 1]))
    thirds = {name: round(3 * percent / 100) for name, percent in found.items()}
    assert thirds == {"own": 1, "shared": 2, "mildest": 1, "median": 2}
