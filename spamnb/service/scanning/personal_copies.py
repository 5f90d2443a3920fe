"""A scanned message for several recipients, with the verdict of each in a copy of its own.

The delivery agent writes these copies. The message was scanned before, by the relay or another
listener, so nothing is added to the history, and the signature stays. A verdict with a reason stays
too: it is that of an access list, or of a scan that was limited. Must not know protocols or files.

Failure: none; after a fault of the model there are no copies, and all get the message as it came.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final

from spamnb.core.model.costs import DECISIONS
from spamnb.core.policy.sender_evidence import SenderEvidence
from spamnb.core.policy.verdict_headers import (
    ScanVerdict,
    add_to_message,
    header_end,
    junk_threshold,
    scanned_fields,
)
from spamnb.service.scanning.model_session import ModelSession, SessionConfig
from spamnb.service.telemetry.log import Log

MOST_BYTES: Final = 1 << 20
"""larger messages keep their verdict: a scan of this size takes up to 0.2 s"""
_FIELD = re.compile(rb"^X-Spamnb-(Verdict|Signature):((?:[^\n]|\n[ \t])*)", re.MULTILINE)
_DECISIONS: Final = tuple(f"{one};".encode() for one in DECISIONS)


class PersonalCopies:
    """Judges messages again for their recipients; used by several threads."""

    def __init__(self, plan: SessionConfig, log: Log) -> None:
        self._log = log
        self._lock = Lock()
        self._session = ModelSession(plan, log=log)

    def apply_settings(self, plan: SessionConfig) -> None:
        """Judge by other settings from now on."""
        with self._lock:
            self._session.close()
            self._session = ModelSession(plan, log=self._log)

    @property
    def is_needed(self) -> bool:
        """Whether recipients may have verdicts of their own."""
        plan = self._session.plan
        return plan.persons is not None or bool(plan.recipient_costs)

    def of(self, raw: bytes, sender: str, recipients: Sequence[str]) -> Mapping[str, bytes]:
        """The message with LF line ends for each recipient with a verdict of their own."""
        end = header_end(raw)
        header = raw if end < 0 else raw[:end]
        signature = _signature_to_keep(header)
        if signature is None or len(raw) > MOST_BYTES:
            return {}
        with self._lock:
            plan = self._session.plan
            message = SenderEvidence(header, self._session.local, sender, raw)
            verdicts = self._session.personal(raw, message, recipients)
            junk = junk_threshold(plan.costs)
        rest = raw[len(header) :]
        return {
            one: _replaced(header, verdict._replace(signature=signature), junk) + rest
            for one, verdict in verdicts.items()
        }


def _signature_to_keep(header: bytes) -> str | None:
    """The signature of a message with a verdict of the model; None if it has another verdict."""
    found: dict[bytes, bytes] = {
        name: text.strip() for name, text in reversed(_FIELD.findall(header))
    }
    verdict = found.get(b"Verdict", b"")
    if not verdict.startswith(_DECISIONS) or b"reason=" in verdict:
        return None
    return str(found.get(b"Signature", b""), "ascii", "replace")


def _replaced(header: bytes, verdict: ScanVerdict, junk_log_odds: float) -> bytes:
    version: str = sys.modules["spamnb"].__version__
    fields = scanned_fields(verdict, junk_log_odds, version=version)
    return add_to_message(header, fields).replace(b"\r\n", b"\n")
