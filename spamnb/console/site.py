"""What each request to the console needs, for the API and the pages.

Errors as replies (RFC 9457), callers and their rights, events, the limits of a request and the
places where it runs, signed links, and what the operations work with.

Must not know operations. Failure: ApiError with the status of the reply.
"""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import json
import os
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from struct import Struct
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict, TypeVar
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from spamnb import errors
from spamnb.engine.filter import Filter
from spamnb.errors import BugError, PeerError, SpamnbError, UserError
from spamnb.mail.envelope import network_of
from spamnb.model.costs import OwnCosts
from spamnb.net.address import LOOPBACK, UNIX, Address, NetworkSet
from spamnb.net.clients import deliver
from spamnb.operations.home import ModelConfig, open_model
from spamnb.operations.logins import LOGIN, OF_SITE, SCOPES, TokenFile
from spamnb.operations.request import AdminResponse, login_of
from spamnb.records.console import SeriesStore
from spamnb.records.verdicts import History, LookupIndex
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.values import ReleasedMessage, ReleaseReply, UsersRelease
from spamnb.store.files import durable_write, make_folder, refused, sync_folder
from spamnb.telemetry import Log, incident, now_us

MEDIA_TYPE: Final = "application/problem+json"
RETRY_S: Final = 5
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["title", "status", "detail", "error_type", "code", "incident"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "error_type": {"type": "string"},
        "code": {"type": "integer"},
        "incident": {"type": "string"},
    },
}
_STATUSES: Final[tuple[tuple[type[SpamnbError], int], ...]] = (
    (errors.RefError, 404),
    (errors.LimitError, 429),
    (errors.RefusedError, 409),
    (errors.UserError, 400),
    (errors.StoreError, 503),
    (errors.PeerError, 502),
)
"""the first class that an error belongs to decides"""


class ApiError(UserError):
    """A refused request; `status` is that of the reply."""

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class Problem(NamedTuple):
    """The status, body and headers of a reply."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def problem_of(error: SpamnbError, incident: str = "") -> Problem:
    """Return the reply for an error."""
    status = 500
    if isinstance(error, ApiError):
        status = error.status
    else:
        status = next((one for kind, one in _STATUSES if isinstance(error, kind)), status)
    body = {
        "title": " ".join(str(error).split()),
        "status": status,
        "detail": error.hint,
        "error_type": type(error).__name__,
        "code": error.exit_code,
        "incident": incident,
    }
    return Problem(status, body, _headers(status))


def problem_of_status(status: int) -> Problem:
    """Return the reply for an error of HTTP itself, such as an unknown path."""
    phrase = HTTPStatus(status).phrase.lower()
    return problem_of(ApiError(status, phrase, hint="see /api/v1/openapi.json"))


def _headers(status: int) -> dict[str, str]:
    if status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": "Bearer"}
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return {"Retry-After": str(RETRY_S)}
    return {}


OF_USER: Final = frozenset(SCOPES) - frozenset(OF_SITE)
"""what a user of this machine may do, with messages delivered to that user"""
PER_SECOND: Final = 20.0
BURST: Final = 60.0
_MOST_BUCKETS: Final = 4096
_ADDRESS_CHARS: Final = 64
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """The sender of a request."""

    name: str
    """for the log and the journal; empty if the caller is not identified"""
    scopes: frozenset[str] = frozenset()
    user: str = ""
    """the user to whose messages the caller is restricted; empty: all messages"""

    def require(self, scope: str) -> None:
        """Raise unless the caller has a scope; an empty one needs nothing."""
        if not scope or scope in self.scopes:
            return
        if not self.name:
            raise ApiError(401, "no valid token is given", hint="Authorization: Bearer spamnb_...")
        raise ApiError(403, f"this needs the scope {scope}", hint="see `spamnb token create`")


class ApiConnection(NamedTuple):
    """What identifies the caller."""

    address: str
    """of the socket; `UNIX` for a unix socket"""
    uid: int
    """of the process at a unix socket; -1 for TCP"""
    headers: Mapping[str, str]
    """with names in lower case"""


class TrustedProxies(NamedTuple):
    """The web servers in front, and the field in which they name a user."""

    networks: NetworkSet = NetworkSet()
    header: str = ""
    """in lower case; empty if they name none"""

    def has(self, connection: ApiConnection) -> bool:
        """Whether a proxy passes this request on."""
        return self.networks.contains(connection.address)

    def source_of(self, connection: ApiConnection) -> str:
        """Return the network of the client; behind a proxy, that of the client of the proxy."""
        address = connection.address
        if LOOPBACK.contains(address) or self.has(connection):
            named = connection.headers.get("x-forwarded-for", "").split(",")
            clients = [one for text in named if (one := text.strip()[:_ADDRESS_CHARS])]
            # Each proxy appends its client; a client may have forged the addresses before it.
            passed = (one for one in reversed(clients) if not self.networks.contains(one))
            address = next(passed, address)
        return network_of(address)

    def login_of(self, connection: ApiConnection) -> str:
        """Return the user that a proxy names; empty without one."""
        if not (self.header and self.has(connection)):
            return ""
        name = connection.headers.get(self.header, "").strip()
        if name and not LOGIN.fullmatch(name):
            raise ApiError(400, "the web server names no login", hint="see console.proxy_header")
        return name


class Callers:
    """Identifies callers, and limits their rates.

        unix socket     uid 0, the owner of the daemon: everything; other users: their own messages
        Bearer token    the scopes of the token; with a user only that user's messages
        TCP, no token   `metrics` from this machine, without a header of a proxy

    A request that comes through a proxy of the settings belongs to the client of the proxy. It has
    neither the rights of this machine nor those of the user at the unix socket. Failure: ApiError
    with the status of the reply.
    """

    def __init__(self, tokens: TokenFile, clock: Callable[[], float] = time.monotonic) -> None:
        self.proxies = TrustedProxies()
        self._tokens = tokens
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def identify(self, connection: ApiConnection) -> ApiCaller:
        """Return the caller of a request, and check its rate."""
        passed_on = self.proxies.has(connection)
        is_unix = connection.address == UNIX and not passed_on
        source = self.proxies.source_of(connection)
        self.spend(f"from {connection.uid if is_unix else source}")
        given = connection.headers.get("authorization")
        if given is not None:
            return self._by_token(given)
        if is_unix:
            return _by_uid(connection.uid)
        passed_on = passed_on or any(name in connection.headers for name in _FORWARDED)
        local = LOOPBACK.contains(connection.address) and not passed_on
        return ApiCaller("", frozenset(("metrics",) if local else ()))

    def is_spent(self, address: str, head: bytes) -> bool:
        """Whether the network of a client has no request left; `head` is the start of the request.

        This check is cheap and does not count the request. False at a unix socket, and for a
        request that comes through a web server: their clients are known only when the request is
        read.
        """
        if address == UNIX:
            return False
        inside = LOOPBACK.contains(address) or self.proxies.networks.contains(address)
        if inside and (b"\r\n\r\n" not in head or b"\nx-forwarded-for:" in head.lower()):
            return False
        return self._left(f"from {network_of(address)}", self._clock()) < 1

    def _by_token(self, given: str) -> ApiCaller:
        kind, _, text = given.partition(" ")
        token = self._tokens.find(text.strip(), now_us()) if kind.lower() == "bearer" else None
        if token is None:
            raise ApiError(401, "the token is not valid", hint="see `spamnb token list`")
        self.spend(f"token {token.name}")
        return ApiCaller(f"token {token.name}", frozenset(token.scopes), token.user)

    def spend(self, key: str) -> None:
        """Take one request from a bucket that refills with `PER_SECOND`."""
        now = self._clock()
        left = self._left(key, now)
        if left < 1:
            raise too_many_requests()
        if len(self._buckets) >= _MOST_BUCKETS:
            self._forget_full(now)
        self._buckets[key] = (left - 1, now)

    def _left(self, key: str, now: float) -> float:
        left, at = self._buckets.get(key, (BURST, now))
        return min(BURST, left + (now - at) * PER_SECOND)

    def _forget_full(self, now: float) -> None:
        """Forget the full buckets, or all if too many are left: an attacker has many addresses."""
        used = {
            key: (left, at)
            for key, (left, at) in self._buckets.items()
            if left + (now - at) * PER_SECOND < BURST
        }
        self._buckets = used if len(used) < _MOST_BUCKETS else {}


def too_many_requests() -> ApiError:
    """Return the error of a client that has no request left."""
    return ApiError(429, "too many requests", hint=f"{PER_SECOND:.0f} a second at most")


def _by_uid(uid: int) -> ApiCaller:
    login = login_of(uid)
    if uid in (0, os.geteuid()):
        return ApiCaller(login, frozenset(SCOPES))
    return ApiCaller(login, OF_USER, login)


MOST_STREAMS: Final = 100
KEPT: Final = 1000
"""events that are kept for clients that reconnect or read slowly"""
_ALIVE_S: Final = 15.0
"""Interval of comments, which make proxies keep the connection and show that a client is gone."""


_CHANGES_S: Final = 1.0
_SETTLED_S: Final = 2.0


class _SentEvent(NamedTuple):
    number: int
    kind: str
    value: dict[str, Any]
    text: bytes


class _EventStream:
    def __init__(self, waiting: list[_SentEvent], missed: int) -> None:
        self.waiting = deque(waiting, KEPT)
        self.missed = missed
        self.changed = asyncio.Event()
        self.changed.set()

    def put(self, event: _SentEvent) -> None:
        self.missed += len(self.waiting) == KEPT
        self.waiting.append(event)
        self.changed.set()

    async def change(self, wait_s: float) -> bool:
        """Wait for events; False if none arrived in time."""
        try:
            await asyncio.wait_for(self.changed.wait(), wait_s)
        except TimeoutError:
            return False
        self.changed.clear()
        return True


class EventHub:
    """Publishes events to all streams; used in the thread of the event loop.

    A client that reads too slowly loses the oldest events and is told how many (`missed`). A client
    that reconnects with `Last-Event-ID` gets the events that it has not seen, if they are still
    kept.
    """

    def __init__(self) -> None:
        self._name = secrets.token_hex(4)
        """part of each event ID, because another process has the same numbers for other events"""
        self._number = 0
        self._kept: deque[_SentEvent] = deque(maxlen=KEPT)
        self._streams: set[_EventStream] = set()
        self._closed = False

    def publish(self, kind: str, value: dict[str, Any]) -> None:
        """Send an event to all streams."""
        event = self.keep(kind, value)
        for stream in self._streams:
            stream.put(event)

    def keep(self, kind: str, value: dict[str, Any]) -> _SentEvent:
        """Keep an event for `recent`, without sending it."""
        self._number += 1
        lines = f"id: {self._name}-{self._number}\nevent: {kind}\ndata: {json.dumps(value)}\n\n"
        event = _SentEvent(self._number, kind, value, lines.encode())
        self._kept.append(event)
        return event

    def recent(self, kind: str) -> list[dict[str, Any]]:
        """Return the kept events of a kind, newest last; may be called in any thread."""
        return [event.value for event in self._kept.copy() if event.kind == kind]

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for stream in self._streams:
            stream.changed.set()

    def require_room(self) -> None:
        """Raise if no further stream is allowed; may be called in any thread."""
        if len(self._streams) >= MOST_STREAMS:
            raise ApiError(503, f"there are already {MOST_STREAMS} streams", hint="try again later")

    async def events(self, last_id: str) -> AsyncIterator[bytes]:
        """Yield new events; with `last_id`, first the events that the client has missed."""
        with self._joined(last_id) as stream:
            yield b": spamnb\n\n"
            while not self._closed:
                if not await stream.change(_ALIVE_S):
                    yield b":\n\n"
                    continue
                if stream.missed:
                    count, stream.missed = stream.missed, 0
                    yield f'event: missed\ndata: {{"events": {count}}}\n\n'.encode()
                while stream.waiting:
                    yield stream.waiting.popleft().text

    async def changes(self) -> AsyncIterator[bytes]:
        """Yield one event `changed` for all events of a second, and another one after the last.

        `changed` does not say what has changed. The additional event is needed because a verdict
        can be read only some time after it is published.
        """
        with self._joined("") as stream:
            yield b": spamnb\n\n"
            told = False
            while not self._closed:
                changed = await stream.change(_SETTLED_S if told else _ALIVE_S)
                stream.waiting.clear()
                yield b"event: changed\ndata:\n\n" if changed or told else b":\n\n"
                told = changed
                await asyncio.sleep(_CHANGES_S)

    @contextmanager
    def _joined(self, last_id: str) -> Iterator[_EventStream]:
        stream = self._stream_after(last_id)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    def _stream_after(self, last_id: str) -> _EventStream:
        name, _, number = last_id.partition("-")
        if name != self._name or not (number.isascii() and number.isdecimal()):
            return _EventStream([], 0)
        last = int(number[:20])
        waiting = [event for event in self._kept if event.number > last]
        return _EventStream(waiting, max(self._number - last - len(waiting), 0))


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
    """Turn each exception into a reply, and add headers to all replies that lack them.

    An exception that is no SpamnbError is logged once with an incident id; the reply names only
    this id.
    """

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


Place = Literal["quick", "heavy", "learner", "next hop", "login"]
PLACES: Final[dict[Place, int]] = {
    "quick": 4,
    "heavy": 2,
    "learner": 4,
    "next hop": 2,
    "login": 2,
}
"""How many requests run in each place. Reading a body needs a place, too, so at most six bodies of
32 MB are in memory; a check of a password takes 32 MB."""
WAIT_S: Final = 10.0
"""for a place"""

Result = TypeVar("Result")


class WorkPlaces:
    """The places of one console.

    Requests that compute for long or wait for another process do not delay the others.
    """

    def __init__(self) -> None:
        self._places = {name: asyncio.Semaphore(size) for name, size in PLACES.items()}
        self._threads = ThreadPoolExecutor(sum(PLACES.values()), "console")

    @asynccontextmanager
    async def taken(self, place: Place) -> AsyncIterator[None]:
        """Hold a place for a block; ApiError if none is free in time."""
        try:
            await asyncio.wait_for(self._places[place].acquire(), WAIT_S)
        except TimeoutError as error:
            raise ApiError(503, "too many requests are in progress", hint="try again") from error
        try:
            yield
        finally:
            self._places[place].release()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run work in a thread, in a place that the caller holds."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Let no more work begin."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class DigestOptOuts:
    """The choices of one home.

        home/console/digest_off/HASH    the address

    Failure: StoreError if the folder cannot be read or written.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / "console" / "digest_off"

    def holds(self, user: str) -> bool:
        """Whether an address wants no digest."""
        return self._path(user).exists()

    def add(self, user: str) -> None:
        """Send no digest to an address."""
        make_folder(self._folder)
        try:
            durable_write(self._path(user), user.encode())
        except OSError as error:
            raise refused(error, self._folder) from error

    def remove(self, user: str) -> None:
        """Send digests to an address again."""
        try:
            self._path(user).unlink()
            sync_folder(self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise refused(error, self._folder) from error

    def _path(self, user: str) -> Path:
        return self._folder / sha256(user.encode()).hexdigest()


LIFE_S: Final = 14 * 86_400
_VERSION: Final = 1
_HEAD: Final = Struct(">BIQB")
"""version, month of the key, end in seconds, length of the message's ID"""
_MAC_BYTES: Final = 16
_KEY_BYTES: Final = 32

_MOST_LINK: Final = 1000
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]+")
_MONTH: Final = re.compile(r"[0-9]{6}")


class SignedLink(NamedTuple):
    """What a link is for."""

    message: str
    """the ID in quarantine; empty for a link that turns digests off"""
    user: str
    """the recipient's address"""


class SignedLinks:
    """Makes and reads the links of one home.

        home/console/link_keys/YYYYMM    32 random bytes, drawn in that month

    A link needs no login: its holder may see this message, release it to its recipient, and delete
    it for the recipient. The link contains version, key, end, message and recipient, with an
    HMAC-SHA256 of 128 bits over all of them. A key is deleted when the links of its month have
    ended; deleting the folder ends all links. Failure: ApiError for a link that is not valid,
    StoreError if the keys cannot be read or written.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / "console" / "link_keys"

    def make(self, link: SignedLink, now_s: float) -> str:
        """Return the text of a link that ends after `LIFE_S`."""
        if not link.user:  # the link would be valid for all recipients
            raise ValueError("a link is for one recipient")
        month = _month_of(now_s)
        message = link.message.encode("ascii")
        head = _HEAD.pack(_VERSION, month, int(now_s) + LIFE_S, len(message))
        signed = head + message + link.user.encode()
        text = urlsafe_b64encode(signed + _mac(self._key_of_now(month), signed))
        return text.rstrip(b"=").decode("ascii")

    def read(self, text: str, now_s: float) -> SignedLink:
        """Return what a link is for."""
        signed = self._verified(text)
        _, _, end_s, size = _HEAD.unpack_from(signed)
        if now_s >= end_s:
            raise ApiError(410, "this link is too old", hint="log in instead")
        rest = signed[_HEAD.size :]
        return SignedLink(rest[:size].decode("ascii"), rest[size:].decode())

    def _verified(self, text: str) -> bytes:
        """The signed bytes of a link."""
        if len(text) <= _MOST_LINK and _TEXT.fullmatch(text) and len(text) % 4 != 1:
            found = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            signed, mac = found[:-_MAC_BYTES], found[-_MAC_BYTES:]
            if len(signed) > _HEAD.size and signed[0] == _VERSION:
                key = self._key(_HEAD.unpack_from(signed)[1])
                if key and hmac.compare_digest(_mac(key, signed), mac):
                    return signed
        raise ApiError(404, "this link is not valid", hint="log in instead")

    # -- keys -----------------------------------------------------------------------------------

    def _key(self, month: int) -> bytes:
        """The key of a month; empty if there is none."""
        path = self._folder / f"{month:06d}"
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise refused(error, path) from error
        return found if len(found) == _KEY_BYTES else b""

    def _key_of_now(self, month: int) -> bytes:
        """The key of this month; a missing key is created."""
        found = self._key(month)
        if found:
            return found
        make_folder(self._folder)
        try:
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                # Another process may have created it meanwhile.
                found = self._key(month)
                if not found:
                    found = secrets.token_bytes(_KEY_BYTES)
                    durable_write(self._folder / f"{month:06d}", found)
                    self._delete_old(month)
            finally:
                os.close(handle)
        except OSError as error:
            raise refused(error, self._folder) from error
        return found

    def _delete_old(self, month: int) -> None:
        """Delete the keys whose links have ended: links live for less than a month."""
        before = month - 1 if month % 100 > 1 else month - 89
        for path in self._folder.iterdir():
            if _MONTH.fullmatch(path.name) and int(path.name) < before:
                with suppress(FileNotFoundError):
                    path.unlink()


def _month_of(now_s: float) -> int:
    at = time.gmtime(now_s)
    return at.tm_year * 100 + at.tm_mon


def _mac(key: bytes, signed: bytes) -> bytes:
    return hmac.new(key, b"spamnb link " + signed, sha256).digest()[:_MAC_BYTES]


class AskAdministration(Protocol):
    """Asks the learner for an administrative operation, as an admin; for use in threads."""

    def __call__(self, op: str, body: bytes = b"", /, **fields: Any) -> AdminResponse: ...


class LoginDirectory(Protocol):
    """The people who may log in, and their sessions."""

    def people(self) -> list[dict[str, Any]]:
        """Return name, role, addresses, second factor and sessions of each."""

    def end_sessions(self, login: str) -> int:
        """End all sessions of a login; return how many."""


class Judging(TypedDict):
    """Arguments of `Filter.score` and `explain`: the person that the verdict is for."""

    person: int
    own_costs: OwnCosts | None


class SettingsInForce(NamedTuple):
    """The settings of the daemon."""

    file: str = ""
    """empty if there is none"""
    settings: Sequence[Mapping[str, Any]] = ()
    """name, value, default and help text of each; secrets are masked"""


_GRAPHS_S: Final = 600.0
"""graphs of 20,000 verdicts take up to a second of processor time"""


class RecentValue:
    """A value that takes long to compute, and that may be some time old."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._lock = Lock()
        self._until = 0.0
        self._value: Any = None

    def value(self, compute: Callable[[], Any]) -> Any:
        """Return the value; `compute` makes it if there is none yet, or if it is too old."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._value = compute()
                self._until = time.monotonic() + self._keep_s
            return self._value


@dataclass(frozen=True, slots=True)
class ConsoleSite:
    """The served home.

    The model is opened for reading; only the learner writes it. Must not know HTTP.
    """

    config: ModelConfig
    history: History
    index: LookupIndex
    series: SeriesStore
    quarantine: Quarantine
    ask: AskAdministration
    events: EventHub
    tokens: TokenFile
    links: SignedLinks
    opt_outs: DigestOptOuts
    logins: LoginDirectory
    settings: SettingsInForce = SettingsInForce()  # noqa: RUF009 - it is frozen
    users_release: UsersRelease = "junk"
    """what a caller of one user may release"""
    graphs: RecentValue = field(default_factory=lambda: RecentValue(_GRAPHS_S))
    """those of the overview"""
    seen: RecentValue = field(default_factory=lambda: RecentValue(_GRAPHS_S))
    """who writes to the site"""

    @contextmanager
    def reading(self) -> Iterator[Filter]:
        """Open the model for one request, so that a model that was replaced is noticed."""
        model = open_model(self.config, readonly=True)
        try:
            model.history = self.history
            yield model
        finally:
            model.history = None  # the history stays open
            model.close()

    def judging(self, model: Filter, recipient: str) -> Judging:
        """Return the person that a message is judged for, from a recipient, address or login."""
        names = self.config.persons
        name = names.of(recipient) if names and recipient else ""
        own_costs = self.config.recipient_costs.of(recipient, name) if recipient else None
        return {"person": model.person(name), "own_costs": own_costs}

    def send(self, released: ReleasedMessage) -> Sequence[ReleaseReply]:
        """Deliver a released message to its original next hop."""
        try:
            address = Address.parse(released.upstream)
        except ValueError as error:
            raise PeerError(
                f"the next hop {released.upstream!r} is not valid: {error}",
                hint="release it with `spamnb quarantine release --upstream`",
            ) from error
        return deliver(address, released)


class ApiRequest(NamedTuple):
    """A request whose caller, parameters and size are checked."""

    caller: ApiCaller
    values: dict[str, Any]
    message: bytes = b""
    last_event: str = ""
    """of the header Last-Event-ID"""


class ApiReply(NamedTuple):
    """The reply to a request: a value of JSON, or bytes of another type."""

    value: Any = None
    status: int = 200
    data: bytes = b""
    media_type: str = "application/json"
    stream: AsyncIterator[bytes] | None = None
    """instead of a value or bytes: parts that are sent as they arrive"""
    headers: Mapping[str, str] = MappingProxyType({})
    """those that differ from the headers of all replies"""


Run = Callable[[ConsoleSite, ApiRequest], ApiReply]
