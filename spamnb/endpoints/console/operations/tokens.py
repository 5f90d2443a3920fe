"""The operations on people and tokens: list, create, revoke, end sessions."""

from __future__ import annotations

from spamnb.endpoints.console.problems import ApiError
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.service.admin.tokens import new_token
from spamnb.service.engine.clock import now_us


def listed(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """List the tokens; none with its text."""
    return ApiReply({"tokens": [one.as_dict() for one in site.tokens.tokens().values()]})


def create(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Create a token; only this reply has its text."""
    values = request.values
    more = sorted(frozenset(values["scopes"]) - request.caller.scopes)
    if more:
        raise ApiError(403, f"the caller does not have the scope {more[0]!r}")
    made = new_token(
        values["name"], tuple(values["scopes"]), values["user"], values["days"], now_us()
    )
    text = site.tokens.create(made)
    return ApiReply(made.as_dict() | {"token": text})


def revoke(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """End a token at once."""
    site.tokens.revoke(request.values["name"])
    return ApiReply({"revoked": request.values["name"]})


def people(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """List the logins with their roles and sessions."""
    return ApiReply({"people": site.logins.people()})


def end_sessions(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """End all sessions of a login."""
    return ApiReply({"ended": site.logins.end_sessions(request.values["name"])})
