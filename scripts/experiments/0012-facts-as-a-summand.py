"""Do facts help beside the words, as a summand of their own with a learnt temper (model of facts)?

Hardly, and one class after the other it is dangerous. Columns as in 0011:

    summand                       shuffled       by name        first halves   second halves  newer
    none (words)                  0.0500  6.89   0.1295  0.47   0.0224  3.06   0.1355  7.07   0.0016
    naive categories, tau 0       0.0497  6.91   0.0806  0.42   0.0227  3.06   0.1328  7.07   0.0014
    the same, tau 1               0.0482  6.42   0.4558  2.69   0.0239  2.85   0.1264  6.75   0.0012
    averaged (AODE), tau 0        0.0492  6.93   0.0806  0.42   0.0226  3.06   0.1332  7.07   0.0016
    the same, tau 1               0.0475  6.54   0.4559  2.69   0.0228  2.85   0.1254  7.28   0.0016
    shared covariance, tau 0      0.0494  6.82   0.0808  0.37   0.0225  3.06   0.1343  6.96   0.0014
    the same, tau 1               0.0473  6.33   0.5397  2.64   0.0220  3.06   0.1351  6.33   0.0012

Each fact model learns blocks of 100 beside the words; its log-odds over its columns times tau,
which starts as told, is the summand. However good alone (0010), a second model inside the model
buys 5 % at best, costs 0.5 ms and a second store of sums, and drags a model taught one class first
to the wrong side. One fact as a plain feature buys half of that for nothing (0013).
"""

import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
from facts import of_corpus
from lab import Constants, corpus

alone = import_module("0010-facts-alone")
beside = import_module("0011-facts-with-words")


def judged_by(sort, make, numbers, named, spam):
    """The facts' log-odds for each message of an order, over the number of facts."""
    known = {}

    def found(order):
        if tuple(order) not in known:
            X = alone.cases(numbers, named, order)[sort]
            extra = np.zeros(len(spam))
            scores = alone.streamed(make(), X, spam, order)
            extra[order[alone.FIRST :]] = np.clip(scores, -300, 300) / X.shape[1]
            known[tuple(order)] = extra
        return known[tuple(order)]

    return found


def main():
    with tempfile.TemporaryDirectory() as where:
        fresh = beside.both(Path(where))
        words = corpus(Path(where))
        numbers, named = of_corpus(Path(where))
    names = dict.fromkeys(name for name, *_ in beside.streams(words, fresh))
    print(f"{'1-AUC %, missed at 0.1 % of':34s} " + "  ".join(names))
    for name in ("categories, naive", "categories, averaged", "Gaussian, shared covariance"):
        extra = judged_by(*alone.MODELS[name], numbers, named, words.spam)
        for tau in (0.0, 1.0):
            c = Constants(tau_extra=tau)
            beside.show(f"{name}, tau {tau}", words, fresh, c, extra)


if __name__ == "__main__":
    main()
