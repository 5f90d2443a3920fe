"""Random histories of a model, run side by side in memory and in LMDB."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.memory_store import MemoryStore
from support.stores import (
    DAY_US,
    NOON_2026,
    apply,
    bulk_event,
    echo_of,
    event_for,
    ids_of,
    mail,
    picture,
)

from spamnb.model.events import NO_LABEL, EventKind, Recipe
from spamnb.store import journal, vocabulary
from spamnb.store import rows as logged_rows
from spamnb.store import rows as segments
from spamnb.store.maintenance import check, named, stale
from spamnb.store.model_store import open_store

RECIPE = Recipe(kind="bernoulli", groups=2)
MESSAGES = st.integers(1, 12)


def some_mail(number):
    """A message of 3 to 300 features; neighbours share most of theirs."""
    return mail(number, *range(number * 5, number * 5 + 3 + number**2 * 2))


class Histories(RuleBasedStateMachine):
    """One model in two stores, in memory and in LMDB."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stores = [
            MemoryStore(RECIPE),
            open_store(self.folder / "model", create=RECIPE, map_size=1 << 18),
        ]
        self.day = 0

    def everywhere(self, run):
        results = [store.transact(run) for store in self.stores]
        assert results[0] == results[1]
        return results[0]

    @rule(
        number=MESSAGES, after=st.integers(NO_LABEL, 1), days=st.integers(-1, 9), rehearsal=MESSAGES
    )
    def teach(self, number, after, days, rehearsal):
        """Learn, move or forget, whatever it is now; the clock may go back a day."""
        self.day += days
        at = NOON_2026 + self.day * DAY_US

        def run(view):
            live = view.live(some_mail(number).digest)
            if live is None and after == NO_LABEL:
                return "nothing"
            if live is not None and (live.folded or live.label == after):
                return "refused"
            rehearsals = [echo_of(some_mail(rehearsal))] if rehearsal % 3 == 0 else ()
            apply(
                view, event_for(view, some_mail(number), after, time_us=at, rehearsals=rehearsals)
            )
            return "done"

        self.everywhere(run)

    @rule(number=MESSAGES)
    def undo(self, number):
        """Take the newest event of a message back."""

        def run(view):
            live = view.live(some_mail(number).digest)
            if live is None or live.folded:
                return 0
            last = view.event(live.seq)
            if last.kind is EventKind.UNDO:
                return 0
            event = last._replace(
                seq=view.totals().last_seq + 1,
                kind=EventKind.UNDO,
                before=last.after,
                after=last.before,
                previous=last.seq,
                delta=last.delta.negated(),
                net_update=last.net_update.plus(last.delta.negated()),
                undoes=last.seq,
            )
            apply(view, event)
            return event.seq

        self.everywhere(run)

    @rule(first=st.integers(0, 100), count=st.integers(1, 700), size=st.integers(1, 3))
    def bring(self, first, count, size):
        """Import counts."""
        ids = ids_of(*range(first, first + count))
        ones = np.full((count, 2), size)
        self.everywhere(lambda v: apply(v, bulk_event(v, ids, ones, -ones, messages=(size, size))))

    @rule(most=st.integers(1, 4))
    def expire(self, most):
        """Drop features that are old, rare and named by no event of the journal."""

        def run(view):
            old = [ids[~named(view, ids)] for ids in stale(view, 60_000, most)]
            ids = np.concatenate([*old, ids_of()])
            if len(ids) == 0:
                return 0
            rows = view.gather(ids)
            n, w = rows.n.astype(np.int64), rows.w.astype(np.int64)
            apply(view, bulk_event(view, ids, n, w, kind=EventKind.EXPIRE, sign=-1))
            return len(ids)

        self.everywhere(run)

    @rule(days=st.integers(0, 5), most=st.integers(1, 9))
    def fold(self, days, most):
        """Move the oldest events into the checkpoint."""
        before = NOON_2026 + (self.day - days) * DAY_US
        self.everywhere(lambda view: view.fold(before, most))

    @rule(number=MESSAGES)
    def fail(self, number):
        """A transaction that fails half way leaves nothing."""

        def run(view):
            ids = np.concatenate([block for block, _ in view.features()] or [ids_of()])
            rows = view.gather(ids)
            rows.n[:], rows.w[:] = 0, 0
            view.scatter(ids, rows)
            raise ZeroDivisionError(number)

        for store in self.stores:
            try:
                store.transact(run)
            except ZeroDivisionError:
                continue
            raise AssertionError

    @precondition(lambda self: self.day % 3 == 1)
    @rule()
    def reopen(self):
        """Close and open the store: its state does not depend on the process."""
        self.stores[1].close()
        self.stores[1] = open_store(self.folder / "model")

    @invariant()
    def the_stores_agree(self):
        """Equal states, equal to the fold of the journal."""
        pictures = []
        for store in self.stores:
            with store.read() as view:
                pictures.append(picture(view))
                pictures[-1]["live"] = [view.live(some_mail(n).digest) for n in range(1, 13)]
                pictures[-1]["at"] = [view.live_at(k, s) for k in (0, 1) for s in range(0, 40, 7)]
                assert check(view) == []
        assert pictures[0] == pictures[1]

    def teardown(self):
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)


class CrowdedHistories(Histories):
    """The same with a short log of rows, with pending words, and tables of frequent ids."""

    def __init__(self):
        self.kept = logged_rows.LEAST_BITS, logged_rows._ROWS_A_VALUE, segments.ROW_BITS
        self.fresh = vocabulary.MAX_PENDING_WORDS, vocabulary.PENDING_JOINED
        self.tables = journal._TABLE_FROM, journal._TABLE_GROWTH
        journal._TABLE_FROM, journal._TABLE_GROWTH = 3, 2
        logged_rows.LEAST_BITS, logged_rows._ROWS_A_VALUE, segments.ROW_BITS = 8, 7, 5
        vocabulary.MAX_PENDING_WORDS, vocabulary.PENDING_JOINED = 25, 2
        super().__init__()

    def teardown(self):
        logged_rows.LEAST_BITS, logged_rows._ROWS_A_VALUE, segments.ROW_BITS = self.kept
        vocabulary.MAX_PENDING_WORDS, vocabulary.PENDING_JOINED = self.fresh
        journal._TABLE_FROM, journal._TABLE_GROWTH = self.tables
        super().teardown()


TestHistories = Histories.TestCase
TestHistories.__doc__ = "Both stores stay equal, and equal to their fold, through any history."
TestHistories.settings = settings(
    max_examples=settings.default.max_examples // 2, stateful_step_count=20
)
TestCrowdedHistories = CrowdedHistories.TestCase
TestCrowdedHistories.__doc__ = (
    "The same with a log of rows that goes round all the time, and several tables of ids."
)
TestCrowdedHistories.settings = TestHistories.settings
