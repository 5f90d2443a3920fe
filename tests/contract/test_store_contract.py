"""What every store promises, run for the one in memory and the one in LMDB."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from support.stores import (
    HAM,
    NOON_2026,
    RECIPE,
    SPAM,
    apply,
    bulk_event,
    echo_of,
    event_for,
    ids_of,
    learn,
    mail,
    picture,
    sound,
    word,
)

from spamnb.errors import BugError
from spamnb.model.events import NO_LABEL, EventKind, Recipe, Records
from spamnb.store.codec import same_update
from spamnb.store.maintenance import check
from spamnb.store.values import MessageState, packed


class TestRecords:
    def test_unknown_features_are_zero_rows(self, store):
        """Unknown features give zeros."""
        with store.read() as view:
            records = view.gather(ids_of(1, 2, 3))
        assert not records.n.any()
        assert not records.w.any()
        assert not records.day.any()
        assert records.n.shape == (3, 2)

    def test_no_ids_give_no_rows(self, store):
        """An empty message gathers and scatters nothing."""
        none = np.zeros(0, np.uint64)
        with store.write() as view:
            records = view.gather(none)
            view.scatter(none, records)
            assert records.n.shape == (0, 2)
            assert view.words(none) == []

    def test_what_is_scattered_is_gathered(self, store):
        """Rows are read as they were written, in the transaction and after it."""
        ids = ids_of(*range(2000))
        n = np.arange(4000, dtype=np.uint32).reshape(-1, 2) + 1
        rows = Records(n, -n.astype(np.int32), np.arange(2000, dtype=np.uint16))
        with store.write() as view:
            view.gather(ids)
            view.scatter(ids, rows)
            assert np.array_equal(view.gather(ids[::7]).n, n[::7])
        with store.read() as view:
            again = view.gather(ids)
            listed = np.concatenate([block for block, _ in view.features()])
        assert np.array_equal(again.n, rows.n)
        assert np.array_equal(again.w, rows.w)
        assert np.array_equal(again.day, rows.day)
        assert np.array_equal(listed, ids)

    def test_the_whole_range_of_ids_and_numbers(self, store):
        """The first and the last id, and the extremes of every column, are kept exactly."""
        ids = np.array([0, 1, 1 << 63, (1 << 64) - 1], np.uint64)
        n = np.array([[(1 << 32) - 1, 0], [0, 1], [1, 1], [7, 8]], np.uint32)
        w = np.array([[-(1 << 31), (1 << 31) - 1], [0, 0], [1, -1], [0, 5]], np.int32)
        rows = Records(n, w, np.array([0, 1, 65_535, 2], np.uint16))
        with store.write() as view:
            view.scatter(ids, rows)
        with store.read() as view:
            again = view.gather(ids)
        assert np.array_equal(again.n, n)
        assert np.array_equal(again.w, w)
        assert np.array_equal(again.day, rows.day)

    def test_gathered_arrays_are_the_callers_own(self, store):
        """Changing gathered arrays does not change the store."""
        ids = ids_of(1, 2)
        learn(store, mail(1, 1, 2), HAM)
        with store.read() as view:
            view.gather(ids).n[:] = 99
            view.totals().messages[:] = 99
            assert view.gather(ids).n.max() == 1
            assert view.totals().messages.max() == 1

    def test_rows_of_zeros_leave_with_their_words(self, store):
        """A feature without counts and corrections is removed with its text."""
        ids = ids_of(*range(300))
        ones = Records(
            np.ones((300, 2), np.uint32), np.zeros((300, 2), np.int32), np.ones(300, np.uint16)
        )
        with store.write() as view:
            view.scatter(ids, ones)
            view.put_words(packed(word(i) for i in ids.tolist()))
        gone = ids[10:200]
        with store.write() as view:
            rows = view.gather(gone)
            rows.n[:] = 0
            view.scatter(gone, rows)
        with store.read() as view:
            left = np.concatenate([block for block, _ in view.features()])
            words = [w.id for w in view.all_words()]
        assert left.tolist() == words == [*ids[:10].tolist(), *ids[200:].tolist()]

    def test_a_correction_alone_keeps_a_feature(self, store):
        """Only a row with all counts and corrections zero is removed."""
        ids = ids_of(5)
        none = np.zeros((1, 2), np.uint32)
        rows = Records(none, np.array([[0, -1]], np.int32), np.zeros(1, np.uint16))
        with store.write() as view:
            view.scatter(ids, rows)
        with store.read() as view:
            assert [block.tolist() for block, _ in view.features()] == [ids.tolist()]

    def test_everything_can_leave(self, store):
        """An emptied store has no features and can be filled again."""
        messages = [mail(i, *range(i, i + 40)) for i in range(1, 30)]
        for message in messages:
            learn(store, message, SPAM)
        for message in messages:
            learn(store, message, NO_LABEL)
        with store.read() as view:
            assert list(view.features()) == []
            assert list(view.all_words()) == []
            assert view.totals().known == 0
        learn(store, messages[0], HAM)
        assert sound(store)


class TestWords:
    def test_the_first_text_stays(self, store):
        """An id keeps its first text, within a call and between calls."""
        first, second = word(8), word(8)._replace(text=b"other")
        with store.write() as view:
            view.put_words(packed([first, second]))
            view.put_words(packed([second]))
        with store.write() as view:
            view.put_words(packed([second, word(9)]))
        with store.read() as view:
            found = view.words(np.array([7, 8, 9], np.uint64))
        assert found == [None, first, word(9)]

    def test_many_words_are_found_one_by_one(self, store):
        """Texts of any length are found by id, in order, after many small transactions."""
        ids = ids_of(*range(3000))
        shuffled = np.random.default_rng(1).permutation(ids)
        for start in range(0, 3000, 250):
            with store.write() as view:
                view.put_words(packed(word(i) for i in shuffled[start : start + 250].tolist()))
        with store.read() as view:
            assert list(view.all_words()) == [word(i) for i in ids.tolist()]
            assert view.words(ids[::11]) == [word(i) for i in ids[::11].tolist()]

    def test_without_a_vocabulary_there_are_none(self, make_store):
        """A recipe without a vocabulary stores no text."""
        store = make_store(replace(RECIPE, vocabulary=False))
        learn(store, mail(1, 1, 2, 3), HAM)
        with store.read() as view:
            assert list(view.all_words()) == []
            assert view.words(ids_of(1)) == [None]

    def test_texts_that_do_not_fit_their_sizes_are_a_bug(self, store):
        """Texts of other sizes than stated are refused, and nothing is stored."""
        with pytest.raises(BugError), store.write() as view:
            view.put_words(packed([word(1)])._replace(texts=b""))
        with store.read() as view:
            assert list(view.all_words()) == []


class TestTransactions:
    def test_an_exception_undoes_everything(self, store):
        """A write block that raises leaves rows, words, sums, journal and indexes unchanged."""
        learn(store, mail(1, *range(100)), HAM)
        with store.read() as view:
            before = picture(view)
        with pytest.raises(ZeroDivisionError):
            store.transact(_change_and_fail)
        with store.read() as view:
            assert picture(view) == before
            assert view.live(mail(2).digest) is None
            assert view.digests("2@example.org") == []
            assert view.live_at(SPAM, 0) == 0
        learn(store, mail(2, *range(50, 300)), SPAM)
        assert sound(store)

    def test_a_snapshot_stays_as_it_was(self, make_store):
        """A snapshot does not change while and after a writer changes the store."""
        store = make_store()
        learn(store, mail(1, *range(60)), HAM)
        with store.read() as view:
            before = picture(view)
            done = threading.Thread(target=_churn, args=(store,))
            done.start()
            done.join(timeout=0.5)
            assert picture(view) == before
        done.join()
        with store.read() as view:
            assert picture(view) != before
        assert sound(store)

    def test_the_writer_sees_its_own_puts(self, store):
        """Within a write block, reads see earlier changes."""
        with store.write() as view:
            for number in range(1, 6):
                apply(view, event_for(view, mail(number, *range(number * 10)), number % 2))
                assert view.totals().last_seq == number
                assert view.event(number).seq == number
                assert view.live(mail(number).digest).seq == number
            assert [e.seq for e in view.events()] == [1, 2, 3, 4, 5]
            assert check(view) == []

    def test_transact_returns_what_its_function_returns(self, store):
        """`transact` returns the function's result, and its error undoes everything."""
        assert store.transact(lambda view: view.totals().last_seq) == 0
        with pytest.raises(ZeroDivisionError):
            store.transact(lambda _: 1 // 0)

    def test_a_thread_writes_one_transaction_at_a_time(self, store):
        """A write block inside a write block of the same thread raises BugError."""
        with store.write(), pytest.raises(BugError), store.write():
            pass

    def test_writers_of_threads_queue(self, store):
        """Events of several threads are all stored, one after the other."""
        threads = [
            threading.Thread(target=_learn_some, args=(store, first)) for first in (10, 20, 30)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with store.read() as view:
            assert view.totals().messages.sum() == 15
        assert sound(store)

    def test_closing_twice_is_once(self, make_store):
        """A second close does nothing."""
        store = make_store()
        store.close()
        store.close()

    def test_the_recipe_is_the_one_it_was_made_with(self, make_store):
        """The store has its recipe."""
        recipe = Recipe(labels=("a", "b", "c"), kind="bernoulli", groups=1, key=b"k" * 32)
        assert make_store(recipe).recipe == recipe


def _change_and_fail(view):
    apply(view, event_for(view, mail(2, *range(50, 300)), SPAM))
    apply(view, event_for(view, mail(1, *range(100)), SPAM))
    view.fold(NOON_2026 + 1, 1)
    raise ZeroDivisionError


def _churn(store):
    for number in range(2, 8):
        learn(store, mail(number, *range(number, 90)), SPAM)
    learn(store, mail(1, *range(60)), NO_LABEL)


def _learn_some(store, first):
    for number in range(first, first + 5):
        learn(store, mail(number, *range(number)), number % 2)


class TestJournal:
    def test_events_come_back_whole(self, store):
        """Every field of an event, with rehearsals and occurrences, is read as it was appended."""
        first = mail(1, *range(500))
        second = replace(mail(2, 3, 4), times=np.array([1, 70_000], np.uint32))
        learn(store, first, HAM)
        learn(store, second, SPAM, rehearsals=[echo_of(first), echo_of(mail(9))])
        with store.read() as view:
            one, two = view.event(1), view.event(2)
        assert one.kind is EventKind.LEARN
        assert [g.tolist() for g in one.ids] == [g.tolist() for g in first.groups]
        assert same_update(one.net_update, one.delta)
        assert two.times.tolist() == [1, 70_000]
        assert [len(e.ids) for e in two.delta.rehearsals] == [2, 2]
        assert two.delta.rehearsals[0].steps.tolist() == [[3, 3], [3, 3]]
        assert two.digest == second.digest
        assert two.message_id == "2@example.org"

    def test_a_wrong_seq_is_a_bug(self, store):
        """The journal has no gaps and no repetitions."""
        learn(store, mail(1, 1), HAM)
        for seq in (1, 3):
            with pytest.raises(BugError), store.write() as view:
                view.append(event_for(view, mail(2, 2), HAM)._replace(seq=seq))

    def test_ranges_of_events(self, store):
        """`events` yields start <= seq < stop, in both directions; a missing event is None."""
        for number in range(1, 8):
            learn(store, mail(number, *range(number * 60)), HAM)
        with store.read() as view:
            assert [e.seq for e in view.events(3, 6)] == [3, 4, 5]
            assert [e.seq for e in view.events(3, 6, newest_first=True)] == [5, 4, 3]
            assert [e.seq for e in view.events(6)] == [6, 7]
            assert [e.seq for e in view.events(newest_first=True)] == [7, 6, 5, 4, 3, 2, 1]
            assert [e.seq for e in view.events(1, 1, newest_first=True)] == []
            assert next(view.events(1, 99, newest_first=True)).seq == 7
            assert list(view.events(8)) == []
            assert view.event(8) is None
            assert view.event(0) is None

    def test_a_very_large_event(self, store):
        """An import of thousands of features, larger than any page, is one event."""
        ids = ids_of(*range(6000))
        n = np.arange(12_000).reshape(-1, 2) + 1
        with store.write() as view:
            apply(view, bulk_event(view, ids, n, -n, messages=(9, 9)))
        learn(store, mail(1, 1, 2), SPAM)
        with store.read() as view:
            assert np.array_equal(view.event(1).bulk.n, n)
            assert [e.seq for e in view.events(newest_first=True)] == [2, 1]
            assert view.last_events(9) == [(2, SPAM)]
        assert sound(store)

    def test_last_events_name_learns_and_moves_only(self, store):
        """Forgets and imports are not among the last labels."""
        message = mail(1, 1, 2)
        for after in (HAM, SPAM, NO_LABEL, SPAM):
            learn(store, message, after)
        with store.read() as view:
            assert view.last_events(9) == [(4, SPAM), (2, SPAM), (1, HAM)]
            assert view.last_events(2) == [(4, SPAM), (2, SPAM)]
            assert view.last_events(0) == []


class TestIndexes:
    def test_what_is_live_of_a_message(self, store):
        """A digest has its newest event; a forgotten message has no label."""
        message = mail(1, 1, 2)
        with store.read() as view:
            assert view.live(message.digest) is None
            assert view.live(b"") is None
        for seq, after in enumerate((HAM, SPAM, NO_LABEL), start=1):
            learn(store, message, after)
            with store.read() as view:
                assert view.live(message.digest) == MessageState(after, seq, folded=False)

    def test_labels_of_a_message(self, store):
        """Each owner of a message's label has one, and a person's is not among them."""
        message, other = mail(1, 1, 2), mail(2, 2, 3)
        given = ((0, HAM), (7, SPAM), ((1 << 64) - 1, HAM), (7, NO_LABEL))
        with store.write() as view:
            for owner, after in given:
                apply(view, event_for(view, message, after, owner=owner))
            apply(view, event_for(view, other, HAM, owner=9))
            apply(view, event_for(view, message, SPAM, person=8))
        states = {0: (HAM, 1), 7: (NO_LABEL, 4), (1 << 64) - 1: (HAM, 3)}
        with store.read() as view:
            found = view.labels(message.digest)
            assert found == {
                one: MessageState(*state, folded=False) for one, state in states.items()
            }
            assert set(view.labels(other.digest)) == {9}
            assert view.labels(mail(3, 1).digest) == {}
            assert view.live(other.digest) is None
            assert view.totals().messages.tolist() == [3, 1]
        with store.write() as view:
            view.fold(1 << 62, 2)
        with store.read() as view:
            assert view.labels(message.digest)[0] == MessageState(HAM, 1, folded=True)
            assert view.labels(message.digest)[7] == MessageState(NO_LABEL, 4, folded=False)

    def test_digests_of_a_message_id(self, store):
        """Each digest is listed once, oldest first, at most 64."""
        messages = [replace(mail(i, i), message_id="same@x") for i in range(1, 71)]
        for message in messages:
            learn(store, message, HAM)
        learn(store, messages[0], SPAM)
        with store.read() as view:
            assert view.digests("same@x") == [m.digest for m in messages[:64]]
            assert view.digests("other@x") == []
            assert view.digests("") == []

    def test_learnt_counts_messages_and_no_imports(self, store):
        """A label counts its messages, folded ones too, but no import and no forgotten message."""
        for number, after in ((1, HAM), (2, SPAM), (3, SPAM), (4, SPAM), (5, HAM), (5, NO_LABEL)):
            learn(store, mail(number, number), after)
        with store.write() as view:
            apply(view, bulk_event(view, ids_of(9), [[7, 7]], [[0, 0]], messages=(7, 7)))
            view.fold(1 << 62, 3)
        with store.read() as view:
            assert view.learnt(100) == [1, 3]
            assert view.learnt(2) == [1, 2]
            assert view.learnt(1) == [1, 1]

    def test_live_at_goes_round(self, store):
        """`live_at` returns the first live event at or after seq, and wraps around."""
        for number, after in ((1, HAM), (2, SPAM), (3, SPAM), (4, HAM)):
            learn(store, mail(number, number), after)
        learn(store, mail(2, 2), HAM)
        with store.read() as view:
            assert [view.live_at(HAM, seq) for seq in (0, 1, 2, 4, 5, 6)] == [1, 1, 4, 4, 5, 1]
            assert [view.live_at(SPAM, seq) for seq in (0, 3, 4)] == [3, 3, 3]
            assert view.live_at(NO_LABEL, 0) == 0
        learn(store, mail(3, 3), NO_LABEL)
        with store.read() as view:
            assert view.live_at(SPAM, 0) == 0

    def test_an_event_without_a_digest_has_no_message(self, store):
        """Imports are in no index."""
        with store.write() as view:
            apply(view, bulk_event(view, ids_of(1), [[1, 0]], [[0, 0]], messages=(1, 0)))
        with store.read() as view:
            assert view.live(b"") is None
            assert view.live_at(HAM, 0) == 0
