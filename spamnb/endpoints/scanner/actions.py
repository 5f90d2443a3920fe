"""What a scanner session asks its connection to do besides `scan_actions`. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spamnb.endpoints.net.scan_actions import ScanAction


@dataclass(frozen=True, slots=True)
class AskDaemon:
    """Ask the learner for an administrative operation; `asked` follows."""

    op: str
    body: bytes = b""
    fields: Mapping[str, object] = field(default_factory=dict)


ScannerAction = ScanAction | AskDaemon
