"""The corrections of persons in an export: one line for each person, after those of the features.

    {"person": "16 hex digits", "name": "ann", "places": [rising], "values": [[of each place] of
     each label but the first]}

The id of a person and the places are comparable only under the same key. An import adds each person
in one event, so that undo, expiry and erasing treat it like a label; a person with corrections here
is left out. Failure: ValueError and others of `MALFORMED` for an invalid line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from spamnb.core.model.events import BulkChange, Ids, Ints
from spamnb.core.persons.corrections import PLACE_BITS
from spamnb.errors import RefusedError
from spamnb.service.engine.clock import now_us
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.requests import BulkLoad, Source
from spamnb.service.maintenance.persons import persons_of
from spamnb.store.contract import ReadView

_MOST = (1 << 31) - 1
_NAME_CHARS = 320


class ExportedPerson(NamedTuple):
    """The corrections of one person."""

    person: int
    name: str
    places: Ids
    values: Ints
    """[K - 1, places]"""

    def bulk(self, groups: int) -> BulkChange:
        """Return the change that adds them: `ids` are places, `w` the values of each label."""
        values = np.concatenate((np.zeros((1, len(self.places)), np.int64), self.values)).T
        none = np.zeros_like(values)
        labels, days = values.shape[1], np.zeros(len(values), np.uint16)
        sums = np.zeros(labels, np.int64), np.zeros((groups, labels), np.int64)
        return BulkChange(self.places, none, values, *sums, np.zeros(groups, np.int64), days)


def person_lines(view: ReadView, labels: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the line of each person with corrections."""
    names = {one.person: one.name for one in persons_of(view, labels)}
    for person, filled in view.persons():
        yield {
            "person": f"{person:016x}",
            "name": names[person],
            "places": filled.places.tolist(),
            "values": filled.values.tolist(),
        }


def read_person(line: dict[str, Any], labels: int) -> ExportedPerson:
    """Parse the line of a person."""
    name, places, values = line["name"], line["places"], line["values"]
    if not isinstance(name, str) or len(name) > _NAME_CHARS or not name.isprintable():
        raise ValueError("its name is not valid")
    found = np.array([places, *values])
    if found.dtype.kind not in "iu" or found.ndim != 2 or len(found) != labels:
        raise ValueError("its places and values are not lists of integers of one length")
    rising = bool((np.diff(found[0]) > 0).all()) and found[0].min(initial=0) >= 0
    if not rising or found[0].max(initial=0) >= 1 << PLACE_BITS or np.abs(found[1:]).max() > _MOST:
        raise ValueError("a place or a value is out of range")
    person = int(line["person"], 16)
    if not 0 < person < 1 << 64:
        raise ValueError("its id is not valid")
    return ExportedPerson(person, name, found[0].astype(np.uint64), found[1:].astype(np.int64))


def person_loads(
    model: Filter, persons: tuple[ExportedPerson, ...], source: Source
) -> list[BulkLoad]:
    """Return the requests that add the persons without corrections in the model."""
    if persons and model.recipe.kind != "corrected":
        raise RefusedError(f"a model of kind {model.recipe.kind} has no corrections of persons")
    with model.store.read() as view:
        new = [one for one in persons if view.personal(one.person) is None]
    now, groups = now_us(), model.recipe.groups
    return [
        BulkLoad(one.bulk(groups), False, source._replace(user=one.name, person=one.person), now)
        for one in new
    ]
