"""Evaluate persons: worlds of deliveries, the models that can serve them, and their figures.

A `World` says which message is delivered to which person, and what that person wants it to be;
`conflict`, `peace`, `newsletters` and `attack` make worlds from sorted mail. `play` scores each
message for its recipient, who may then label it, and `compare_models` gives the figures of each
model in each world.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, Protocol

import numpy as np

from spamnb.engine.learner import Learner, scores_for_person
from spamnb.engine.mailboxes import MessageSpan
from spamnb.engine.values import Forget, Learn, Source
from spamnb.errors import CorpusError, UserError
from spamnb.lab.runs import (
    LABELS,
    UNSURE,
    Labelled,
    Options,
    Sample,
    Samples,
    read_samples,
    recipe_of,
)
from spamnb.lab.statistics import Bools, auc
from spamnb.model.costs import Costs
from spamnb.model.events import Ints
from spamnb.model.persons import person_id
from spamnb.model.scoring import softmax
from spamnb.model.smoothing import Floats
from spamnb.model.verdict import decide_many
from spamnb.store.model_store import temporary_store

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


_ADMIN = Source("admin")


class Given(NamedTuple):
    """One label that a person gives."""

    person: int
    sample: Sample
    label: int
    time_us: int


class PersonsModel(Protocol):
    """A model for several persons.

    one model             all persons label one model, and a correction takes effect for all
    one model, steps      the same, but each label takes one step only
    a model each          each person has a model of their own labels
    personal corrections  one shared model, and corrections of each person; what a person's labels
                          change in the shared corrections in a day is limited, as in the product
    without budget        the same without this limit
    """

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator, for all persons."""

    def score(self, person: int, sample: Sample) -> list[float]:
        """Return z [K] of a message for a person."""

    def teach(self, given: Given) -> None:
        """Learn a person's label."""


class TaughtModel:
    """A store in memory and its learner."""

    def __init__(self, options: Options) -> None:
        self.recipe = recipe_of(options)
        self._learner = Learner(self.recipe, options.costs or Costs())
        self._store = temporary_store(self.recipe)

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator."""
        self.run([Learn(sample.example, label, _ADMIN, 1) for sample, label in labelled])

    def run(self, requests: Sequence[Learn | Forget]) -> None:
        """Carry out requests."""
        with self._store.write() as view:
            self._learner.run(view, requests, scored=False)

    def score(self, sample: Sample, person: int = 0) -> list[float]:
        """Return the scores of a message for a person; 0 has no corrections."""
        with self._store.read() as view:
            return scores_for_person(self.recipe, view, sample.example, person)

    def persons(self) -> list[int]:
        """Return the persons with corrections."""
        with self._store.read() as view:
            return [person for person, _ in view.persons()]


class OneModel:
    """All persons teach one model; the last label of a message counts."""

    def __init__(self, options: Options, *, immediate: bool) -> None:
        self._model = TaughtModel(options)
        self._immediate = immediate

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator."""
        self._model.train(labelled)

    def score(self, person: int, sample: Sample) -> list[float]:  # noqa: ARG002 - protocol
        """Return the scores, which are those of all persons."""
        return self._model.score(sample)

    def teach(self, given: Given) -> None:
        """Learn a label."""
        source = Source(f"person {given.person}", immediate=self._immediate)
        self._model.run([Learn(given.sample.example, given.label, source, given.time_us)])


class OneModelEach:
    """Each person has a model of their own labels and the administrator's."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._trained: Sequence[tuple[Sample, int]] = ()
        self._models: dict[int, OneModel] = {}

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator, in every model."""
        self._trained = labelled

    def score(self, person: int, sample: Sample) -> list[float]:
        """Return the scores of the person's model."""
        return self._of(person).score(person, sample)

    def teach(self, given: Given) -> None:
        """Learn a label in the person's model."""
        self._of(given.person).teach(given)

    def _of(self, person: int) -> OneModel:
        if person not in self._models:
            self._models[person] = model = OneModel(self._options, immediate=True)
            model.train(self._trained)
        return self._models[person]


class SharedAndPersonal:
    """One shared model, and corrections of each person."""

    def __init__(self, options: Options, *, budget: bool) -> None:
        self.model = TaughtModel(options)
        self._budget = budget

    def train(self, labelled: Sequence[tuple[Sample, int]]) -> None:
        """Learn labels of the administrator in the shared model."""
        self.model.train(labelled)

    def score(self, person: int, sample: Sample) -> list[float]:
        """Return the scores for the person."""
        return self.model.score(sample, 0 if person == NO_PERSON else self._id(person))

    def teach(self, given: Given) -> None:
        """Learn a label in the shared model and for the person."""
        example, person = given.sample.example, self._id(given.person)
        source = Source(f"person {given.person}", immediate=self._budget, person=person)
        self.model.run([Learn(example, given.label, source, given.time_us)])

    def forget(self, person: int, sample: Sample, time_us: int) -> None:
        """Undo what the person's label of a message changed."""
        source = _ADMIN._replace(person=self._id(person))
        self.model.run([Forget(sample.example.digest, source, time_us)])

    def _id(self, person: int) -> int:
        return person_id(str(person), self.model.recipe.key)


MODELS: dict[str, Callable[[Options], PersonsModel]] = {
    "one model": partial(OneModel, immediate=True),
    "one model, steps": partial(OneModel, immediate=False),
    "a model each": OneModelEach,
    "personal corrections": partial(SharedAndPersonal, budget=True),
    "without budget": partial(SharedAndPersonal, budget=False),
}
"""by the name in reports"""


DAY_US = 86_400_000_000
START_US = 20_000 * DAY_US
PER_DAY = 40
"""Deliveries of one person in a day: budgets depend on the time."""

Progress = Callable[[int, int], None]


class Played(NamedTuple):
    """The result of each delivery, in order."""

    z: Floats
    """[D, K] for the person"""
    shared: Floats
    """[D, K] for a person without corrections"""
    taught: Bools


def play(
    world: World, samples: Sequence[Sample], model: PersonsModel, progress: Progress | None = None
) -> Played:
    """Train the model, then score and teach, one delivery after the other."""
    model.train([(samples[message], label) for message, label in world.trained])
    count = len(world.deliveries)
    z, shared = np.zeros((2, count, 2))
    taught = np.zeros(count, np.bool_)
    pause, number = DAY_US // (world.persons * PER_DAY), 0
    for message, deliveries in groupby(world.deliveries, lambda each: each.message):
        sample = samples[message]
        for_all = model.score(NO_PERSON, sample)
        for delivery in deliveries:
            shared[number], z[number] = for_all, model.score(delivery.person, sample)
            if _teaches(delivery, z[number].tolist()):
                taught[number] = True
                given = Given(delivery.person, sample, delivery.label, START_US + number * pause)
                model.teach(given)
            number += 1
        if progress is not None:
            progress(number, count)
    return Played(z, shared, taught)


def _teaches(delivery: Delivery, z: list[float]) -> bool:
    if delivery.teaching == "mistakes":
        return softmax(z)[delivery.label] <= UNSURE[1]
    return delivery.teaching == "always"


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
    """Return the figures by kind of delivery, and those of all persons whose mail is measured.

    Deliveries of one person depend on each other, and so do those of one message. Intervals are
    taken over persons: each resampling draws as many persons as there are, with all of their
    deliveries.
    """
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


@dataclass(frozen=True, slots=True)
class WorldResult:
    """The figures of one model in one world."""

    world: str
    model: str
    figures: dict[str, WorldFigures]
    """by kind of delivery; "all" first"""
    rules: dict[str, float]
    """of messages with several recipients: wrong verdicts in percent if all get the same verdict"""

    def as_dict(self) -> dict[str, object]:
        """Return one entry of `results` in the JSON output."""
        figures = {kind: found.as_dict() for kind, found in self.figures.items()}
        names = {"world": self.world, "model": self.model}
        return names | {"figures": figures, "one_verdict_wrong_percent": self.rules}


def compare_models(
    worlds: Iterable[World],
    samples: Sequence[Sample],
    options: Options,
    models: Sequence[str] = tuple(MODELS),
) -> list[WorldResult]:
    """Play each world with a new instance of each model; worlds of one name are pooled."""
    costs = options.costs or Costs()
    results = []
    for name, group in groupby(worlds, lambda world: world.name):
        parts = list(group)
        world = _joined(parts)
        for model in models:
            report = _WorldProgress(options.progress, len(world.deliveries))
            played = _concatenated(
                [play(part, samples, MODELS[model](options), report.part) for part in parts]
            )
            figures = world_figures(world, played, costs)
            results.append(WorldResult(name, model, figures, rules(world, played)))
    return results


class _WorldProgress:
    """Adds up the progress of parts."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def part(self, done: int, count: int) -> None:
        """Report the progress within one part."""
        if self._progress is not None:
            self._progress(self._done + done, self._total)
        if done == count:
            self._done += count


def _joined(parts: Sequence[World]) -> World:
    """Return one world of all deliveries, each part with its own persons."""
    deliveries, persons = [], 0
    for part in parts:
        deliveries += [each._replace(person=each.person + persons) for each in part.deliveries]
        persons += part.persons
    return World(parts[0].name, persons, tuple(deliveries))


def _concatenated(parts: Sequence[Played]) -> Played:
    return Played(*map(np.concatenate, zip(*parts, strict=True)))


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
    """What worlds are made of: one entry for each message.

        conflict     half of the senders are wanted by all of their readers; a third is wanted or
                     not by each reader, by chance; the others are unwanted by most
        peace        all readers of a sender want the mail
        attack       peace, but from the middle on false labels are given, by one person or by five;
                     before it, honest persons in peace and in conflict
        newsletters  one reader wants all messages of a sender, and another one wants none; the
                     other readers want them and label nothing

    Spam goes to one to three persons, ham of rare senders to one. The same seed makes the same
    world.
    """

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


_HEAD_BYTES = 65_536
_SENDERS = (
    re.compile(rb"\nlist-id:[^\n]*<([^>\n]+)>"),
    re.compile(rb"\n(?:list-id|mailing-list):([^\n;]+)"),
    re.compile(rb"\nfrom:([^\n]+)"),
)


def sender_of(raw: bytes) -> str:
    """Return the mailing list of a message, else its author; empty if it names neither."""
    head = raw[:_HEAD_BYTES].replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    head = b"\n" + head.replace(b"\n ", b" ").replace(b"\n\t", b" ").lower()
    found = next(filter(None, (pattern.search(head) for pattern in _SENDERS)), None)
    return b" ".join(found[1].split()).decode("latin-1") if found else ""


def read_mail(messages: Iterable[Labelled], options: Options) -> tuple[Samples, Mail]:
    """Extract the features and the sender of each message; the texts are not kept."""
    senders: list[str] = []

    def noted() -> Iterator[Labelled]:
        for raw, label in messages:
            senders.append(sender_of(raw))
            yield raw, label

    samples = read_samples(noted(), options)
    return samples, Mail(samples.truth.tolist(), senders)


def listed_deliveries(file: Path) -> tuple[list[tuple[MessageSpan, str]], World]:
    """Return the messages that a file lists, and the world of its deliveries.

    A line has a path relative to the file, a person, and what this person wants the message to be,
    `ham` or `spam`. Lines with the same path follow each other.
    """
    messages: dict[str, tuple[int, str]] = {}
    persons: dict[str, int] = {}
    deliveries = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        words = line.rsplit(maxsplit=2)
        if len(words) != 3 or words[2] not in LABELS:
            raise CorpusError(
                f"line {number} of {file} is {line[:60]!r}",
                hint="each line must be `PATH PERSON ham` or `PATH PERSON spam`",
            )
        path, person, label = words
        place, _ = messages.setdefault(path, (len(messages), label))
        recipient = persons.setdefault(person, len(persons))
        deliveries.append(Delivery(recipient, place, LABELS.index(label), "delivered"))
    if not deliveries:
        raise CorpusError(f"{file} lists no deliveries", hint="write one on each line")
    spans = [
        (MessageSpan(str(file.parent / path), shown=path), label)
        for path, (_, label) in messages.items()
    ]
    return spans, World(file.name, len(persons), tuple(deliveries))
