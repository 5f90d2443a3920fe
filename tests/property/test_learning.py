"""Training is exact in any order, in any batches and after any undo.

The messages are small, so that they share words and a hundred of them take a tenth of a second.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.memory_store import MemoryStore

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.values import Forget, Learn, Source, Undo
from spamnb.errors import RefError, RefusedError
from spamnb.model.events import EventKind, Records
from spamnb.model.training_rows import TrainingRows
from spamnb.store import maintenance as audit
from spamnb.store.codec import encode_event, no_records
from spamnb.store.journal import first_totals

WORDS = ["apple", "pear", "plum", "fig", "lemon", "lime", "quince", "cherry", "melon", "grape"]
DAY_US = 86_400_000_000
NOW = 20_000 * DAY_US
TEACHER = Source(user="ann", channel="test")
PERSON = TEACHER._replace(immediate=True)


def recipe(kind="corrected", labels=("ham", "spam"), *, occurrences=False):
    return replace(new_recipe(kind, labels), key=bytes(range(32)), occurrences=occurrences)


THREE = ("ham", "spam", "list")
RECIPES = {
    "corrected": recipe(),
    "corrected, three labels": recipe(labels=THREE),
    "multinomial": recipe("multinomial"),
    "multinomial, occurrences": recipe("multinomial", occurrences=True),
    "multinomial, three labels": recipe("multinomial", THREE),
    "bernoulli": recipe("bernoulli"),
    "bernoulli, three labels": recipe("bernoulli", THREE),
}


few = settings(max_examples=settings.default.max_examples // 5)
fewer = settings(max_examples=settings.default.max_examples // 10)
"""for histories of 90 trainings"""
each_recipe = pytest.mark.parametrize("made", RECIPES.values(), ids=RECIPES.keys())


GAP = " -" * 130 + " "
"""no word, and as long as a block of text"""


def mail(number, text):
    """A message; in every third numbered one, each word is in a block of its own."""
    if isinstance(number, int) and number % 3 == 0:
        text = text.replace(" ", GAP)
    head = f"From: ann@a.example\nSubject: number {text[:9]}\nMessage-ID: <{number}@a.example>\n"
    return f"{head}\n{text}\n".encode()


def open_memory(made):
    return Filter(MemoryStore(made))


def sums(totals):
    """The totals as plain values; a histogram without its empty end."""
    histogram = [np.trim_zeros(line, "b").tolist() for line in totals.histogram]
    plain = [totals.messages, totals.tokens, totals.bias, totals.temperatures]
    return [*map(np.ndarray.tolist, plain), totals.known, histogram]


def state(model, *, days=True, words=True):
    """Every stored number of a model, and every text."""
    with model.store.read() as view:
        ids, records = audit.collect(view.features(), len(model.labels))
        rows = [ids.tolist(), records.n.tolist(), records.w.tolist()]
        rows += [records.day.tolist()] if days else []
        texts = [tuple(word) for word in view.all_words()] if words else []
        return [*sums(view.totals()), *rows, texts]


def numbers(model):
    """All that taking back restores: days only move forward, and the journal keeps no texts."""
    return state(model, days=False, words=False)


def journal(model):
    with model.store.read() as view:
        return [(event.seq, encode_event(event)) for event in view.events()]


def check(model):
    with model.store.read() as view:
        return audit.check(view)


def anchored(made):
    """A model of one message, which the following trainings do not change."""
    model = open_memory(made)
    model.learn(mail("anchor", "apple pear plum plum"), "ham")
    return model


texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
mails = st.lists(texts, min_size=2, max_size=5).map(
    lambda found: [mail(number, text) for number, text in enumerate(found)]
)
steps = st.lists(
    st.tuples(st.sampled_from(["learn", "correct", "forget", "undo"]), st.integers(0, 40)),
    min_size=1,
    max_size=14,
)


def request(model, raws, step, time_us, undoable):
    """A step as a training; numbers choose the message and its label, or the event to undo."""
    what, number = step
    example = model.example(raws[number % len(raws)])
    if what == "undo":
        return Undo(undoable[number % len(undoable)], TEACHER, time_us)
    if what == "forget":
        return Forget(example.digest, TEACHER, time_us)
    label = number // len(raws) % len(model.labels)
    return Learn(example, label, PERSON if what == "correct" else TEACHER, time_us)


def took(model, one):
    """Teach one training; return its result as plain values."""
    receipt = model.teach([one], scored=True)[0]
    return receipt.as_dict() | {"error": repr(receipt.error)}, receipt


@each_recipe
@few
@given(raws=mails, asked=steps)
def test_no_history_of_trainings_makes_a_model_contradict_its_journal(made, raws, asked):
    """After every training, done or refused, the model is the fold of its journal."""
    model, newest = anchored(made), 1
    for moment, step in enumerate(asked):
        _, receipt = took(model, request(model, raws, step, NOW + moment, range(2, newest + 2)))
        assert isinstance(receipt.error, RefError | RefusedError | None)
        newest += receipt.changed
        assert check(model) == []
        assert len(journal(model)) == newest


@each_recipe
@few
@given(raws=mails, asked=steps, chosen=st.randoms(use_true_random=False))
def test_forgetting_everything_leaves_what_was_there_before(made, raws, asked, chosen):
    """Whatever was done with some messages, forgetting them restores every number."""
    model, newest = anchored(made), 1
    before = state(model, days=False)
    for moment, step in enumerate(asked):
        one = request(model, raws, step, NOW + moment, range(2, newest + 2))
        newest += took(model, one)[1].changed
    with model.store.read() as view:
        lines = {raw: view.live(model.example(raw).digest) for raw in raws}
    live = [raw for raw, line in lines.items() if line and line.label >= 0]
    chosen.shuffle(live)
    for raw in live:
        model.forget(raw)
    assert state(model, days=False) == before
    assert check(model) == []


@each_recipe
@few
@given(raws=mails, asked=steps)
def test_undoing_from_the_newest_passes_through_every_earlier_state(made, raws, asked):
    """Undo, last one first, finds each state exactly as it was, back to where it began."""
    model, stack = anchored(made), []
    states = [numbers(model)]
    for moment, step in enumerate(asked):
        if step[0] == "undo":
            continue
        receipt = took(model, request(model, raws, step, NOW + moment, ()))[1]
        if receipt.changed:
            stack.append(receipt)
            states.append(numbers(model))
    while stack:
        assert numbers(model) == states.pop()
        assert model.undo(stack.pop()).changed
        assert check(model) == []
    assert [numbers(model)] == states


@each_recipe
def test_an_emptied_model_is_a_new_one(made):
    """With the last message forgotten nothing is left, and nothing is contradictory."""
    model = open_memory(made)
    new = state(model)
    model.learn(mail(1, "apple pear"), "ham")
    model.learn(mail(2, "apple plum"), "spam")
    model.forget(mail(1, "apple pear"))
    model.forget(mail(2, "apple plum"))
    assert state(model) == new
    assert check(model) == []


@each_recipe
def test_undo_of_undo_brings_the_training_back(made):
    """An undo is a training event like any other: undone, the state before it is there again."""
    model, raw = open_memory(made), mail(1, "apple pear plum")
    model.learn(mail(2, "plum fig"), "spam")
    receipt = model.learn(raw, "ham")
    model.correct(raw, "spam")
    states = [numbers(model)]
    undo = model.undo(receipt.event + 1)
    for _ in range(3):
        states.append(numbers(model))
        undo = model.undo(undo)
        assert undo.changed
        assert numbers(model) == states[-2]
        assert check(model) == []


@each_recipe
@few
@given(
    raws=mails,
    labels=st.lists(st.integers(0, 1), min_size=5, max_size=5),
    order=st.permutations(range(5)),
)
def test_counts_do_not_ask_for_the_order(made, raws, labels, order):
    """The same messages learnt in any order leave equal counts, totals and histograms."""
    taught = list(zip(raws, labels, strict=False))
    one, other = open_memory(made), open_memory(made)
    for raw, label in taught:
        one.learn(raw, made.labels[label])
    for at in order:
        if at < len(taught):
            other.learn(taught[at][0], made.labels[taught[at][1]])
    with one.store.read() as a, other.store.read() as b:
        ids, records = audit.collect(a.features(), len(made.labels))
        others, counted = audit.collect(b.features(), len(made.labels))
        assert ids.tolist() == others.tolist()
        assert records.n.tolist() == counted.n.tolist()
        assert sums(a.totals())[:2] == sums(b.totals())[:2]
        assert sums(a.totals())[4:] == sums(b.totals())[4:]


def term(model, seed, size=90):
    """Trainings with long streaks of one label, and duplicates, moves and forgets among them."""
    dice, requests, taught = Random(seed), [], []
    labels = [k for k in range(len(model.labels)) for _ in range(3)]
    while len(labels) < size:
        labels += [dice.randrange(len(model.labels))] * dice.randrange(30, 40)
    for number, label in enumerate(labels[:size]):
        roll = dice.random()
        text = " ".join(dice.choices(WORDS, k=dice.randrange(1, 7)))
        if roll < 0.75 or not taught:
            taught.append(model.example(mail(number, text)))
            requests.append(Learn(taught[-1], label, TEACHER, NOW + number))
        elif roll < 0.9:
            user = PERSON if dice.random() < 0.5 else TEACHER
            requests.append(Learn(dice.choice(taught), label, user, NOW + number))
        else:
            requests.append(Forget(dice.choice(taught).digest, TEACHER, NOW + number))
    return requests


@each_recipe
@example(seed=0, cuts=[8])
@fewer
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 90), max_size=3).map(sorted))
def test_a_batch_leaves_what_its_trainings_leave_one_by_one(made, seed, cuts):
    """Batches of any size give the same events, receipts and bytes as single trainings."""
    single, together = open_memory(made), open_memory(made)
    requests = term(single, seed)
    one_by_one = [took(single, request)[0] for request in requests]
    batched = []
    for start, stop in zip([0, *cuts], [*cuts, None], strict=True):
        batched += together.teach(requests[start:stop], scored=True)
    assert journal(together) == journal(single)
    assert state(together) == state(single)
    assert [r.as_dict() | {"error": repr(r.error)} for r in batched] == one_by_one
    assert check(single) == []


def test_a_batch_leaves_the_same_days_when_the_clock_is_set_back():
    """Forgotten and learnt again in one batch, a feature is as old as if one by one."""
    single, together = (open_memory(RECIPES["corrected"]) for _ in range(2))
    example = single.example(mail(1, "apple pear"))
    requests = [
        Learn(example, 0, TEACHER, NOW + 5 * DAY_US),
        Forget(example.digest, TEACHER, NOW + 5 * DAY_US),
        Learn(example, 0, TEACHER, NOW),
    ]
    for one in requests:
        took(single, one)
    together.teach(requests)
    assert state(together) == state(single)
    assert check(together) == []


@each_recipe
@fewer
@given(seed=st.integers(0, 2**32), cut=st.integers(1, 89))
def test_both_stores_hold_the_same(made, seed, cut):
    """A model in memory and one on disk agree on every number, text and event."""
    memory = open_memory(made)
    requests = term(memory, seed)
    with tempfile.TemporaryDirectory() as folder:
        with Filter.open(folder, create=True, recipe=made, history=False) as disk:
            for part in (requests[:cut], requests[cut:]):
                assert [r.as_dict() for r in memory.teach(part, scored=True)] == [
                    r.as_dict() for r in disk.teach(part, scored=True)
                ]
            assert check(disk) == []
        with Filter.open(Path(folder), readonly=True) as disk:
            assert state(disk) == state(memory)
            assert journal(disk) == journal(memory)


def refold(model):
    """Apply the journal's events to empty rows of all features."""
    made = model.recipe
    with model.store.read() as view:
        events = list(view.events())
    sets = [ids for event in events for ids in event.ids]
    sets += [
        ids for event in events for rehearsal in event.delta.rehearsals for ids in rehearsal.ids
    ]
    ids = np.unique(np.concatenate(sets))
    training_rows = TrainingRows(first_totals(made), ids, no_records(len(ids), len(made.labels)))
    for event in events:
        training_rows.apply(event)
    records = training_rows.to_records()
    full = (records.n.any(axis=1)) | (records.w.any(axis=1))
    kept = Records(records.n[full], records.w[full], records.day[full])
    return sums(training_rows.totals), ids[full], kept


@each_recipe
@few
@given(seed=st.integers(0, 2**32))
def test_replaying_the_journal_gives_the_model(made, seed):
    """The events alone, applied from nothing, give every number; no score is asked again."""
    model = open_memory(made)
    model.teach(term(model, seed))
    with model.store.read() as view:
        for event in list(view.events(newest_first=True))[:5]:
            if event.kind != EventKind.FORGET:
                took(model, Undo(event.seq, TEACHER, NOW))
    totals, ids, records = refold(model)
    with model.store.read() as view:
        held_ids, held = audit.collect(view.features(), len(made.labels))
        assert sums(view.totals()) == totals
    assert held_ids.tolist() == ids.tolist()
    assert held.n.tolist() == records.n.tolist()
    assert held.w.tolist() == records.w.tolist()
