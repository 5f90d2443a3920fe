"""Make worlds from sorted mail: which persons read which sender, and what each of them wants.

    conflict     half of the senders are wanted by all of their readers; a third is wanted or not
                 by each reader, by chance; the others are unwanted by most
    peace        all readers of a sender want the mail
    attack       peace, but from the middle on false labels are given, by one person or by five;
                 before it, honest persons in peace and in conflict
    newsletters  one reader wants all messages of a sender, and another one wants none; the other
                 readers want them and label nothing

Spam goes to one to three persons, ham of rare senders to one. The same seed makes the same world.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from spamnb.errors import UserError
from spamnb.lab.persons.world import ATTACK, HAM, SPAM, Delivery, World

FEWEST_MESSAGES = 3
"""messages of a sender with several readers"""
READERS = 3, 14
"""fewest and most readers of a sender, among 50 persons"""
AGREED, DISPUTED = 0.5, 0.35
"""shares of the senders; the others are mostly unwanted"""
WANTED = 0.2
"""the share of readers who want mail that is mostly unwanted"""
SPAM_READERS = 3
ISSUES, SILENT = 24, 8
"""of a newsletter: messages, and readers who label nothing"""
TRAINED, TRAINED_FEW = 200, 60
"""messages of each label that the administrator trains: before newsletters, before an attack"""
FALSE_LABELS = 300
ATTACKERS = 5

Tastes = Callable[[int, Random], list[bool]]
"""(number of readers) -> whether each of them wants the mail of a sender"""


class Mail(NamedTuple):
    """What worlds are made of: one entry for each message."""

    labels: Sequence[int]
    senders: Sequence[str]
    """mailing list or author; empty if unknown"""

    def by_sender(self) -> dict[str, list[int]]:
        """Return the ham messages of each sender, in order of their names."""
        found = defaultdict[str, list[int]](list)
        for message, (label, sender) in enumerate(zip(self.labels, self.senders, strict=True)):
            if label == HAM and sender:
                found[sender].append(message)
        return dict(sorted(found.items()))

    def of_label(self, label: int, without: Sequence[int] = ()) -> list[int]:
        """Return the messages of a label."""
        left_out = set(without)
        return [i for i, each in enumerate(self.labels) if each == label and i not in left_out]


def conflict(mail: Mail, persons: int, seed: int) -> Iterator[World]:
    """Yield a world of persons who want different mail."""
    yield World("conflict", persons, _deliveries(mail, persons, _dice(seed), _tastes))


def peace(mail: Mail, persons: int, seed: int) -> Iterator[World]:
    """Yield a world of persons who want the same mail."""
    yield World("peace", persons, _deliveries(mail, persons, _dice(seed), _all_want))


def newsletters(mail: Mail, persons: int, seed: int) -> Iterator[World]:  # noqa: ARG001
    """Yield a world of each sender with enough messages, of which the model has seen none."""
    dice = _dice(seed)
    every = [messages for messages in mail.by_sender().values() if len(messages) >= ISSUES]
    if not every:
        raise UserError(
            f"no sender has {ISSUES} messages of ham", hint="give more ham from mailing lists"
        )
    for messages in every:
        known = _trained(mail, dice, TRAINED, without=messages)
        issues = dice.sample(messages, ISSUES)
        deliveries = tuple(
            one for turn, issue in enumerate(issues) for one in _issue(issue, 2 * turn // ISSUES)
        )
        yield World("newsletters", 2 + SILENT, deliveries, known)


def _issue(message: int, half: int) -> Iterator[Delivery]:
    time = ("first half", "second half")[half]
    yield Delivery(0, message, HAM, f"wants it, {time}")
    yield Delivery(1, message, SPAM, f"does not, {time}")
    for person in range(2, 2 + SILENT):
        yield Delivery(person, message, HAM, f"silent, {time}", "never")


def attack(mail: Mail, persons: int, seed: int) -> Iterator[World]:
    """Yield the same world without an attack, and with each attack."""
    for label, name in ((HAM, "ham"), (SPAM, "spam")):
        if (count := len(mail.of_label(label))) < 2 * TRAINED_FEW:
            raise UserError(
                f"{count} {name} are too few for an attack",
                hint=f"give {2 * TRAINED_FEW}: the administrator trains {TRAINED_FEW} of them",
            )
    dice = _dice(seed)
    disputed = _deliveries(mail, persons, dice, _tastes)
    # The administrator trains no mail that a reader wants otherwise.
    contested = [each.message for each in disputed if each.label != mail.labels[each.message]]
    trained = _trained(mail, dice, TRAINED_FEW, without=contested)
    known = {message for message, _ in trained}
    yield World("no attack, conflict", persons, _without(disputed, known), trained)
    deliveries = _without(_deliveries(mail, persons, dice, _all_want), known)
    yield World("no attack", persons, deliveries, trained)
    for name, chosen, label in _false_labels(mail, dice, known):
        for attackers in (1, ATTACKERS):
            every = [
                Delivery(persons + turn % attackers, message, label, ATTACK, "always")
                for turn, message in enumerate(chosen)
            ]
            by = "one" if attackers == 1 else f"{attackers}"
            yield World(f"{name} by {by}", persons + attackers, _mixed(deliveries, every), trained)


def _without(deliveries: tuple[Delivery, ...], messages: set[int]) -> tuple[Delivery, ...]:
    return tuple(each for each in deliveries if each.message not in messages)


def _false_labels(
    mail: Mail, dice: Random, trained: set[int]
) -> Iterator[tuple[str, list[int], int]]:
    ham, spam = mail.of_label(HAM, list(trained)), mail.of_label(SPAM, list(trained))
    yield "ham called spam", dice.sample(ham, min(FALSE_LABELS, len(ham))), SPAM
    by_size = sorted(mail.by_sender().values(), key=lambda each: abs(len(each) - FALSE_LABELS / 2))
    if by_size:
        yield "one list called spam", [each for each in by_size[0] if each not in trained], SPAM
    yield "spam called ham", dice.sample(spam, min(FALSE_LABELS, len(spam))), HAM


def _mixed(deliveries: Sequence[Delivery], more: Sequence[Delivery]) -> tuple[Delivery, ...]:
    """Insert deliveries at equal distances into the second half."""
    middle = len(deliveries) // 2
    mixed = list(deliveries[:middle])
    start = middle
    for turn, one in enumerate(more, 1):
        stop = middle + turn * (len(deliveries) - middle) // len(more)
        mixed += [*deliveries[start:stop], one]
        start = stop
    return (*mixed, *deliveries[start:])


def _trained(
    mail: Mail, dice: Random, count: int, without: Sequence[int] = ()
) -> tuple[tuple[int, int], ...]:
    some: list[tuple[int, int]] = []
    for label in (HAM, SPAM):
        every = mail.of_label(label, without)
        some += [(message, label) for message in dice.sample(every, min(count, len(every)))]
    dice.shuffle(some)
    return tuple(some)


def _dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - a reproducible world, no secret


def _tastes(readers: int, dice: Random) -> list[bool]:
    kind = dice.random()
    share = 1.0 if kind < AGREED else 0.5 if kind < AGREED + DISPUTED else WANTED
    return [dice.random() < share for _ in range(readers)]


def _all_want(readers: int, _: Random) -> list[bool]:
    return [True] * readers


def _deliveries(
    mail: Mail,
    persons: int,
    dice: Random,
    tastes: Tastes,
) -> tuple[Delivery, ...]:
    readers_of: dict[str, list[tuple[int, bool]]] = {}
    for sender, messages in mail.by_sender().items():
        if len(messages) >= FEWEST_MESSAGES:
            some = _readers(persons, dice)
            readers_of[sender] = list(zip(some, tastes(len(some), dice), strict=True))
    order = list(range(len(mail.labels)))
    dice.shuffle(order)
    return tuple(
        Delivery(person, message, label, kind)
        for message in order
        for person, label, kind in _recipients(mail, message, readers_of, persons, dice)
    )


def _recipients(
    mail: Mail,
    message: int,
    readers_of: dict[str, list[tuple[int, bool]]],
    persons: int,
    dice: Random,
) -> Iterator[tuple[int, int, str]]:
    """Yield the persons that get a message, what each wants it to be, and whether all agree."""
    if mail.labels[message] == SPAM:
        for person in dice.sample(range(persons), dice.randint(1, min(SPAM_READERS, persons))):
            yield person, SPAM, "agreed"
        return
    readers = readers_of.get(mail.senders[message]) or [(dice.randrange(persons), True)]
    kind = "agreed" if len({is_wanted for _, is_wanted in readers}) == 1 else "disputed"
    for person, is_wanted in readers:
        yield person, HAM if is_wanted else SPAM, kind


def _readers(persons: int, dice: Random) -> list[int]:
    fewest = min(READERS[0], persons)
    most = max(fewest, min(READERS[1] * persons // 50, persons))
    return dice.sample(range(persons), dice.randint(fewest, most))


WORLDS: dict[str, Callable[[Mail, int, int], Iterator[World]]] = {
    "conflict": conflict,
    "peace": peace,
    "newsletters": newsletters,
    "attack": attack,
}
