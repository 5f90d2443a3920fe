"""Streams of mail that differ in what they ask: the same model is run on all of them.

By the product's own learner (`spamnb evaluate`), each message judged before it is learnt:

    shuffled      SpamAssassin's corpus, seeds 7, 8, 9
    in a row      all of its ham by name, then all of its spam
    halves        the first and the second half of both sorts by name, each shuffled
    few spam      all ham, and so much spam that it is 3 %
    few ham       all spam, and so much ham that it is 10 %
    newer spam    4,000 messages of 2002; then the other ham with 204 spam of 2023 to 2025, judged
    generated     made by scripts/make-sample with seeds 2 and 3, 1,500 of each sort
    begun         the first 200 messages of SpamAssassin's and of generated mail, six each
    wrong labels  one label in twenty is taught wrong, three times
    errors only   only mistakes and what was between 10 and 90 % is taught

Judged are the messages of a stream from `start` on. Where no newer spam (`glitchy`) lies beside the
corpus, that stream is left out. Streams of one name are taken together.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab import PROJECT, folder

from spamnb.lab.protocols import ScoredMessages, run
from spamnb.lab.trial import Options, Samples, read_samples

import numpy as np  # isort: skip - after lab, which sets its threads


@dataclass(frozen=True)
class Stream:
    """Messages of a collection in their order, and how they are taught."""

    name: str
    samples: Any  # what was read: its `items`, and their `truth`
    order: list[int]
    start: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def judged(self, **constants: float) -> tuple[np.ndarray, np.ndarray]:
        """Truth (is it spam?) and log-odds of what is judged."""
        items = [self.samples.items[i] for i in self.order]
        part = Samples(items, self.samples.truth[self.order])
        said: ScoredMessages = run(part, replace(Options(**self.options), constants=constants))
        odds = said.z[:, 1] - said.z[:, 0]
        return part.truth[self.start :] == 1, odds[self.start :]


def samples(files: list[Path]) -> Samples:
    rows = ((file.read_bytes(), file.parent.name) for file in files)
    return read_samples(rows, Options())


Reading = Callable[[list[Path]], Any]


def of_folder(place: Path) -> list[Path]:
    return sorted(place.glob("*/*"), key=lambda f: (f.name, f.parent.name))


def generated(seed: int, reading: Reading) -> Any:
    with tempfile.TemporaryDirectory() as where:
        counts = ("--ham", "1500", "--spam", "1500", "--seed", str(seed))
        maker = str(PROJECT / "scripts" / "make-sample")
        subprocess.run([sys.executable, maker, where, *counts], check=True, capture_output=True)
        return reading(of_folder(Path(where)))


def mixed(some: list[int], seed: int) -> list[int]:
    some = sorted(some)
    random.Random(seed).shuffle(some)
    return some


def halved(some: list[int], half: int) -> list[int]:
    return some[half * len(some) // 2 : (half + 1) * len(some) // 2]


def streams(reading: Reading = samples) -> Iterator[Stream]:
    newer = of_folder(folder().parent / "glitchy")
    mail = reading(of_folder(folder()) + newer)
    old = len(mail.items) - len(newer)
    every = list(range(old))
    ham, spam = ([i for i in every if mail.truth[i] == k] for k in (0, 1))
    for seed in (7, 8, 9):
        yield Stream("shuffled", mail, mixed(every, seed))
    yield Stream("in a row", mail, ham + spam)
    for half in (0, 1):
        some = [i for of in (ham, spam) for i in halved(of, half)]
        yield Stream("halves", mail, mixed(some, 1))
    for seed in (1, 2):
        yield Stream("few spam", mail, mixed(ham + mixed(spam, seed)[: len(ham) * 3 // 97], seed))
        yield Stream("few ham", mail, mixed(spam + mixed(ham, seed)[: len(spam) // 9], seed))
    for seed in (7, 8) if newer else ():
        order = mixed(every, seed)
        later = [i for i in order[4000:] if not mail.truth[i]] + list(range(old, old + len(newer)))
        yield Stream("newer spam", mail, order[:4000] + mixed(later, seed), 4000)
    made = [generated(seed, reading) for seed in (2, 3)]
    for one in made:
        yield Stream("generated", one, mixed(list(range(len(one.items))), 7))
    for seed in range(11, 17):
        yield Stream("begun", mail, mixed(every, seed)[:200])
        yield Stream("begun", made[0], mixed(list(range(len(made[0].items))), seed)[:200])
    for seed in (1, 2, 3):
        noise = {"noise": 0.05, "noise_seed": seed}
        yield Stream("wrong labels", mail, mixed(every, 6 + seed), options=noise)
    for seed in (7, 8):
        yield Stream("errors only", mail, mixed(every, seed), options={"feedback": "errors"})


__all__ = ["Stream", "streams"]
