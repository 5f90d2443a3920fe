"""Log in to an IMAP server: where the password comes from, and how it is sent.

A password is read when it is used, and is in no log, no argument of a process and no error: what
the server or the command says is searched for it. Failure: UserError for a file or command that
gives none, LoginRefusedError if the server refuses it.
"""

from __future__ import annotations

import os
import stat
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from spamnb.endpoints.imap.folders import quoted
from spamnb.endpoints.imap.params import ImapParams
from spamnb.errors import PeerError, SettingsError, UserError

_COMMAND_S: Final = 60.0
"""a program may ask its server for a new token"""
_SECRET_BYTES: Final = 1 << 16
_MASK: Final = "********"


class LoginRefusedError(PeerError):
    """The server refuses the login; to repeat it soon could lock the account."""


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
    if not (params.password_file or params.password_command):
        yield SettingsError(
            "no password is given",
            hint="set password_file to a file with mode 0600, or password_command",
        )
    for step in (_check_file, _check_command, _check_ca):
        try:
            step(params)
        except UserError as error:
            yield error


def _check_file(params: ImapParams) -> None:
    if params.password_file:
        _from_file(params.password_file)


def _check_command(params: ImapParams) -> None:
    if params.password_command and not _found(params.password_command[0]):
        raise SettingsError(
            f"the program {params.password_command[0]!r} does not exist",
            hint="see password_command",
        )


def _check_ca(params: ImapParams) -> None:
    if params.ca_file and not os.access(params.ca_file, os.R_OK, effective_ids=True):
        raise SettingsError(f"the file {params.ca_file} cannot be read", hint="see ca_file")


def _found(program: str) -> bool:
    folders = [""] if "/" in program else os.get_exec_path()
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in folders)  # noqa: PTH118 - as the shell does


def secret_of(params: ImapParams) -> str:
    """Return the password or the access token: the first line of the file or of the output."""
    if params.password_command:
        found = _from_command(params.password_command)
    else:
        found = _from_file(params.password_file)
    try:
        secret = found.decode("utf-8").partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        secret = ""
    if not secret or "\0" in secret:
        source = params.password_command[0] if params.password_command else params.password_file
        raise UserError(f"{source} gives no password", hint="it must be the first line, in UTF-8")
    return secret


def _from_file(path: str) -> bytes:
    """Read a file that only its owner may read."""
    try:
        handle = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UserError(f"the password file {path}: {error.strerror}") from error
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise UserError(f"the password file {path} is no plain file")
        if about.st_uid not in (0, os.geteuid()):
            raise UserError(f"the password file {path} belongs to another user")
        if about.st_mode & 0o077:
            raise UserError(
                f"other users may read or write the password file {path}", hint=f"chmod 600 {path}"
            )
        return os.read(handle, _SECRET_BYTES)
    finally:
        os.close(handle)


def _from_command(words: tuple[str, ...]) -> bytes:
    """Run a program without a shell; what it writes to its standard error is not shown."""
    try:
        done = subprocess.run(  # noqa: S603 - the administrator's command
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_COMMAND_S,
            check=False,
        )
    except OSError as error:
        raise UserError(f"password_command: {words[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise UserError(f"password_command: {words[0]} takes too long") from error
    if done.returncode:
        raise UserError(f"password_command: {words[0]} fails with exit code {done.returncode}")
    return done.stdout[:_SECRET_BYTES]


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
