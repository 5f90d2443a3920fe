"""What the experiments share: a corpus as features, and the default model on arrays.

The model here is written a second time, on purpose and without a store: an experiment changes
what the product must not let anybody change. With the default constants it gives the product's
figures (`scripts/bench/accuracy`).

Corpus: the folder named by SPAMNB_CORPUS (holding ham/ and spam/), else the committed sample.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from spamnb.core.features.extract import Features, Key, extract
from spamnb.core.features.tokens import WRITTEN, TokenLocation, fields
from spamnb.core.mail.message import read
from spamnb.lab.statistics.metrics import auc, missed_at

PROJECT = Path(__file__).resolve().parents[2]
SEEDS = (7, 8, 9)


@dataclass(frozen=True)
class Corpus:
    rows: np.ndarray
    offsets: np.ndarray
    group: np.ndarray
    place: np.ndarray
    exact: np.ndarray  # features that keep their capitals
    spam: np.ndarray
    correction: np.ndarray | None = None  # the groups of corrections, if they are others

    def __len__(self):
        return len(self.spam)

    def grouped(self, of_place):
        return replace(self, group=self.by_place(of_place))

    def by_place(self, of_place):
        return np.array([of_place(TokenLocation(p)) for p in range(1, max(TokenLocation) + 1)])[
            self.place - 1
        ]

    def only(self, keep):
        kept = keep[self.rows]
        sums = np.concatenate(([0], np.cumsum(kept)))
        return replace(self, rows=self.rows[kept], offsets=sums[self.offsets])


@dataclass(frozen=True)
class Constants:
    kappa: float = 1.0
    a: float = 0.01
    r: float = 0.3
    eta: float = 8.0
    tau: float = 2.0
    rate_tau: float = 0.1
    rate_b: float = 0.01
    doubt: float = 0.1
    steps: tuple = (1.0,)  # steps towards each label: how far, or how far each group goes
    thin: float = np.inf  # no further step once the label leads by so many nats
    doubted_once: bool = False  # no further step towards a label that was doubted
    fading: float = 0.0  # corrections are read by (1 + messages that hold the feature) ** -fading
    alone: bool = False  # a step minds only what the groups that it moves say
    young: float = 1.0  # how much farther steps go while there are few messages
    young_until: int = 200
    replays: int = 0  # steps on earlier messages after each one, while there are few
    replay_until: int = 0
    replay_how: str = "any"
    replay_seed: int = 5
    noise: float = 0.0
    noise_seed: int = 1
    errors_only: bool = False
    tau_extra: float = 0.1


def folder() -> Path:
    return Path(os.environ.get("SPAMNB_CORPUS") or PROJECT / "corpora" / "sample")


def corpus(where: Path | None = None) -> Corpus:
    files = sorted((where or folder()).glob("*/*"), key=lambda f: (f.name, f.parent.name))
    messages = [fields(read(f.read_bytes())) for f in files]
    found = extract(Key(b"experiments" + bytes(21)), messages)
    place, exact = about(found)
    return Corpus(
        rows=found.rows,
        offsets=found.offsets,
        group=sent(place),
        place=place,
        exact=exact,
        spam=np.array([f.parent.name == "spam" for f in files]),
    )


def about(found: Features) -> tuple[np.ndarray, np.ndarray]:
    """The place of each feature, and whether it keeps its capitals: those words come last."""
    words = found._words
    places = np.array([place for place, _, _ in words.fields])
    return places[words.field[found._sample]], found._sample >= words.cut.stop


def sent(place: np.ndarray) -> np.ndarray:
    """The product's groups: 1 for how a message was sent."""
    return np.array([p not in WRITTEN for p in range(max(TokenLocation) + 1)], np.int64)[place]


def online(corpus: Corpus, order: list[int], c: Constants, extra=None) -> np.ndarray:
    """Log-odds of every message, each judged before it is learnt.

    `extra` is one more summand for each message, with a temper of its own.
    """
    state = _State(corpus, c)
    wrong, dice = random.Random(c.noise_seed), random.Random(c.replay_seed)
    scores = np.zeros(len(corpus))
    taught: list[list[int]] = [[], []]
    for i in order:
        seen = _Seen(state, i, 0.0 if extra is None else extra[i])
        z = scores[i] = seen.z
        label = bool(corpus.spam[i]) ^ (wrong.random() < c.noise)
        P = 1 / (1 + np.exp(-z))
        if c.errors_only and (P if label else 1 - P) > 0.9:
            continue
        seen.learn(label)
        state.n[int(label), seen.at] += 1
        state.N[int(label)] += 1
        for said in _again(c, dice, taught, label):
            earlier = dice.choice(taught[said])
            _Seen(state, earlier, 0.0 if extra is None else extra[earlier]).learn(bool(said))
        taught[label].append(i)
    return scores


AGAIN = {
    "any": lambda dice, counts, _: dice.choices((0, 1), counts),
    "balanced": lambda dice, _, __: [dice.randrange(2)],
    "both": lambda _, __, ___: [0, 1],
    "other": lambda _, __, label: [1 - label],
}
"""the labels of the earlier messages that are learnt again after one of a label"""


def _again(c, dice, taught, label):
    """The labels of all that is learnt again now."""
    counts = [len(of) for of in taught]
    if 0 < sum(counts) < c.replay_until:
        for _ in range(c.replays):
            yield from (k for k in AGAIN[c.replay_how](dice, counts, label) if counts[k])


class _State:
    """Counts and corrections."""

    def __init__(self, corpus, c):
        self.corpus, self.c = corpus, c
        self.G, F = int(corpus.group.max()) + 1, len(corpus.group)
        self.corrected = corpus.group if corpus.correction is None else corpus.correction
        self.eta = c.eta / (int(self.corrected.max()) + 1)
        self.n, self.w, self.N = np.zeros((2, F)), np.zeros(F), np.zeros(2)
        self.tau, self.b, self.tau_extra = np.full(self.G, c.tau / self.G), 0.0, c.tau_extra


class _Seen:
    """One message as it is judged now, and the steps it takes."""

    def __init__(self, state, i, more):
        corpus, c = state.corpus, state.c
        self.state, self.more = state, more
        self.at = at = corpus.rows[corpus.offsets[i] : corpus.offsets[i + 1]]
        self.g = corpus.group[at]
        size = np.maximum(np.bincount(self.g, minlength=state.G), 1.0)
        self.E = _evidence(state.n[:, at], state.N, self.g, size, c)
        own = state.corrected[at]
        self.root = np.bincount(own)[own] ** -0.5
        held = state.n[:, at].sum(axis=0) if c.fading else 0.0
        self.heard = self.root * (1 + held) ** -c.fading
        self._sum()

    def _sum(self):
        state = self.state
        corrections = np.bincount(self.g, state.w[self.at] * self.heard, state.G)
        self.parts = np.maximum(state.tau, 0) * self.E + corrections
        self.z = state.b + self.parts.sum() + state.tau_extra * self.more

    def learn(self, label):
        state, c = self.state, self.state.c
        for step in c.steps:
            far = np.broadcast_to(step, state.G)
            z = state.b + self.parts[far > 0].sum() if c.alone else self.z
            P = 1 / (1 + np.exp(-z))
            mine = P if label else 1 - P
            e = (label - P) * (min(1.0, mine / c.doubt) if c.doubt else 1.0)
            eta = state.eta * (c.young if state.N.sum() < c.young_until else 1.0)
            state.w[self.at] += eta * e * far[self.g] * self.root
            state.b += c.rate_b * e * far.min()
            state.tau = state.tau + c.rate_tau * e * far * self.E
            state.tau_extra = max(state.tau_extra + c.rate_tau * e * self.more, 0.0)
            self._sum()
            if (self.z if label else -self.z) >= c.thin or (c.doubted_once and mine < c.doubt):
                break


def _evidence(n, N, g, size, c):
    if not N.all():
        return np.zeros(len(size))
    held = n.sum(axis=0)
    logs = np.log(n + c.a) - np.log(N + 2 * c.a)[:, None]
    return np.bincount(g, held / (held + c.r) * (logs[1] - logs[0]), len(size)) / size**c.kappa


def figures(corpus: Corpus, c: Constants, seeds=SEEDS) -> tuple[float, float]:
    """1-AUC % and spam missed at 0.1 % ham lost, means over shuffles (seed None: by file name)."""
    rows = []
    for seed in seeds:
        order = list(range(len(corpus)))
        if seed is not None:
            random.Random(seed).shuffle(order)
        scores = online(corpus, order, c)
        rows.append((100 * (1 - auc(corpus.spam, scores)), missed_at(corpus.spam, scores, 0.1)))
    return tuple(float(x) for x in np.mean(rows, axis=0))


def show(name: str, corpus: Corpus, c: Constants | None = None) -> None:
    c = c or Constants()
    shuffled, by_name = figures(corpus, c), figures(corpus, c, (None,))
    features = len(corpus.rows) / len(corpus)
    print(
        f"{name:34s} {features:4.0f} features  1-AUC {shuffled[0]:.4f} %  "
        f"missed {shuffled[1]:5.2f} %   by name: {by_name[0]:.4f} % {by_name[1]:5.2f} %",
        flush=True,
    )


__all__ = ["WRITTEN", "Constants", "TokenLocation", "corpus", "figures", "folder", "online", "show"]
