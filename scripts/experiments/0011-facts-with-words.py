"""Do facts help beside the words, as features: each fact in its bin one more feature?

A little, and not in every stream. 1-AUC %, and spam missed in % at 0.1 % of ham lost:

    features             shuffled       by name        first halves   second halves  newer spam
    words                0.0500  6.89   0.1295  0.47   0.0224  3.06   0.1355  7.07   0.0016  0.74
    facts, 4 bins        0.0453  6.96   0.1368  0.37   0.0222  2.85   0.1154  6.75   0.0017  0.74
    facts, 8 bins        0.0456  7.49   0.1423  0.37   0.0222  2.95   0.1150  6.86   0.0019  0.74
    facts, 16 bins       0.0454  6.77   0.1435  0.37   0.0218  2.95   0.1150  6.75   0.0017  0.49
    facts, third group   0.0537  8.93   0.1991  0.69   0.0325  2.74   0.1172  8.23   0.0028  0.49

(Streams: seeds 7, 8, 9; all ham before all spam; each half of both sorts, shuffled; the last third
of the ham with 204 spam of 2023 to 2025 after 4,000 messages of 2002. Bins are cut on everything,
so the facts are flattered.) A group of their own is worse than among what tells how a message was
sent. Which of them it is worth to keep is the question of 0013.
"""

import random
import tempfile
from pathlib import Path

import numpy as np
from facts import CATEGORIES, NUMBERS, of_corpus
from lab import Constants, Corpus, corpus, folder, online

from spamnb.bayes import cut
from spamnb.lab.statistics.metrics import auc, missed_at


def with_facts(words: Corpus, facts, *, bins: int, group: int = 1) -> Corpus:
    """The same messages, with each fact in its bin as one more feature."""
    numbers, named = facts
    columns = list(zip(*numbers, strict=True))
    values = []
    for name, column in zip(NUMBERS, columns, strict=True):
        seen = np.array([v for v in column if v is not None])
        edges = cut(seen, np.ones(len(seen)), bins, "quantile")
        values.append([f"{name} {'-' if v is None else np.searchsorted(edges, v)}" for v in column])
    for name, column in zip(CATEGORIES, zip(*named, strict=True), strict=True):
        values.append([f"{name} {v}" for v in column])
    known, rows = np.unique(np.array(values).T, return_inverse=True)
    return extended(words, known, rows.reshape(len(words), -1), group)


def extended(words: Corpus, known, rows, group: int) -> Corpus:
    """The same messages with as many more features each, in a group."""
    rows = rows + len(words.group)
    parts = [
        np.concatenate((words.rows[words.offsets[i] : words.offsets[i + 1]], rows[i]))
        for i in range(len(words))
    ]
    return Corpus(
        rows=np.concatenate(parts),
        offsets=np.concatenate(([0], np.cumsum([len(part) for part in parts]))),
        group=np.concatenate((words.group, np.full(len(known), group))),
        place=np.concatenate((words.place, np.full(len(known), 17))),
        exact=np.concatenate((words.exact, np.zeros(len(known), bool))),
        spam=words.spam,
    )


def streams(mail: Corpus, fresh: int):
    """Orders, and from where on they are judged. The last `fresh` messages are the newer spam."""
    old = len(mail) - fresh
    for seed in (7, 8, 9):
        order = list(range(old))
        random.Random(seed).shuffle(order)
        yield "shuffled", order, 0
    yield "by name", list(range(old)), 0
    sorts = [np.flatnonzero(mail.spam[:old] == label).tolist() for label in (False, True)]
    for name, half in (("first halves", 0), ("second halves", 1)):
        order = [i for of in sorts for i in of[half * len(of) // 2 : (half + 1) * len(of) // 2]]
        random.Random(1).shuffle(order)
        yield name, order, 0
    for seed in (7, 8):
        order = list(range(old))
        random.Random(seed).shuffle(order)
        later = [i for i in order[4000:] if not mail.spam[i]] + list(range(old, len(mail)))
        random.Random(seed).shuffle(later)
        yield "newer spam", order[:4000] + later, 4000


def show(name, mail, fresh, c=None, beside=None):
    found = {}
    for stream, order, start in streams(mail, fresh):
        extra = beside(order) if beside else None
        scores = online(mail, order, c or Constants(), extra)
        judged = order[start:]
        truth, said = mail.spam[judged], scores[judged]
        found.setdefault(stream, []).append(
            (100 * (1 - auc(truth, said)), missed_at(truth, said, 0.1))
        )
    line = "  ".join("{:.4f} {:5.2f}".format(*np.mean(rows, axis=0)) for rows in found.values())
    print(f"{name:34s} {line}", flush=True)


def both(place: Path) -> int:
    """Link the corpus, and newer spam after it if it lies beside it; how many of the latter."""
    newer = sorted((folder().parent / "glitchy").glob("spam/*"))
    for label in ("ham", "spam"):
        (place / label).mkdir()
        for file in (folder() / label).iterdir():
            (place / label / file.name).symlink_to(file)
    for file in newer:
        (place / "spam" / f"zz-{file.name}").symlink_to(file)
    return len(newer)


def main() -> None:
    with tempfile.TemporaryDirectory() as where:
        fresh = both(Path(where))
        words = corpus(Path(where))
        facts = of_corpus(Path(where))
    print(
        f"{'1-AUC %, missed at 0.1 % of':34s} "
        + "  ".join(dict.fromkeys(name for name, *_ in streams(words, fresh)))
    )
    show("words (default)", words, fresh)
    for bins in (4, 8, 16):
        show(f"facts in group 1, {bins} bins", with_facts(words, facts, bins=bins), fresh)
    show("facts a third group, 8 bins", with_facts(words, facts, bins=8, group=2), fresh)


if __name__ == "__main__":
    main()
