"""Who teaches, and on behalf of which user: the fields of a request to the learner. Pure.

    unix socket   the kernel names the user; its role is the one on the control socket: an admin or
                  a delegate may name another user, all others teach as themselves
    TCP           refused unless the client is one of the listener's teachers, which may name a
                  user, or sends a token with the scope `teach`; a token for a user teaches as that
                  user, other tokens have the rights of an admin

A mail program that names no user is not asked whose mailbox the message was in, so its corrections
wait for review. Failure: RefusedError; SpamnbError if the tokens cannot be read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spamnb.core.mail.domains import same_name
from spamnb.endpoints.scanner.params import ScannerParams
from spamnb.errors import RefusedError
from spamnb.service.admin.request import Caller

_MAILBOX = {"channel": "imap", "trust": "user"}
"""the message was in the user's mailbox: its server says so"""


class PeerIdentity(NamedTuple):
    """The other end of a connection."""

    address: str
    uid: int | None = None
    """of the peer of a unix socket"""

    def caller(self, params: ScannerParams) -> Caller | None:
        """The local user of a unix socket."""
        return None if self.uid is None else params.caller_of(self.uid)


def may_name(peer: PeerIdentity, params: ScannerParams) -> bool:
    """Whether the client may name recipients and users."""
    caller = peer.caller(params)
    if caller is None:
        return params.teachers.contains(peer.address)
    return caller.role != "self"


def teaching_fields(
    peer: PeerIdentity, params: ScannerParams, named: str, password: str = ""
) -> dict[str, Any]:
    """Return the user of a correction, and how far the correction is trusted."""
    caller = peer.caller(params)
    if caller is None:
        if params.teachers.contains(peer.address):
            return _MAILBOX | {"for": named} if named else _unnamed(peer.address)
        return _token_fields(params, named, password)
    if caller.role == "self":
        if named not in ("", caller.login):
            raise RefusedError(f"{caller.login} may not act for {named}")
        return {"channel": "api", "trust": "user", "for": caller.login}
    if caller.role == "delegate":
        is_named = named not in ("", caller.login)
        return _MAILBOX | {"for": named} if is_named else _unnamed(caller.login)
    if named in ("", caller.login):
        return {"channel": "api", "trust": "admin", "for": caller.login}
    return _MAILBOX | {"for": named}


def _token_fields(params: ScannerParams, named: str, password: str) -> dict[str, Any]:
    token = params.token_of(password) if password else None
    if token is None or "teach" not in token.scopes:
        raise RefusedError("this client may not teach", hint="see listener.*.teachers")
    if token.user:
        if named and not same_name(named, token.user):
            raise RefusedError(f"this client may not act for {named}")
        return {"channel": "api", "trust": "user", "for": token.user}
    if named:
        return _MAILBOX | {"for": named}
    return {"channel": "api", "trust": "admin", "for": f"token {token.name}"}


def _unnamed(name: str) -> dict[str, Any]:
    return {"channel": "api", "trust": "stranger", "for": name}
