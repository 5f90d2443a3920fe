"""The HTTP server of the console: uvicorn on given sockets, with the process's own event loop.

The kernel identifies the client of a unix socket (SO_PEERCRED). A client that does not send a whole
head within ten seconds is disconnected, and a network that has too many connections gets no more.
If a client has sent too many requests, the next request is refused before it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from spamnb.core.mail.envelope import network_of
from spamnb.endpoints.net.networks import UNIX, NetworkSet

HEAD_S: Final = 10.0
LINGER_S: Final = 1.0
"""until the connection to a refused client is closed: closing at once would reset it"""
HEAD_BYTES: Final = 16_384
MOST_CONNECTIONS: Final = 200
MOST_OF_ONE: Final = 50
"""connections from one network; a browser opens six"""
BACKLOG: Final = 128
_HERE: Final = NetworkSet(("127.0.0.1", "::1", UNIX))
_NONE: Final = NetworkSet()
_UCRED = struct.Struct("3i")


Refusal = Callable[[str, bytes], bytes]
"""address and start of a request -> the reply that refuses it; empty: the request is read"""


class ConsoleServer(uvicorn.Server):
    """Serves an ASGI application until `should_exit`; the process handles its signals itself."""

    def __init__(
        self,
        app: Any,
        tls: ssl.SSLContext | None = None,
        proxies: NetworkSet = _NONE,
        refusal: Refusal = lambda _address, _head: b"",
    ) -> None:
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

        self.config.load()
        self._tls = self.config.ssl = tls
        if tls is not None:
            tls.sni_callback = self._choose_tls
        self._proxies = proxies
        self.refusal = refusal

    def apply_settings(self, tls: ssl.SSLContext | None, proxies: NetworkSet) -> None:
        """Use another certificate and other proxies for new connections."""
        self._tls, self._proxies = tls, proxies

    def has_room(self, address: str) -> bool:
        """Whether a client may have one more connection; web servers connect for many clients."""
        if _HERE.contains(address) or self._proxies.contains(address):
            return True
        network = network_of(address)
        clients = (getattr(one, "client", None) for one in self.server_state.connections)
        return sum(client is not None and network_of(client[0]) == network
                   for client in clients) <= MOST_OF_ONE  # fmt: skip

    def _choose_tls(self, connection: ssl.SSLObject, *_: object) -> None:
        """Choose the certificate of a connection; called even if the client names no server."""
        if self._tls is not None:
            connection.context = self._tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn's own method gives a client a minute for the TLS handshake."""
        loop = asyncio.get_running_loop()
        made = partial(ConsoleProtocol, self, loop)
        limit_s = HEAD_S if self.config.ssl else None
        self.servers = [
            await loop.create_server(made, sock=sock, ssl=self.config.ssl,
                                     ssl_handshake_timeout=limit_s, backlog=BACKLOG)
            for sock in sockets or ()
        ]  # fmt: skip
        self.started = True

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
    _is_refused = False

    def __init__(self, server: ConsoleServer, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server.config, server.server_state, {}, loop)
        self._has_room, self._refusal = server.has_room, server.refusal

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Identify the client."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            self.client = (UNIX, _uid_of(connection))
        if self.client is not None and not self._has_room(self.client[0]):
            transport.abort()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Refuse a request before it is read if its client has sent too many."""
        is_new = self.cycle is None or self.cycle.response_complete
        if self.client is not None and is_new and not self._is_refused:
            refused = self._refusal(self.client[0], data)
            if refused:
                self._refuse(refused, data.lower())
        if not self._is_refused:
            super().data_received(data)

    def _refuse(self, reply: bytes, head: bytes) -> None:
        """Send a reply and close; a client that sends a body first gets time to read the reply."""
        self._is_refused = True
        self.transport.write(reply)
        if b"\ncontent-length:" in head or b"\ntransfer-encoding:" in head:
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()

    def handle_events(self) -> None:
        """Process what has arrived; the time limit for a head runs while there is no request."""
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
