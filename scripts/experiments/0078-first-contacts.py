"""Which clues give wanted first contacts of shops a score above 0, and does a larger COMMON help?

Everything is taught, in three orders; the first 60 messages do not count. For each location: the
mean sum of its clues in ham above 0, in other ham, and in spam. Then, for COMMON of
`model/scoring.py`: 1-AUC, ham above 0, spam below 0, and spam above 2.5 nats. The record has
the figures.

    python scripts/experiments/0078-first-contacts.py FOLDER
"""

import random
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "scripts" / "bench")]

from labelled_mail import clean, files

from spamnb.engine.filter import Filter
from spamnb.lab.runs import Options, Samples, read_samples, run
from spamnb.lab.statistics import auc
from spamnb.model import scoring
from spamnb.model.events import Recipe
from spamnb.store.model_store import temporary_store

SEEDS = (7, 8, 9)
YOUNG = 60


def order_of(rows, seed):
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    return order


def families(rows):
    """Return (label, log-odds, sums by location) of each message after the first."""
    found = []
    for seed in SEEDS:
        recipe = Recipe(kind="corrected", labels=("ham", "spam"), key=bytes([seed]) * 32)
        model = Filter(temporary_store(recipe))
        for place, index in enumerate(order_of(rows, seed)):
            raw, label = rows[index]
            verdict = model.score(raw, remember=False)
            sums = defaultdict(float)
            for clue in verdict.clues():
                sums[clue.location] += clue.nats
            if place > YOUNG:
                found.append((label, verdict.log_odds, sums))
            model.learn(raw, label)
    return found


def main():
    rows = [(clean(path.read_bytes()), label) for path, label in files(Path(sys.argv[1]))]
    found = families(rows)
    kinds = {
        "ham above 0": [s for label, z, s in found if label == "ham" and z > 0],
        "other ham": [s for label, z, s in found if label == "ham" and z <= 0],
        "spam": [s for label, z, s in found if label == "spam"],
    }
    print({name: len(sums) for name, sums in kinds.items()})
    for location in sorted({location for _, _, sums in found for location in sums}):
        means = [
            float(np.mean([one.get(location, 0.0) for one in sums])) for sums in kinds.values()
        ]
        if max(map(abs, means)) >= 0.1:
            print(f"{location:16}", *(f"{mean:+.2f}" for mean in means))
    samples = read_samples(rows, Options())
    for common in (2.0, 4.0, 8.0):
        scoring.COMMON = common
        figures = []
        for seed in SEEDS:
            order = order_of(rows, seed)
            part = Samples([samples.items[i] for i in order], samples.truth[order])
            z = run(part, Options()).z
            odds, spam = z[:, 1] - z[:, 0], part.truth == 1
            later = np.arange(len(odds)) > YOUNG
            missed, high = (odds < 0) & spam & later, (odds > 2.5) & spam
            false = (odds > 0) & ~spam & later
            figures.append([100 * (1 - auc(spam, odds)), false.sum(), missed.sum(), high.sum()])
        print(f"COMMON {common:g}", np.mean(figures, axis=0).round(2).tolist())


if __name__ == "__main__":
    main()
