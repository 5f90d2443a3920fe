"""A correction takes effect immediately, for any message and model, and moves little else."""

from random import Random

import numpy as np
import pytest
from support.memory_store import MemoryStore
from test_learning import NOW, WORDS, recipe

from spamnb.engine.filter import Filter
from spamnb.engine.values import Learn, Source
from spamnb.model.correction import EXPECTED, RARE_MESSAGES
from spamnb.model.costs import roles_of
from spamnb.model.features import Key, digest_id
from spamnb.store import maintenance as audit

LABELS = (("ham", "spam"), ("ham", "spam", "list"), ("a", "spam", "b", "c", "d"))
MODELS, MESSAGES = 40, 25
"""a thousand corrections"""


def written(dice, number):
    """Messages of many kinds: long and short, of common words, without any, of headers alone."""
    kind = dice.randrange(7)
    words = dice.choices(WORDS, k=dice.choice((1, 2, 8, 40)))
    head = f"From: a{number % 3}@x.test\nSubject: {dice.choice(WORDS)}\n"
    if kind == 0:
        return f"{number * ' '}.\n".encode()
    if kind == 1:
        return f"\n{' '.join(words)} {number * '.'}\n".encode()
    if kind == 2:
        return f"{head}X-Only: {number}\n\n".encode()
    if kind == 3:
        many = [f"w{dice.randrange(10**6)}" for _ in range(dice.choice((3, 300, 2000)))]
        return f"{head}\n{' '.join(many)}\n".encode()
    return f"{head}\n{' '.join(words)} {number if kind == 4 else ''}\n".encode()


def trained(dice, labels):
    """A random model: nearly empty, one-sided or sure of itself."""
    model = Filter(MemoryStore(recipe(labels=labels)))
    requests = []
    for number in range(dice.choice((0, 1, 30, 200))):
        label = dice.randrange(len(labels)) if dice.random() < 0.7 else 0
        some = WORDS[label * 2 : label * 2 + 3] if dice.random() < 0.9 else WORDS
        raw = f"From: a{number % 3}@x.test\n\n{' '.join(dice.choices(some, k=6))} {number}\n"
        requests.append(Learn(model.example(raw.encode()), label, Source("others"), NOW + number))
    model.teach(requests)
    return model


@pytest.mark.parametrize("labels", LABELS, ids=len)
def test_a_corrected_message_gets_the_label_of_the_correction(labels):
    """Verdict and decision fit the label, for a thousand random messages, models and labels."""
    roles = dict(zip(labels, roles_of(labels), strict=True))
    dice = Random(len(labels))
    for _ in range(MODELS // len(LABELS) + 1):
        model, raws = trained(dice, labels), []
        for number in range(MESSAGES):
            again = raws and dice.random() < 0.3
            raws.append(dice.choice(raws) if again else written(dice, number))
            label = dice.choice(labels)
            model.correct(raws[-1], label, source=Source(dice.choice(("ann", "bob")), "imap"))
            verdict = model.score(raws[-1])
            assert verdict.label == label
            assert verdict.decision in EXPECTED[roles[label]]
            known = sum(clue.nats for clue in verdict.clues()) + verdict.bias
            assert known == pytest.approx(verdict.log_odds, abs=1e-6)
        with model.store.read() as view:
            assert audit.check(view) == []


def test_an_immediate_correction_moves_no_common_feature():
    """The steps beyond the plain one lie on the message's own feature and on rare ones alone."""
    dice = Random(5)
    for _ in range(8):
        model = trained(dice, ("ham", "spam"))
        for number in range(MESSAGES):
            raw = written(dice, number)
            model.correct(raw, dice.choice(("ham", "spam")), source=Source("ann", "imap"))
            with model.store.read() as view:
                event = view.event(view.totals().last_seq)
                own = digest_id(Key(model.recipe.key), event.digest)
                touched = np.concatenate([np.zeros(0, np.uint64), *(
                    part for rehearsal in event.delta.rehearsals for part in rehearsal.ids
                )])  # fmt: skip
                held = view.gather(np.unique(touched)).n.sum(axis=1)
            assert ((held <= RARE_MESSAGES) | (np.unique(touched) == own)).all()


def test_a_message_of_common_words_moves_its_own_feature():
    """A correction of a message of common words holds, and other mail with them stays."""
    model = Filter(MemoryStore(recipe()))
    mail = [f"From: a@x.test\n\n{' '.join(WORDS)} {n % 7} {n}\n".encode() for n in range(600)]
    for number, raw in enumerate(mail):
        model.learn(raw, "ham")
        model.learn(b"From: b@y.test\n\nbuy cheap pills %d\n" % number, "spam")
    for number in range(20):
        raw = f"From: a@x.test\n\n{' '.join(WORDS[: 1 + number % 8])}\n{'.' * number}\n".encode()
        for label in ("spam", "ham", "spam"):
            model.correct(raw, label, source=Source("mallory", "imap"))
            assert model.score(raw, remember=False).decision in EXPECTED[label]
    assert {model.score(raw, remember=False).decision for raw in mail} == {"deliver"}
