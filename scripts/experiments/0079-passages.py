"""What do passages cost on ordinary mail, and from which lead on may a passage count?

For each FULL and SLOPE of `model/scoring.py` ("inf" is without passages): two orders of the mail of
the folders, from an empty model, each message scored before it is taught; everything is taught, or
mistakes alone. Prints 1-AUC, ham and spam above 3.5 nats, and ham above and spam below .4, where
mail is marked. `scripts/bench/evasion` has the other side. The record has the figures.

    python scripts/experiments/0079-passages.py FOLDER[,FOLDER...] [FULL,SLOPE ...]
"""

import os
import random
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "scripts" / "bench")]

from labelled_mail import clean, files

from spamnb.lab.runs import Options, Samples, read_samples, run
from spamnb.lab.statistics import auc
from spamnb.model import scoring

SEEDS = (7, 8)
FILED, MARKED = 3.5, 0.4


def figures_of(samples, feedback, seed):
    order = list(range(len(samples.items)))
    random.Random(seed).shuffle(order)
    part = Samples([samples.items[i] for i in order], samples.truth[order])
    z = run(part, Options(feedback=feedback, jobs=1)).z
    odds, spam = z[:, 1] - z[:, 0], part.truth == 1
    return [
        100 * (1 - auc(spam, odds)),
        (odds[~spam] > FILED).sum(),
        100 * (odds[spam] > FILED).mean(),
        (odds[~spam] > MARKED).sum(),
        100 * (odds[spam] < MARKED).mean(),
    ]


def main():
    folders = [Path(one) for one in sys.argv[1].split(",")]
    rows = [(clean(path.read_bytes()), label) for one in folders for path, label in files(one)]
    samples = read_samples(rows, Options())
    print("full slope taught 1-AUC, ham filed, spam filed %, ham marked, spam delivered %")
    for text in sys.argv[2:] or ["inf,3", "3,3", "3,2", "2.5,3", "4,3"]:
        full, slope = map(float, text.split(","))
        scoring.FULL, scoring.SLOPE = full, slope
        for feedback in ("full", "errors"):
            found = [figures_of(samples, feedback, seed) for seed in SEEDS]
            print(full, slope, feedback, np.mean(found, axis=0).round(3).tolist(), flush=True)


if __name__ == "__main__":
    main()
