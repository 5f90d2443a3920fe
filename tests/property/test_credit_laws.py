"""The credit of users is part of each event: the same in any batch, and after relearn and undo."""

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.memory_store import MemoryStore
from test_learning import numbers

from spamnb.engine import planner
from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.values import Learn, Source, Undo
from spamnb.maintenance.rewind import relearn
from spamnb.model.costs import Costs
from spamnb.store.codec import decode_event, encode_event
from spamnb.store.model_store import open_store

WORDS = ["apple", "pear", "plum", "fig", "lemon", "lime", "quince", "cherry", "melon", "grape"]
NOW, HOUR_US = 20_000 * 86_400_000_000, 3_600_000_000
RECIPE = replace(new_recipe(), key=bytes(range(32)))
SOURCES = (
    Source("root", immediate=True),
    Source("ann", "imap", immediate=True, owner=11),
    Source("bob", "imap", immediate=True, owner=22),
)
LABELS = st.lists(
    st.tuples(st.sampled_from(SOURCES), st.integers(0, 9), st.integers(0, 1), st.booleans()),
    min_size=1,
    max_size=30,
)
EXAMPLES = settings(max_examples=max(settings.default.max_examples // 4, 5))


def mail(number):
    text = " ".join(WORDS[number % 3 :: number % 2 + 1])
    return f"From: ann@a.example\nMessage-ID: <{number}@a.example>\n\n{text} {number}\n".encode()


def requests_of(model, labels):
    """Each label, one hour after the last one."""
    return [
        Learn(model.example(mail(number)), label, source, NOW + at * HOUR_US)
        for at, (source, number, label, _) in enumerate(labels)
    ]


def events_of(model):
    """The stored form of each event."""
    with model.store.read() as view:
        return [encode_event(event) for event in view.events()]


def taught(store, labels):
    """A model of these labels, one by one."""
    model = Filter(store)
    for request in requests_of(model, labels):
        model.teach([request])
    return model


@EXAMPLES
@given(LABELS)
def test_batches_give_the_credit_of_single_labels(labels):
    """However the labels are put together, every event has the same bytes."""
    batched, batch = Filter(MemoryStore(RECIPE)), []
    for request, (*_, ends) in zip(requests_of(batched, labels), labels, strict=True):
        batch.append(request)
        if ends:
            batched.teach(batch)
            batch = []
    batched.teach(batch)
    assert events_of(batched) == events_of(taught(MemoryStore(RECIPE), labels))


@EXAMPLES
@given(LABELS)
def test_undo_restores_every_number(labels):
    """Undoing every event, the newest first, leaves nothing."""
    model = Filter(MemoryStore(RECIPE))
    before = numbers(model)
    requests = requests_of(model, labels)
    receipts = [model.teach([request])[0] for request in requests]
    for receipt in reversed([one for one in receipts if one.changed]):
        assert model.teach([Undo(receipt.event, Source(), NOW)])[0].changed
    assert numbers(model) == before


@EXAMPLES
@given(LABELS)
def test_relearning_gives_the_same_credit(labels):
    """A model that is learnt again from its journal has the same events, and so the same credit."""
    # A model learnt again has one event for each label in force, so every label is given once.
    first = {(source.user, number): one for one in labels for source, number, *_ in [one]}
    labels = list(first.values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model = taught(open_store(path, create=RECIPE), labels)
        before = events_of(model)
        model.close()
        relearn(path, lambda _: False, Costs())
        again = Filter(open_store(path))
        assert events_of(again) == before
        again.close()


@given(st.lists(st.sampled_from([True, False, None])))
def test_credit_has_limits(checks):
    """Credit is a small integer in any order of checks, and so is kept exactly in an event."""
    found = 0
    for agrees in checks:
        found = planner.moved(found, agrees=agrees)
        assert -planner.MOST <= found <= planner.MOST
        assert 0 < planner.weight(found) <= 1
    model = taught(MemoryStore(RECIPE), [(SOURCES[1], 0, 1, True)])
    with model.store.read() as view:
        event = next(iter(view.events()))._replace(credit=found)
    assert decode_event(event.seq, encode_event(event)).credit == found
