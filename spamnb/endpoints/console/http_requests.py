"""HTTP requests, for the API and the pages: host, client, query and body, each with its limit.

An exception that is no SpamnbError is logged once with an incident id; the reply names only this
id. Failure: ApiError with the status of the reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from spamnb.endpoints.console.callers import ApiConnection, TrustedProxies
from spamnb.endpoints.console.problems import ApiError
from spamnb.endpoints.net.networks import LOOPBACK, UNIX
from spamnb.errors import BugError, SpamnbError
from spamnb.service.telemetry.log import Log, incident

BODY_S: Final = 30.0
"""to send a whole body"""
_MOST_FIELDS: Final = 50
KNOWN_S: Final = 86_400.0
"""how long an `Idempotency-Key` is known"""
_MOST_KNOWN: Final = 10_000
_MOST_KEY: Final = 255
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")

Endpoint = Callable[[Request], Awaitable[Response]]


class ConsoleAccess(NamedTuple):
    """How the console is reached."""

    url: str = ""
    proxies: TrustedProxies = TrustedProxies()
    tls: bool = False
    """whether clients speak TLS with this process"""


class ServedHosts:
    """The hosts that requests may be for: that of `console.url`, and the names of this machine."""

    def __init__(self, access: ConsoleAccess) -> None:
        self._access = access
        parts = urlsplit(access.url)
        self._url_host = parts.hostname
        self._url_origin = f"{parts.scheme}://{parts.netloc}".lower() if access.url else ""

    def require(self, connection: ApiConnection) -> None:
        """Raise for a host that is not served: a page may use DNS rebinding to reach this machine.

        Also raise for a client on another machine that uses neither TLS nor a proxy.
        """
        passed_on = self._access.proxies.has(connection)
        if not (self._access.tls or passed_on or LOOPBACK.contains(connection.address)):
            raise ApiError(403, "this address is for web servers", hint="see console.proxies")
        known = {*_LOCAL_NAMES, self._url_host}
        is_unix = connection.address == UNIX and not passed_on
        if not is_unix and _host_of(connection) not in known:
            raise ApiError(421, "this host is not served here", hint="see console.url")

    def origin_of(self, connection: ApiConnection) -> str:
        """Return the origin at which the client sees this server."""
        host = _host_of(connection)
        if self._url_origin and host == self._url_host:
            return self._url_origin
        known = host in _LOCAL_NAMES
        scheme = "https" if self._access.tls else "http"
        return f"{scheme}://{connection.headers.get('host', '').lower()}" if known else ""


def _host_of(connection: ApiConnection) -> str:
    try:
        return urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def connection_of(request: Request) -> ApiConnection:
    """Return what identifies the client."""
    address, number = request.client or ("", -1)
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        # A client's own copy of a field must not replace the one that the proxy sets.
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return ApiConnection(address, number if address == UNIX else -1, headers)


def type_of_body(request: Request) -> str:
    """Return the media type of the body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def query_of(request: Request) -> list[tuple[str, str]]:
    """Return the parameters of the query."""
    return fields_of(request.scope["query_string"], _MOST_FIELDS)


def fields_of(text: bytes, most: int) -> list[tuple[str, str]]:
    """Return the fields of a query or a form; their number is limited."""
    try:
        return parse_qsl(text.decode("latin-1"), keep_blank_values=True, max_num_fields=most)
    except ValueError as error:
        raise ApiError(400, f"there are more than {most} parameters") from error


async def read_body(request: Request, most: int) -> bytes:
    """Read the body; its size is limited."""
    body = bytearray()
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most:
        raise ApiError(413, f"the body may have at most {most} bytes", hint="send less")
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise ApiError(413, f"the body may have at most {most} bytes", hint="send less")
    except TimeoutError as error:
        raise ApiError(408, f"the body took longer than {BODY_S:.0f} s") from error
    return bytes(body)


class RepeatedRequests:
    """The replies to changes that had an `Idempotency-Key`: a repetition gets the same reply.

    A failed change is not remembered, so its repetition is tried again. A restart forgets all keys.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], KnownRequest] = {}

    async def reply_of(
        self, caller: str, key: str, content: bytes, run: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Return the reply to a request with this content; a new request is run."""
        if not (key.isascii() and key.isprintable() and 0 < len(key) <= _MOST_KEY):
            raise ApiError(400, f"the Idempotency-Key must have 1 to {_MOST_KEY} ASCII characters")
        now, name = self._clock(), (caller, key)
        for old in [one for one, known in self._known.items() if known.ends < now]:
            del self._known[old]
        known = self._known.get(name)
        if known is not None and known.content != content:
            raise ApiError(409, "this Idempotency-Key was used for another request")
        if known is not None and known.reply is None:
            raise ApiError(409, "the request with this Idempotency-Key is in progress")
        if known is not None and known.reply is not None:
            status, body, kind = known.reply
            return Response(body, status, {"Idempotency-Replayed": "true"}, kind)
        if len(self._known) >= _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[name] = KnownRequest(content, now + KNOWN_S)
        try:
            reply = await run()
        except BaseException:
            self._known.pop(name, None)
            raise
        made = (reply.status_code, bytes(reply.body), reply.media_type or "")
        self._known[name] = KnownRequest(content, now + KNOWN_S, made)
        return reply


class KnownRequest(NamedTuple):
    """A request with a key: the hash of its content, when it is forgotten, and its reply."""

    content: bytes
    ends: float
    reply: tuple[int, bytes, str] | None = None
    """status, body and type; None while the request runs"""


def guarded(
    serve: Endpoint,
    *,
    failed: Callable[[SpamnbError, str], Response],
    headers: Mapping[str, str],
    log: Log,
) -> Endpoint:
    """Turn each exception into a reply, and add headers to all replies that lack them."""

    async def replied(request: Request) -> Response:
        try:
            reply = await serve(request)
        except SpamnbError as error:
            reply = failed(error, "")
        except ClientDisconnect:
            reply = Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - the boundary: the client needs a reply
            name = incident(log, "console", error)
            bug = BugError("an internal error occurred", hint="see the log of the daemon")
            reply = failed(bug, name)
        for name, value in headers.items():
            reply.headers.setdefault(name, value)
        return reply

    return replied
