"""The corrections of persons, while events are applied to them.

The same as `core.model.training_rows` for the shared model: a person's corrections are the sum of
the personal steps of that person's events, so undoing events in any order restores them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from spamnb.core.model.events import Event, Ids, Update
from spamnb.core.persons.corrections import (
    FilledPlaces,
    PersonalCorrections,
    no_corrections,
    places_of,
)


class PersonalRows:
    """The corrections of the persons that some events name; `read` gives those of a store."""

    def __init__(self, labels: int, read: Callable[[int], FilledPlaces | None]) -> None:
        self._read = read
        self._labels = labels
        self._known: dict[int, PersonalCorrections] = {}

    def of(self, person: int) -> PersonalCorrections:
        """The corrections of a person; zeros if the person has taught nothing."""
        if known := self._known.get(person):
            return known
        stored = self._read(person)
        return stored.spread() if stored else no_corrections(self._labels)

    def put(self, person: int, personal: PersonalCorrections) -> None:
        """Replace the corrections of a person."""
        self._known[person] = personal

    def apply(self, event: Event, *, sign: int = 1) -> None:
        """Add an event, or subtract it (sign -1). Events without a person change nothing."""
        self.update(event.person, event.ids, event.delta, sign)
        if event.person and event.bulk is not None:
            places, changes = event.bulk.ids.astype(np.uint16), event.bulk.w.T[1:]
            self.put(event.person, self.of(event.person).plus(places, sign * changes))

    def update(self, person: int, ids: tuple[Ids, ...], update: Update, sign: int = 1) -> None:
        """Add an update of a message with these features."""
        if update.personal is None or not person:
            return
        places = places_of(np.uint64(person), np.concatenate(ids))
        changes = sign * update.personal.T.repeat([len(part) for part in ids], axis=1)
        self.put(person, self.of(person).plus(places, changes))

    def changed(self) -> Iterator[tuple[int, PersonalCorrections | None]]:
        """Yield the corrections of each person after the events; None if all are zero."""
        for person, personal in self._known.items():
            yield person, personal if personal.values.any() else None
