"""The log that the hosts of a fleet share: its interface, its entries, and a log in memory."""

from __future__ import annotations

OUTBOX_BYTES = 1 << 30
"""The most disk space for corrections that wait for the log. It is defined here because commands
that do not import numpy read the settings."""
