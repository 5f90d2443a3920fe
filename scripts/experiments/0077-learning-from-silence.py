"""Does learning from sure verdicts that no user contradicts help, and whom does it harm?

A simulated site as in scripts/bench/decisions, where users correct a tenth or three tenths of the
mistakes. After a day without an answer, a message that was filed as junk at least ABOVE nats over
its threshold, or delivered below -BELOW nats, is learnt. Never: unsure messages, those of a new
kind, and any before LEAST answers of each label. WEIGHT is that of the step, SHARE how many of such
messages are drawn; with EVEN no more spam is learnt so than ham, and reversed. The record has the
figures.

    python scripts/experiments/0077-learning-from-silence.py NAME=FOLDER[,FOLDER...] ...
"""

import random
import sys
from collections import deque
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "scripts" / "bench")]

from labelled_mail import clean, files

from spamnb.engine.values import Learn, Source
from spamnb.lab.runs import Options, Samples, Trial, read_samples
from spamnb.model.costs import Costs
from spamnb.model.verdict import (
    ScoredMessage,
    count_scores,
    decide_stretched,
    site_threshold,
    stretched,
)
from spamnb.policy.actions import LEAST_MESSAGES, limit_while_untrained

APART_US = 900_000_000
DAY = 96
"""messages"""
MOST = 2000
SEEDS = (7, 8)


class Form(NamedTuple):
    above: float = 99.0
    below: float = 99.0
    weight: float = 1.0
    share: float = 1.0
    even: bool = False
    least: int = 5


FORMS = {
    "none": Form(),
    "sure": Form(1, 2),
    "very sure": Form(2, 3),
    "very sure, a third": Form(2, 3, share=0.33),
    "very sure, even": Form(2, 3, even=True),
    "very sure, even, weight .2": Form(2, 3, weight=0.2, even=True),
    "surest, even, weight .2, after 10": Form(3, 4, weight=0.2, even=True, least=10),
    "ham alone, weight .2": Form(99, 3, weight=0.2),
}


class Silent(Trial):
    """A model that also learns with a weight."""

    def learn(self, index, label, weight):
        source = Source("", "silence", weight=weight)
        request = Learn(self._samples[index].example, label, source, index + 1)
        with self._store.write() as view:
            self._learner.run(view, [request], scored=False)


def played(samples, form, answered, seed):
    """Return spam filed, spam delivered, ham filed, and messages learnt right and wrong."""
    model, costs = Silent(samples, samples.truth, Options()), Costs()
    truth = samples.truth.tolist()
    dice, drawn = np.random.default_rng((seed, 99)), np.random.default_rng((seed, 5))
    seen, waiting = [], deque()
    taught, alone, wrong = [0, 0], [0, 0], 0
    filed, delivered, lost, counts = 0, 0, 0, None
    for index, label in enumerate(truth):
        now = (index + 1) * APART_US
        while waiting and waiting[0][0] <= index - DAY:
            _, earlier, guess = waiting.popleft()
            if min(taught) < form.least or drawn.random() >= form.share:
                continue
            if form.even and alone[guess] > alone[1 - guess]:
                continue
            alone[guess] += 1
            wrong += guess != truth[earlier]
            model.learn(earlier, guess, form.weight)
        z = model.score([index])[0]
        odds, new = float(z[1] - z[0]), model.novelty(index)
        if counts is None or index % 10 == 0:
            counts = count_scores(reversed(seen), now)
        threshold = site_threshold(counts, min(taught), 1000) + new
        decision = decide_stretched(stretched(odds, threshold), threshold, costs)
        decision = limit_while_untrained(decision, min(taught), LEAST_MESSAGES)
        junk = decision in {"junk", "reject"}
        said = None
        answers = dice.random() < answered
        if answers and (decision == "unsure" or junk != bool(label)):
            model.train([index])
            taught[label] += 1
            said = ("ham", "spam")[label]
        elif not new and junk and odds >= threshold + form.above:
            waiting.append((index, index, 1))
        elif not new and decision == "deliver" and odds <= -form.below:
            waiting.append((index, index, 0))
        seen.append(ScoredMessage(now, odds, None if decision == "unsure" else junk, said, "users"))
        filed += junk and label == 1
        lost += junk and label == 0
        delivered += decision == "deliver" and label == 1
    return filed, delivered, lost, sum(alone), wrong


def run(job):
    name, form, answered, seed = job
    samples = STREAMS[name]
    order = list(range(len(samples.items)))
    random.Random(seed).shuffle(order)
    order = order[:MOST]
    part = Samples([samples.items[i] for i in order], samples.truth[order])
    found = played(part, FORMS[form], answered, seed)
    return np.array([*found, int(part.truth.sum()), int((part.truth == 0).sum())])


STREAMS = {}


def main():
    for text in sys.argv[1:]:
        name, _, folders = text.partition("=")
        rows = [row for one in folders.split(",") for row in files(Path(one))]
        STREAMS[name] = read_samples(
            [(clean(path.read_bytes()), label) for path, label in rows], Options()
        )
    print(
        f"{'form':34} {'answered':>8} {'stream':14} filed %  delivered %  ham filed  learnt  wrong"
    )
    with get_context("fork").Pool(2) as pool:
        for form in FORMS:
            for answered in (0.1, 0.3):
                jobs = [(name, form, answered, seed) for name in STREAMS for seed in SEEDS]
                found = pool.map(run, jobs, chunksize=1)
                for at, name in enumerate(STREAMS):
                    filed, out, lost, learnt, wrong, spam, ham = sum(
                        found[at * len(SEEDS) : (at + 1) * len(SEEDS)]
                    )
                    print(
                        f"{form:34} {answered:8} {name:14} {100 * filed / spam:7.1f}  "
                        f"{100 * out / spam:11.1f}  {lost:4}/{ham:5} {learnt:6} {wrong:6}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
