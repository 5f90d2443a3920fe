"""Verdicts of the history, each with the label that a person gave the message."""

from __future__ import annotations

from typing import Final, NamedTuple

from spamnb.core.model.costs import Role, roles_of
from spamnb.core.model.events import NO_LABEL, Event
from spamnb.service.engine.filter import Filter
from spamnb.service.maintenance.event_filter import Takes
from spamnb.store.contract import ReadView
from spamnb.store.history.entry import HistoryEntry
from spamnb.store.lookup import LookupIndex

_BATCH: Final = 1000
_LAST_SEQ: Final = (1 << 63) - 1
_BY_ITSELF: Final = ("trap",)
"""channels that teach without a person"""


class JudgedMessage(NamedTuple):
    """A verdict without the ids of its features, and what is known of its message."""

    entry: HistoryEntry
    said: Role | None
    """the role of the label that a person gave it"""
    before: bool
    """whether it was judged before it was taught"""


def judged_mail(
    model: Filter, index: LookupIndex, most: int, since_us: int = 0
) -> list[JudgedMessage]:
    """Return the newest verdicts since a time, newest first."""
    assert model.history is not None, "the caller opens the history"
    roles = roles_of(model.labels)
    found: list[JudgedMessage] = []
    until = _LAST_SEQ
    with model.store.read() as view:
        while until and len(found) < most:
            seqs, until = index.page((), until, since_us, min(_BATCH, most - len(found)))
            entries = model.history.facts_at(seqs)
            found += [_judged(view, roles, entry) for entry in entries]
    return found


def _judged(view: ReadView, roles: tuple[Role, ...], entry: HistoryEntry) -> JudgedMessage:
    said, event = said_of(view, roles, entry.digest)
    before = said is not None and event is not None and event.time_us > entry.time_us
    return JudgedMessage(entry, said, before)


def said_of(
    view: ReadView, roles: tuple[Role, ...], digest: bytes, ignored: Takes = lambda _: False
) -> tuple[Role | None, Event | None]:
    """Return the role of the label that a person gave a message, and its event.

    The role is None without a label, if no person gave it, or if its event is ignored.
    """
    live = view.live(digest)
    if live is None or live.label == NO_LABEL:
        return None, None
    event = view.event(live.seq)
    if event is not None and (event.channel in _BY_ITSELF or ignored(event)):
        return None, event
    return roles[live.label], event
