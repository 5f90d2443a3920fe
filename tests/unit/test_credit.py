"""A user whose labels others contradict loses weight; one whose labels are confirmed gains some."""

from random import Random

import numpy as np
import pytest
from support.memory_store import MemoryStore
from support.stores import copied

from spamnb.engine import planner
from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.learner import DAY_US
from spamnb.engine.values import Learn, Source
from spamnb.model.events import BIAS_ONE

NOW = 20_000 * DAY_US
RECIPE = new_recipe()
HAM, SPAM = 0, 1
WORDS = [[f"{name}{n}" for n in range(80)] for name in ("minutes", "pills")]
ANN = Source("ann", "imap", immediate=True, owner=99)
MALLORY = Source("mallory", "imap", immediate=True, owner=100)
ROOT = Source("root", immediate=True)


def mail(name, kind):
    """A message of 40 words that others know as ham or spam."""
    text = " ".join(Random(name).sample(WORDS[kind], 40))
    return f"From: a@x.test\nMessage-ID: <{name}@x.test>\n\n{text}\n".encode()


@pytest.fixture(scope="module")
def grown_once():
    """600 messages of others."""
    model = Filter(MemoryStore(RECIPE))
    raws = [mail(f"o{n}", n % 2) for n in range(600)]
    model.teach([
        Learn(model.example(raw), n % 2, Source("others"), 1) for n, raw in enumerate(raws)
    ])  # fmt: skip
    return model.store


@pytest.fixture
def model(grown_once):
    return Filter(copied(grown_once))


def label(model, raw, label, source, at=NOW):
    """Label a message; return the event."""
    receipt = model.teach([Learn(model.example(raw), label, source, at, again=True)])[0]
    with model.store.read() as view:
        return view.event(receipt.event)


def moved(event):
    """How far an event moves the bias, in full steps."""
    return np.abs(event.delta.bias).max() / (RECIPE.rate_bias / 2 * BIAS_ONE)


def test_a_user_that_the_model_contradicts_loses_credit(model):
    """Labels against words that others have trained are contradicted by the rest of the model."""
    found = [
        label(model, mail(f"a{n}", HAM), SPAM, MALLORY, NOW + n * DAY_US).credit for n in range(6)
    ]
    assert found == [0, -2, -4, -6, -8, -8]


def test_a_user_that_the_model_confirms_gains_credit(model):
    """Labels that the rest of the model gives as well are confirmed."""
    found = [label(model, mail(f"a{n}", n % 2), n % 2, ANN, NOW + n).credit for n in range(10)]
    assert found == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_an_administrators_label_is_asked_before_the_model(model):
    """Labels that an administrator contradicts cost credit, whatever the model says."""
    for number in range(6):
        raw = mail(f"a{number}", SPAM)
        event = label(model, raw, SPAM, MALLORY, NOW + 2 * number)
        label(model, raw, HAM, ROOT, NOW + 2 * number + 1)
    assert event.credit == -planner.MOST


@pytest.mark.parametrize("theirs", [HAM, SPAM])
def test_new_accounts_neither_confirm_nor_contradict(model, theirs):
    """Accounts without credit that repeat or contradict a label change the credit of no user."""
    raw = mail("m", SPAM)
    label(model, raw, SPAM, ANN)
    for number in range(5):
        label(model, raw, theirs, Source(f"u{number}", "imap", immediate=True, owner=200 + number))
    assert label(model, mail("next", HAM), HAM, ANN).credit == 0


def test_users_with_credit_contradict(model):
    """A label of a user with credit counts before the model's opinion."""
    for number in range(5):
        label(model, mail(f"a{number}", number % 2), number % 2, ANN, NOW + number)
    raw = mail("m", SPAM)
    label(model, raw, SPAM, MALLORY)
    label(model, raw, HAM, ANN)
    assert label(model, mail("next", HAM), HAM, MALLORY).credit == -planner.WRONG


def test_a_user_with_credit_has_a_budget_when_the_shared_one_is_used_up(model):
    """New accounts cannot use up the budget of users with credit."""
    for number in range(10):
        label(model, mail(f"a{number}", number % 2), number % 2, ANN, NOW + number)
    for number in range(60):
        source = Source(f"u{number}", "imap", immediate=True, owner=200 + number)
        label(model, mail(f"w{number}", number % 2), 1 - number % 2, source)
    found = []
    for source in (ANN, MALLORY):
        again = Filter(copied(model.store))
        found.append(moved(label(again, mail("z", HAM), SPAM, source, NOW + 100)))
    assert found[0] > 3 * found[1]


def test_the_corrected_message_gets_its_label_without_any_credit(model):
    """A person's correction works at once, also for a user that was always contradicted."""
    for number in range(8):
        raw = mail(f"a{number}", HAM)
        label(model, raw, SPAM, MALLORY, NOW + number)
        assert model.score(raw, remember=False).label == "spam"
