"""What do the shared budget and the credit of users cost honest users?

A site has learnt 4,546 messages of one corpus; then the mail of another corpus arrives, which its
model often judges wrongly. Several users correct every mistake of the filter, in turn; the last 500
messages are only scored.

    PYTHONPATH=scripts/bench python 0067-honest-users.py OLD_CORPUS NEW_CORPUS USERS SEED [--old]

`--old` is the budget of each user and day alone (record 0030). Results: record 0067.
"""

import argparse
import random
from pathlib import Path

import numpy as np
from labelled_mail import messages

from spamnb.engine import learner, planner
from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.scoring import score_examples
from spamnb.engine.values import Learn, Source
from spamnb.lab.statistics import auc
from spamnb.model.correction import matches_label
from spamnb.model.costs import Costs, roles_of
from spamnb.store.model_store import temporary_store

LABELS = ("ham", "spam")
DAY_US = 86_400_000_000
NOW_US = 20_000 * DAY_US
PER_DAY, HELD_OUT, TRAINED = 100, 500, 4546


def shuffled(corpus: Path, seed: int) -> list[tuple[bytes, str]]:
    """Return the messages of a corpus in random order."""
    rows = messages(corpus)
    random.Random(seed).shuffle(rows)
    return rows


def main() -> None:
    """Let honest users correct mistakes; print how the rest is judged."""
    options = argparse.ArgumentParser()
    options.add_argument("old_corpus", type=Path)
    options.add_argument("new_corpus", type=Path)
    options.add_argument("users", type=int)
    options.add_argument("seed", type=int)
    options.add_argument("--old", action="store_true")
    given = options.parse_args()
    if given.old:
        learner.SHARED_STEPS = learner.CREDIT_STEPS = 1e9
        planner.moved = lambda _, *, agrees: planner.MOST  # noqa: ARG005
    recipe = new_recipe()
    model, roles = Filter(temporary_store(recipe)), roles_of(recipe.labels)
    learnt = shuffled(given.old_corpus, given.seed)[:TRAINED]
    for start in range(0, len(learnt), 256):
        model.teach([
            Learn(model.example(raw), LABELS.index(label), Source("others"), NOW_US - 30 * DAY_US)
            for raw, label in learnt[start : start + 256]
        ])  # fmt: skip
    rows = shuffled(given.new_corpus, given.seed)
    odds, decisions, needed = [], [], 0
    for number, (raw, label) in enumerate(rows):
        example = model.example(raw)
        with model.store.read() as view:
            score = score_examples(recipe, Costs(), view, [example])[0]
        odds.append(score.z[1] - score.z[0])
        decisions.append(score.decision)
        truth = LABELS.index(label)
        if number >= len(rows) - HELD_OUT or matches_label(list(score.z), truth, Costs(), roles):
            continue
        name = f"user{needed % given.users}"
        source = Source(name, "imap", immediate=True, owner=model.owner(name))
        moment = NOW_US + number * DAY_US // PER_DAY
        model.teach([Learn(example, truth, source, moment, again=True)])
        needed += 1
    spam = np.array([label == "spam" for _, label in rows])
    held, decided = slice(-HELD_OUT, None), np.array(decisions)[-HELD_OUT:]
    filed = int(np.isin(decided, ("junk", "reject"))[spam[held]].sum())
    lost = int((decided[~spam[held]] != "deliver").sum())
    print(
        f"corrections {needed}; of the last {HELD_OUT}: spam filed {filed} of {spam[held].sum()},"
        f" ham not delivered {lost}; 1-AUC {100 * (1 - auc(spam, np.array(odds))):.4f} %,"
        f" of the last {100 * (1 - auc(spam[held], np.array(odds)[held])):.4f} %"
    )


if __name__ == "__main__":
    main()
