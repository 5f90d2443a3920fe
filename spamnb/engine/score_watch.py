"""Counts the scores of a host's verdicts as they settle, and stores the counts.

The counts are a function of the newest verdicts of the history, of the labels in the store, and of
the time: whatever the history and the journal say today is counted, so a label that comes late, is
changed or taken back changes the counts. `ScoreWatch` keeps only what it has read, and can always
be made anew. The writer of a model has one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from spamnb.engine.filter import Filter
from spamnb.engine.site_scores import (
    CHANNEL,
    JUMP_NATS,
    TRAINED,
    has_threshold,
    read_counts,
    scores_load,
    threshold_of,
)
from spamnb.engine.values import Source
from spamnb.mail.envelope import domain_of
from spamnb.model.costs import roles_of
from spamnb.model.events import NO_LABEL
from spamnb.model.verdict import NO_SCORES, SHIPPED, WINDOW, ScoredMessage, count_scores, plain
from spamnb.records.verdicts import HistoryEntry
from spamnb.store.table_views import ReadView

LEAST_NATS: Final = 0.05
"""A smaller change of the threshold waits, for a day at most: each one is an event."""
REST_US: Final = 24 * 3600 * 1_000_000
_LONGEST_LOOK: Final = 20_000
"""events that are read when a watch begins"""
_BATCH: Final = 1000
_BY_ITSELF: Final = ("trap",)
"""channels that teach without a person"""


class ThresholdChange(NamedTuple):
    """The junk threshold before and after an event, in nats."""

    before: float
    after: float

    @property
    def is_jump(self) -> bool:
        """Return whether an administrator should know."""
        return abs(self.after - self.before) >= JUMP_NATS


class ScoreWatch:
    """Counts the scores of one model's history. For one thread."""

    def __init__(self) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=WINDOW)
        self._seen = -1
        """the last entry of the history that was read; -1: none was"""
        self._event = 0
        """the last event that was read"""
        self._keys: dict[bytes, bytes] = {}
        """digest -> key of the newest label"""
        self._stored_us = 0

    def look(self, model: Filter, now_us: int) -> ThresholdChange | None:
        """Count, and store the counts if they change the threshold; return that change."""
        if model.history is None or not (has_threshold(model.recipe) and model.one_in):
            return None
        host = model.store.scores_host
        if not host:
            return None
        self._read_history(model)
        with model.store.read() as view:
            self._read_journal(view)
            counts = count_scores(self._messages(view, model.labels), now_us)
            load = scores_load(view, model.recipe, host, counts, now_us)
            if load is None:
                return None
            before = model.threshold(view)
            change = counts.minus(read_counts(view, model.recipe, host))
            after = threshold_of(view, model.recipe, model.one_in, change)
        is_small = abs(after - before) < LEAST_NATS
        if is_small and 0 <= now_us - self._stored_us < REST_US:
            return None
        model.run(load)
        self._stored_us = now_us
        return None if is_small else ThresholdChange(before, after)

    def _read_history(self, model: Filter) -> None:
        assert model.history is not None
        if self._seen < 0:
            self._seen = model.history.seq_span()[1]
            newest = list(islice(model.history.newest(with_ids=False), WINDOW))
            self._entries.extend(reversed(newest))
        while found := model.history.facts_after(self._seen, _BATCH):
            self._entries.extend(entry for _, entry in found if entry is not None)
            self._seen = found[-1][0]

    def _read_journal(self, view: ReadView) -> None:
        last = view.totals().last_seq
        if last < self._event:
            # The model was replaced by an earlier one.
            self._event, self._keys = 0, {}
        if self._event == 0:
            since = self._entries[0].time_us if self._entries else 0
            for event in islice(view.events(newest_first=True), _LONGEST_LOOK):
                if event.time_us < since:
                    break
                if event.digest and event.bulk is None:
                    self._keys.setdefault(event.digest, event.label_key)
        else:
            for event in view.events(self._event + 1):
                if event.digest and event.bulk is None:
                    self._keys[event.digest] = event.label_key
        self._event = last
        if len(self._keys) > 2 * _LONGEST_LOOK:
            here = {entry.digest for entry in self._entries}
            self._keys = {digest: key for digest, key in self._keys.items() if digest in here}

    def _messages(self, view: ReadView, labels: tuple[str, ...]) -> Iterator[ScoredMessage]:
        """Yield what is known of each message, the newest first; each message once."""
        roles, done = roles_of(labels), set[bytes]()
        for entry in reversed(self._entries):
            if entry.digest in done:
                continue
            done.add(entry.digest)
            message = scored_message(entry)
            live = view.live(self._keys.get(entry.digest, entry.digest))
            if live is not None and live.label != NO_LABEL:
                event = view.event(live.seq)
                if event is None or event.channel in _BY_ITSELF or event.time_us <= entry.time_us:
                    continue
                message = message._replace(said=roles[live.label], user=event.user)
            yield message


def store_trained_scores(
    model: Filter, ham: tuple[int, ...], spam: tuple[int, ...], user: str, now_us: int
) -> bool:
    """Store the scores that a training found by cross-validation; return whether they are new.

    They replace those of an earlier training.
    """
    if not (has_threshold(model.recipe) and model.store.scores_host):
        return False
    counts = NO_SCORES._replace(ham=ham, spam=spam)
    with model.store.read() as view:
        load = scores_load(view, model.recipe, TRAINED, counts, now_us)
    if load is not None:
        model.run(load._replace(source=Source(user, CHANNEL)))
    return load is not None


def scored_message(entry: HistoryEntry) -> ScoredMessage:
    """Return a verdict of the history, without what was said of it."""
    notes = entry.notes
    try:
        threshold = float(notes.get("threshold", SHIPPED))
    except ValueError:
        threshold = SHIPPED
    filed = None if entry.decision == "unsure" else entry.decision in ("junk", "reject")
    return ScoredMessage(
        entry.time_us,
        plain(entry.log_odds, threshold),
        filed,
        sender=domain_of(notes.get("from", "")),
        recipient=notes.get("to", "").partition(" ")[0],
    )
