"""How much of the history is kept. A value that the settings hold as it is."""

from __future__ import annotations

from typing import NamedTuple


class HistoryLimits(NamedTuple):
    """Which verdicts can be corrected without the message."""

    keep_days: int = 30
    limit_bytes: int = 1 << 30
    """the oldest go first"""
    keep_subject: bool = True
    """whether entries have the subject, the sender, the size and the listener of the message"""
