"""The HTTP server of the console: uvicorn on given sockets, routes of the API and of the pages.

Imports starlette, which the extra `console` installs. An operation waits for a place (`PLACES`) and
runs in a thread. The kernel identifies the client of a unix socket (SO_PEERCRED). A client that
does not send a whole head within ten seconds is disconnected, and a network that has too many
connections gets no more. If a client has sent too many requests, the next request is refused before
it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from spamnb.console import site as problems
from spamnb.console.pages_http import PAGE_HEADERS, ConsoleUsers, PagesApp
from spamnb.console.site import (
    ApiCaller,
    ApiError,
    ApiReply,
    ApiRequest,
    ConsoleAccess,
    ConsoleSite,
    Problem,
    RepeatedRequests,
    ServedHosts,
    WorkPlaces,
    connection_of,
    guarded,
    problem_of,
    problem_of_status,
    query_of,
    read_body,
    too_many_requests,
    type_of_body,
)
from spamnb.console.table import MESSAGE, OPERATIONS, PREFIX, ApiOperation, document
from spamnb.errors import SpamnbError, UserError
from spamnb.mail.envelope import network_of
from spamnb.net.address import UNIX, NetworkSet
from spamnb.operations.parameters import read_parameters
from spamnb.telemetry import Log

_SAFE: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_METHOD_BYTES: Final = 16
"""of a request: its method and the beginning of its path"""
_MESSAGES: Final = (MESSAGE, "application/octet-stream", "text/plain")


class ConsoleApp:
    """The ASGI application."""

    def __init__(
        self,
        site: ConsoleSite,
        users: ConsoleUsers,
        *,
        access: ConsoleAccess,
        version: str,
        log: Log,
    ) -> None:
        self._callers = users.callers
        self._places = WorkPlaces()
        self._repeated = RepeatedRequests()
        self._pages = PagesApp(users, self._places, log)
        self.apply_settings(site, access)
        self._log = log
        self._document = document(version)
        guard = partial(guarded, failed=_failed, headers=_SAFE, log=log)
        routes: list[BaseRoute] = [
            Route(PREFIX + one.path, guard(partial(self._serve, one)), methods=[one.method])
            for one in OPERATIONS
        ]
        routes.append(Route(f"{PREFIX}/openapi.json", guard(self._describe)))
        routes += self._pages.routes
        self.asgi = Starlette(routes=routes, exception_handlers={HTTPException: self._not_routed})
        self._refused = tuple(map(_raw, (self._pages.too_many(), _too_many())))
        """the replies to a browser and to a program"""
        self.asgi.router.redirect_slashes = False  # it would use the Host of the request

    def apply_settings(self, site: ConsoleSite, access: ConsoleAccess) -> None:
        """Serve this home, at the host of the URL and at the names of this machine."""
        self._site = site
        self._hosts = ServedHosts(access)
        self._callers.proxies = access.proxies
        self._pages.apply_settings(site, self._hosts)

    def refusal(self, address: str, head: bytes) -> bytes:
        """Return the reply to a client that has sent too many requests; empty for other clients.

        The request is not read, so a refusal takes a fifth of the time of another reply.
        """
        if not self._callers.is_spent(address, head):
            return b""
        return self._refused[b" /api/" in head[:_METHOD_BYTES]]

    def close(self) -> None:
        """Let no more operations begin."""
        self._places.close()

    async def _not_routed(self, request: Request, error: Exception) -> Response:
        """The reply for a path or method that no operation or page has."""
        assert isinstance(error, HTTPException)
        if request.url.path.startswith("/api/"):
            reply, headers = _problem(problem_of_status(error.status_code)), _SAFE
        else:
            reply, headers = self._pages.not_routed(error.status_code), PAGE_HEADERS
        reply.headers.update({**headers, **(error.headers or {})})
        return reply

    # -- one request ----------------------------------------------------------------------------

    async def _describe(self, request: Request) -> Response:
        self._identified(request)
        return _json(self._document)

    async def _serve(self, operation: ApiOperation, request: Request) -> Response:
        caller = self._identified(request)
        caller.require(operation.scope)
        async with self._places.taken(operation.place):
            return await self._run(operation, caller, request)

    def _identified(self, request: Request) -> ApiCaller:
        connection = connection_of(request)
        self._hosts.require(connection)
        return self._callers.identify(connection)

    async def _run(self, operation: ApiOperation, caller: ApiCaller, request: Request) -> Response:
        asked = await _read(operation, caller, request)
        work = partial(self._reply, operation, asked)
        key = request.headers.get("idempotency-key")
        if key is None or not operation.changes:
            return await work()
        content = repr((operation.name, sorted(asked.values.items()))).encode() + asked.message
        digest = sha256(content).digest()
        return await self._repeated.reply_of(caller.name, key, digest, work)

    async def _reply(self, operation: ApiOperation, asked: ApiRequest) -> Response:
        caller = asked.caller
        try:
            reply = await self._places.run(partial(operation.run, self._site, asked))
        except SpamnbError as error:
            self._note(operation, caller, problem_of(error).status)
            raise
        self._note(operation, caller, reply.status)
        return _response(reply)

    def _note(self, operation: ApiOperation, caller: ApiCaller, status: int) -> None:
        """Log who changed something, or looked at a message."""
        if operation.noted:
            self._log(
                {"event": "console", "operation": operation.name, "caller": caller.name}
                | {"status": status}
            )


async def _read(operation: ApiOperation, caller: ApiCaller, request: Request) -> ApiRequest:
    """Read the parameters and the body."""
    body = await read_body(request, operation.most_bytes)
    kind = type_of_body(request)
    values: list[tuple[str, Any]] = [*request.path_params.items(), *query_of(request)]
    message = b""
    if body and operation.message and kind in _MESSAGES:
        message = body
    elif body and kind == "application/json":
        values += _fields(body).items()
    elif body:
        allowed = ["application/json", *([MESSAGE] if operation.message else [])]
        raise ApiError(415, f"a body of the type {kind[:80]!r} is not read",
                       hint=f"send {' or '.join(allowed)}")  # fmt: skip
    last = request.headers.get("last-event-id", "")
    return ApiRequest(caller, read_parameters(operation.parameters, values), message, last)


def _fields(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError("the body is not JSON") from error
    if not isinstance(found, dict):
        raise UserError("the body is not a JSON object")
    return found


def _response(reply: ApiReply) -> Response:
    if reply.media_type == "application/json":
        return _json(reply.value, reply.status)
    if reply.stream is not None:
        return StreamingResponse(reply.stream, media_type=reply.media_type)
    return Response(reply.data, reply.status, reply.headers, reply.media_type)


def _failed(error: SpamnbError, incident: str) -> Response:
    return _problem(problem_of(error, incident))


def _problem(problem: Problem) -> Response:
    reply = _json(problem.body, problem.status, problems.MEDIA_TYPE)
    reply.headers.update(problem.headers)
    return reply


def _too_many() -> Response:
    reply = _failed(too_many_requests(), "")
    reply.headers.update(_SAFE)
    return reply


def _raw(reply: Response) -> bytes:
    """Return a reply as it is sent, on a connection that is then closed."""
    status = HTTPStatus(reply.status_code)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), b"connection: close"]
    lines += [name + b": " + value for name, value in reply.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(reply.body)])


def _json(value: Any, status: int = 200, media_type: str = "application/json") -> Response:
    """Return a reply in ASCII: parts of messages may have no form in UTF-8."""
    return Response(json.dumps(value).encode(), status, media_type=media_type)


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
