"""The corrections of persons as entries of the table `meta`: live, and of the checkpoint.

    person u64     live corrections           base person u64     those of the checkpoint

The id is big-endian, so entries are in its order. A model without persons has none of these
entries. A row without corrections is removed.

Failure: what decoding raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

from spamnb.core.persons.corrections import FilledPlaces, PersonalCorrections
from spamnb.store.rows.id_codec import Buffer
from spamnb.store.rows.personal_codec import decode_personal, encode_personal

if TYPE_CHECKING:
    from spamnb.store.rows.table import Table

LIVE, BASE = b"person ", b"base person "


class PersonalTable:
    """The corrections of all persons, in one of the two states."""

    def __init__(self, meta: Table, state: bytes, labels: int) -> None:
        self._meta = meta
        self._state = state
        self._labels = labels

    def get(self, person: int) -> FilledPlaces | None:
        """Return the corrections of a person; None if there are none."""
        value = self._meta.get(self._key(person))
        return None if value is None else decode_personal(value, self._labels)

    def put(self, person: int, personal: PersonalCorrections | None) -> None:
        """Replace the corrections of a person; None removes them."""
        if personal is None:
            self._meta.delete(self._key(person))
        else:
            self._meta.put(self._key(person), encode_personal(personal))

    def sizes(self) -> dict[int, int]:
        """Return the size of each person's corrections, in bytes; nothing is decoded."""
        return {self._person(key): len(value) for key, value in self._entries()}

    def all(self) -> Iterator[tuple[int, FilledPlaces]]:
        """Yield all persons in order of their ids."""
        for key, value in self._entries():
            yield self._person(key), decode_personal(value, self._labels)

    def _entries(self) -> Iterator[tuple[bytes, Buffer]]:
        every = self._meta.scan(self._state)
        return takewhile(lambda entry: entry[0].startswith(self._state), every)

    def _person(self, key: bytes) -> int:
        return int.from_bytes(key[len(self._state) :])

    def _key(self, person: int) -> bytes:
        return self._state + person.to_bytes(8)
