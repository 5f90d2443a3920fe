"""Channel from the supervisor to a child process: start parameters and reload messages.

Each child inherits one end of a socket pair. The first datagram is its `StartParams`, later ones
are `Order` messages; end of file means that the supervisor is gone. With datagrams
(SOCK_SEQPACKET) a message arrives whole or not at all, and a child that does not read cannot block
the supervisor. Values are JSON, so they cannot contain code.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from spamnb.errors import BugError

MOST_BYTES = 1 << 20
"""maximum size of one datagram; settings take about 10 KB"""
MOST_FDS = 253
"""maximum number of descriptors that the kernel passes with one message (SCM_MAX_FD)"""


@dataclass(frozen=True, slots=True)
class StartParams:
    """Start parameters of a child process."""

    role: str
    entry: str
    """"module:function", called with this value, the shared state and the channel"""
    slot: int
    shared_fd: int
    home: str
    parent: int
    """process id of the parent"""
    settings: dict[str, Any] = field(default_factory=dict)
    """plain values, as `spamnb.settings.plain` writes them"""
    settings_file: str = ""
    """the file that the settings are from; empty if there is none"""
    positions: dict[str, str] = field(default_factory=dict)
    """where each setting was found"""
    sockets: dict[str, list[int]] = field(default_factory=dict)
    """name of a listener -> descriptors of its listening sockets; `control` is the learner's"""
    control: str = ""
    """path of the control socket, for processes that train through it"""
    delivery: str = ""
    """address of the delivery agent, for listeners with the agent as upstream"""
    feed_fd: int = -1
    """the newest verdicts: see `verdict_feed`; -1 without a console"""
    feed_ring: int = 0
    """the ring of a worker"""
    scan_slots: list[int] = field(default_factory=list)
    """slots of a worker's scan processes"""


@dataclass(frozen=True, slots=True)
class Order:
    """A message to a running child."""

    what: Literal["reload"]
    settings: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, str] = field(default_factory=dict)
    sockets: dict[str, list[int]] = field(default_factory=dict)
    """name of a listener that is new or has moved -> descriptors of its listening sockets, which
    are passed with the message"""


class ChildChannel:
    """The child's end."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._socket.fileno()

    def start(self) -> StartParams:
        """Wait for the start parameters."""
        message, _ = self._receive()
        if message is None:
            raise BugError("the supervisor ended before it sent the start parameters")
        return StartParams(**message)

    def next(self) -> Order | None:
        """Return the next order; None at the end. Blocks unless the descriptor is ready."""
        message, fds = self._receive()
        if message is None:
            return None
        order, passed = Order(**message), iter(fds)
        own = {name: [next(passed) for _ in theirs] for name, theirs in order.sockets.items()}
        return replace(order, sockets=own)

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MOST_BYTES, MOST_FDS)
        except ConnectionError:
            return None, []
        return (dict(json.loads(data)) if data else None), fds


class SupervisorChannel:
    """The supervisor's end."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, self._theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        self._ours.setblocking(False)
        self.child_fd = self._theirs.fileno()

    def child_has_it(self) -> None:
        """Close the child's end in this process, so that the death of the child is noticed."""
        self._theirs.close()

    def tell(self, value: StartParams | Order) -> bool:
        """Send a message; False if the child does not read any more."""
        # A child inherits the descriptors in its start parameters; those of an order are sent.
        fds = value.sockets.values() if isinstance(value, Order) else ()
        passed = [fd for many in fds for fd in many]
        try:
            socket.send_fds(self._ours, [json.dumps(asdict(value)).encode()], passed)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._ours.close()
