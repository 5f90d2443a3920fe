"""Search for the corrections of one user that do the most harm to the mail of other users.

A `Site` is a model trained by others, the attacker's own mail, and the mail of other users
(`victims`). The attacker knows every count of the model, writes any message and corrects it through
a trusted channel. Before each correction, `Search` tries many kinds of messages and takes the most
harmful: the attacker's own mail, short messages of common words, long messages of one label's
words, mixtures that score near the other label (where a doubted step is longest), headers of other
users' mail, copies of such mail, whole bodies joined under another message's head, one label's body
under the other's head, common words as HTML, and one word without a header; with `moves`, also
messages that others have labelled. Without `joined`, the kinds after the copies are left out.
`oscillate` labels the same messages ham and spam in turn.

Trials run in a transaction that is aborted. docs/decisions/0030 has the results.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from labelled_mail import folder

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.learner import Learner
from spamnb.engine.values import Example, Learn, Source
from spamnb.mail.message import canonical
from spamnb.model.costs import Costs, thresholds
from spamnb.model.scoring import RowView, scores
from spamnb.model.tokens import TokenLocation
from spamnb.model.verdict import decide_many
from spamnb.store.model_store import temporary_store

LABELS = ("ham", "spam")
DAY_US = 86_400_000_000
NOW_US = 20_000 * DAY_US
DELIVER = thresholds(Costs())[1].log_odds
"""log-odds above which a message is not delivered"""
OTHERS, ATTACKER = Source("others", "train"), Source("mallory", "imap", immediate=True)


class Harm(NamedTuple):
    """Errors on the mail of other users, in percent; and the same errors as a smooth sum.

    In the smooth sum, a message counts by a logistic function of its distance from the threshold of
    `deliver`: a search that maximizes it finds more harm than one for the errors or the log loss.
    """

    ham_not_delivered: float
    ham_filed: float
    spam_delivered: float
    ham_near: float
    spam_near: float

    def of(self, label: str) -> tuple[float, float]:
        """Return (error, smooth error) for an attacker that labels ham as spam, or spam as ham."""
        if label == "spam":
            return self.ham_not_delivered + self.ham_filed, self.ham_near
        return self.spam_delivered, self.spam_near

    def __str__(self) -> str:
        return (
            f"ham not delivered {self.ham_not_delivered:6.2f}  filed {self.ham_filed:6.2f}"
            f"  spam delivered {self.spam_delivered:6.2f}"
        )


@dataclass
class Site:
    """A model trained by others, in memory, and the mail of other users, ready to be scored."""

    trained: list[tuple[bytes, str]]
    own: list[tuple[bytes, str]]
    victims: list[tuple[bytes, str]]
    per_day: int = 1000
    store: Any = field(init=False)
    owner: int | None = None
    """the owner of the attacker's labels; None for the one of each user"""

    def __post_init__(self) -> None:
        # With a random key the figures differ from run to run (tests/unit/test_worst_words.py).
        recipe = replace(new_recipe(), key=bytes(32))
        self.store = temporary_store(recipe)
        self.model = Filter(self.store)
        self.learner = Learner(recipe, Costs())
        for start in range(0, len(self.trained), 256):
            some = self.trained[start : start + 256]
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

    def request(self, example: Example, label: str, user: str = "mallory") -> Learn:
        """Return an immediate correction: `per_day` in a day, one minute apart."""
        day, minute = divmod(self._words, self.per_day)
        moment = NOW_US + day * DAY_US + minute * 60_000_000
        owner = self.model.owner(user) if self.owner is None else self.owner
        source = ATTACKER._replace(user=user, owner=owner)
        return Learn(example, LABELS.index(label), source, moment, again=True)

    def say(self, example: Example, label: str, user: str = "mallory") -> None:
        """Apply one correction."""
        self.store.transact(
            lambda view: self.learner.run(view, [self.request(example, label, user)], scored=False)
        )
        self.learner.committed()
        self._words += 1
        with self.store.read() as view:
            self._rows = self._changed(view)

    def harm(self) -> Harm:
        """Return the errors of the current model."""
        with self.store.read() as view:
            return self._harm(view.totals(), self._rows)

    def trial(self, example: Example, label: str, user: str = "mallory") -> Harm:
        """Return the errors after one correction, which is rolled back."""
        found: list[Harm] = []
        with contextlib.suppress(_AbandonedError), self.store.write() as view:
            self.learner.run(view, [self.request(example, label, user)], scored=False)
            found.append(self._harm(view.totals(), self._changed(view)))
            raise _AbandonedError
        return found[0]

    def _changed(self, view: Any) -> Any:
        """Return the rows of the other users' mail after the newest event."""
        event = view.event(view.totals().last_seq)
        touched = np.unique(
            np.concatenate([*event.ids, *(p for e in event.delta.rehearsals for p in e.ids)])
        )
        at = np.searchsorted(self._ids, touched).clip(max=len(self._ids) - 1)
        here = self._ids[at] == touched
        kept = [np.array(part) for part in self._rows]
        for part, new in zip(kept, view.gather(touched[here]), strict=True):
            part[at[here]] = new
        return type(self._rows)(*kept)

    def _harm(self, totals: Any, rows: Any) -> Harm:
        z = scores(self.model.recipe, totals, rows, self._view)
        odds, spam = z[:, 1] - z[:, 0], self._spam
        decided = decide_many(odds, Costs())
        return Harm(
            100 * float((decided[~spam] > 0).mean()),
            100 * float((decided[~spam] > 1).mean()),
            100 * float((decided[spam] == 0).mean()),
            100 * float((1 / (1 + np.exp(DELIVER - odds[~spam]))).mean()),
            100 * float((1 / (1 + np.exp(odds[spam] - DELIVER))).mean()),
        )

    def ranked(self) -> dict[str, list[str]]:
        """Return the words of message bodies for each criterion, the strongest first."""
        with self.store.read() as view:
            words = [
                w for w in view.all_words() if w.location == TokenLocation.BODY and w.text.isalpha()
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
    """Abort a transaction."""


def spend(  # noqa: PLR0913 - one attack: what, how often, by how many, how
    site: Site,
    label: str,
    words: int,
    *,
    tries: int = 40,
    people: int = 1,
    moves: bool = False,
    joined: bool = True,
) -> list[Harm]:
    """Return the errors after each of the worst corrections, by several users in turn."""
    search, found = Search(site, label, tries=tries, moves=moves, joined=joined), []
    for number in range(words):
        search.user = f"mallory{number % people}"
        found.append(search.word()[1])
    return found


def oscillate(site: Site, raws: list[bytes], label: str, turns: int) -> Harm:
    """Label messages right and wrong in turn, and wrong at the end; return the errors."""
    other = "ham" if label == "spam" else "spam"
    for raw in raws:
        example = site.model.example(raw)
        for _ in range(turns):
            site.say(example, other)
            site.say(example, label)
    return site.harm()


def request(number: int, words: list[str], head: bytes = b"", subject: str = "") -> bytes:
    """Return a message of these words, with its own headers or those of another message."""
    head = head or b"From: mallory@site.test\nTo: mallory@site.test\n"
    return head + f"X-N: n{number}\nSubject: {subject}\n\n{' '.join(words)}\n".encode()


def html(number: int, words: list[str], head: bytes = b"") -> bytes:
    """Return a message of these words as HTML."""
    head = b"".join(
        line + b"\n"
        for line in head.split(b"\n")
        if line and not line.lower().startswith((b"content-", b"mime-"))
    )
    text = "".join(f"<p>{word}</p>" for word in words)
    start = b"X-N: n%d\nMIME-Version: 1.0\nContent-Type: text/html\n\n<html><body>" % number
    return head + start + text.encode() + b"</body></html>\n"


def body_of(raw: bytes) -> bytes:
    """Return the body of a message."""
    return canonical(raw).partition(b"\n\n")[2]


def head_of(raw: bytes) -> bytes:
    """Return the header lines of a message without its subject."""
    head = canonical(raw).partition(b"\n\n")[0]
    lines = [line for line in head.split(b"\n") if not line.lower().startswith(b"subject:")]
    return b"\n".join(lines) + b"\n"


SIZES = (1, 3, 8, 30, 100, 300, 1000, 4000)


class Search:
    """Candidates for the next correction of an attacker that labels messages as `label`."""

    def __init__(  # noqa: PLR0913 - one attack, see `spend`
        self,
        site: Site,
        label: str,
        seed: int = 1,
        tries: int = 60,
        *,
        moves: bool = False,
        joined: bool = True,
    ) -> None:
        self.site, self.label, self.tries = site, label, tries
        self.kinds = [*range(15), *[15] * moves] if joined else [0, 0, *range(2, 4), *[8] * 6]
        self.dice = random.Random(seed)
        self.other = "ham" if label == "spam" else "spam"
        self.ranked = site.ranked()
        self.of_other = [raw for raw, truth in site.own if truth == self.other]
        self.others = [raw for raw, truth in site.trained if truth == self.other]
        self.of_label = [raw for raw, truth in site.trained if truth == label]
        self._number = 0
        self.user = "mallory"

    def candidates(self) -> Iterator[tuple[str, bytes]]:
        """Yield (kind, message) without end."""
        dice, other = self.dice, self.other
        against = [other, f"{other} only", f"{other}my"]
        while True:
            self._number += 1
            mark = b"X-N: %d\n" % self._number
            kind = dice.choice(self.kinds)
            if kind < 2 and self.of_other:
                yield "own", mark + dice.choice(self.of_other)
            elif kind == 2 and self.others:
                yield "copy", mark + dice.choice(self.others)
            elif kind == 3 and self.others:
                yield "head", request(self._number, [], head_of(dice.choice(self.others)))
            elif kind == 4:
                count = dice.choice((2, 5, 20))
                bodies = [body_of(dice.choice(self.others)) for _ in range(count)]
                head = head_of(dice.choice([*self.others, *self.of_label]))
                yield f"{count} bodies", mark + head + b"\n" + b"\n".join(bodies)
            elif kind == 5:
                bodies = [self.others, self.of_label]
                dice.shuffle(bodies)
                head = head_of(dice.choice(bodies[0]))
                yield "head and body", mark + head + b"\n" + body_of(dice.choice(bodies[1]))
            elif kind == 6:
                words = self._drawn(dice.choice([*against, "common"]), dice.choice(SIZES))
                head = head_of(dice.choice(self.others)) if dice.random() < 0.5 else b""
                yield "html", html(self._number, words, head)
            elif kind == 7:
                words = self._drawn(dice.choice([*against, "common"]), 1)
                yield "one word", b"\n" + b"".join(w.encode() for w in words) + b" " * self._number
            elif kind == 15:
                yield "move", dice.choice(self.others)
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
        """Return some of the strongest words; the smaller the message, the stronger."""
        some = self.ranked.get(of, [])[: max(2 * size, 8)]
        return self.dice.sample(some, min(size, len(some)))

    def word(self) -> tuple[str, Harm]:
        """Apply the worst of many corrections; return its kind and the errors after it."""
        best: tuple[float, str, Example] | None = None
        source = self.candidates()
        for _ in range(self.tries):
            kind, raw = next(source)
            example = self.site.model.example(raw)
            worth = self.site.trial(example, self.label, self.user).of(self.label)[1]
            if best is None or worth > best[0]:
                best = worth, kind, example
        assert best is not None
        self.site.say(best[2], self.label, self.user)
        return best[1], self.site.harm()


def site(where: Path | None = None, seed: int = 7, held_out: int = 1500, own: int = 300) -> Site:
    """Return a site made from a shuffled corpus."""
    files = sorted((where or folder()).glob("*/*"), key=lambda f: (f.name, f.parent.name))
    random.Random(seed).shuffle(files)
    rows = [(file.read_bytes(), file.parent.name) for file in files]
    return Site(rows[:-held_out], rows[-held_out : own - held_out], rows[own - held_out :])
