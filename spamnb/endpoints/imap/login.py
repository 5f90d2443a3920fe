"""Log in to an IMAP server: how the password is sent.

A password is never in a log or an error: it is masked in texts of the server. Failure:
LoginRefusedError if the server refuses the login.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from typing import Final, Protocol

from spamnb.endpoints.imap.folders import quoted
from spamnb.endpoints.imap.params import ImapParams
from spamnb.errors import PeerError, SettingsError, UserError

_MASK: Final = "********"


class LoginRefusedError(PeerError):
    """The server refuses the login; an early repetition could lock the account."""


class LoginCommands(Protocol):
    """What a login needs of a connection."""

    def has(self, capability: str) -> bool:
        """Return True if the server has it."""

    def login(self, user: bytes, password: bytes) -> None:
        """Log in with quoted strings."""

    def authenticate(self, mechanism: str, answer: bytes) -> None:
        """Log in by SASL with one answer of the client."""


def account_problems(params: ImapParams) -> Iterator[UserError]:
    """Yield what would stop this account, without a connection and without running a command."""
    if not params.host:
        yield SettingsError("host is not set", hint="the name of the IMAP server")
    if not params.user:
        yield SettingsError("user is not set", hint="the login at the IMAP server")
    yield from params.password.problems()
    if params.ca_file and not os.access(params.ca_file, os.R_OK, effective_ids=True):
        yield SettingsError(f"the file {params.ca_file} cannot be read", hint="see ca_file")


def secret_of(params: ImapParams) -> str:
    """Return the password or the access token."""
    return params.password.read()


def log_in(client: LoginCommands, params: ImapParams, secret: str) -> None:
    """Log in by the best method that the server offers."""
    try:
        if params.auth == "xoauth2":
            text = f"user={params.user}\1auth=Bearer {secret}\1\1"
            client.authenticate("XOAUTH2", text.encode())
        elif client.has("AUTH=PLAIN"):
            client.authenticate("PLAIN", f"\0{params.user}\0{secret}".encode())
        elif client.has("LOGINDISABLED"):
            raise LoginRefusedError("the server offers no login by password")  # noqa: TRY301 - as refused
        else:
            client.login(_quoted(params.user), _quoted(secret))
    except LoginRefusedError as error:
        raise LoginRefusedError(_masked(str(error), secret), hint=error.hint) from None


def _quoted(text: str) -> bytes:
    try:
        return quoted(text)
    except ValueError:
        raise LoginRefusedError(
            "the server takes only ASCII in a login", hint="choose a password in ASCII"
        ) from None


def _masked(text: str, secret: str) -> str:
    """Hide the secret in a text of the server, also in the form in which it was sent."""
    for form in (secret, b64encode(secret.encode()).decode().rstrip("=")):
        text = text.replace(form, _MASK)
    return text
