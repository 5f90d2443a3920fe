"""A page and its visitor: logins and roles, what a page shows and does, templates and assets.

`Visitors` tells who looks at a page, `Page` is a page, `ask` runs an operation of the API for the
visitor, so that pages and API give the same numbers and have the same rights, and `Renderer` makes
HTML with all values escaped. Failure: ApiError with the status of the reply.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parseaddr
from functools import cached_property
from hashlib import sha256
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from spamnb.console.site import (
    OF_USER,
    ApiCaller,
    ApiError,
    ApiReply,
    ApiRequest,
    ConsoleSite,
    Place,
)
from spamnb.console.table import OPERATIONS
from spamnb.console.texts import TEXTS, of, text, word
from spamnb.errors import PeerError, RefError, SettingsError, StoreError, UserError
from spamnb.mail.envelope import domain_of, same_name
from spamnb.mail.limits import visible
from spamnb.operations.figures import Chart, ChartSize, ChartWords, draw
from spamnb.operations.logins import SCOPES, FailedCodes, Login, LoginGuard, Passwords, step_of
from spamnb.operations.parameters import MOST_ID, Parameter, ParameterType, read_parameters, whole
from spamnb.operations.status import model_facts, noted
from spamnb.records.console import LoginSession, SessionStore
from spamnb.telemetry import duration, iso, now_us

Role = Literal["admin", "auditor", "user"]
STAFF: Final[tuple[Role, ...]] = ("admin", "auditor")
EVERYONE: Final[tuple[Role, ...]] = ("admin", "auditor", "user")

_SECOND_US: Final = 1_000_000
_MINUTE_US: Final = 60 * _SECOND_US
_HOUR_US: Final = 60 * _MINUTE_US
IDLE_US: Final[dict[Role, int]] = {"admin": _HOUR_US, "auditor": _HOUR_US, "user": 12 * _HOUR_US}
TICKET_US: Final = 5 * _MINUTE_US
"""how long a login waits for its second factor"""
LONGEST_US: Final = 7 * 24 * _HOUR_US
_BY_PROXY: Final = "proxy"
LINK_US: Final = _MINUTE_US
"""how long a link of `spamnb console open` is good"""


class PageRights(NamedTuple):
    """Who may use the pages, from the settings."""

    passwords: Path
    admins: tuple[str, ...] = ()
    auditors: tuple[str, ...] = ()
    users: bool = True


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person with a session."""

    login: str
    role: Role
    addresses: tuple[str, ...]
    session: str
    """the text that the browser has"""

    @property
    def may_change(self) -> bool:
        """Whether the visitor may change anything."""
        return self.role != "auditor"

    def callers(self) -> tuple[ApiCaller, ...]:
        """Return the callers for the visitor; a user has one caller for each address."""
        if self.role == "user":
            return tuple(ApiCaller(self.login, OF_USER, one) for one in self.addresses)
        return (ApiCaller(self.login, frozenset(SCOPES)),)

    def form_token(self, path: str) -> str:
        """Return the token that a form for this path must have; other sites cannot know it."""
        return hmac.new(self.session.encode(), path.encode(), sha256).hexdigest()


class LoginStep(NamedTuple):
    """The result of a step of a login."""

    text: str
    """of the new session, or of the ticket for the second factor"""
    needs_code: bool = False


class Visitors:
    """Sessions and logins of one home.

        admin      sees and changes everything: `console.admins`, or a link of `spamnb console open`
        auditor    sees everything: `console.auditors`
        user       sees and corrects the mail delivered to the login's addresses

    A visitor logs in with a password, with a link of `spamnb console open`, or through a proxy of
    the settings.

    A session ends when the login is removed or its password changes. The role of a session is read
    from the settings at each request.
    """

    def __init__(self, sessions: SessionStore, clock: Callable[[], int] = now_us) -> None:
        self._sessions = sessions
        self._clock = clock
        self._guard = LoginGuard(sessions, clock)
        self._codes = FailedCodes()
        self._rights = PageRights(Path())
        self._passwords: Passwords | None = None

    def apply_settings(self, rights: PageRights) -> None:
        """Apply other rights; sessions stay open."""
        self._rights, self._passwords = rights, None

    # --- sessions --------------------------------------------------------------------------------

    def find(self, text: str, proxied: str = "") -> Visitor | None:
        """Return the visitor with this session; `proxied` is the user that a proxy names.

        A session that a proxy began is valid only if the proxy names its user. Any other session is
        not valid if a proxy names another user.
        """
        session = self._sessions.find(text) if text else None
        if session is not None and proxied.casefold() not in _names_of(session):
            return None
        visitor = self._visitor_of(session, text) if session is not None else None
        if session is None or visitor is None:
            return None
        now = self._clock()
        if not _is_live(session, visitor.role, now):
            return None
        if now - session.used_us > _MINUTE_US:
            self._sessions.use(text, now)
        return visitor

    def _visitor_of(self, session: LoginSession, text: str) -> Visitor | None:
        if not session.proof:
            return Visitor(session.login, "admin", (), text)
        login = self._logins().get(session.login.lower())
        role = self._role_of(session.login)
        if session.proof == _BY_PROXY and role is not None:
            known = login or Login(session.login, "", (session.login,))
            return Visitor(known.name, role, known.addresses, text)
        if login is None or role is None or _proof_of(login) != session.proof:
            return None
        return Visitor(login.name, role, login.addresses, text)

    def _role_of(self, login: str) -> Role | None:
        rights = self._rights
        if any(same_name(login, one) for one in rights.admins):
            return "admin"
        if any(same_name(login, one) for one in rights.auditors):
            return "auditor"
        return "user" if rights.users else None

    def addresses(self) -> frozenset[str]:
        """Return the addresses of all logins."""
        return frozenset(one for login in self._logins().values() for one in login.addresses)

    def people(self) -> list[dict[str, Any]]:
        """Return the logins, and the users of links and proxies that have a session."""
        logins, now = self._logins(), self._clock()
        people = {name: self._person(login) for name, login in logins.items()}
        for session in self._sessions.sessions():
            visitor = self._visitor_of(session, "")
            if visitor is not None and _is_live(session, visitor.role, now):
                unknown = self._person(Login(session.login, "")) | {"role": visitor.role}
                one = people.setdefault(session.login.lower(), unknown)
                times = {"began": iso(session.began_us), "used": iso(session.used_us)}
                one["sessions"].append(times)
        return [people[name] for name in sorted(people)]

    def _person(self, login: Login) -> dict[str, Any]:
        return {
            "name": login.name,
            "role": self._role_of(login.name) or "",
            "addresses": list(login.addresses),
            "totp": bool(login.totp),
            "sessions": [],
        }

    def end_sessions(self, login: str) -> int:
        """End all sessions of a login; return how many."""
        return self._sessions.end_all(login)

    def _logins(self) -> dict[str, Login]:
        try:
            return dict(self._checked().logins())
        except SettingsError:
            return {}

    def _checked(self) -> Passwords:
        if self._passwords is None:
            self._passwords = Passwords(self._rights.passwords)
        return self._passwords

    # --- logging in and out ----------------------------------------------------------------------

    def log_in(self, name: str, password: bytes, client: str) -> LoginStep:
        """Check a password; begin a session, or ask for the second factor of the login.

        The check takes a fifth of a second. Until it has ended, the attempt counts as wrong, so an
        attacker gains nothing by parallel guesses.
        """
        _wait(self._guard.begin(name, client, time.monotonic()))
        found = self._checked().check(name, password)
        if found is None or self._role_of(found.name) is None:
            raise ApiError(401, "the login or the password is wrong")
        self._guard.right(name, client)
        self._guard.remember(name, client)
        if found.totp:
            now = self._clock()
            ticket = LoginSession(found.name, _proof_of(found), now, now, now + TICKET_US)
            return LoginStep(self._sessions.add("tickets", ticket), needs_code=True)
        return self._begin(found.name, _proof_of(found))

    def log_in_by_code(self, text: str, code: str, client: str) -> LoginStep:
        """Check the second factor of the login that a ticket is for; each code is valid once."""
        ticket = self._sessions.find(text, "tickets")
        login = self._logins().get(ticket.login.lower()) if ticket is not None else None
        now = self._clock()
        if (
            ticket is None
            or login is None
            or _proof_of(login) != ticket.proof
            or (now >= ticket.ends_us)
        ):
            raise ApiError(410, "this login has taken too long", hint="log in again")
        _wait(self._guard.begin(login.name, client, time.monotonic()))
        _wait(self._codes.begin(login.name.lower(), time.monotonic()))
        step = step_of(login.totp, code.replace(" ", ""), now // _SECOND_US)
        if step is None or not self._sessions.use_step(login.name, step):
            raise ApiError(401, "the code is wrong, or was used before")
        self._guard.right(login.name, client)
        self._codes.right(login.name.lower())
        self._sessions.take("tickets", text)
        return self._begin(login.name, ticket.proof)

    def log_in_by_link(self, text: str) -> LoginStep:
        """Begin a session with a link of `spamnb console open`, which is then invalid."""
        link = self._sessions.take("links", text)
        if link is None or self._clock() >= link.ends_us:
            raise ApiError(401, "this link was used, or is older than a minute",
                           hint="run `spamnb console open` again")  # fmt: skip
        return self._begin(link.login, "")

    def log_in_by_proxy(self, login: str) -> LoginStep:
        """Begin a session of a user that a proxy has logged in."""
        if self._role_of(login) is None:
            raise ApiError(403, "this login may not use the pages", hint="see console.users")
        return self._begin(login, _BY_PROXY)

    def _begin(self, login: str, proof: str) -> LoginStep:
        now = self._clock()
        session = LoginSession(login, proof, now, now, now + LONGEST_US)
        return LoginStep(self._sessions.add("sessions", session))

    def log_out(self, text: str) -> None:
        """End a session."""
        self._sessions.take("sessions", text)


def _names_of(session: LoginSession) -> tuple[str, ...]:
    """The users that a proxy may name for this session; empty: the request has no proxy name."""
    name = session.login.casefold()
    return (name,) if session.proof == _BY_PROXY else ("", name)


def _is_live(session: LoginSession, role: Role, now: int) -> bool:
    return now < session.ends_us and now - session.used_us <= IDLE_US[role]


def _proof_of(login: Login) -> str:
    return sha256((login.secret + login.totp).encode()).hexdigest()


def _wait(wait_s: float) -> None:
    """Refuse an attempt that comes too soon after wrong ones. Failure: ApiError."""
    if wait_s > 0:
        raise ApiError(429, "too many wrong passwords", hint=f"wait {ceil(wait_s)} seconds")


def new_link(login: str, now: int) -> LoginSession:
    """Return a link for one login as administrator; `SessionStore.add` creates its text."""
    return LoginSession(login, "", now, now, now + LINK_US)


MOST_CHOSEN: Final = 200
"""messages that one form may name"""
_BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}


class PageRequest(NamedTuple):
    """A request of a visitor whose role and parameters are checked."""

    visitor: Visitor
    values: dict[str, Any]
    path: str


class PageView(NamedTuple):
    """What a page shows."""

    template: str = ""
    facts: Mapping[str, Any] = {}
    status: int = 200
    stream: AsyncIterator[bytes] | None = None
    """server-sent events instead of a template"""
    reply: ApiReply | None = None
    """the reply of an operation instead of a template"""
    see: str = ""
    """the page that shows it instead"""


class Notice(NamedTuple):
    """A sentence above the page: what an act has done, or why it failed."""

    kind: str
    """done, waits or error"""
    text: str
    more: str = ""
    undo: tuple[int, ...] = ()
    """the events that a button undoes; empty for no button"""
    path: str = ""
    """the page to go on at"""
    exact: str = ""
    """a text to copy"""
    back: tuple[tuple[str, str], ...] = ()
    """the fields of a form that undoes the change, if the change is no event"""


Show = Callable[[ConsoleSite, PageRequest], PageView]
DoAct = Callable[[ConsoleSite, PageRequest], list[Notice]]


@dataclass(frozen=True, slots=True)
class Act:
    """What a form of a page does, under the name in its field `do`."""

    run: DoAct
    parameters: tuple[Parameter, ...] = ()
    place: Place = "learner"


@dataclass(frozen=True, slots=True)
class Page:
    """One row of the table."""

    name: str
    title: str
    """also in the menu; empty for what is shown within another page"""
    path: str
    roles: tuple[Role, ...]
    show: Show
    parameters: tuple[Parameter, ...] = ()
    acts: Mapping[str, Act] = field(default_factory=dict)
    place: Place = "heavy"
    in_frame: bool = False
    """whether the page and its errors are shown in a frame of another page"""
    of_fleet: bool = False
    """whether the page is only in the menu of hosts of a fleet"""
    noted: str = ""
    """a parameter: each view of the page is logged with the user and this value"""


def page_values(
    parameters: Iterable[Parameter], given: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """Return the checked values of a form or a query, without empty fields."""
    known = tuple(parameters)
    by_name = {one.name: one for one in known}
    several = {one.name for one in known if one.type.schema["type"] == "array"}
    lists: dict[str, list[str]] = {}
    single = []
    for name, value in given:
        if name in several:
            lists.setdefault(name, []).append(value)
        elif value.strip():
            single.append((name, value))
    found = {**dict(single), **lists}
    for name, parameter in by_name.items():
        label = TEXTS.get(f"field.{name}", name)
        if parameter.required and name not in found:
            said = text("error.choose") if name in several else f"“{label}” is not filled in"
            raise UserError(said)
        try:
            parameter.type.take(found.get(name, parameter.default))
        except (ValueError, TypeError, OverflowError) as error:
            if name in found:
                hint = f"it must be {parameter.type.allowed}"
                raise UserError(f"“{label}” is not valid", hint=hint) from error
    return read_parameters(known, [*single, *lists.items()])


def ask(site: ConsoleSite, caller: ApiCaller, name: str, /, **values: Any) -> Any:
    """Run an operation of the API; return its value."""
    return ask_reply(site, caller, name, **values).value


def ask_reply(site: ConsoleSite, caller: ApiCaller, name: str, /, **values: Any) -> ApiReply:
    """Run an operation of the API."""
    operation = _BY_NAME[name]
    caller.require(operation.scope)
    checked = read_parameters(operation.parameters, values.items())
    return operation.run(site, ApiRequest(caller, checked))


def status_or_fault(site: ConsoleSite, caller: ApiCaller) -> Mapping[str, Any]:
    """Return the facts of `spamnb status`; if the learner gives none, what this process can read.

    Such facts have `silent`, the sentence of the fault.
    """
    try:
        found: Mapping[str, Any] = ask(site, caller, "status")
    except (PeerError, StoreError) as error:
        facts: dict[str, Any] = {"home": str(site.config.home), "model": None, "fault": ""}
        with noted(facts), site.reading() as model:
            facts["model"] = model_facts(site.config.home, model)
        return facts | {"silent": str(error), "warnings": []}
    return {**found, "silent": ""}


def owned(
    site: ConsoleSite, visitor: Visitor, signature: str
) -> tuple[ApiCaller, dict[str, Any]]:  # fmt: skip
    """Return a message, and the caller that may see it: for a user, its recipient."""
    return _first_of(visitor, lambda caller: ask(site, caller, "verdict", signature=signature))


def kept_parts(
    site: ConsoleSite, visitor: Visitor, name: str
) -> list[tuple[ApiCaller, dict[str, Any]]]:
    """Return what each address of the visitor sees of a message in quarantine.

    Failure: RefError if none of them sees it.
    """
    found = []
    for caller in visitor.callers():
        with suppress(RefError):
            found.append((caller, ask(site, caller, "quarantined", id=name)))
    if not found:
        raise RefError(f"there is no message {name} in quarantine")
    return found


def joined_parts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one message in quarantine as several addresses of a visitor see it."""
    whole = dict(parts[0])
    for name in ("recipients", "waiting"):
        whole[name] = [address for part in parts for address in part[name]]
    whole["releasing"] = any(part["state"] == "releasing" for part in parts)
    return whole


def joined_kept(site: ConsoleSite, visitor: Visitor, name: str) -> dict[str, Any]:
    """Return a message in quarantine as the visitor sees it; RefError if none is seen."""
    return joined_parts([part for _, part in kept_parts(site, visitor, name)])


def undone(site: ConsoleSite, visitor: Visitor, event: int) -> dict[str, Any]:
    """Undo an event of the visitor; return the answer."""
    return _first_of(visitor, lambda caller: ask(site, caller, "undo", event=event))[1]


def joined(notices: list[Notice], said: str, **values: Any) -> list[Notice]:
    """Return one notice for several changes of a kind; what was refused stays apart."""
    done = [one for one in notices if one.kind != "error"]
    if len(done) < 2:
        return notices
    waiting = sum(one.kind == "waits" for one in done)
    more = f"{waiting} of them wait for an administrator, or to be learnt." if waiting else ""
    undo = tuple(event for one in done for event in one.undo)
    back = tuple(dict.fromkeys(pair for one in done for pair in one.back))
    both = Notice("done", text(said, count=len(done), **values), more, undo, back=back)
    return [both, *(one for one in notices if one.kind == "error")]


def _first_of(
    visitor: Visitor, run: Callable[[ApiCaller], dict[str, Any]]
) -> tuple[ApiCaller, dict[str, Any]]:
    """Run an operation as each address of the visitor, until one finds its object."""
    *others, last = visitor.callers()
    for caller in others:
        try:
            return caller, run(caller)
        except RefError:
            continue
    return last, run(last)


def _day_us(value: Any) -> int:
    at = datetime.strptime(str(value), "%Y-%m-%d").replace(tzinfo=UTC)
    if at.year < 1970:
        raise ValueError
    return int(at.timestamp() * 1_000_000)


def _chosen(value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and 0 < len(value) <= MOST_CHOSEN):
        raise ValueError
    return tuple(map(str, value))


def _events(value: Any) -> tuple[int, ...]:
    number = whole(1, MOST_ID)
    return tuple(number.take(one) for one in _chosen(value))


DAY = ParameterType({"type": "string", "format": "date"}, _day_us, "a day, such as 2026-05-31")
CHOSEN = ParameterType(
    {"type": "array"}, _chosen, f"at least one message, and at most {MOST_CHOSEN}"
)
EVENTS = ParameterType({"type": "array"}, _events, "numbers of events")


_HERE: Final = Path(__file__).resolve().parent
_TYPES: Final = {".css": "text/css", ".js": "text/javascript"}
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-src 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types spamnb"
)
_NEARLY: Final = 0.9999
_UNSTORED: Final = re.compile(r"[0-9a-f]{16}")
"""the text of a clue if only its id is known"""
_PAGE_OF: Final = {
    "spamnb review list": ("/review", "Review"),
    "spamnb quarantine list": ("/quarantine", "Quarantine"),
}
_UNITS: Final = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


class Asset(NamedTuple):
    """A file that browsers may keep forever, because a changed file has another name."""

    path: str
    data: bytes
    media_type: str


class Drawing(NamedTuple):
    """A chart to be drawn."""

    chart: Chart
    words: ChartWords
    size: ChartSize


class Renderer:
    """Renders templates."""

    def __init__(self) -> None:
        self.assets = {name: _asset(name) for name in ("console.css", "console.js")}
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        self._templates.tests["unstored"] = _UNSTORED.fullmatch
        self._templates.globals |= {
            "t": text,
            "raw": TEXTS.get,
            "word": word,
            "asset": self._path_of,
        }
        self._templates.filters |= {
            "when": when,
            "percent": percent,
            "threshold": threshold,
            "picture": picture,
            "bytes": size_text,
            "duration": duration,
            "number": number,
            "of": of,
            "sentence": linked_sentence,
            "is_through": is_through,
            "day": day,
        }

    def page(self, template: str, facts: Mapping[str, Any]) -> str:
        """Return the HTML of a page."""
        return self._templates.get_template(f"{template}.html").render(facts)

    def _path_of(self, name: str) -> str:
        return self.assets[name].path

    @cached_property
    def by_path(self) -> Mapping[str, Asset]:
        """The assets by their paths."""
        return {one.path: one for one in self.assets.values()}


def _shown(value: object) -> object:
    """Text that may be a sender's, with the invisible made visible; lines of texts stay."""
    return visible(value, keep="\n\t") if type(value) is str else value


def _asset(name: str) -> Asset:
    path = _HERE / "assets" / name
    data = path.read_bytes()
    named = f"/assets/{path.stem}.{sha256(data).hexdigest()[:16]}{path.suffix}"
    return Asset(named, data, _TYPES[path.suffix])


def when(time: str) -> Markup:
    """Return a time element in UTC; the script changes it to the zone of the browser."""
    at = (
        datetime.fromisoformat(time) if isinstance(time, str) else datetime.fromtimestamp(time, UTC)
    )
    at = at.astimezone(UTC)
    shown = text("utc", time=f"{at:%Y-%m-%d %H:%M}")
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(timespec="seconds"), shown)


def day(time: str) -> str:
    """Return the day of a time, such as 10 Dec."""
    at = datetime.fromisoformat(time)
    return f"{at.day} {at:%b}"


def is_through(header_from: str, envelope: str) -> bool:
    """Whether a message comes from another domain than the one its From names."""
    named = parseaddr(header_from or "")[1]
    return bool(named and envelope) and domain_of(named) != domain_of(envelope)


def picture(drawing: Drawing) -> Markup:
    """Return the SVG of a chart; its texts are already escaped.

    The only filter whose HTML is not escaped again: drawings of charts.
    """
    return Markup(draw(*drawing))  # noqa: S704


def percent(share: float) -> str:
    """Return a probability in percent; only exactly 0 and 1 give 0 and 100."""
    if share > _NEARLY:
        return f"over {_NEARLY:.2%}".replace("%", " %") if share < 1 else "100 %"
    if share < 1 - _NEARLY:
        return f"under {1 - _NEARLY:.2%}".replace("%", " %") if share > 0 else "0 %"
    digits = 2 if min(share, 1 - share) < 0.01 else 1
    return f"{share * 100:.{digits}f} %"


def threshold(share: float) -> str:
    """Return a threshold in percent, with two digits of its distance from 0 and 100."""
    distance = 100 * min(share, 1 - share)
    digits = max(2, 1 - floor(log10(distance))) if distance > 0 else 2
    return f"{100 * share:.{digits}f} %"


def size_text(size: float) -> str:
    """Return a size in bytes with its unit."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} bytes"


def number(value: float) -> str:
    """Return a whole number with spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\u202f")


def sentence(phrase: object) -> str:
    """Return the text of an error as a sentence."""
    found = str(phrase).strip()
    if found.partition(" ")[0].rstrip(",:").isalpha():  # not an address, a number or a name
        found = found[:1].upper() + found[1:]
    return found + ("" if found[-1:] in tuple(".?!:") else ".")


def linked_sentence(phrase: object) -> Markup:
    """Return a sentence in which the name of a command that has a page is a link to it."""
    found = escape(_shown(sentence(phrase)))
    for command, (path, title) in _PAGE_OF.items():
        link = Markup('<a href="{}">{}</a>').format(path, title)
        found = Markup(found.replace(f"`{command}`", link))  # noqa: S704 - both are escaped
    return found
