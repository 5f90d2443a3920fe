"""Traps: addresses that nobody uses, so whatever comes to them is spam.

A message to one is left in a private spool, where the daemon's processes alone can write, and the
learner takes it from there: mail waits for nobody. What it is worth is said in `trust`: half a
step, and a very sure verdict is not contradicted, for who knows a trap can send it what they like.

Must not know sockets or the model. Failure: StoreError of the spool.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spamnb.core.policy.verdict_headers import as_delivered
from spamnb.service.feedback.spool import leave
from spamnb.service.scanning.types import ScanRequest

TRAPS_FOLDER = "traps"
"""the private spool in the home"""


class Traps:
    """The traps of one house."""

    def __init__(self, addresses: Iterable[str] = (), spool: Path | None = None) -> None:
        self._addresses = frozenset(address.casefold() for address in addresses)
        self._spool = spool

    def caught(self, request: ScanRequest) -> str:
        """The trap that a letter went into; empty if it went into none, or was not seen whole."""
        if not (self._addresses and request.whole):
            return ""
        named = (recipient.casefold() for recipient in request.envelope.recipients)
        return next((address for address in named if address in self._addresses), "")

    def keep(self, request: ScanRequest, trap: str) -> None:
        """Leave it to be learnt, durably."""
        assert self._spool is not None, "a house with traps has a spool"
        head = {"channel": "trap", "for": trap, "trust": "admin"}
        leave(self._spool, "spam", as_delivered(request.raw), head)
