"""Who sends a request, what the caller may do, and how often. Must not know operations.

    unix socket     uid 0 and the owner of the daemon: everything; other users: their own messages
    Bearer token    the scopes of the token; with a user only that user's messages
    TCP, no token   `metrics` from this machine, without a header of a proxy

A request that comes through a proxy of the settings belongs to the client of the proxy. It has
neither the rights of this machine nor those of the user at the unix socket. Failure: ApiError with
the status of the reply.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from spamnb.core.mail.envelope import network_of
from spamnb.endpoints.console.problems import ApiError
from spamnb.endpoints.net.networks import LOOPBACK, UNIX, NetworkSet
from spamnb.service.admin.logins import LOGIN
from spamnb.service.admin.request import login_of
from spamnb.service.admin.tokens import OF_SITE, SCOPES, TokenFile
from spamnb.service.engine.clock import now_us

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
    """Identifies callers, and limits their rates."""

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
