"""The page People: logins with their sessions and waiting feedback, and tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from spamnb.endpoints.console.pages.page import CHOSEN, Act, Notice, PageRequest, PageView, ask
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.parameters import TEXT, Parameter, whole
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.service.admin.tokens import SCOPES

_NAME: Final = Parameter("name", TEXT, "A login, or the name of a token.", required=True)


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show logins and tokens."""
    (caller,) = request.visitor.callers()
    waiting = Counter(one["user"].casefold() for one in ask(site, caller, "review")["entries"])
    people = ask(site, caller, "people")["people"]
    for one in people:
        names = {name.casefold() for name in (one["name"], *one["addresses"])}
        one["waiting"] = sum(waiting[name] for name in names)
    tokens = ask(site, caller, "tokens")["tokens"]
    return PageView("people", {"people": people, "tokens": tokens, "scopes": SCOPES})


def _end(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    name = request.values["name"]
    ended = ask(site, caller, "end_sessions", name=name)["ended"]
    return [Notice("done", text("people.ended", name=name, count=ended))]


def _create(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Create a token; its text is shown once."""
    (caller,) = request.visitor.callers()
    given: dict[str, Any] = {key: one for key, one in request.values.items() if one is not None}
    made = ask(site, caller, "create_token", **given | {"scopes": list(given["scopes"])})
    return [Notice("done", text("people.made", name=made["name"]), exact=made["token"])]


def _revoke(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    (caller,) = request.visitor.callers()
    name = request.values["name"]
    ask(site, caller, "revoke_token", name=name)
    return [Notice("done", text("people.revoked", name=name))]


END: Final = Act(_end, (_NAME,), place="quick")
CREATE: Final = Act(
    _create,
    (
        _NAME,
        Parameter("scopes", CHOSEN, "What it may do.", required=True),
        Parameter("user", TEXT, "Only messages to this user."),
        Parameter("days", whole(1, 3650), "How long it is valid."),
    ),
    place="quick",
)
REVOKE: Final = Act(_revoke, (_NAME,), place="quick")
