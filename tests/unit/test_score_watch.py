"""Counting the scores of a site's verdicts: what is stored, taken back, and derived from it."""

import random

import pytest
from support.stores import picture

from spamnb.engine.filter import OWNER, Filter
from spamnb.engine.score_watch import ScoreWatch, scored_message, store_trained_scores
from spamnb.engine.site_scores import past_thresholds, read_counts, threshold_of
from spamnb.maintenance.export import create, export, merge, read_export, recipe_of
from spamnb.maintenance.rewind import relearn, rewind
from spamnb.model.events import EventKind
from spamnb.model.verdict import BINS, NO_SCORES, SETTLED_US, SHIPPED
from spamnb.store import maintenance as audit
from spamnb.telemetry import now_us

LATER = now_us() + 2 * SETTLED_US


def mail(number, spam):
    rng = random.Random(number)
    words = ("pills", "offer", "cheap", "winner") if spam else ("kernel", "patch", "merge", "list")
    text = " ".join(rng.choice(words) + rng.choice(("", "s", "ed")) for _ in range(30))
    head = f"From: a{number % 7}@{'s' if spam else 'h'}{number % 9}.example\nSubject: {text[:20]}\n"
    return f"{head}Message-ID: <{number}@x.example>\n\n{text}\n".encode()


@pytest.fixture
def model(tmp_path):
    with Filter.open(tmp_path, create=True) as made:
        yield made


def taught(model, count=12):
    for number in range(count):
        model.learn(mail(number, spam=number % 2 == 1), ("ham", "spam")[number % 2])


def judged(model, numbers, *, spam=False):
    return [model.score(mail(number, spam=spam)) for number in numbers]


def threshold(model):
    with model.store.read() as view:
        return model.threshold(view)


def counts(model):
    with model.store.read() as view:
        return read_counts(view, model.recipe)


def kinds(model):
    with model.store.read() as view:
        assert audit.check(view) == []
        return [event.kind for event in view.events()]


def settled(model):
    """A model with 60 delivered ham, and the change that counting them made."""
    taught(model)
    verdicts = judged(model, range(100, 160))
    assert {one.decision for one in verdicts} == {"deliver"}
    return ScoreWatch().look(model, LATER)


def test_silence_lowers_the_threshold_by_one_event(model):
    """Sixty delivered messages that were not moved: the threshold falls, and one event says so."""
    change = settled(model)
    assert change.before == SHIPPED
    assert change.after == threshold(model) < 3.2
    assert kinds(model)[-1] == EventKind.SCORES
    assert sum(counts(model).kept) == 60
    assert ScoreWatch().look(model, LATER) is None
    assert kinds(model).count(EventKind.SCORES) == 1


def test_the_verdict_has_the_probability_of_its_threshold(model):
    """Scores above the threshold are junk, clues still sum to the log-odds, and words stay."""
    taught(model)
    raw = mail(501, spam=True)
    before = model.score(raw, remember=False)
    judged(model, range(100, 160))
    ScoreWatch().look(model, LATER)
    after = model.explain(raw)
    assert 0 < before.log_odds < after.log_odds
    assert (after.decision == "junk") == (before.log_odds > threshold(model))
    total = after.bias + sum(clue.nats for clue in after.clues())
    assert total == pytest.approx(after.log_odds)
    remembered = model.score(raw)
    stored = next(iter(model.history.newest()))
    assert stored.log_odds == remembered.log_odds
    assert scored_message(stored).score == pytest.approx(before.log_odds, abs=0.02)


def test_a_late_correction_changes_the_counts(model):
    """A message that was presumed ham is spam when a person says so, and ham again after undo."""
    settled(model)
    watch = ScoreWatch()
    receipt = model.correct(mail(100, spam=False), "spam")
    watch.look(model, LATER + SETTLED_US)
    assert (sum(counts(model).kept), sum(counts(model).spam)) == (59, 1)
    model.undo(receipt)
    watch.look(model, LATER + 3 * SETTLED_US)
    assert (sum(counts(model).kept), sum(counts(model).spam)) == (60, 0)


def test_a_message_that_was_taught_before_it_was_judged_does_not_count(model):
    """Its score fits its label because the label was learnt."""
    taught(model)
    judged(model, range(0, 12, 2))
    assert ScoreWatch().look(model, LATER) is None
    assert sum(counts(model).kept) == 0


def test_undo_restores_the_threshold(model):
    """The event can be undone as any other."""
    settled(model)
    with model.store.read() as view:
        last = view.totals().last_seq
    model.undo(last)
    assert threshold(model) == SHIPPED
    assert kinds(model)[-1] == EventKind.UNDO


def test_the_past_is_derived_from_the_journal(model):
    """Each event has the threshold that was in force after it."""
    first = settled(model)
    for number in range(12, 40):
        model.learn(mail(number, spam=number % 2 == 1), ("ham", "spam")[number % 2])
    judged(model, range(200, 260))
    ScoreWatch().look(model, LATER + 3 * SETTLED_US)
    with model.store.read() as view:
        found = list(past_thresholds(view, model.recipe, model.one_in))
    assert [one.log_odds for one in found] == [threshold(model), first.after]


def test_rewind_and_relearn_have_the_threshold_of_their_events(tmp_path):
    """A rewind to before the event restores the shipped threshold; a relearning keeps the event."""
    with Filter.open(tmp_path, create=True) as model:
        settled(model)
        with model.store.read() as view:
            *_, before, last = view.events()
        lowered, then = threshold(model), counts(model)
        costs = model.costs
    relearn(tmp_path, lambda _: False, costs)
    with Filter.open(tmp_path) as model:
        assert (threshold(model), counts(model)) == (lowered, then)
        assert audit_is_clean(model)
    rewind(tmp_path, before.time_us)
    with Filter.open(tmp_path) as model:
        assert last.time_us > before.time_us
        assert threshold(model) == SHIPPED


def audit_is_clean(model):
    with model.store.read() as view:
        return audit.check(view) == []


def test_export_and_import_keep_the_threshold(model, tmp_path):
    """The counts are rows of the model, so a copy of the model has them."""
    settled(model)
    lines = list(export(model.store, with_key=True))
    exported = read_export(lines)
    create(tmp_path / "copy", recipe_of(exported))
    with Filter.open(tmp_path / "copy") as copied:
        merge(copied, exported, source=OWNER)
        assert threshold(copied) == threshold(model)


def test_without_a_target_the_threshold_is_the_shipped_one(model):
    """`one_in` 0 switches it off: nothing is counted, and counts have no effect."""
    settled(model)
    with model.store.read() as view:
        assert threshold_of(view, model.recipe, 0) == SHIPPED
    model.one_in = 0
    assert ScoreWatch().look(model, LATER + 3 * SETTLED_US) is None
    assert model.score(mail(501, spam=True), remember=False).threshold == SHIPPED


def test_a_message_that_was_judged_twice_counts_once(model):
    """Its newest verdict counts."""
    taught(model)
    judged(model, [*range(100, 120), *range(100, 120)])
    ScoreWatch().look(model, LATER)
    assert sum(counts(model).kept) == 20


def test_a_store_without_changes_is_the_same(model):
    """Looking without news writes nothing."""
    settled(model)
    with model.store.read() as view:
        before = picture(view)
    ScoreWatch().look(model, LATER)
    with model.store.read() as view:
        assert picture(view) == before


def test_scores_of_a_training_are_an_event_of_their_own(model):
    """They set the threshold before any verdict, are replaced by newer ones, and can be undone."""
    taught(model, 40)
    ham = tuple(10 * (step < 8) for step in range(BINS))
    none = (0,) * BINS
    assert store_trained_scores(model, ham, none, "root", LATER)
    first = threshold(model)
    assert first < SHIPPED
    assert not store_trained_scores(model, ham, none, "root", LATER)
    high = tuple(10 * (step < 40) for step in range(BINS))
    assert store_trained_scores(model, high, none, "root", LATER)
    assert threshold(model) > first
    with model.store.read() as view:
        found = list(past_thresholds(view, model.recipe, model.one_in))
    assert [one.log_odds for one in found] == [threshold(model), first]
    assert counts(model) == NO_SCORES
    model.undo(found[0].event)
    assert kinds(model)[-1] == EventKind.UNDO
    assert threshold(model) == first
