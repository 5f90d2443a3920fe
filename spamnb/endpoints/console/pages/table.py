"""The table of the pages, from which routes, menu and rights are derived."""

from __future__ import annotations

from functools import partial
from typing import Final

from spamnb.endpoints.console.pages import lists, live, message, quarantine, review, senders
from spamnb.endpoints.console.pages.figures import graphs, state, timemachine, whatif
from spamnb.endpoints.console.pages.logins import people
from spamnb.endpoints.console.pages.logins.visitors import EVERYONE, STAFF, Role
from spamnb.endpoints.console.pages.page import Page
from spamnb.endpoints.console.pages.teaching import (
    FORGET,
    TEACH,
    TEACH_CHOSEN,
    UNDO,
    UNDO_HERE,
    UNDO_SELECTED,
)
from spamnb.endpoints.console.parameters import TEXT, Parameter

_SIGNATURE: Final = (Parameter("signature", TEXT, "The signature.", required=True),)
_ID: Final = (quarantine.ID,)
_NAME: Final = (review.NAME,)

PAGES: Final[tuple[Page, ...]] = (
    Page("live", "/live", STAFF, live.show, live.FILTERS, in_menu=True),
    Page("live_stream", "/live/stream", STAFF, live.stream, place="quick"),
    Page("search", "/search", STAFF, lists.search, lists.SEARCHED,
         {"teach": TEACH_CHOSEN, "undo": UNDO}, in_menu=True),
    Page("mail", "/mail", ("user",), lists.own_mail, lists.OWN,
         {"teach": TEACH_CHOSEN, "undo": UNDO}, in_menu=True),
    Page("message", "/message/{signature}", EVERYONE, message.show, _SIGNATURE,
         {"teach": TEACH, "forget": FORGET, "undo": UNDO_HERE, "list": senders.LIST},
         noted="signature"),
    Page("influence", "/message/{signature}/influence", STAFF, message.show_influence, _SIGNATURE),
    Page("trainings", "/trainings", EVERYONE, lists.trainings, lists.TRAININGS,
         {"undo": UNDO}, in_menu=True),
    Page("teachers", "/trainings/users", STAFF, lists.teachers),
    Page("undo_plan", "/trainings/undo", STAFF, lists.undo_plan, lists.SELECTED,
         {"undo_selected": UNDO_SELECTED}),
    Page("quarantine", "/quarantine", EVERYONE, quarantine.show_list, (quarantine.CURSOR,),
         {"release": quarantine.RELEASE, "release_teach": quarantine.RELEASE_AND_TEACH,
          "delete": quarantine.DELETE, "undo": UNDO}, place="quick", in_menu=True),
    Page("kept", "/quarantine/{id}", EVERYONE, quarantine.show, _ID, place="quick"),
    Page("kept_view", "/quarantine/{id}/view", EVERYONE, partial(quarantine.view, "view"), _ID,
         in_frame=True, noted="id"),
    Page("kept_raw", "/quarantine/{id}/raw", EVERYONE, partial(quarantine.view, "raw"), _ID,
         place="quick", noted="id"),
    Page("review", "/review", STAFF, review.show_list,
         acts={"accept": review.ACCEPT, "refuse": review.REFUSE, "undo": UNDO},
         place="learner", in_menu=True),
    Page("review_entry", "/review/{name}", STAFF, review.show, _NAME, place="learner"),
    Page("review_view", "/review/{name}/view", STAFF, review.view, _NAME,
         in_frame=True, noted="name"),
    Page("people", "/people", STAFF, people.show,
         acts={"end": people.END, "create": people.CREATE, "revoke": people.REVOKE},
         place="learner", in_menu=True),
    Page("graphs", "/graphs", STAFF, graphs.show, (graphs.PERIOD,), in_menu=True),
    Page("whatif", "/whatif", STAFF, whatif.show, whatif.ASKED,
         {"apply": whatif.APPLY, "take_back": whatif.TAKE_BACK}, in_menu=True),
    Page("whatif_apply", "/whatif/apply", STAFF, whatif.confirm, whatif.ASKED),
    Page("timemachine", "/timemachine", STAFF, timemachine.show,
         acts={"preview": timemachine.BEGIN, "again": timemachine.AGAIN, "apply": timemachine.APPLY,
               "end": timemachine.END}, in_menu=True),
    Page("status", "/status", STAFF, state.status,
         acts={"bypass": state.BYPASS, "reload": state.RELOAD}, place="learner", in_menu=True),
    Page("settings", "/settings", STAFF, state.settings, (state.CHANGED,), place="quick",
         in_menu=True),
    Page("fleet", "/fleet", STAFF, state.fleet, place="learner", in_menu=True, of_fleet=True),
)  # fmt: skip
"""in the order of the menu"""


def menu_of(role: Role, *, is_fleet: bool) -> list[Page]:
    """Return the pages in the menu of a visitor."""
    found = [page for page in PAGES if page.in_menu and role in page.roles]
    return [page for page in found if is_fleet or not page.of_fleet]


def first_page_of(role: Role) -> str:
    """Return the path of the page that a visitor sees first."""
    return next(page.path for page in PAGES if page.in_menu and role in page.roles)
