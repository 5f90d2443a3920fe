"""Select journal events by person, channel, label, time span and message. Values only.

The same filter serves the journal's list and the undo of many events; `in_force` selects the events
that no other event has undone. Must not know terminals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spamnb.errors import UserError
from spamnb.model.events import Event, EventKind
from spamnb.store.table_views import ReadView

Takes = Callable[[Event], bool]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Matches events that meet all given conditions; without conditions, all events."""

    user: tuple[str, ...] = ()
    channel: tuple[str, ...] = ()
    label: int | None = None
    """the event gave the message this label, or took it away"""
    since_us: int | None = None
    until_us: int | None = None
    """exclusive"""
    digest: bytes | None = None

    def __call__(self, event: Event) -> bool:
        """Return whether the event matches."""
        return (
            (not self.user or event.user in self.user)
            and (not self.channel or event.channel in self.channel)
            and (self.label is None or self.label in (event.before, event.after))
            and (self.since_us is None or event.time_us >= self.since_us)
            and (self.until_us is None or event.time_us < self.until_us)
            and (self.digest is None or event.digest == self.digest)
        )

    def __bool__(self) -> bool:
        """Return whether the filter has any condition."""
        return self != EventFilter()


@dataclass(frozen=True, slots=True)
class RelearnFilter:
    """Matches the events that a relearning drops: all of these users, and all of these channels."""

    user: tuple[str, ...] = ()
    channel: tuple[str, ...] = ()

    def __call__(self, event: Event) -> bool:
        """Return whether the event is dropped."""
        return event.user in self.user or event.channel in self.channel


def require_events_of(view: ReadView, names: EventFilter | RelearnFilter) -> None:
    """UserError for a user or channel without an event: a mistyped name would select nothing."""
    users, channels = set(names.user), set(names.channel)
    events = iter(view.events() if users or channels else ())
    while (users or channels) and (event := next(events, None)):
        users.discard(event.user)
        channels.discard(event.channel)
    if users or channels:
        missing = [f"the user {name!r}" for name in sorted(users)]
        missing += [f"the channel {name!r}" for name in sorted(channels)]
        raise UserError(
            f"the journal has no event of {' or '.join(missing)}",
            hint="`spamnb journal --limit 0` shows the user and the channel of each event",
        )


def in_force(view: ReadView, takes: Takes) -> list[int]:
    """Return the numbers of the selected events that are in force, newest first.

    An undo that is in force hides the event that it undoes; an undo that is itself undone hides
    nothing. If an undo and the event that it undoes are both selected, neither is returned, because
    together they changed nothing.
    """
    found: list[int] = []
    hidden: set[int] = set()
    undos: dict[int, int] = {}
    for event in view.events(newest_first=True):
        if event.seq in undos and takes(event):
            # Both are selected: undoing the undo would restore this event.
            found.remove(undos[event.seq])
        if event.seq in hidden or event.kind == EventKind.ERASED:
            continue
        if event.kind == EventKind.UNDO:
            hidden.add(event.undoes)
        if takes(event):
            found.append(event.seq)
            if event.kind == EventKind.UNDO:
                undos[event.undoes] = event.seq
    return found


def left_out(view: ReadView, drops: Takes) -> set[int]:
    """Return the events that a relearning omits: dropped ones, undone ones, and the undos."""
    omitted: set[int] = set()
    undone: set[int] = set()
    for event in view.events(newest_first=True):
        if event.seq in undone or event.kind == EventKind.ERASED or drops(event):
            omitted.add(event.seq)
        elif event.kind == EventKind.UNDO:
            omitted.add(event.seq)
            undone.add(event.undoes)
    return omitted
