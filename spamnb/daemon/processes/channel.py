"""What a child is told when it starts, and what it is told later.

Each child inherits one end of a socket pair. The first datagram on it is its `StartParams`; later
ones are orders; its end says that the supervisor is gone. Datagrams (SOCK_SEQPACKET), so that an
order is whole or not there, and a child that reads none cannot stop the supervisor. Values are
JSON: nothing that a child is told can run. Must not know what the roles do.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from spamnb.errors import BugError

MOST_BYTES = 1 << 20
"""of one datagram; settings are some 10 KB"""


@dataclass(frozen=True, slots=True)
class StartParams:
    """What a process of the daemon needs to begin."""

    role: str
    entry: str
    """what runs: "module:function", called with this value, the board and the orders"""
    slot: int
    board_fd: int
    home: str
    parent: int
    """process id of whoever started us"""
    settings: dict[str, Any] = field(default_factory=dict)
    """plain values, as `spamnb.settings.plain` writes them"""
    sockets: dict[str, list[int]] = field(default_factory=dict)
    """name of a listener -> descriptors of its listening sockets; `control` is the learner's"""
    control: str = ""
    """path of the control socket, for those who teach through it"""
    post: str = ""
    """where the post office listens, for listeners whose upstream it is"""
    scan_slots: list[int] = field(default_factory=list)
    """a worker's scan helpers sit here"""


@dataclass(frozen=True, slots=True)
class Order:
    """What a child is told while it runs."""

    what: Literal["reload"]
    settings: dict[str, Any] = field(default_factory=dict)


class ChildChannel:
    """A child's end."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def fileno(self) -> int:
        """To wait on."""
        return self._socket.fileno()

    def start(self) -> StartParams:
        """The first word; waits for it."""
        told = self._told()
        if told is None:
            raise BugError("the supervisor was gone before it said what to do")
        return StartParams(**told)

    def next(self) -> Order | None:
        """The next order; None at the end. Waits unless the descriptor is ready."""
        told = self._told()
        return None if told is None else Order(**told)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _told(self) -> dict[str, Any] | None:
        try:
            data = self._socket.recv(MOST_BYTES)
        except ConnectionError:
            return None
        return dict(json.loads(data)) if data else None


class SupervisorChannel:
    """The supervisor's end."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, self._theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        self._ours.setblocking(False)
        self.child_fd = self._theirs.fileno()

    def child_has_it(self) -> None:
        """Let go of the child's end, so that its death is seen."""
        self._theirs.close()

    def tell(self, value: StartParams | Order) -> bool:
        """Say it; False if the child reads nothing any more."""
        try:
            self._ours.send(json.dumps(asdict(value)).encode())
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Hang up."""
        self._ours.close()
