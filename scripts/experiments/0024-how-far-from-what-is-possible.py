"""How much better could anybody be? What do nearest neighbours say, and can they be believed?

By the scores yes, by the words hardly. The last messages of each stream (`streams`), errors in %:
ours; the least by our scores alone (Cover and Hart, 95 % sure); of whoever takes the label of the
message with the most alike words, among 500, 1,000, 2,000, 4,000; and the bound that would follow:

    stream          ours    by scores at least   by words: 500  1,000  2,000  4,000   "at least"
    shuffled        0.50    0.30                 2.6    2.6    1.5    1.1             0.4
    halves          0.15    0.02                 1.6    1.4    1.0                    0.2
    few spam        0.95    0.39                               0.9    0.7             0.2
    few ham         1.20    0.38                 5.4    2.7    1.7                    0.5
    newer spam      0.10    0.00                        0.1                           0.0
    generated       0.65    0.28                 7.8    7.4    6.1                    2.5
    wrong labels    0.75    0.50                 2.6    2.6    1.5    1.1             0.4
    errors only     0.50    0.24                 2.6    2.6    1.5    1.1             0.4

Neighbours in words are far: their error halves as the sample grows eightfold and goes on falling,
so it is not the large sample's error that the bound is about. On generated mail the bound would
say that nobody can do what we do, by a factor of four. So it is told only where neighbours judge
better than we do (few spam, where it says that there is something left to learn: 0.65 % against our
0.95 %); else our own error is the tightest bound that is known. By the scores the bound holds (one
dimension, and it agrees with scores that are calibrated): about half of our errors cannot be
mended by another threshold or another calibration, only by other scores.
"""

from dataclasses import asdict

import numpy as np
from streams import streams

from spamnb.lab.statistics.bayes_error import possible


def main() -> None:
    seen: set[str] = set()
    for stream in streams():
        if stream.name in seen or stream.name == "begun":
            continue
        seen.add(stream.name)
        truth, odds = stream.judged()
        ids = [stream.samples.items[i].ids for i in stream.order[stream.start :]]
        for size in (500, 1000, 2000, 4000):
            found = possible(truth[-size:], odds[-size:], ids[-size:])
            if size > len(truth) or found is None:
                continue
            told = "  ".join(
                f"{name} {value if value is None else np.round(value, 2)}"
                for name, value in asdict(found).items()
            )
            print(f"{stream.name:14s} {told}", flush=True)


if __name__ == "__main__":
    main()
