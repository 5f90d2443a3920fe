"""Who looks at a page: logins, sessions, roles. Must not know pages.

    admin      sees and changes everything: `console.admins`, or a link of `spamnb console open`
    auditor    sees everything: `console.auditors`
    user       sees and corrects the mail delivered to the login's addresses

A session ends when the password or the login is removed or changed, and its role is read from the
settings at each request. Failure: ApiError with the status of the reply.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, NamedTuple

from spamnb.endpoints.console.callers import OF_USER, ApiCaller
from spamnb.endpoints.console.problems import ApiError
from spamnb.errors import SettingsError
from spamnb.service.admin.logins import FailedLogins, Login, Passwords
from spamnb.service.admin.tokens import SCOPES
from spamnb.service.engine.clock import now_us
from spamnb.store.sessions import LoginSession, SessionStore

Role = Literal["admin", "auditor", "user"]
STAFF: Final[tuple[Role, ...]] = ("admin", "auditor")
EVERYONE: Final[tuple[Role, ...]] = ("admin", "auditor", "user")

_MINUTE_US: Final = 60_000_000
_HOUR_US: Final = 60 * _MINUTE_US
IDLE_US: Final[dict[Role, int]] = {"admin": _HOUR_US, "auditor": _HOUR_US, "user": 12 * _HOUR_US}
LONGEST_US: Final = 7 * 24 * _HOUR_US
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
        """Return whom the visitor acts as: for a user, one caller for each address."""
        if self.role == "user":
            return tuple(ApiCaller(self.login, OF_USER, one) for one in self.addresses)
        return (ApiCaller(self.login, frozenset(SCOPES)),)

    def form_token(self, path: str) -> str:
        """Return what a form for this path must have; other sites cannot know it."""
        return hmac.new(self.session.encode(), path.encode(), sha256).hexdigest()


class Visitors:
    """Sessions and logins of one home."""

    def __init__(self, sessions: SessionStore, clock: Callable[[], int] = now_us) -> None:
        self._sessions = sessions
        self._clock = clock
        self._attempts = FailedLogins()
        self._rights = PageRights(Path())
        self._passwords: Passwords | None = None

    def apply_settings(self, rights: PageRights) -> None:
        """Take other rights; sessions go on."""
        self._rights, self._passwords = rights, None

    # --- sessions --------------------------------------------------------------------------------

    def find(self, text: str) -> Visitor | None:
        """Return the visitor with this session."""
        session = self._sessions.find(text) if text else None
        visitor = self._visitor_of(session, text) if session is not None else None
        if session is None or visitor is None:
            return None
        now = self._clock()
        if now >= session.ends_us or now - session.used_us > IDLE_US[visitor.role]:
            return None
        if now - session.used_us > _MINUTE_US:
            self._sessions.use(text, now)
        return visitor

    def _visitor_of(self, session: LoginSession, text: str) -> Visitor | None:
        if not session.proof:
            return Visitor(session.login, "admin", (), text)
        login = self._logins().get(session.login.lower())
        role = self._role_of(session.login)
        if login is None or role is None or _proof_of(login) != session.proof:
            return None
        return Visitor(login.name, role, login.addresses, text)

    def _role_of(self, login: str) -> Role | None:
        rights, name = self._rights, login.casefold()
        if name in map(str.casefold, rights.admins):
            return "admin"
        if name in map(str.casefold, rights.auditors):
            return "auditor"
        return "user" if rights.users else None

    def addresses(self) -> frozenset[str]:
        """Return the addresses of all logins."""
        return frozenset(one for login in self._logins().values() for one in login.addresses)

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

    def log_in(self, name: str, password: bytes, client: str) -> str:
        """Check a password; return the text of a new session. It takes a fifth of a second.

        It counts as wrong until it is checked, so parallel guesses gain nothing.
        """
        now = time.monotonic()
        wait_s = self._attempts.wait_s(client, now)
        if wait_s > 0:
            raise ApiError(429, "too many wrong passwords", hint=f"wait {wait_s:.0f} seconds")
        self._attempts.wrong(client, now)
        found = self._checked().check(name, password)
        if found is None or self._role_of(found.name) is None:
            raise ApiError(401, "the login or the password is wrong")
        self._attempts.right(client)
        return self._begin(found.name, _proof_of(found))

    def log_in_by_link(self, text: str) -> str:
        """Use up a link of `spamnb console open`; return the text of a new session."""
        link = self._sessions.take("links", text)
        if link is None or self._clock() >= link.ends_us:
            raise ApiError(401, "this link was used, or is older than a minute",
                           hint="run `spamnb console open` again")  # fmt: skip
        return self._begin(link.login, "")

    def _begin(self, login: str, proof: str) -> str:
        now = self._clock()
        return self._sessions.add(
            "sessions", LoginSession(login, proof, now, now, now + LONGEST_US)
        )

    def log_out(self, text: str) -> None:
        """End a session."""
        self._sessions.take("sessions", text)


def _proof_of(login: Login) -> str:
    return sha256(login.secret.encode()).hexdigest()


def new_link(login: str, now: int) -> LoginSession:
    """Return a link that logs one administrator in, once; `SessionStore.add` gives it its text."""
    return LoginSession(login, "", now, now, now + LINK_US)
