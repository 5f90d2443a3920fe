"""The log of a process, as its parts see it: a function that takes one record."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[dict[str, object]], None]
"""a record has the key `event`; it may have `level`, and facts"""


def silent(_: dict[str, object]) -> None:
    """Log nothing."""
