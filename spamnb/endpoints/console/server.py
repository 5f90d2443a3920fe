"""The HTTP server of the console: uvicorn on given sockets, with the process's own event loop.

The kernel identifies the client of a unix socket (SO_PEERCRED). A client that does not send a whole
head within ten seconds is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Generator, Sequence
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from spamnb.endpoints.net.networks import UNIX

HEAD_S: Final = 10.0
HEAD_BYTES: Final = 16_384
MOST_CONNECTIONS: Final = 200
_UCRED = struct.Struct("3i")


class ConsoleServer(uvicorn.Server):
    """Serves an ASGI application until `should_exit`; the process handles its signals itself."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=ConsoleProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                h11_max_incomplete_event_size=HEAD_BYTES,
                timeout_graceful_shutdown=5,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Change no signal handler."""
        yield

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self.server_state.connections)

    async def serve_on(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on listening sockets."""
        await self.serve(list(sockets))


class ConsoleProtocol(H11Protocol):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Identify the client."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            self.client = (UNIX, _uid_of(connection))
        self._await_head()

    def handle_events(self) -> None:
        """Read what has come; the time for a head runs while there is no request."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _uid_of(connection: socket.socket) -> int:
    """The user of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(raw)[1])
