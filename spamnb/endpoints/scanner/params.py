"""Parameters of a scanner listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spamnb.endpoints.net.networks import LOOPBACK, NetworkSet
from spamnb.service.admin.request import Caller, login_of
from spamnb.service.admin.tokens import ApiToken

_NONE = NetworkSet()
MOST_BYTES = 64 << 20
"""of a message, if no other limit is set"""


def _no_rights(uid: int) -> Caller:
    return Caller(uid, "self", login_of(uid))


def _no_token(_text: str) -> ApiToken | None:
    return None


@dataclass(frozen=True, slots=True)
class ScannerParams:
    """One listener: its clients and its limits."""

    peers: NetworkSet = LOOPBACK
    """clients that may connect; the socket's mode decides as well if it is a unix socket"""
    teachers: NetworkSet = _NONE
    """TCP clients that may name recipients and users, and teach on behalf of users"""
    caller_of: Callable[[int], Caller] = _no_rights
    """the role of a local user on a unix socket"""
    token_of: Callable[[str], ApiToken | None] = _no_token
    """text -> its valid token; raises SpamnbError if the tokens cannot be read"""
    refusable: bool = True
    """whether the client can refuse a message, so that `reject` is an answer"""
    scan_limit_bytes: int = 1 << 20
    size_limit_bytes: int = MOST_BYTES
    read_s: float = 180.0
    """limit for one read, and for a client to read its reply"""
    message_s: float = 300.0
    """from the first byte of a request to its last"""
    scan_total_s: float = 40.0
    """limit for waiting and scanning together"""
    connections: int = 4000
