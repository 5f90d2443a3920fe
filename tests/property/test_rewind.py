"""Rewind, relearn and undo leave the model that direct training would have made."""

import tempfile
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.stores import picture
from test_learning import NOW, WORDS, each_recipe, mail, open_memory

from spamnb.engine.event_filter import EventFilter
from spamnb.engine.filter import Filter
from spamnb.engine.scoring import score_examples
from spamnb.engine.values import BulkLoad, Forget, Learn, Source, Undo
from spamnb.maintenance.attribution import bisect
from spamnb.maintenance.rewind import relearn, rewind, undoable
from spamnb.model.costs import Costs
from spamnb.model.events import BulkChange, EventKind, Recipe
from spamnb.store import maintenance as audit
from spamnb.store.maintenance import Change, rebuild, replay

few = settings(max_examples=settings.default.max_examples // 10)
PEOPLE = ("ann", "bob", "mallory")
seeds = st.integers(0, 2**32)
NOBODY = EventFilter(user=("nobody",))
MALLORY = EventFilter(user=("mallory",))


@contextmanager
def folder():
    with tempfile.TemporaryDirectory() as where:
        yield Path(where) / "model"


def opened(home, made=None):
    return Filter.open(home, create=made is not None, recipe=made, history=False)


def teach(model, seed, size=40, *, only=None, undo=True):
    """Teach labels of three users, one by one, in streaks; with `only`, the ones of these numbers.

    A label does not depend on the results of earlier ones. Yields the number and the user of each
    label that changed the model.
    """
    dice, taught = Random(seed), []
    labels = range(len(model.labels))
    streak = dice.randrange(len(labels))
    for number in range(size):
        roll, user = dice.random(), dice.choice(PEOPLE)
        streak = dice.choice(labels) if dice.random() < 0.1 else streak
        source = Source(user, dice.choice(("cli", "imap")), dice.choice((1.0, 0.5)))
        text = " ".join(dice.choices(WORDS, k=dice.randrange(1, 7)))
        old, other = dice.randrange(1 << 30), dice.choice(labels)
        if roll < 0.7 or not taught:
            taught.append(model.example(mail(number, text)))
            one = Learn(taught[-1], streak, source, NOW + number)
        elif roll < 0.85:
            insisted = source._replace(immediate=True)
            one = Learn(taught[old % len(taught)], other, insisted, NOW + number, again=True)
        elif roll < 0.95 or not undo:
            one = Forget(taught[old % len(taught)].digest, source, NOW + number)
        else:
            with model.store.read() as view:
                last = view.totals().last_seq
            one = Undo(max(1, last - old % 4), source, NOW + number)
        if only is not None and number not in only:
            continue
        if model.teach([one])[0].changed:
            yield number, user


def seen(model):
    """Everything in a model, as plain values."""
    with model.store.read() as view:
        live = {event.digest: view.live(event.digest) for event in view.events()}
        return picture(view) | {"live": live}


def shown(model):
    """The same; and the model is sound."""
    with model.store.read() as view:
        assert audit.check(view) == []
    return seen(model)


def closed_picture(home):
    with opened(home) as model:
        return shown(model)


@each_recipe
@few
@given(seed=seeds, folded=st.integers(0, 30))
def test_checkpoint_and_journal_folded_into_an_empty_model_give_the_model(made, seed, folded):
    """Replay equality: every number, text, event and line, and the checkpoint itself."""
    with folder() as home:
        with opened(home, made) as model:
            for _ in teach(model, seed):
                pass
            model.store.transact(lambda view: view.fold(NOW + folded, 1000))
            before = shown(model)
        rebuilt = rebuild(home, Change(lambda view, new: replay(view.events(), view, new)))
        assert rebuilt.result == len(before["events"])
        assert closed_picture(home) == before


@each_recipe
@few
@given(seed=seeds, back=st.integers(0, 39))
def test_rewind_brings_back_the_model_as_it_was(made, seed, back):
    """Every number and event of that time; texts as far as they are still known."""
    with folder() as home:
        with opened(home, made) as model:
            states = {-1: seen(model)}
            for number, _ in teach(model, seed):
                states[number] = seen(model)
        wanted = states[max(number for number in states if number <= back)]
        dropped = rewind(home, NOW + back).result.events
        assert dropped == sum(len(s["events"]) > len(wanted["events"]) for s in states.values())
        again = closed_picture(home)
        known = agreed(again.pop("words"), wanted.pop("words"))
        assert known or not wanted["features"][0]
        assert again == wanted


def agreed(some, others):
    """How many texts two models have in common; none contradicts another.

    The journal keeps no texts: those that went with a feature cannot come back.
    """
    texts = {word.id: word.text.lower() for word in others}
    common = [word for word in some if word.id in texts]
    assert all(texts[word.id] == word.text.lower() for word in common)
    return len(common)


@each_recipe
@few
@given(seed=seeds)
def test_relearning_without_an_unknown_user_changes_no_byte(made, seed):
    """Without undone events, the journal's trainings give the journal again."""
    with folder() as home:
        with opened(home, made) as model:
            for _ in teach(model, seed, undo=False):
                pass
            before = shown(model)
        done = relearn(home, NOBODY, Costs()).result
        assert (done.taught, done.dropped, done.idle) == (len(before["events"]), 0, 0)
        assert closed_picture(home) == before


@each_recipe
@few
@given(seed=seeds)
def test_relearning_without_a_user_equals_a_history_without_them(made, seed):
    """Exactly the model that was taught in the same order without them.

    By the trainings that the journal knows: a duplicate of mallory's was never noted.
    """
    with folder() as home, folder() as other:
        with opened(home, made) as model:
            said = list(teach(model, seed, undo=False))
        others = {number for number, user in said if user != "mallory"}
        with opened(other, made) as model:
            for _ in teach(model, seed, undo=False, only=others):
                pass
            wanted = shown(model)
        relearn(home, MALLORY, Costs())
        again = closed_picture(home)
        assert agreed(again.pop("words"), wanted.pop("words"))
        assert again == wanted


@each_recipe
@few
@given(seed=seeds)
def test_relearning_leaves_out_what_was_undone(made, seed):
    """An undone event has no effect on the model, nor has an undone undo."""
    with folder() as home:
        with opened(home, made) as model:
            for _ in teach(model, seed):
                pass
        relearn(home, NOBODY, Costs())
        with opened(home) as model, model.store.read() as view:
            assert audit.check(view) == []
            assert all(event.kind != EventKind.UNDO for event in view.events())
        before = closed_picture(home)
        relearn(home, NOBODY, Costs())
        assert closed_picture(home) == before


def log_odds(model, example, between):
    with model.store.read() as view:
        z = score_examples(model.recipe, model.costs, view, [example])[0].z
    return z[between[0]] - z[between[1]]


@each_recipe
@few
@given(seed=seeds)
@example(seed=633)
def test_shares_are_what_real_forgets_change(made, seed):
    """Bisect says of each training in force how the odds move when that one is forgotten."""
    model = open_memory(made)
    for _ in teach(model, seed):
        pass
    example = model.example(mail("asked", "apple pear plum lime unheard"))
    with model.store.read() as view:
        found = bisect(view, made, example)
        live = {e.digest for e in view.events() if view.live(e.digest).label >= 0}
    between = tuple(map(made.labels.index, found.between))
    now = log_odds(model, example, between)
    assert found.log_odds == pytest.approx(now, abs=1e-9)
    assert {share.digest for share in found.shares} == live
    for share in found.shares:
        receipt = model.forget(share.digest.hex())
        without = log_odds(model, example, between)
        # Both are infinite while a label has no message.
        assert share.nats == pytest.approx(0 if now == without else now - without, abs=1e-9)
        model.undo(receipt)


@few
@given(seed=seeds)
def test_shares_of_a_person_are_what_real_forgets_change(seed):
    """In the score of a person: also for trainings of others, and of messages without its words."""
    model, dice = open_memory(Recipe()), Random(seed)
    persons = {name: model.person(name) for name in PEOPLE[:2]}
    for number in range(30):
        text = " ".join(dice.choices(WORDS, k=dice.randrange(1, 7)))
        one, user = model.example(mail(number, text)), dice.choice(PEOPLE)
        source = Source(user, "imap", immediate=True, person=persons.get(user, 0))
        model.teach([Learn(one, dice.randrange(2), source, NOW + number)])
    example = model.example(mail("asked", "apple pear plum lime unheard"))

    def log_odds_of(person):
        with model.store.read() as view:
            given = score_examples(model.recipe, model.costs, view, [example])[0]
        verdict = model.personal_verdicts((given, example), [person]).get(person, given)
        return verdict.z[between[0]] - verdict.z[between[1]]

    for person in persons.values():
        with model.store.read() as view:
            found = bisect(view, model.recipe, example, person=person)
        between = tuple(map(model.labels.index, found.between))
        now = log_odds_of(person)
        assert found.log_odds == pytest.approx(now, abs=1e-9)
        for share in found.shares:
            receipt = model.undo(share.event)
            assert share.nats == pytest.approx(now - log_odds_of(person), abs=1e-9)
            model.undo(receipt)


@each_recipe
def test_an_import_has_its_share(made):
    """Counts from elsewhere weigh on a message as much as undoing the import would change."""
    model = open_memory(made)
    for _ in teach(model, 3, 20):
        pass
    example = model.example(mail("asked", "apple pear plum"))
    ids = np.unique(np.concatenate([*example.ids, np.array([5], np.uint64)]))
    ones = np.ones((len(ids), len(made.labels)), np.int64)
    bulk = BulkChange(
        ids, 3 * ones, -ones * 99_000 * np.arange(1, len(made.labels) + 1),
        np.arange(4, 4 + len(made.labels)), np.arange(len(made.labels)) << 38,
        np.full(made.groups, 1 << 36), np.full(len(ids), 9_000, np.uint16),
    )  # fmt: skip
    receipt = model.teach([BulkLoad(bulk, False, Source("ann"), NOW)])[0]

    def share():
        with model.store.read() as view:
            found = bisect(view, made, example)
        nats = [s.nats for s in found.shares if s.event == receipt.event]
        return nats, tuple(map(made.labels.index, found.between))

    nats, between = share()
    now = log_odds(model, example, between)
    undo = model.undo(receipt)
    assert nats == [pytest.approx(now - log_odds(model, example, between), abs=1e-9)]
    assert share()[0] == []
    model.undo(undo)
    assert share()[0] == nats


@each_recipe
@few
@given(seed=seeds)
def test_undoing_the_events_of_a_user_leaves_the_counts_of_the_others(made, seed):
    """All of a person's events undone: counts are those of a model that they never taught."""
    model, clean = open_memory(made), open_memory(made)
    dice = Random(seed)
    for number in range(40):
        user = dice.choice(PEOPLE)
        example = model.example(mail(number, " ".join(dice.choices(WORDS, k=5))))
        label = dice.randrange(len(made.labels))
        one = Learn(example, label, Source(user, "test"), NOW + number)
        for each in (model, clean)[: 1 + (user != "mallory")]:
            each.teach([one])
        if user == "mallory" and dice.random() < 0.5:
            # Their own moves and undos are taken back as well.
            model.teach([one._replace(label=0), Undo(number, Source(user), NOW)])
    with model.store.read() as view:
        found = undoable(view, made, MALLORY)
    assert found.superseded == []
    assert all(model.undo(event, source=Source("ann")).changed for event in found.events)
    with model.store.read() as view:
        assert undoable(view, made, MALLORY).events == []
    assert counts(model) == counts(clean)


def counts(model):
    with model.store.read() as view:
        ids, records = audit.collect(view.features(), len(model.labels))
        totals = view.totals()
        held = records.n.any(axis=1)
        return (
            ids[held].tolist(), records.n[held].tolist(),
            totals.messages.tolist(), totals.tokens.tolist(), totals.known,
        )  # fmt: skip
