"""The table of the pages; routes, menu and rights follow from it, as those of the API from its."""

from __future__ import annotations

from typing import Final

from spamnb.endpoints.console.pages import live
from spamnb.endpoints.console.pages.page import Page
from spamnb.endpoints.console.pages.visitors import STAFF, Role

PAGES: Final[tuple[Page, ...]] = (
    Page("live", "/live", STAFF, live.show, in_menu=True),
    Page("live_stream", "/live/stream", STAFF, live.stream, place="quick"),
)
"""in the order of the menu"""


def first_page_of(role: Role) -> str:
    """Return the path of the page that a visitor sees first."""
    return next(page.path for page in PAGES if page.in_menu and role in page.roles)
