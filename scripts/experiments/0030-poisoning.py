"""What can an attacker do who controls 1 % of the training mail, and does taking it back help?

Three attacks, each of 45 messages called spam among 4,546 (SpamAssassin corpus, seed 7), judged on
the 1,500 that were held out: the dictionary attack of Nelson et al. (2008), all common words of
good mail in each message; short notes of a hundred common words, for short messages take longer
steps; and good mail of others once more with a header added: wrong labels, all on one side.

    attack, guard                ham judged spam   spam missed   1-AUC
    none (the clean model)            0.47 %          0.46 %     0.0076 %
    dictionaries, no guard            0.47 %          0.46 %     0.0074 %
    dictionaries, doubt               0.47 %          0.46 %     0.0071 %
    short notes, no guard             0.47 %          0.46 %     0.0076 %
    short notes, doubt                0.47 %          0.46 %     0.0069 %
    good mail again, no guard         0.47 %          0.46 %     0.0052 %
    good mail again, doubt            0.47 %          0.46 %     0.0058 %
    good mail again, weight 0.3, 0    0.47 %          0.46 %     0.0056 %
    any, undone                       0.00 %     2.5 - 2.8 %     0.007 - 0.009 %
    any, relearnt without             the clean model, every stored number

So at 1 % no attack costs good mail: evidence is averaged over a message's features, and a step is
spread over the root of their number; guards have nothing left to save here (they do at 5 % of
wrong labels: experiment 0002). Undoing restores every count, but not the steps that others took
against the attacker while he was there: those lean to ham and miss more spam. So after an attack,
`relearn --without` is the cure, and `undo` the first aid.
"""

import os
import random
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from lab import folder

from spamnb.core.costs import Costs
from spamnb.core.measures import auc
from spamnb.core.message import read
from spamnb.core.tokens import fields
from spamnb.service.filter import Filter, new_recipe
from spamnb.service.lessons import Origin, Teach
from spamnb.service.selection import Without
from spamnb.service.timemachine import relearn, take_back, undoable
from spamnb.store.audit import collect
from spamnb.store.maintenance import backup, restore

HELD_OUT = 1500
SHARE = 0.01
WORDS = 5000
BOB, MALLORY = Origin("bob", "imap"), Origin("mallory", "imap")
MALLORYS = Without(("mallory",))
GUARDS = {
    "no guard": Origin("mallory", "imap", insist=True),
    "doubt": MALLORY,
    "weight 0.3": Origin("mallory", "imap", 0.3),
    "weight 0": Origin("mallory", "imap", 0.0),
}


def common_words(files):
    """The most common words of good mail, as an attacker knows them."""
    found = Counter()
    for file in files:
        if file.parent.name == "ham":
            for _, _, text in fields(read(file.read_bytes())):
                found.update(set(text.decode("utf-8", "replace").lower().split()))
    return [word for word, _ in found.most_common(2 * WORDS) if word.isalpha()][:WORDS]


def written(number, words):
    head = f"From: a{number}@x.test\nMessage-ID: <{number}@x.test>\nSubject: {words[0]}"
    return f"{head}\n\n{' '.join(words)}\n".encode()


def dictionaries(taught, count, dice):
    """All the common words in each message."""
    words = common_words(taught)
    return [written(n, dice.sample(words, len(words))) for n in range(count)]


def notes(taught, count, dice):
    """A hundred of the thousand most common words in each: short messages take long steps."""
    words = common_words(taught)[:1000]
    return [written(n, dice.sample(words, 100)) for n in range(count)]


def copies(taught, count, dice):
    """Good mail of others once more, with a header added: wrong labels, all on one side."""
    good = [file.read_bytes() for file in taught if file.parent.name == "ham"]
    return [b"X-Copy: %d\n" % number + raw for number, raw in enumerate(dice.sample(good, count))]


ATTACKS = {"dictionaries": dictionaries, "short notes": notes, "good mail again": copies}


def lessons(model, files, attacks, origin):
    """All files in order, the attacks at random places among them."""
    dice = random.Random(2)
    mixed = [(file.read_bytes(), file.parent.name, BOB) for file in files]
    for raw in attacks:
        mixed.insert(dice.randrange(len(mixed)), (raw, "spam", origin))
    for moment, (raw, label, who) in enumerate(mixed):
        yield Teach(model.example(raw), model.label(label), who, moment)


def trained(home, recipe, files, attacks=(), origin=MALLORY):
    with Filter.open(home, create=True, recipe=recipe, history=False) as model:
        some = []
        for lesson in lessons(model, files, attacks, origin):
            some.append(lesson)
            if len(some) == 512:
                model.teach(some)
                some = []
        model.teach(some)


def judged(home, tested):
    with Filter.open(home, readonly=True, history=False) as model:
        verdicts = list(model.score_many(file.read_bytes() for file in tested))
    spam = np.array([file.parent.name == "spam" for file in tested])
    P = np.array([v.probability for v in verdicts])
    kept = np.array([v.decision == "deliver" for v in verdicts])
    away = np.array([v.decision in ("junk", "reject") for v in verdicts])
    area = auc(spam, np.array([v.log_odds for v in verdicts]))
    return (
        f"ham judged spam {(P[~spam] > 0.5).mean():6.2%}  filed as junk {away[~spam].mean():6.2%}"
        f"  not delivered {(~kept)[~spam].mean():6.2%}  spam missed {(P[spam] <= 0.5).mean():6.2%}"
        f"  1-AUC {1 - area:.4%}"
    )


def numbers(home):
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        ids, records = collect(view.features(), 2)
        held = records.n.any(axis=1)
        totals = view.totals()
        sums = totals.messages.tolist(), totals.tokens.tolist(), totals.known
        counts = ids[held].tobytes(), records.n[held].tobytes(), *sums
        w = ids.tobytes(), records.w.tobytes(), totals.bias.tolist(), totals.tempers.tolist()
        return counts, w


def taken_back(home, other, tested, clean):
    """Both ways back: one model undone, a copy of it relearnt."""
    backup(home, other.with_suffix(".copy"))
    restore(other.with_suffix(".copy"), other)
    with Filter.open(home, history=False) as model:
        with model.store.read() as view:
            found = undoable(view, model.recipe, MALLORYS)
        take_back(model, found.events, BOB)
    same = "counts as clean" if numbers(home)[0] == clean[0] else "COUNTS DIFFER"
    print("   undone".ljust(34), judged(home, tested), same, flush=True)
    relearn(other, MALLORYS, Costs())
    same = "all as clean" if numbers(other) == clean else "NUMBERS DIFFER"
    print("   relearnt without".ljust(34), judged(other, tested), same, flush=True)


def main(work):
    files = sorted(folder().glob("*/*"), key=lambda f: (f.name, f.parent.name))
    random.Random(7).shuffle(files)
    taught, tested = files[:-HELD_OUT], files[-HELD_OUT:]
    recipe, count = new_recipe(), round(len(taught) * SHARE)
    print(f"{len(taught)} taught, {count} attacks", flush=True)
    trained(work / "clean", recipe, taught)
    print("clean".ljust(34), judged(work / "clean", tested), flush=True)
    clean = numbers(work / "clean")
    for what, attack in ATTACKS.items():
        attacks = attack(taught, count, random.Random(1))
        for number, (name, origin) in enumerate(GUARDS.items()):
            home = work / f"{what}{number}"
            trained(home, recipe, taught, attacks, origin)
            print(f"{what}, {name}".ljust(34), judged(home, tested), flush=True)
            if number == 0:
                taken_back(home, work / f"{what}-again", tested, clean)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        main(Path(work))
