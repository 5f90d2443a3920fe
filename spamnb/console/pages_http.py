"""The table of the pages, and their HTTP side: logins, sessions, forms, errors.

Routes, menu and rights are derived from the table. A GET changes nothing. A POST must come from a
page of this site (`Sec-Fetch-Site`, or else `Origin`), and have the token of its form. If the role
of a visitor does not allow a page, the reply says that the page does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from http import HTTPStatus
from math import inf
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from spamnb.console import pages_admin, pages_kept, pages_mail, pages_senders
from spamnb.console.page import (
    CONTENT_SECURITY_POLICY,
    EVERYONE,
    STAFF,
    Act,
    Asset,
    LoginStep,
    Notice,
    Page,
    PageRequest,
    PageView,
    Renderer,
    Role,
    Visitor,
    Visitors,
    page_values,
    sentence,
)
from spamnb.console.pages_kept import LINK_PATH, digest_user, link_facts, linked
from spamnb.console.pages_mail import FORGET, TEACH, TEACH_CHOSEN, UNDO, UNDO_HERE, UNDO_SELECTED
from spamnb.console.preview import HEADERS as PREVIEW_HEADERS
from spamnb.console.preview import failed
from spamnb.console.site import (
    ApiError,
    Callers,
    ConsoleSite,
    Place,
    ServedHosts,
    WorkPlaces,
    connection_of,
    fields_of,
    guarded,
    problem_of,
    query_of,
    read_body,
    too_many_requests,
    type_of_body,
)
from spamnb.console.texts import text
from spamnb.errors import SpamnbError, UserError
from spamnb.operations.parameters import TEXT, Parameter
from spamnb.telemetry import Log

_SIGNATURE: Final = (Parameter("signature", TEXT, "The signature.", required=True),)
_ID: Final = (pages_kept.ID,)
_NAME: Final = (pages_kept.NAME,)

PAGES: Final[tuple[Page, ...]] = (
    Page("live", "Live", "/live", STAFF, pages_mail.show_live, pages_mail.FILTERS),
    Page("live_stream", "", "/live/stream", STAFF, pages_mail.stream, place="quick"),
    Page("search", "Search", "/search", STAFF, pages_mail.search, pages_mail.SEARCHED,
         {"teach": TEACH_CHOSEN, "undo": UNDO}),
    Page("quarantine", "Quarantine", "/quarantine", EVERYONE,
         pages_kept.show_quarantine, pages_kept.SEARCHED,
         {"release": pages_kept.RELEASE, "release_teach": pages_kept.RELEASE_AND_TEACH,
          "release_chosen": pages_kept.RELEASE_CHOSEN, "delete": pages_kept.DELETE,
          "restore": pages_kept.RESTORE, "undo": UNDO}, place="quick"),
    Page("mail", "All mail", "/mail", ("user",), pages_mail.own_mail, pages_mail.OWN,
         {"teach": TEACH_CHOSEN, "undo": UNDO}),
    Page("message", "Message", "/message/{signature}", EVERYONE,
         pages_mail.show_message, _SIGNATURE,
         {"teach": TEACH, "forget": FORGET, "undo": UNDO_HERE, "list": pages_senders.LIST},
         noted="signature"),
    Page("senders", "Senders", "/senders", EVERYONE,
         pages_senders.show_senders, pages_senders.ASKED,
         {"change": pages_senders.CHANGE}),
    Page("senders_file", "", "/senders/file", EVERYONE, pages_senders.senders_file),
    Page("influence", "Which trainings made it so", "/message/{signature}/influence", STAFF,
         pages_mail.show_influence,
         _SIGNATURE),
    Page("trainings", "Trainings", "/trainings", EVERYONE,
         pages_mail.trainings, pages_mail.TRAININGS,
         {"undo": UNDO}),
    Page("teachers", "Users whose labels are contradicted", "/trainings/users", STAFF,
         pages_mail.teachers),
    Page("undo_plan", "Undo several trainings", "/trainings/undo", STAFF,
         pages_mail.undo_plan, pages_mail.SELECTED,
         {"undo_selected": UNDO_SELECTED}),
    Page("kept", "Message in quarantine", "/quarantine/{id}", EVERYONE,
         pages_kept.show_kept, _ID, place="quick"),
    Page("kept_view", "", "/quarantine/{id}/view", EVERYONE,
         partial(pages_kept.view_kept, "view"), _ID,
         in_frame=True, noted="id"),
    Page("kept_raw", "", "/quarantine/{id}/raw", EVERYONE,
         partial(pages_kept.view_kept, "raw"), _ID,
         place="quick", noted="id"),
    Page("review", "Review", "/review", STAFF, pages_kept.show_reviews,
         acts={"accept": pages_kept.ACCEPT, "refuse": pages_kept.REFUSE, "undo": UNDO},
         place="learner"),
    Page("review_entry", "A correction that waits", "/review/{name}", STAFF,
         pages_kept.show_review, _NAME, place="learner"),
    Page("review_view", "", "/review/{name}/view", STAFF, pages_kept.view_review, _NAME,
         in_frame=True, noted="name"),
    Page("people", "People", "/people", STAFF, pages_admin.show_people,
         acts={"end": pages_admin.END, "create": pages_admin.CREATE,
               "revoke": pages_admin.REVOKE},
         place="learner"),
    Page("graphs", "Graphs", "/graphs", STAFF, pages_admin.show_graphs, (pages_admin.PERIOD,)),
    Page("whatif", "What if", "/whatif", STAFF, pages_admin.show_whatif, pages_admin.ASKED,
         {"apply": pages_admin.APPLY_THRESHOLD, "take_back": pages_admin.TAKE_BACK}),
    Page("whatif_apply", "Use another threshold", "/whatif/apply", STAFF,
         pages_admin.confirm, pages_admin.ASKED),
    Page("timemachine", "Time machine", "/timemachine", STAFF, pages_admin.show_timemachine,
         acts={"preview": pages_admin.BEGIN, "again": pages_admin.AGAIN,
               "apply": pages_admin.APPLY_PREVIEW, "end": pages_admin.END_PREVIEW}),
    Page("status", "Overview", "/status", STAFF, pages_admin.status,
         acts=pages_admin.STATUS_ACTS, place="learner"),
    Page("settings", "Settings", "/settings", STAFF, pages_admin.settings, pages_admin.LISTED,
         place="quick"),
    Page("fleet", "Fleet", "/fleet", STAFF, pages_admin.fleet, place="learner", of_fleet=True),
)  # fmt: skip

_BY_NAME: Final = {page.name: page for page in PAGES}
_OWN_MENU: Final = {
    "Quarantine": ("quarantine",),
    "All mail": ("mail", "trainings"),
    "Senders": ("senders",),
}
_STAFF_MENU: Final = {
    "Overview": ("status",),
    "Messages": ("live", "search", "quarantine"),
    "Review": ("review",),
    "Training": ("trainings", "timemachine"),
    "Filter": ("graphs", "whatif", "senders"),
    "System": ("settings", "people", "fleet"),
}


class MenuEntry(NamedTuple):
    """An entry of the menu, which opens the first of its pages."""

    title: str
    pages: tuple[Page, ...]


def menu_of(role: Role, *, is_fleet: bool) -> list[MenuEntry]:
    """Return the menu of a visitor: few entries; the pages of the present one are tabs."""
    menu = _OWN_MENU if role == "user" else _STAFF_MENU
    entries = []
    for title, names in menu.items():
        pages = tuple(_BY_NAME[one] for one in names if is_fleet or not _BY_NAME[one].of_fleet)
        entries.append(MenuEntry(title, pages))
    return entries


def entry_page(page: Page, menu: Sequence[MenuEntry]) -> str:
    """Return the page of the menu that a page belongs to: itself, or the list that leads to it."""
    names = [
        one.name
        for entry in menu
        for one in entry.pages
        if f"{page.path}/".startswith(f"{one.path}/")
    ]
    # Messages are not below the path of a list.
    lists = ("mail", "search") if page.path.startswith("/message/") else ()
    names += [one.name for entry in menu for one in entry.pages if one.name in lists]
    return names[0] if names else ""


def first_page_of(role: Role) -> str:
    """Return the path of the page that a visitor sees first."""
    return menu_of(role, is_fleet=False)[0].pages[0].path


PAGE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",
}
_FOREVER: Final = "public, max-age=31536000, immutable"
_FORM: Final = "application/x-www-form-urlencoded"
_FORM_BYTES: Final = 64 << 10
_MOST_FIELDS: Final = 500
_COUNT_AGAIN_S: Final = 10.0
"""a count of messages in quarantine reads up to 2,000 of them (60 ms)"""
_MOST_COUNTED: Final = 10_000
_LOGIN_PATH: Final = "/login"
_CODE_PATH: Final = "/login/code"
_NOTHING: Final[Mapping[str, Any]] = {}

Fields = Sequence[tuple[str, str]]


class AskedPage(NamedTuple):
    """A request for a page, with its values and its form."""

    path: str
    values: Fields
    """of the path and the query"""
    form: Fields | None
    """None for a GET"""
    session: str
    proxied: str = ""
    """the user that a proxy names"""


class AfterLogin(NamedTuple):
    """What a login leads to."""

    path: str
    form: str = ""
    """a form that was sent without a session, URL-encoded"""


class ConsoleUsers(NamedTuple):
    """Who sends requests: programs, and people with a session."""

    callers: Callers
    visitors: Visitors


class PagesApp:
    """The routes of the pages."""

    def __init__(self, users: ConsoleUsers, places: WorkPlaces, log: Log) -> None:
        self._callers, self._visitors = users
        self._places = places
        self._log = log
        self._renderer = Renderer()
        self._kept: dict[str, tuple[float, str]] = {}
        """by login: when the messages in quarantine were counted, and how many there were"""
        guard = partial(guarded, failed=self._failed, headers=PAGE_HEADERS, log=log)
        framed = partial(guarded, failed=self._failed_view, headers=PREVIEW_HEADERS, log=log)
        both = ["GET", "POST"]
        self.routes: list[BaseRoute] = [
            Route("/", guard(self._first_page)),
            Route(_LOGIN_PATH, guard(self._log_in), methods=both),
            Route(_CODE_PATH, guard(self._check_code), methods=["POST"]),
            Route("/open/{link}", guard(self._open), methods=both),
            Route("/logout", guard(self._log_out), methods=["POST"]),
            Route(f"{LINK_PATH}/{{link}}", guard(self._link), methods=both),
            Route(f"{LINK_PATH}/{{link}}/view", framed(self._link_view)),
            Route("/digest/{link}", guard(self._digest), methods=both),
        ]
        self.routes += [
            Route(
                page.path,
                (framed if page.in_frame else guard)(partial(self._serve, page)),
                methods=both,
            )
            for page in PAGES
        ]
        self.routes += [
            Route(path, guard(partial(self._asset, asset)))
            for path, asset in self._renderer.by_path.items()
        ]

    def apply_settings(self, site: ConsoleSite, hosts: ServedHosts) -> None:
        """Serve this home at these hosts."""
        self._site = site
        self._hosts = hosts

    # --- all requests ----------------------------------------------------------------------------

    def _admit(self, request: Request, *, from_anywhere: bool = False) -> str:
        """Check host and rate, and the origin of a request that may change anything.

        Return the client's network.
        """
        connection = connection_of(request)
        self._hosts.require(connection)
        source = self._callers.proxies.source_of(connection)
        self._callers.spend(f"from {source}")
        if request.method == "POST" and not from_anywhere:
            from_site = connection.headers.get("sec-fetch-site")
            origin = connection.headers.get("origin")
            own = self._hosts.origin_of(connection)
            same = from_site == "same-origin" if from_site else bool(origin) and origin == own
            if not same:
                raise ApiError(403, "this form was sent by another site")
        return source

    def not_routed(self, status: int) -> Response:
        """Return the reply for a path or method that no page has."""
        return self._failed(ApiError(status, text("error.no_page")))

    def too_many(self) -> Response:
        """Return the reply for a client with too many requests."""
        reply = self._failed(too_many_requests())
        reply.headers.update(PAGE_HEADERS)
        return reply

    def _failed(self, error: SpamnbError, incident: str = "") -> Response:
        problem = problem_of(error, incident)
        facts = {"visitor": None, "problem": problem.body, "title": text("error.title")}
        reply = HTMLResponse(self._renderer.page("error", facts), problem.status)
        if "Retry-After" in problem.headers:
            reply.headers["Retry-After"] = problem.headers["Retry-After"]
        return reply

    def _failed_view(self, error: SpamnbError, incident: str = "") -> Response:
        """Return an error that a frame of a page shows: it has neither script nor style sheet."""
        problem = problem_of(error, incident)
        more = text("error.incident", incident=incident) if incident else problem.body["detail"]
        title, again = "The preview cannot be shown", "To try again, use the link below this frame."
        hint = sentence(more or text("error.title"))
        document = failed(f"{title}: {problem.body['title']}", f"{hint} {again}")
        return HTMLResponse(document, problem.status, problem.headers)

    async def _asset(self, asset: Asset, request: Request) -> Response:
        self._admit(request)
        headers = {"Cache-Control": _FOREVER}
        return Response(asset.data, media_type=asset.media_type, headers=headers)

    # --- logins ----------------------------------------------------------------------------------

    async def _first_page(self, request: Request) -> Response:
        self._admit(request)
        async with self._places.taken("quick"):
            find = partial(self._visitors.find, self._session(request), self._proxied(request))
            visitor = await self._places.run(find)
        return _see(first_page_of(visitor.role) if visitor else _LOGIN_PATH)

    async def _log_in(self, request: Request) -> Response:
        source = self._admit(request)
        if proxied := self._proxied(request):
            enter = partial(self._visitors.log_in_by_proxy, proxied)
            return await self._begin(request, "log in by proxy", proxied, enter)
        if request.method == "GET":
            return self._login_page(_after(request))
        form = dict(await _form(request))
        name, after = form.get("login", "")[:254], _after(request, form)
        work = partial(self._visitors.log_in, name, form.get("password", "").encode(), source)
        try:
            return await self._begin(request, "log in", name, work, after)
        except ApiError as error:
            return self._login_page(after, name, error)

    async def _check_code(self, request: Request) -> Response:
        """Check the second factor of a login whose password was right."""
        source = self._admit(request)
        form = dict(await _form(request))
        ticket, after = form.get("ticket", ""), _after(request, form)
        work = partial(self._visitors.log_in_by_code, ticket, form.get("code", ""), source)
        try:
            return await self._begin(request, "log in by code", "", work, after)
        except ApiError as error:
            if error.status == HTTPStatus.GONE:
                return self._login_page(after, "", error)
            return self._code_page(after, ticket, error)

    def _code_page(
        self, after: AfterLogin, ticket: str, error: ApiError | None = None
    ) -> Response:  # fmt: skip
        facts = {
            "visitor": None,
            "title": text("login.title"),
            "action": f"{_CODE_PATH}?{urlencode({'next': after.path})}",
            "ticket": ticket,
            "error": error,
            "wanted": after.form,
        }
        status = error.status if error else 200
        return HTMLResponse(self._renderer.page("login_code", facts), status)

    def _login_page(
        self, after: AfterLogin, name: str = "", error: ApiError | None = None
    ) -> Response:  # fmt: skip
        facts = {
            "visitor": None,
            "title": text("login.title"),
            "action": f"{_LOGIN_PATH}?{urlencode({'next': after.path})}",
            "name": name,
            "error": error,
            "needed": after.path != "/" and error is None,
            "wanted": after.form,
        }
        status = error.status if error else 401 if after.form else 200
        return HTMLResponse(self._renderer.page("login", facts), status)

    async def _open(self, request: Request) -> Response:
        """A link of `spamnb console open`: only a POST uses it up, so programs may follow it."""
        self._admit(request)
        if request.method == "GET":
            facts = {"visitor": None, "title": "Open the console", "action": request.url.path}
            return HTMLResponse(self._renderer.page("open", facts))
        await _form(request)
        work = partial(self._visitors.log_in_by_link, request.path_params["link"])
        return await self._begin(request, "log in by link", "", work)

    async def _begin(
        self,
        request: Request,
        what: str,
        name: str,
        work: Callable[[], LoginStep],
        after: AfterLogin | None = None,
    ) -> Response:
        """Log a user in with `work` and set the cookie, or ask for the second factor."""
        after = after or _after(request)
        place: Place = "login"
        async with self._places.taken(place):
            try:
                session, needs_code = await self._places.run(work)
            except SpamnbError as error:
                self._note(what, name, problem_of(error).status)
                raise
        if needs_code:
            return self._code_page(after, session)
        visitor = self._visitors.find(session, self._proxied(request))
        self._note(what, visitor.login if visitor else name, 200)
        reply = self._go_on(visitor, after) if visitor and after.form else _see(after.path)
        self._set_cookie(request, reply, session)
        return reply

    def _go_on(self, visitor: Visitor, after: AfterLogin) -> Response:
        """Offer to send again the form that was sent without a session."""
        given = fields_of(after.form.encode(), _MOST_FIELDS)
        facts = {
            "visitor": None,
            "title": "You are logged in",
            "action": after.path,
            "token": visitor.form_token(urlsplit(after.path).path),
            "fields": [pair for pair in given if pair[0] != "token"],
        }
        return HTMLResponse(self._renderer.page("go_on", facts))

    async def _log_out(self, request: Request) -> Response:
        self._admit(request)
        form = await _form(request)
        session = self._session(request)
        async with self._places.taken("quick"):
            find = partial(self._visitors.find, session, self._proxied(request))
            visitor = await self._places.run(find)
            if visitor is not None:
                _require_token(visitor, "/logout", form)
                await self._places.run(partial(self._visitors.log_out, session))
                self._note("log out", visitor.login, 200)
        reply = _see(_LOGIN_PATH)
        reply.delete_cookie(self._cookie_name(request), path="/")
        return reply

    def _is_secure(self, request: Request) -> bool:
        return self._hosts.origin_of(connection_of(request)).startswith("https:")

    def _proxied(self, request: Request) -> str:
        return self._callers.proxies.login_of(connection_of(request))

    def _session(self, request: Request) -> str:
        return request.cookies.get(self._cookie_name(request), "")

    def _cookie_name(self, request: Request) -> str:
        return "__Host-spamnb" if self._is_secure(request) else "spamnb"

    def _set_cookie(self, request: Request, reply: Response, session: str) -> None:
        reply.set_cookie(
            self._cookie_name(request), session, path="/", httponly=True, samesite="lax",
            secure=self._is_secure(request),
        )  # fmt: skip

    # --- links of the digest ---------------------------------------------------------------------

    async def _link(self, request: Request) -> Response:
        """Show the message of a signed link; only a POST changes anything."""
        self._admit(request)
        form = dict(await _form(request)) if request.method == "POST" else None
        link, path = request.path_params["link"], request.url.path
        async with self._places.taken("quick" if form is None else "next hop"):
            return await self._places.run(partial(self._linked, link, path, form))

    def _linked(self, link: str, path: str, form: Mapping[str, str] | None) -> Response:
        message, notices = linked(self._site, link), []
        if form is not None:
            do = form.get("do", "")
            notices = message.act(self._site, do, again=form.get("again") == "true")
            status = 409 if any(one.kind == "error" for one in notices) else 200
            self._note(f"link {do}", message.caller.name, status, {"id": message.name})
        facts = link_facts(self._site, message, path, notices)
        return HTMLResponse(self._renderer.page("link", facts))

    async def _link_view(self, request: Request) -> Response:
        self._admit(request)
        async with self._places.taken("heavy"):
            return await self._places.run(partial(self._linked_view, request.path_params["link"]))

    async def _digest(self, request: Request) -> Response:
        """Turn digests off or on by a signed link; mail programs post without a page (RFC 8058)."""
        self._admit(request, from_anywhere=True)
        post = request.method == "POST"
        form = (
            dict(fields_of(await read_body(request, _FORM_BYTES), _MOST_FIELDS)) if post else None
        )
        link, path = request.path_params["link"], request.url.path
        async with self._places.taken("quick"):
            return await self._places.run(partial(self._chosen_digest, link, path, form))

    def _chosen_digest(self, link: str, path: str, form: Mapping[str, str] | None) -> Response:
        user, opt_outs = digest_user(self._site, link), self._site.opt_outs
        if form is not None:
            do = "on" if form.get("do") == "on" else "off"
            (opt_outs.remove if do == "on" else opt_outs.add)(user)
            self._note(f"digest {do}", f"link {user}", 200)
        facts = {"visitor": None, "title": "Mails about the quarantine", "path": path, "user": user}
        return HTMLResponse(self._renderer.page("digest", facts | {"off": opt_outs.holds(user)}))

    def _linked_view(self, link: str) -> Response:
        message = linked(self._site, link)
        reply = message.view(self._site)
        self._note("link view", message.caller.name, reply.status, {"id": message.name})
        return Response(reply.data, reply.status, reply.headers, reply.media_type)

    # --- pages -----------------------------------------------------------------------------------

    async def _serve(self, page: Page, request: Request) -> Response:
        self._admit(request)
        form = await _form(request) if request.method == "POST" else None
        act = page.acts.get(dict(form).get("do", "")) if form is not None else None
        asked = AskedPage(
            request.url.path,
            [*request.path_params.items(), *query_of(request)],
            form,
            self._session(request),
            self._proxied(request),
        )
        async with self._places.taken(act.place if act else page.place):
            return await self._places.run(partial(self._answer, page, act, asked))

    def _answer(self, page: Page, act: Act | None, asked: AskedPage) -> Response:
        """Return the reply; runs in a thread."""
        visitor = self._visitors.find(asked.session, asked.proxied)
        if visitor is None:
            return self._to_login(asked)
        self._callers.spend(f"login {visitor.login}")
        if visitor.role not in page.roles:
            raise ApiError(404, text("error.no_page"))
        notices: list[Notice] = []
        status = 200
        if asked.form is not None:
            notices, status = self._done(page, act, visitor, asked)
        try:
            values = page_values(page.parameters, asked.values)
        except UserError as error:
            notices.append(_refusal(error))
            status = HTTPStatus.BAD_REQUEST
            fixed = [pair for pair in asked.values if f"{{{pair[0]}}}" in page.path]
            values = page_values(page.parameters, fixed)
        try:
            view = page.show(self._site, PageRequest(visitor, values, asked.path))
        except SpamnbError as error:
            if page.in_frame or page.noted == "id":
                raise
            problem = problem_of(error)
            notices.append(_refusal(error))
            view = PageView("empty", {}, problem.status)
        if page.noted and asked.form is None:
            self._note(page.name, visitor.login, view.status, {page.noted: values[page.noted]})
        if view.see:
            return _see(view.see)
        if view.stream is not None:
            # Web servers buffer replies; this header makes nginx pass events on at once.
            headers = {"X-Accel-Buffering": "no"}
            return StreamingResponse(view.stream, media_type="text/event-stream", headers=headers)
        if view.reply is not None:
            reply = view.reply
            return Response(reply.data, reply.status, reply.headers, reply.media_type)
        html = self._rendered(page, visitor, asked, view, notices)
        return HTMLResponse(html, view.status if status == 200 else status)

    def _to_login(self, asked: AskedPage) -> Response:
        """Ask for a login; the form that needs it is offered again afterwards."""
        query = [(name, value) for name, value in asked.values if value not in asked.path]
        path = asked.path + (f"?{urlencode(query)}" if query else "")
        if asked.form is None:
            return _see(f"{_LOGIN_PATH}?next={quote(path, safe='')}")
        return self._login_page(AfterLogin(path, urlencode(asked.form)))

    def _done(
        self, page: Page, act: Act | None, visitor: Visitor, asked: AskedPage
    ) -> tuple[list[Notice], int]:
        """Do what a form asks for; a refusal becomes a notice on the page."""
        form = asked.form or ()
        _require_token(visitor, asked.path, form)
        if act is None:
            raise ApiError(400, text("error.no_page"))
        if not visitor.may_change:
            raise ApiError(403, text("error.readonly"))
        given = [pair for pair in asked.values if f"{{{pair[0]}}}" in page.path]
        given += [pair for pair in form if pair[0] not in ("token", "do")]
        status = 200
        try:
            values = page_values(act.parameters, given)
            notices = act.run(self._site, PageRequest(visitor, values, asked.path))
        except SpamnbError as error:
            status = problem_of(error).status
            notices = [_refusal(error)]
        self._note(f"{page.name} {dict(form)['do']}", visitor.login, status)
        return notices, status

    def _rendered(
        self,
        page: Page,
        visitor: Visitor,
        asked: AskedPage,
        view: PageView,
        notices: Sequence[Notice],
    ) -> str:
        menu = menu_of(visitor.role, is_fleet=self._site.config.fleet is not None)
        facts = {
            "visitor": visitor,
            "title": page.title,
            "here": page.name,
            "entry_page": entry_page(page, menu),
            "menu": menu,
            "waiting": self._waiting(
                visitor, again=page.name == "quarantine" or asked.form is not None
            ),
            "path": asked.path,
            "token": visitor.form_token(asked.path),
            "log_out_token": visitor.form_token("/logout"),
            "notices": notices,
        }
        return self._renderer.page(view.template, facts | dict(view.facts))

    def _waiting(self, visitor: Visitor, *, again: bool) -> str:
        """How many messages wait for a user, or reviews for an administrator; empty for none.

        A folder that cannot be read makes no page fail.
        """
        with suppress(SpamnbError):
            if visitor.role != "user":
                return str(self._site.config.review_queue.count() or "")
            now = time.monotonic()
            at, found = self._kept.get(visitor.login, (-inf, ""))
            if again or now - at > _COUNT_AGAIN_S:
                found = pages_kept.count(self._site, visitor)
                if len(self._kept) >= _MOST_COUNTED:
                    self._kept.clear()
                self._kept[visitor.login] = now, found
            return found
        return ""

    def _note(
        self, operation: str, caller: str, status: int, facts: Mapping[str, Any] = _NOTHING
    ) -> None:
        """Log who logged in, changed something, or looked at a message."""
        self._log(
            {"event": "console", "operation": operation, "caller": caller, "status": status}
            | dict(facts)
        )


def _refusal(error: SpamnbError) -> Notice:
    body = problem_of(error).body
    return Notice("error", body["title"], body["detail"])


async def _form(request: Request) -> Fields:
    if type_of_body(request) != _FORM:
        raise ApiError(415, "the body is not a form")
    return fields_of(await read_body(request, _FORM_BYTES), _MOST_FIELDS)


def _require_token(visitor: Visitor, path: str, form: Fields) -> None:
    given = dict(form).get("token", "")
    if not compare_digest(given.encode(), visitor.form_token(path).encode()):
        raise ApiError(403, "this form belongs to another session: load the page again")


def _see(path: str) -> Response:
    return RedirectResponse(path, 303)


def _after(request: Request, form: Mapping[str, str] = _NOTHING) -> AfterLogin:
    return AfterLogin(_own_path(dict(query_of(request)).get("next", "/")), form.get("wanted", ""))


def _own_path(path: str) -> str:
    """Return a path of this site to go to after the login; "/" for anything else."""
    plain = path.isascii() and path.isprintable() and "\\" not in path
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"
