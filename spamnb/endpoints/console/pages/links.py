"""The page of a signed link: one message, for one recipient, without a login.

A GET only shows the message; only the forms act. The operations are those of a caller of one user,
so the settings that limit what users may release apply here, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from spamnb.endpoints.console.callers import ApiCaller
from spamnb.endpoints.console.pages.page import Notice, ask, ask_reply
from spamnb.endpoints.console.pages.quarantine import released
from spamnb.endpoints.console.pages.texts import text
from spamnb.endpoints.console.problems import ApiError
from spamnb.endpoints.console.site import ApiReply, ConsoleSite
from spamnb.errors import RefError, SpamnbError

LINK_PATH: Final = "/d"
_SCOPES: Final = frozenset(("quarantine", "teach"))


class LinkedMessage(NamedTuple):
    """The message of a link, and the caller that the link stands for."""

    caller: ApiCaller
    name: str

    def shown(self, site: ConsoleSite) -> dict[str, Any] | None:
        """The message as its recipient sees it; None if it does not wait any more."""
        try:
            found: dict[str, Any] = ask(site, self.caller, "quarantined", id=self.name)
        except RefError:
            return None
        return found

    def view(self, site: ConsoleSite) -> ApiReply:
        """The preview."""
        return ask_reply(site, self.caller, "view", id=self.name)

    def act(self, site: ConsoleSite, do: str, *, again: bool) -> list[Notice]:
        """Do what a form asks for; a refusal becomes a notice."""
        if do not in ("release", "release_teach", "delete"):
            raise ApiError(400, text("error.no_page"))
        try:
            if do == "delete":
                ask(site, self.caller, "delete", id=self.name)
                return [Notice("done", text("kept.deleted"))]
            given = {"id": self.name, "teach": do == "release_teach", "again": again}
            return list(released(ask(site, self.caller, "release", **given)))
        except SpamnbError as error:
            return [Notice("error", str(error), error.hint)]


def linked(site: ConsoleSite, link: str) -> LinkedMessage:
    """Return the message of a link. Failure: ApiError if the link is not valid."""
    found = site.links.read(link, time.time())
    caller = ApiCaller(f"link {found.user}", _SCOPES, found.user)
    return LinkedMessage(caller, found.message)


def digest_user(site: ConsoleSite, link: str) -> str:
    """Return the address whose digests a link can turn off. Failure: ApiError for another link."""
    found = site.links.read(link, time.time())
    if found.message:
        raise ApiError(404, "this link is not valid")
    return found.user


def link_facts(
    site: ConsoleSite, message: LinkedMessage, path: str, notices: list[Notice]
) -> Mapping[str, Any]:
    """Return what the template shows."""
    return {
        "visitor": None,
        "title": text("link.title"),
        "kept": message.shown(site),
        "user": message.caller.user,
        "path": path,
        "notices": notices,
    }
