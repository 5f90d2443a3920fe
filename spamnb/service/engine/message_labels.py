"""The labels of one message: of administrators and users, and which of them is in force.

Labels of persons are not among them: they decide only the verdicts on the mail of their person.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from spamnb.core.model.events import NO_LABEL, Event
from spamnb.core.model.labels import LabelInForce
from spamnb.service.engine.planner import PendingJournal, own_key
from spamnb.service.engine.receipt import Receipt
from spamnb.service.engine.requests import Source
from spamnb.store.contract import MessageState, ReadView


class OwnersLabel(NamedTuple):
    """The label that one owner has given a message."""

    owner: int
    """0 for an administrator"""
    label: int
    event: Event | None
    """the event that set the label; None if it is in the checkpoint"""


def in_force(view: ReadView, digest: bytes, owners: Collection[int] | None = None) -> LabelInForce:
    """Return the label that decides the verdict on a message, or that of some `owners` alone."""
    pending = PendingJournal(view, [], 0)
    others = set() if owners is None else pending.labels_of(digest).keys() - set(owners)
    return pending.in_force(digest, dict.fromkeys(others, NO_LABEL))


def labels_of(view: ReadView, digest: bytes) -> list[OwnersLabel]:
    """Return the labels of a message, the oldest first."""
    states = sorted(view.labels(digest).items(), key=lambda item: item[1].seq)
    return [
        OwnersLabel(owner, state.label, view.event(state.seq))
        for owner, state in states
        if state.label != NO_LABEL
    ]


def own_label(view: ReadView, digest: bytes, source: Source) -> int:
    """Return the label that a source has given a message; NO_LABEL without one."""
    pending = PendingJournal(view, [], 0)
    state = pending.state(own_key(source, digest, pending))
    return state.label if state else NO_LABEL


def newest_state(view: ReadView, digest: bytes) -> MessageState | None:
    """Return the state of the label that was changed last; None if the message has none."""
    return max(view.labels(digest).values(), key=lambda state: state.seq, default=None)


def trainings(view: ReadView, digest: bytes) -> Iterator[Event]:
    """Yield the events of a message's labels, newest first."""
    heads = {state.seq for state in view.labels(digest).values()}
    while heads:
        seq = max(heads)
        heads.remove(seq)
        if (event := view.event(seq)) is not None:
            yield event
            if event.previous:
                heads.add(event.previous)


def each_owner(view: ReadView, digest: bytes, source: Source) -> list[Source]:
    """Return a source for each label of a message, so that a request reaches all of them.

    It is the source itself if the message has no label.
    """
    owners = [owner for owner, state in view.labels(digest).items() if state.label != NO_LABEL]
    return [source._replace(owner=owner) for owner in owners] or [source]


def joined(receipts: Sequence[Receipt]) -> Receipt:
    """Return one receipt for several changes of one message: the first one that changed it."""
    first = next((one for one in receipts if one.changed), receipts[0])
    others = [str(one.event) for one in receipts if one.changed and one is not first]
    if not others:
        return first
    reason = f"the labels of users were taken back, too: events {', '.join(others)}"
    return first._replace(reason=reason, in_force=receipts[-1].in_force, why=receipts[-1].why)
