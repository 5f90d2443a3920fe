"""Verdicts of the history, each with the label that a person gave the message."""

from __future__ import annotations

from typing import Final, NamedTuple

from spamnb.core.model.costs import Role, roles_of
from spamnb.core.model.events import Event
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.message_labels import in_force, labels_of
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
    """Return the role of the label in force for a message, and the event that gave it.

    Labels that no person gave, and those of ignored events, do not count.
    """
    given = labels_of(view, digest)
    counted = [one for one in given if one.event is None or _counts(one.event, ignored)]
    if not counted:
        return None, given[0].event if given else None
    label = in_force(view, digest, [one.owner for one in counted]).label
    return roles[label], next(one.event for one in counted if one.label == label)


def _counts(event: Event, ignored: Takes) -> bool:
    return event.channel not in _BY_ITSELF and not ignored(event)
