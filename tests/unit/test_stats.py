"""Upkeep: expiry in small steps that stay exact, the figures of `stats`, undo of bulk events."""

import numpy as np
import pytest
from support.history import recent
from support.memory_store import MemoryStore

from spamnb.engine.filter import OWNER, Filter, new_recipe
from spamnb.engine.planner import STREAK
from spamnb.engine.values import Learn
from spamnb.maintenance import expiry
from spamnb.maintenance import export as upkeep
from spamnb.maintenance.expiry import DAY_US, ExpiryRules, expire
from spamnb.model.costs import Costs
from spamnb.model.events import EventKind
from spamnb.model.training_rows import day_of
from spamnb.store import maintenance as audit

NOW_US = 9_500 * DAY_US + 10_957 * DAY_US
RULES = ExpiryRules(keep_days=100, after_days=200, max_messages=1)


@pytest.fixture(params=["memory", "lmdb"])
def model(request, tmp_path):
    """Give a model in either store."""
    if request.param == "memory":
        made = Filter(MemoryStore(new_recipe()))
    else:
        made = Filter.open(tmp_path / "home", create=True, map_size=1 << 28)
    with made:
        yield made


def message(number, words):
    head = f"From: a@example.org\nSubject: news\nMessage-ID: <{number}@x.test>\n\n"
    return f"{head}{words}\n".encode()


def teach(model, number, words, *, days_ago, label="spam"):
    request = Learn(
        model.example(message(number, words)), model.label(label), OWNER, NOW_US - days_ago * DAY_US
    )
    return model.teach([request])[0]


def tokens(model):
    with model.store.read() as view:
        return {word.text.decode() for word in view.all_words()}


def sound(model):
    with model.store.read() as view:
        return audit.check(view) == []


def run(model, rules=RULES):
    return expire(model.store, model.history, rules, now_us=NOW_US, source=OWNER)


def test_old_events_fold_and_the_model_stays_what_it_was(model):
    """Folding changes which events can be undone, and no number of the model."""
    for number in range(6):
        days = 300 - 50 * number
        teach(model, number, f"word{number} shared", days_ago=days, label=model.labels[number % 2])

    def judged():
        return [model.score(message(n, f"word{n} shared"), remember=False).z for n in range(6)]

    before = judged()
    gone = run(model, ExpiryRules(keep_days=120, after_days=10_000, max_messages=1))
    assert gone.events_folded == 4
    assert judged() == before
    assert sound(model)


def test_stale_features_held_by_few_are_dropped(model):
    """Old, rare features are dropped; young and frequent ones and all sums stay correct."""
    teach(model, 1, "oldword common", days_ago=400)
    teach(model, 2, "common", days_ago=390, label="ham")
    teach(model, 3, "youngword", days_ago=10)
    gone = run(model)
    assert gone.events_folded == 2
    assert gone.features_dropped > 0
    assert "oldword" not in tokens(model)
    assert {"common", "youngword"} <= tokens(model)
    assert sound(model)


def test_a_feature_that_a_kept_event_names_stays(model):
    """A feature that an undo needs is not dropped."""
    teach(model, 1, "oldword", days_ago=400)
    gone = run(model, ExpiryRules(keep_days=500, after_days=200, max_messages=1))
    assert (gone.events_folded, gone.features_dropped) == (0, 0)
    assert "oldword" in tokens(model)
    model.undo(1)
    assert sound(model)


def test_features_that_a_rehearsal_touched_stay_as_long_as_it_can_be_taken_back(model):
    """A rehearsed feature stays while a journal event needs it."""
    teach(model, 1, "rehearsed", days_ago=400, label="ham")
    for number in range(2, 2 + STREAK + 2):
        last = teach(model, number, f"word{number} pills", days_ago=399 - number)
    insisting = OWNER._replace(immediate=True)
    words = f"word{number} pills"
    again = Learn(model.example(message(number, words)), 1, insisting, NOW_US, again=True)
    assert model.teach([again])[0].changed
    assert last.changed
    run(model, ExpiryRules(keep_days=100, after_days=200, max_messages=1))
    with model.store.read() as view:
        before = view.gather(model.example(message(1, "rehearsed")).ids[0]).w.any()
    assert before
    model.forget(message(number, words))
    assert sound(model)
    with model.store.read() as view:
        for ids, records in view.features():
            assert records.n.any(axis=1).all(), ids


def test_an_expiry_can_be_undone_once(model):
    """Undoing a drop restores every number and day."""
    teach(model, 1, "oldword", days_ago=400)
    teach(model, 2, "newword", days_ago=1, label="ham")
    with model.store.read() as view:
        ids, before = audit.collect(view.features(), 2)
    run(model)
    receipt = model.undo(3)
    with model.store.read() as view:
        again, after = audit.collect(view.features(), 2)
    assert np.array_equal(again, ids)
    assert np.array_equal(after.n, before.n)
    assert np.array_equal(after.w, before.w)
    assert np.array_equal(after.day, before.day)
    assert receipt.changed
    assert not model.undo(3).changed
    assert sound(model)


def test_dropping_goes_in_small_events(model, monkeypatch):
    """Each transaction drops a bounded number of features, so that writers wait only briefly."""
    monkeypatch.setattr(expiry, "DROPPED_AT_ONCE", 3)
    for number in range(4):
        teach(model, number, f"old{number} word{number}", days_ago=400)
    gone = run(model, ExpiryRules(keep_days=100, after_days=200, max_messages=1))
    with model.store.read() as view:
        sizes = [len(e.bulk.ids) for e in view.events() if e.kind == EventKind.EXPIRE]
    assert sum(sizes) == gone.features_dropped > 3
    assert max(sizes) <= 3
    assert sound(model)


def test_what_others_teach_meanwhile_is_kept(model, monkeypatch):
    """A feature learnt between search and drop stays."""
    monkeypatch.setattr(expiry, "DROPPED_AT_ONCE", 2)
    for number in range(4):
        teach(model, number, f"aged{number}", days_ago=400)
    real, calls = expiry._bulk, []

    def interrupted(view, ids, day, most):
        calls.append(len(ids))
        return real(view, ids, day, most)

    monkeypatch.setattr(expiry, "_bulk", interrupted)
    real_named = expiry.named

    def named(view, ids):
        found = real_named(view, ids)
        wanted.append(True)
        return found

    wanted = []
    monkeypatch.setattr(expiry, "named", named)
    transact, first = model.store.transact, []

    def meanwhile(change):
        if wanted and not first:
            first.append(True)
            for number in range(4):
                teach(model, number + 10, f"aged{number}", days_ago=0)
        return transact(change)

    monkeypatch.setattr(model.store, "transact", meanwhile)
    run(model)
    assert calls
    assert {f"aged{number}" for number in range(4)} <= tokens(model)
    assert sound(model)


def test_a_second_expiry_finds_nothing_left(model):
    """A stopped expiry continues where it ended."""
    teach(model, 1, "oldword", days_ago=400)
    assert run(model).events_folded == 1
    assert run(model).as_dict() == {
        "events_folded": 0, "features_dropped": 0, "verdicts_forgotten": 0
    }  # fmt: skip


def test_verdicts_are_forgotten_by_the_rules_of_the_history(tmp_path):
    """Expiry includes the history."""
    with Filter.open(tmp_path / "home", create=True, map_size=1 << 28) as model:
        model.score(message(1, "words"))
        far = 40_000 * DAY_US
        gone = expire(model.store, model.history, RULES, now_us=far, source=OWNER)
        assert gone.verdicts_forgotten == 1
        assert recent(model.history, 10) == []


def test_stats_counts_what_is_there(tmp_path):
    """The figures of `stats` are those of the store."""
    with Filter.open(tmp_path / "home", create=True, map_size=1 << 28) as model:
        teach(model, 1, "alpha beta", days_ago=300)
        teach(model, 2, "gamma", days_ago=1, label="ham")
        model.score(message(3, "alpha"))
        run(model)
        found = upkeep.stats(tmp_path / "home", model.store, model.history, Costs())
        assert found.messages == {"ham": 1, "spam": 1}
        with model.store.read() as view:
            assert found.words == len(list(view.all_words()))
        assert (found.events, found.folded) == (2, 1)
        assert found.history == 1
        assert found.store_bytes == (tmp_path / "home" / "data.mdb").stat().st_size
        assert found.thresholds["junk"] == pytest.approx(0.9945, abs=1e-4)
        assert upkeep.check(model.store) == []


def test_a_model_without_a_message_has_figures_too(tmp_path):
    """An empty model has no bytes per feature."""
    with Filter.open(tmp_path / "home", create=True, map_size=1 << 28) as model:
        found = upkeep.stats(tmp_path / "home", model.store, None, Costs())
        assert found.bytes_per_feature is None
        assert found.history == 0


def test_days_are_those_of_the_store():
    """The day of the rules is counted as the store counts it."""
    assert day_of(NOW_US) == 9_500
