"""Checkpoints, the fold done again, and the limits of its numbers; for both stores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.memory_store import apply_event
from support.stores import (
    DAY_US,
    HAM,
    NOON_2026,
    SPAM,
    apply,
    bulk_event,
    event_for,
    ids_of,
    learn,
    mail,
    picture,
    sound,
    update,
    word,
)

from spamnb.errors import BugError, RefusedError, StoreDamagedError
from spamnb.model.events import NO_LABEL, EventKind, Recipe
from spamnb.model.training_rows import day_of
from spamnb.store.maintenance import check, named, refold, stale
from spamnb.store.values import MessageState, packed


class TestFold:
    def test_the_checkpoint_takes_the_oldest(self, store):
        """Folded events leave the journal; the sums and the live state stay the same."""
        for number in range(1, 9):
            at = NOON_2026 + number * DAY_US
            learn(store, mail(number, *range(number, number + 60)), number % 2, time_us=at)
        learn(store, mail(1, *range(1, 61)), HAM, time_us=NOON_2026 + 9 * DAY_US)
        with store.read() as view:
            before = picture(view)
        with store.write() as view:
            assert view.fold(NOON_2026 + 5 * DAY_US, 3) == 3
            assert view.fold(NOON_2026 + 5 * DAY_US, 99) == 1
            assert view.fold(NOON_2026 + 5 * DAY_US, 99) == 0
        with store.read() as view:
            after = picture(view)
            assert [seq for seq, _ in after["events"]] == [5, 6, 7, 8, 9]
            assert view.event(4) is None
            assert view.base_totals().last_seq == 4
            assert view.live(mail(2).digest) == MessageState(HAM, 2, folded=True)
            assert view.live(mail(1).digest) == MessageState(HAM, 9, folded=False)
            assert view.digests("2@example.org") == [mail(2).digest]
            assert view.live_at(SPAM, 0) == 5
        assert after["features"] == before["features"]
        assert after["totals"] == before["totals"]
        assert sound(store)

    def test_the_journal_goes_on_after_it_was_folded_away(self, store):
        """After folding, the next event number follows the checkpoint's last one."""
        learn(store, mail(1, 1), HAM)
        with store.write() as view:
            assert view.fold(NOON_2026 + 1, 9) == 1
        assert learn(store, mail(2, 2), SPAM) == 2
        assert sound(store)

    def test_an_expiry_of_imported_features(self, store):
        """Bulk events fold like others, with new and removed features."""
        ids = ids_of(*range(200))
        with store.write() as view:
            ones = np.ones((200, 2))
            apply(view, bulk_event(view, ids, ones, ones, messages=(3, 3)))
            few = ones[:50]
            apply(view, bulk_event(view, ids[:50], few, few, kind=EventKind.EXPIRE, sign=-1))
        assert sound(store)
        with store.write() as view:
            assert view.fold(NOON_2026 + 1, 2) == 2
        with store.read() as view:
            assert [len(block) for block, _ in view.base_features()] == [150]
        assert sound(store)


class TestAudit:
    def test_refold_of_a_mixed_history(self, store):
        """The checkpoint plus the journal's events gives the live state, in every number."""
        rng = np.random.default_rng(4)
        for number in range(1, 40):
            names = rng.choice(400, 50, replace=False).tolist()
            learn(store, mail(number, *names), int(rng.integers(2)))
        for number in range(1, 40, 3):
            with store.read() as view:
                event = view.event(view.live(mail(number).digest).seq)
            message = replace(mail(number), groups=event.ids)
            learn(store, message, int(rng.integers(-1, 2)))
        with store.write() as view:
            view.fold(NOON_2026 + 1, 20)
        with store.read() as view:
            totals, ids, records = refold(view)
            assert np.array_equal(view.gather(ids).n, records.n)
            assert totals.known == view.totals().known
        assert sound(store)

    def test_one_event_of_a_clock_that_was_ahead_keeps_no_others(self, make_store):
        """An event before an old one is old, whatever its time is."""
        store = make_store()
        far = NOON_2026 + 10 * 365 * 86_400_000_000
        for number, at in enumerate((NOON_2026, far, NOON_2026 + 1, NOON_2026 + 9), 1):
            learn(store, mail(number, number), HAM, time_us=at)
        with store.write() as view:
            assert view.fold(NOON_2026 + 5, 100) == 3
            assert view.fold(NOON_2026 + 5, 100) == 0
        assert sound(store)

    def test_a_bernoulli_model_keeps_its_histogram(self, make_store):
        """H counts the known features by their counts, after learns, moves and forgets."""
        store = make_store(Recipe(kind="bernoulli", groups=1))
        for number in range(1, 9):
            learn(store, mail(number, *range(number, 20), groups=1), number % 2)
        learn(store, mail(1, *range(1, 20), groups=1), HAM)
        learn(store, mail(2, *range(2, 20), groups=1), NO_LABEL)
        with store.read() as view:
            assert view.totals().histogram.sum() == 2 * view.totals().known
        assert sound(store)

    @pytest.mark.parametrize(
        ("spoil", "complaint"),
        [
            (lambda t: setattr(t, "known", 77), "V is 77"),
            (lambda t: t.tokens.__iadd__(1), "T is"),
            (lambda t: t.bias.__iadd__(1), "bias is"),
            (lambda t: setattr(t, "last_seq", 9), "the last event is 2"),
        ],
    )
    def test_check_names_a_wrong_sum(self, store, spoil, complaint):
        """A sum that differs from the records or the journal is reported in a sentence."""
        learn(store, mail(1, 1, 2), HAM)
        learn(store, mail(2, 2, 3), SPAM)
        with store.write() as view:
            totals = view.totals()
            spoil(totals)
            view.put_totals(totals)
        with store.read() as view:
            assert any(complaint in fault for fault in check(view))

    def test_check_names_a_wrong_record(self, store):
        """A record, a word or a missing feature that differs from the journal is reported."""
        learn(store, mail(1, 1, 2), HAM)
        with store.write() as view:
            rows = view.gather(ids_of(1))
            rows.w[:] += 1
            view.scatter(ids_of(1), rows)
            view.put_words(packed([word(12345)]))
        with store.read() as view:
            faults = " ".join(check(view))
        assert "1 features do not hold" in faults
        assert "has no feature" in faults
        with store.write() as view:
            rows.n[:], rows.w[:] = 0, 0
            view.scatter(ids_of(1), rows)
        with store.read() as view:
            assert "in the model or in its journal only" in " ".join(check(view))

    def test_check_names_a_wrong_histogram(self, make_store):
        """A histogram that differs from the records is reported."""
        store = make_store(Recipe(kind="bernoulli", groups=1))
        learn(store, mail(1, 1, 2, groups=1), HAM)
        with store.write() as view:
            totals = view.totals()
            totals.histogram[0, 1] += 1
            view.put_totals(totals)
        with store.read() as view:
            faults = " ".join(check(view))
        assert "histogram of label 0" in faults
        assert "the histogram is not what the journal says" in faults

    def test_check_names_a_journal_that_cannot_be_applied(self, store):
        """An event that makes a count negative ends the check with a sentence, without an error."""
        with store.write() as view:
            event = event_for(view, mail(1, 1), HAM)
            view.append(event._replace(before=SPAM))
        with store.read() as view:
            assert any("reading stopped" in fault for fault in check(view))

    def test_candidates_for_expiry(self, store):
        """Old, rare features are listed; `named` marks those that a journal event names."""
        old, new = NOON_2026, NOON_2026 + 100 * DAY_US
        learn(store, mail(1, 1, 2), HAM, time_us=old)
        learn(store, mail(2, 2, 3), HAM, time_us=new)
        learn(store, mail(3, 4), HAM, time_us=new)
        with store.write() as view:
            view.fold(old + 1, 1)
        with store.read() as view:
            found = np.concatenate(list(stale(view, day_of(new), 1)))
            assert found.tolist() == ids_of(1).tolist()
            assert named(view, ids_of(1, 2, 4)).sum() == 2
            assert named(view, ids_of()).tolist() == []
            assert list(stale(view, 0, 9)) == []


class TestLimits:
    def test_a_count_that_would_overflow_refuses(self, store):
        """A sum outside its range refuses the event and changes nothing."""
        top = (1 << 32) - 1
        with store.write() as view:
            apply(view, bulk_event(view, ids_of(1), [[top, 0]], [[0, 0]], messages=(1, 0)))
        with pytest.raises(RefusedError):
            learn(store, mail(1, 1), HAM)
        with pytest.raises(RefusedError):
            learn(store, mail(1, 2), HAM, delta=update(1 << 30))
        assert sound(store)

    def test_a_count_below_zero_is_damage(self, store):
        """A count below zero raises StoreDamagedError."""
        with pytest.raises(StoreDamagedError), store.write() as view:
            apply(view, bulk_event(view, ids_of(1), [[-1, 0]], [[0, 0]]))
        with pytest.raises(StoreDamagedError), store.write() as view:
            apply(view, event_for(view, mail(1, 1), HAM)._replace(before=SPAM))
        assert sound(store)

    def test_records_must_hold_the_events_features(self, store):
        """Applying an event to records of other features raises BugError."""
        with store.write() as view:
            event = event_for(view, mail(1, 1, 2), HAM)
            with pytest.raises(BugError):
                apply_event(event, view.totals(), ids_of(9), view.gather(ids_of(9)))
