"""`Table`: what the rows, the words and the journal need of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from spamnb.store.rows.id_codec import Buffer


class Table(Protocol):
    """Sorted keys and values of one transaction. Values read are views: copy what must stay."""

    def get(self, key: bytes) -> Buffer | None:
        """The value, None if there is none."""

    def get_many(self, keys: list[bytes]) -> list[Buffer]:
        """The values, empty for missing ones."""

    def put(self, key: bytes, value: Buffer, *, append: bool = False) -> None:
        """Replace the value; with `append` the key must be the greatest."""

    def delete(self, key: bytes) -> None:
        """Delete the key, if it exists."""

    def scan(self, start: bytes = b"", *, down: bool = False) -> Iterator[tuple[bytes, Buffer]]:
        """Keys at or after `start` upwards, or at or before it downwards (empty: from the end)."""
