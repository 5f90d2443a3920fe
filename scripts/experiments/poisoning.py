"""The worst words that one person can say to a model, found by search, and their harm to others.

A site is a model taught by others, an attacker's own mail, and other people's mail (`victims`). The
attacker knows the model (every count), writes any message and corrects it by an explicit, trusted
correction. `Search` tries many kinds of messages before each word and takes the one that does the
most harm: the attacker's own mail, short mail of common words, long mail of one label's words,
mixtures that the model finds hardly spam or hardly ham (a doubted step is longest there), headers
of other people's mail, and copies of it. `oscillate` says the same message ham and spam in turn.

Trials run in a transaction that is abandoned, so they leave nothing behind.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lab import folder

from spamnb.core.features.tokens import TokenLocation
from spamnb.core.mail.message import canonical
from spamnb.core.model.costs import Costs
from spamnb.core.model.decision import decide_many
from spamnb.core.model.scoring import RowView, probabilities, scores
from spamnb.service.engine.filter import Filter, new_recipe
from spamnb.service.engine.learner import Learner
from spamnb.service.engine.requests import Example, Learn, Source
from spamnb.store.memory import MemoryStore

import numpy as np  # isort: skip - after lab, which sets its threads

LABELS = ("ham", "spam")
DAY_US = 86_400_000_000
NOW_US = 20_000 * DAY_US
OTHERS, ATTACKER = Source("others", "train"), Source("mallory", "imap", immediate=True)


class Harm(NamedTuple):
    """What becomes of other people's mail, in percent; and its mean loss by label, in nats."""

    ham_not_delivered: float
    ham_filed: float
    spam_delivered: float
    ham_loss: float
    spam_loss: float

    def of(self, label: str) -> tuple[float, float]:
        """What an attacker gains who calls good mail spam, or spam good."""
        if label == "spam":
            return self.ham_not_delivered + self.ham_filed, self.ham_loss
        return self.spam_delivered, self.spam_loss

    def __str__(self) -> str:
        return (
            f"ham not delivered {self.ham_not_delivered:6.2f}  filed {self.ham_filed:6.2f}"
            f"  spam delivered {self.spam_delivered:6.2f}"
        )


@dataclass
class Site:
    """A model taught by others, in memory; and other people's mail, ready to be judged."""

    taught: list[tuple[bytes, str]]
    own: list[tuple[bytes, str]]
    victims: list[tuple[bytes, str]]
    store: Any = field(init=False)

    def __post_init__(self) -> None:
        recipe = new_recipe()
        self.store = MemoryStore(recipe)
        self.model = Filter(self.store)
        self.learner = Learner(recipe, Costs())
        for start in range(0, len(self.taught), 256):
            some = self.taught[start : start + 256]
            self.model.teach([
                Learn(self.model.example(raw), LABELS.index(label), OTHERS, NOW_US - 30 * DAY_US)
                for raw, label in some
            ])  # fmt: skip
        examples = [self.model.example(raw) for raw, _ in self.victims]
        flat = np.concatenate([part for e in examples for part in e.ids])
        self._ids, rows = np.unique(flat, return_inverse=True)
        sizes = np.array([len(part) for e in examples for part in e.ids])
        ends = np.cumsum([sum(map(len, e.ids)) for e in examples])
        self._view = RowView(rows, np.concatenate(([0], ends)), sizes)
        self._spam = np.array([label == "spam" for _, label in self.victims])
        self._words = 0
        with self.store.read() as view:
            self._rows = view.gather(self._ids)

    def request(self, example: Example, label: str, who: str = "mallory") -> Learn:
        """A correction that insists, a minute after the one before."""
        moment = NOW_US + self._words * 60_000_000
        return Learn(example, LABELS.index(label), ATTACKER._replace(who=who), moment, again=True)

    def say(self, example: Example, label: str, who: str = "mallory") -> None:
        """One word, for good."""
        self.store.transact(
            lambda view: self.learner.run(view, [self.request(example, label, who)], scored=False)
        )
        self.learner.committed()
        self._words += 1
        with self.store.read() as view:
            self._rows = view.gather(self._ids)

    def harm(self) -> Harm:
        """How others' mail is judged now."""
        with self.store.read() as view:
            return self._harm(view.totals(), self._rows)

    def trial(self, example: Example, label: str, who: str = "mallory") -> Harm:
        """The harm that one word would do; nothing of it stays."""
        found: list[Harm] = []
        with contextlib.suppress(_AbandonedError), self.store.write() as view:
            self.learner.run(view, [self.request(example, label, who)], scored=False)
            last = view.totals().last_seq
            event = view.event(last)
            touched = np.unique(
                np.concatenate([*event.ids, *(p for e in event.delta.rehearsals for p in e.ids)])
            )
            at = np.searchsorted(self._ids, touched).clip(max=len(self._ids) - 1)
            here = self._ids[at] == touched
            kept = [np.array(part) for part in self._rows]
            more = view.gather(touched[here])
            for part, new in zip(kept, more, strict=True):
                part[at[here]] = new
            found.append(self._harm(view.totals(), type(self._rows)(*kept)))
            raise _AbandonedError
        return found[0]

    def _harm(self, totals: Any, rows: Any) -> Harm:
        z = scores(self.model.recipe, totals, rows, self._view)
        decided = decide_many(probabilities(z), Costs())
        odds, spam = z[:, 1] - z[:, 0], self._spam
        return Harm(
            100 * float((decided[~spam] > 0).mean()),
            100 * float((decided[~spam] > 1).mean()),
            100 * float((decided[spam] == 0).mean()),
            float(np.logaddexp(0, odds[~spam]).mean()),
            float(np.logaddexp(0, -odds[spam]).mean()),
        )

    def ranked(self) -> dict[str, list[str]]:
        """Words of the body as the attacker knows them, by what they say; the strongest first."""
        with self.store.read() as view:
            words = [
                w for w in view.all_words() if w.place == TokenLocation.BODY and w.text.isalpha()
            ]
            words = [w for w in words if w.text == w.text.lower()]
            ids = np.array([w.id for w in words], np.uint64)
            n = view.gather(ids).n.astype(np.int64)
        texts = np.array([w.text.decode("ascii", "replace") for w in words])
        ham, spam = n[:, 0], n[:, 1]

        def by(score: np.ndarray) -> list[str]:
            order = np.argsort(-score, kind="stable")
            return [str(t) for t in texts[order[: int((score > 0).sum())]]]

        return {
            "common": by(ham + spam),
            "ham": by(ham),
            "spam": by(spam),
            "ham only": by(ham * (spam == 0)),
            "spam only": by(spam * (ham == 0)),
            "hammy": by(ham / (spam + 1.0)),
            "spammy": by(spam / (ham + 1.0)),
        }


class _AbandonedError(Exception):
    """Ends a transaction that must leave nothing."""


def spend(site: Site, label: str, words: int, *, tries: int = 40, people: int = 1) -> list[Harm]:
    """The harm after each of so many worst words, said by so many people in turn."""
    search, found = Search(site, label, tries=tries), []
    for number in range(words):
        search.who = f"mallory{number % people}"
        found.append(search.word()[1])
    return found


def oscillate(site: Site, raws: list[bytes], label: str, turns: int) -> Harm:
    """Messages called the one and the other in turn, and the wrong label in the end."""
    other = "ham" if label == "spam" else "spam"
    for raw in raws:
        example = site.model.example(raw)
        for _ in range(turns):
            site.say(example, other)
            site.say(example, label)
    return site.harm()


def request(number: int, words: list[str], head: bytes = b"", subject: str = "") -> bytes:
    """A message of these words, under headers of its own or of another message."""
    head = head or b"From: mallory@site.test\nTo: mallory@site.test\n"
    return head + f"X-N: n{number}\nSubject: {subject}\n\n{' '.join(words)}\n".encode()


def head_of(raw: bytes) -> bytes:
    """The header lines of a message without its subject."""
    head = canonical(raw).partition(b"\n\n")[0]
    lines = [line for line in head.split(b"\n") if not line.lower().startswith(b"subject:")]
    return b"\n".join(lines) + b"\n"


SIZES = (1, 3, 8, 30, 100, 300, 1000, 4000)


class Search:
    """Candidates for the next word of an attacker who calls messages `label`."""

    def __init__(self, site: Site, label: str, seed: int = 1, tries: int = 60) -> None:
        self.site, self.label, self.tries = site, label, tries
        self.dice = random.Random(seed)
        self.other = "ham" if label == "spam" else "spam"
        self.ranked = site.ranked()
        self.of_other = [raw for raw, truth in site.own if truth == self.other]
        self.others = [raw for raw, truth in site.taught if truth == self.other]
        self._number = 0
        self.who = "mallory"

    def candidates(self) -> Iterator[tuple[str, bytes]]:
        """Messages of every kind, drawn anew each time."""
        dice, other = self.dice, self.other
        against = [other, f"{other} only", f"{other}my"]
        while True:
            self._number += 1
            kind = dice.randrange(10)
            if kind < 2 and self.of_other:
                yield "own", b"X-N: %d\n" % self._number + dice.choice(self.of_other)
            elif kind == 2 and self.others:
                yield "copy", b"X-N: %d\n" % self._number + dice.choice(self.others)
            elif kind == 3 and self.others:
                yield "head", request(self._number, [], head_of(dice.choice(self.others)))
            else:
                yield self._crafted(dice.choice([*against, "common"]))

    def _crafted(self, of: str) -> tuple[str, bytes]:
        dice, size = self.dice, self.dice.choice(SIZES)
        words = self._drawn(of, size)
        share = dice.choice((0, 0, 0.1, 0.3, 1.0))
        tuned = self._drawn(f"{self.label}my", int(share * len(words)))
        head, name = b"", ""
        if dice.random() < 0.3 and self.others:
            head, name = head_of(dice.choice(self.others)), " under a head"
        subject = " ".join(self._drawn(of, 8)) if dice.random() < 0.3 else ""
        kind = f"{size} {of}{f' + {share:.0%}' if share else ''}{name}"
        return kind, request(self._number, words + tuned, head, subject)

    def _drawn(self, of: str, size: int) -> list[str]:
        """Some of the strongest words; a small message of the very strongest."""
        some = self.ranked.get(of, [])[: max(2 * size, 8)]
        return self.dice.sample(some, min(size, len(some)))

    def word(self) -> tuple[str, Harm]:
        """Say the worst of many words: what kind it was, and the harm until now."""
        best: tuple[tuple[float, float], str, Example] | None = None
        source = self.candidates()
        for _ in range(self.tries):
            kind, raw = next(source)
            example = self.site.model.example(raw)
            worth = self.site.trial(example, self.label, self.who).of(self.label)
            if best is None or worth > best[0]:
                best = worth, kind, example
        assert best is not None
        self.site.say(best[2], self.label, self.who)
        return best[1], self.site.harm()


def site(where: Path | None = None, seed: int = 7, held_out: int = 1500, own: int = 300) -> Site:
    """A site of a corpus, shuffled."""
    files = sorted((where or folder()).glob("*/*"), key=lambda f: (f.name, f.parent.name))
    random.Random(seed).shuffle(files)
    rows = [(file.read_bytes(), file.parent.name) for file in files]
    return Site(rows[:-held_out], rows[-held_out : own - held_out], rows[own - held_out :])
