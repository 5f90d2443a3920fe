"""The log of a process: a function that takes one record, and the record of an internal fault."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from spamnb.errors import incident_id

Log = Callable[[dict[str, object]], None]
"""a record has the key `event`; it may have `level`, and facts"""


def silent(_: dict[str, object]) -> None:
    """Log nothing."""


def incident(log: Log, where: str, error: BaseException) -> str:
    """Log an internal fault; returns its incident id."""
    name = incident_id()
    log(
        {
            "event": "fault",
            "level": "error",
            "incident": name,
            "where": where,
            "error": f"{type(error).__name__}: {error}",
            "trace": "".join(traceback.format_exception(error, limit=-8)),
        }
    )
    return name
