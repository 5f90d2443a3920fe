"""The page Fleet: the hosts with one model, and how far each of them is."""

from __future__ import annotations

from spamnb.endpoints.console.pages.page import PageRequest, PageView, ask
from spamnb.endpoints.console.site import ConsoleSite


def show(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the hosts of the fleet."""
    (caller,) = request.visitor.callers()
    return PageView("fleet", {"found": ask(site, caller, "fleet")})
