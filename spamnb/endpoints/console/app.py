"""The HTTP side of the API: routes from the table, identification, limits, errors.

Imports starlette, which the extra `console` installs. An operation waits for a place (`PLACES`)
and runs in a thread. An exception that is no SpamnbError is logged once with an
incident id, and the reply names the id alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from spamnb.endpoints.console import problems
from spamnb.endpoints.console.callers import ApiCaller, ApiConnection, Callers
from spamnb.endpoints.console.openapi import document
from spamnb.endpoints.console.parameters import read_parameters
from spamnb.endpoints.console.problems import ApiError, Problem, problem_of, problem_of_status
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.endpoints.console.table import MESSAGE, OPERATIONS, PLACES, PREFIX, ApiOperation
from spamnb.endpoints.net.networks import UNIX
from spamnb.errors import BugError, SpamnbError, UserError
from spamnb.service.telemetry.log import Log, incident

BODY_S: Final = 30.0
"""to send a whole body"""
_MOST_FIELDS: Final = 50
_WAIT_S: Final = 10.0
"""for a place"""
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_SAFE: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_MESSAGES: Final = (MESSAGE, "application/octet-stream", "text/plain")

Endpoint = Callable[[Request], Awaitable[Response]]


class ConsoleApp:
    """The ASGI application."""

    def __init__(
        self, site: ConsoleSite, callers: Callers, *, url: str, version: str, log: Log
    ) -> None:
        self._callers = callers
        self.apply_settings(site, url)
        self._log = log
        self._places = {name: asyncio.Semaphore(size) for name, size in PLACES.items()}
        self._threads = ThreadPoolExecutor(sum(PLACES.values()), "console")
        self._document = document(version)
        routes = [
            Route(PREFIX + one.path, self._guarded(partial(self._serve, one)), methods=[one.method])
            for one in OPERATIONS
        ]
        routes.append(Route(f"{PREFIX}/openapi.json", self._guarded(self._describe)))
        self.asgi = Starlette(routes=routes, exception_handlers={HTTPException: _not_routed})
        self.asgi.router.redirect_slashes = False  # it would use the Host of the request

    def apply_settings(self, site: ConsoleSite, url: str) -> None:
        """Serve this home, at the host of `url` and at the names of this machine."""
        self._site = site
        self._hosts = {*_LOCAL_NAMES, *([urlsplit(url).hostname] if url else [])}

    def close(self) -> None:
        """Let no more operations begin."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- one request ----------------------------------------------------------------------------

    def _guarded(self, serve: Endpoint) -> Endpoint:
        """Turn each exception into a reply."""

        async def guarded(request: Request) -> Response:
            try:
                reply = await serve(request)
            except SpamnbError as error:
                reply = _problem(problem_of(error))
            except ClientDisconnect:
                reply = Response(status_code=400)
            except Exception as error:  # noqa: BLE001 - the boundary: the client needs a reply
                name = incident(self._log, "console", error)
                bug = BugError("an internal error occurred", hint="see the log of the daemon")
                reply = _problem(problem_of(bug, name))
            reply.headers.update(_SAFE)
            return reply

        return guarded

    async def _describe(self, request: Request) -> Response:
        self._identified(request)
        return _json(self._document)

    async def _serve(self, operation: ApiOperation, request: Request) -> Response:
        caller = self._identified(request)
        caller.require(operation.scope)
        place = self._places[operation.place]
        try:
            await asyncio.wait_for(place.acquire(), _WAIT_S)
        except TimeoutError as error:
            raise ApiError(503, "too many requests are in progress", hint="try again") from error
        try:
            return await self._run(operation, caller, request)
        finally:
            place.release()

    def _identified(self, request: Request) -> ApiCaller:
        """Return the caller, after a check of the host that the client means."""
        address, number = request.client or ("", -1)
        is_unix = address == UNIX
        # Another name for this machine is a page's attempt to reach it (DNS rebinding).
        if not is_unix and _host_of(request) not in self._hosts:
            raise ApiError(421, "this host is not served here", hint="see console.url")
        return self._callers.identify(
            ApiConnection(address, number if is_unix else -1, dict(request.headers))
        )

    async def _run(self, operation: ApiOperation, caller: ApiCaller, request: Request) -> Response:
        asked = await _read(operation, caller, request)
        loop = asyncio.get_running_loop()
        try:
            work = partial(operation.run, self._site, asked)
            reply = await loop.run_in_executor(self._threads, work)
        except SpamnbError as error:
            self._note(operation, caller, problem_of(error).status)
            raise
        self._note(operation, caller, reply.status)
        return _response(reply)

    def _note(self, operation: ApiOperation, caller: ApiCaller, status: int) -> None:
        """Log who changed something."""
        if operation.changes:
            self._log(
                {"event": "console", "operation": operation.name, "caller": caller.name}
                | {"status": status}
            )


def _host_of(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


async def _read(operation: ApiOperation, caller: ApiCaller, request: Request) -> ApiRequest:
    """Read the parameters and the body."""
    try:
        async with asyncio.timeout(BODY_S):
            body = await _body(request, operation.most_bytes)
    except TimeoutError as error:
        raise ApiError(408, f"the body took longer than {BODY_S:.0f} s") from error
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    values: list[tuple[str, Any]] = [*request.path_params.items()]
    query = request.scope["query_string"].decode("latin-1")
    try:
        values += parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise UserError(f"the query has more than {_MOST_FIELDS} parameters") from error
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


async def _body(request: Request, most: int) -> bytes:
    """Read the body, of at most so many bytes."""
    body = bytearray()
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most:
        raise ApiError(413, f"the body may have {most} bytes", hint="send less")
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise ApiError(413, f"the body may have {most} bytes", hint="send less")
    return bytes(body)


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
    return Response(reply.data, reply.status, media_type=reply.media_type)


def _problem(problem: Problem) -> Response:
    reply = _json(problem.body, problem.status, problems.MEDIA_TYPE)
    reply.headers.update(problem.headers)
    return reply


def _json(value: Any, status: int = 200, media_type: str = "application/json") -> Response:
    """Return a reply in ASCII: parts of messages may have no form in UTF-8."""
    return Response(json.dumps(value).encode(), status, media_type=media_type)


async def _not_routed(_: Request, error: Exception) -> Response:
    """The reply for a path or method that no operation has."""
    assert isinstance(error, HTTPException)
    reply = _problem(problem_of_status(error.status_code))
    reply.headers.update({**_SAFE, **(error.headers or {})})
    return reply
