"""Who looks at a page: logins, sessions, roles. Must not know pages.

    admin      sees and changes everything: `console.admins`, or a link of `spamnb console open`
    auditor    sees everything: `console.auditors`
    user       sees and corrects the mail delivered to the login's addresses

A visitor logs in with a password, with a link of `spamnb console open`, or through a proxy of the
settings.

A session ends when the login is removed or its password changes. The role of a session is read from
the settings at each request. Failure: ApiError with the status of the reply.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from spamnb.core.mail.domains import same_name
from spamnb.endpoints.console.callers import OF_USER, ApiCaller
from spamnb.endpoints.console.problems import ApiError
from spamnb.errors import SettingsError
from spamnb.service.admin.logins import FailedCodes, Login, LoginGuard, Passwords
from spamnb.service.admin.tokens import SCOPES
from spamnb.service.admin.totp import step_of
from spamnb.service.engine.clock import iso, now_us
from spamnb.store.sessions import LoginSession, SessionStore

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
    """Sessions and logins of one home."""

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
