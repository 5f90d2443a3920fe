"""The log that the hosts of a fleet share: its interface, its entries, and a log in memory."""

from __future__ import annotations

OUTBOX_BYTES = 1 << 30
"""most disk space of the corrections that wait for the log; here, because the settings are read by
commands that do without numpy"""
