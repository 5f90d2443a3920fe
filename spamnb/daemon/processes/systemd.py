"""Notify systemd: ready, reloading, stopping, alive (sd_notify(3), sd_watchdog_enabled(3)).

Each notification is a datagram to $NOTIFY_SOCKET; without that variable nothing is sent. Must not
know what the daemon does. A notification that cannot be sent is dropped.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from spamnb.daemon.processes.shared_state import monotonic_us


class Notifier:
    """Connection to the service manager, opened before privileges are dropped."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket = _connected(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environment)
        """watchdog interval of the service manager; 0 is none"""

    def ready(self, status: str) -> None:
        """Report that all processes are ready."""
        self._say("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that a reload starts; `ready` ends it (Type=notify-reload needs the time)."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={monotonic_us()}")

    def stopping(self, status: str) -> None:
        self._say("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Set the line in `systemctl status`."""
        self._say(f"STATUS={status}")

    def alive(self) -> None:
        """Send the watchdog keep-alive."""
        self._say("WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, *lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send("\n".join(lines).encode())


def _connected(address: str) -> socket.socket | None:
    if not address.startswith(("/", "@")):
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        # Connected now: the path may not be reachable after privileges are dropped.
        made.connect("\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        made.close()
        return None
    made.setblocking(False)
    return made


def _watchdog_s(environment: Mapping[str, str]) -> float:
    meant = environment.get("WATCHDOG_PID", "")
    if meant and meant != str(os.getpid()):
        return 0.0
    try:
        return max(0, int(environment.get("WATCHDOG_USEC", "0"))) / 1e6
    except ValueError:
        return 0.0
