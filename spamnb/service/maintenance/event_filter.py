"""Which events are meant: by person, channel, label, time span, message. Values only.

One selection serves the journal's list and the undoing of many; `net_update` tells which events are
in force, that is not taken back by another one. Must not know terminals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spamnb.core.model.events import Event, EventKind
from spamnb.store.contract import ReadView

Takes = Callable[[Event], bool]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Events that fit everything that is named; one that names nothing takes all."""

    who: tuple[str, ...] = ()
    channel: tuple[str, ...] = ()
    label: int | None = None
    """the message came under this label, or left it"""
    since_us: int | None = None
    until_us: int | None = None
    """the first moment that is too late"""
    digest: bytes | None = None

    def __call__(self, event: Event) -> bool:
        """Whether it is meant."""
        return (
            (not self.who or event.who in self.who)
            and (not self.channel or event.channel in self.channel)
            and (self.label is None or self.label in (event.before, event.after))
            and (self.since_us is None or event.time_us >= self.since_us)
            and (self.until_us is None or event.time_us < self.until_us)
            and (self.digest is None or event.digest == self.digest)
        )

    def __bool__(self) -> bool:
        """Whether anything is named."""
        return self != EventFilter()


@dataclass(frozen=True, slots=True)
class RelearnFilter:
    """What a relearning drops: all that these people taught, all that came these ways."""

    who: tuple[str, ...] = ()
    channel: tuple[str, ...] = ()

    def __call__(self, event: Event) -> bool:
        """Whether it is dropped."""
        return event.who in self.who or event.channel in self.channel


def net_update(view: ReadView, takes: Takes) -> list[int]:
    """Numbers of the taken events that are in force, newest first.

    Undoing goes from the newest to the oldest, as it was stacked: an undo that is in force hides
    what it undoes, and an undo that is undone itself hides nothing. Where an undo and what it
    undoes are both taken, neither is named, for together they changed nothing.
    """
    found: list[int] = []
    hidden: set[int] = set()
    undos: dict[int, int] = {}
    for event in view.events(newest_first=True):
        if event.seq in undos and takes(event):
            # Both are taken: the undo is not undone, for that would bring this one back.
            found.remove(undos[event.seq])
        if event.seq in hidden:
            continue
        if event.kind == EventKind.UNDO:
            hidden.add(event.undoes)
        if takes(event):
            found.append(event.seq)
            if event.kind == EventKind.UNDO:
                undos[event.undoes] = event.seq
    return found


def left_out(view: ReadView, drops: Takes) -> set[int]:
    """Which events a relearning leaves out: the dropped, and what the others have undone."""
    gone: set[int] = set()
    undone: set[int] = set()
    for event in view.events(newest_first=True):
        if event.seq in undone or drops(event):
            gone.add(event.seq)
        elif event.kind == EventKind.UNDO:
            gone.add(event.seq)
            undone.add(event.undoes)
    return gone


__all__ = ["EventFilter", "RelearnFilter", "Takes", "left_out", "net_update"]
