"""How many ham of a new kind are filed, and what does it cost to spare them?

A changed world: the mail of the streams before `then` comes first, then 120 messages of the others.
An ordinary stream has no `then`. Each line is one order: what is filed of the first 50 and of the
next 70 of the later messages, and of the ordinary stream. `--bars` are LOW, DOUBLING, NATS and MOST
of `model/verdict.py`; MOST 0 is a filter without novelty. The record has the figures.

    python scripts/experiments/0076-new-kinds.py --bars 0.35,0.05,25,0 0.35,0.05,25,6 -- \
        lists=FOLDER then shops=FOLDER
"""

import argparse
import random
import sys
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "scripts" / "bench")]

from labelled_mail import clean, files

from spamnb.lab.decisions import Site, play
from spamnb.lab.runs import Options, Samples, read_samples
from spamnb.model import verdict

PARTS = (0, 50, 120)
NAMES = ("LOW", "DOUBLING", "NATS", "MOST")


def read(streams):
    """Return the samples of some folders."""
    rows = [row for one in streams for row in files(Path(one.partition("=")[2]))]
    return read_samples([(clean(path.read_bytes()), label) for path, label in rows], Options())


def shuffled(samples, seed):
    """Return the samples in one of many orders."""
    order = list(range(len(samples.items)))
    random.Random(seed).shuffle(order)
    return Samples([samples.items[i] for i in order], samples.truth[order])


def counted(first, later, site):
    """Return ham and spam filed after each part of the later messages."""
    found = []
    for count in PARTS if later else (0,):
        rest = later.items[:count] if later else []
        truth = np.concatenate((first.truth, later.truth[:count])) if later else first.truth
        one = play(Samples(first.items + rest, truth), Options(), site)
        found.append((one.ham_filed, one.spam_filed))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bars", nargs="+", default=["0.35,0.05,25,6"])
    parser.add_argument("streams", nargs="+")
    given = parser.parse_args()
    at = given.streams.index("then") if "then" in given.streams else len(given.streams)
    first, then = read(given.streams[:at]), given.streams[at + 1 :]
    later = read(then) if then else None
    for bar in given.bars:
        for name, value in zip(NAMES, map(float, bar.split(",")), strict=True):
            setattr(verdict, name, value)
        for teaching in ("errors", "full"):
            for seed in (1, 2):
                rest = shuffled(later, seed) if later else None
                found = counted(shuffled(first, seed), rest, Site(teaching=teaching))
                text = f"ham {found[0][0]} spam {found[0][1]} of {int((first.truth == 1).sum())}"
                for (ham, spam), (more_ham, more_spam), upto in zip(
                    found, found[1:], PARTS[1:], strict=False
                ):
                    text += f"; to {upto}: ham {more_ham - ham} spam {more_spam - spam}"
                print(f"{bar} {teaching:6} {seed}: {text}", flush=True)


if __name__ == "__main__":
    main()
