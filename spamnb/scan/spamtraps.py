"""Spamtraps: unused addresses, so all mail to them is spam.

A message to a trap is written to a private spool, which only the daemon's processes can write; the
learner reads it from there, so mail does not wait. `rights` limits its effect: half a step, and it
never contradicts a high-confidence verdict, since a sender that knows a trap can send any message
to it.

Must not know sockets or the model. Failure: StoreError of the spool.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spamnb.feedback.spool import leave
from spamnb.scan.values import ScanRequest

TRAPS_FOLDER = "traps"
"""the private spool in the home"""


class Traps:
    """The trap addresses of a site."""

    def __init__(self, addresses: Iterable[str] = (), spool: Path | None = None) -> None:
        self._addresses = frozenset(address.casefold() for address in addresses)
        self._spool = spool

    def caught(self, request: ScanRequest) -> str:
        """The trap address of a message; empty if it has none or is not whole."""
        if not (self._addresses and request.whole):
            return ""
        named = (recipient.casefold() for recipient in request.envelope.recipients)
        return next((address for address in named if address in self._addresses), "")

    def keep(self, request: ScanRequest, trap: str) -> None:
        """Write the message to the spool, durably."""
        assert self._spool is not None, "traps need a spool"
        head = {"channel": "trap", "for": trap, "trust": "admin"}
        leave(self._spool, "spam", request.raw, head)
