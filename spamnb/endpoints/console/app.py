"""The HTTP side of the API: routes from the table, identification, limits, errors; and the pages.

Imports starlette, which the extra `console` installs. An operation waits for a place (`PLACES`)
and runs in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from spamnb.endpoints.console import problems
from spamnb.endpoints.console.callers import ApiCaller, too_many_requests
from spamnb.endpoints.console.http_requests import (
    ConsoleAccess,
    RepeatedRequests,
    ServedHosts,
    connection_of,
    guarded,
    query_of,
    read_body,
    type_of_body,
)
from spamnb.endpoints.console.openapi import document
from spamnb.endpoints.console.pages.app import PAGE_HEADERS, ConsoleUsers, PagesApp
from spamnb.endpoints.console.parameters import read_parameters
from spamnb.endpoints.console.places import WorkPlaces
from spamnb.endpoints.console.problems import ApiError, Problem, problem_of, problem_of_status
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.endpoints.console.table import MESSAGE, OPERATIONS, PREFIX, ApiOperation
from spamnb.errors import SpamnbError, UserError
from spamnb.service.telemetry.log import Log

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
