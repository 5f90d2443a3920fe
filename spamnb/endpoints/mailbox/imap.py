"""A mailbox on an IMAP server: find one message by its Message-ID, move it, delete it.

Other messages are never touched: an expunge names the UID, and where the server cannot do that (no
UIDPLUS, RFC 4315), nothing is expunged beside other deleted messages. A password is sent only
encrypted or on this machine.

Must not know what a move means. Failure: PeerError, with the server's text.
"""

from __future__ import annotations

import imaplib
import re
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from ipaddress import ip_address
from typing import Any, Final

from spamnb.errors import PeerError
from spamnb.service.diagnostics.ports import SIDES, FoundMessage, Side

_TLS_PORT: Final = 993
_DAYS_S: Final = 2 * 86_400
"""the server's date may differ"""
_LISTED = re.compile(rb'\(([^)]*)\) (?:"[^"]*"|NIL) (.+)')
_ESCAPED = re.compile(r"\\(.)")
_Command = Callable[..., tuple[str, list[Any]]]


@dataclass(frozen=True, slots=True)
class ImapAccount:
    """An account and its server."""

    host: str
    port: int
    user: str
    password: str
    junk: str = ""
    """the junk folder; empty: the one that the server marks (RFC 6154), else Junk"""
    step_s: float = 30.0


class ImapMailbox:
    """`Mailbox` of one account, logged in. Created by `open`."""

    channels = frozenset(("imap", "maildir"))
    """the IMAP server reports moves, or a watcher of the Maildir behind it"""
    advice = (
        "see docs/dovecot.md, Learn from moves; feedback.spool and serve.delegates; the logs of "
        "the IMAP server and of the daemon"
    )

    def __init__(self, account: ImapAccount, imap: imaplib.IMAP4) -> None:
        self.user = account.user
        self._imap = imap
        self._move_methods = (
            [_move, _copy_and_delete] if "MOVE" in self._capabilities() else [_copy_and_delete]
        )
        listed = _folders(imap)
        self._all = [name for flags, name in listed if "\\noselect" not in flags]
        marked = [name for flags, name in listed if "\\junk" in flags]
        junk = account.junk or (marked[0] if marked else "Junk")
        self._names: dict[Side, str] = {"inbox": "INBOX", "junk": junk}
        self.about = f"{account.user} at {account.host}:{account.port}, junk is {junk}"

    @classmethod
    def open(cls, account: ImapAccount) -> ImapMailbox:
        """Log in, and check that both folders exist."""
        with _as_peer_errors():
            imap = _connected(account)
            try:
                _checked(imap.login(account.user, account.password))
                made = cls(account, imap)
                for side in SIDES:
                    made._select(made._names[side])
            except BaseException:
                imap.shutdown()
                raise
        return made

    def _capabilities(self) -> list[str]:
        reply: bytes = _checked(self._imap.capability())[0]
        return reply.decode("ascii", "replace").upper().split()

    def find(self, ident: str) -> FoundMessage | None:
        with _as_peer_errors():
            for side in SIDES:
                self._select(self._names[side])
                uids = self._search(ident, "UNDELETED")
                raw = self._fetched(uids[-1]) if uids else b""
                if raw:
                    return FoundMessage(side, raw)
        return None

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move it as mail programs do, by another method each time; returns the method."""
        method = self._move_methods[0]
        self._move_methods = [*self._move_methods[1:], method]
        with _as_peer_errors():
            self._select(self._names[source])
            uids = self._search(ident, "UNDELETED")
            if not uids:
                raise PeerError(f"the message is not in {self._names[source]} any more")
            return method(self, uids[-1], _quoted(self._names[target]))

    def purge(self, ident: str) -> int:
        gone: list[bool] = []
        with _as_peer_errors():
            for name in self._all:
                with suppress(PeerError):
                    self._select(name)
                    gone += [self._delete(uid) for uid in self._search(ident, "ALL")]
        if not all(gone):
            raise PeerError(
                "the message is only marked as deleted: an expunge would also delete other messages"
            )
        return len(gone)

    def close(self) -> None:
        with suppress(OSError, imaplib.IMAP4.error):
            self._imap.logout()

    # -- the protocol ---------------------------------------------------------------------------

    def uid(self, *words: str) -> list[Any]:
        """Run one command by UID."""
        command: _Command = self._imap.uid
        return _checked(command(*words))

    def _select(self, name: str) -> None:
        try:
            _checked(self._imap.select(_quoted(name)))
        except PeerError as error:
            raise PeerError(f"the folder {name} cannot be opened: {error}") from error

    def _search(self, ident: str, which: str) -> list[str]:
        # Without a date the server would read the header of every message there is.
        since = "-".join(formatdate(time.time() - _DAYS_S).split()[1:4])
        return self._uids(which, "SINCE", since, "HEADER", "Message-ID", _quoted(ident))

    def _fetched(self, uid: str) -> bytes:
        for part in self.uid("FETCH", uid, "(BODY.PEEK[])"):
            if isinstance(part, tuple):
                return bytes(part[1])
        return b""

    def _delete(self, uid: str) -> bool:
        """Mark it as deleted and expunge it if that affects no other; whether it is gone."""
        self.uid("STORE", uid, "+FLAGS.SILENT", r"(\Deleted)")
        if "UIDPLUS" in self._capabilities():
            self.uid("EXPUNGE", uid)
        elif self._uids("DELETED") == [uid]:
            _checked(self._imap.expunge())
        else:
            return False
        return True

    def _uids(self, *criteria: str) -> list[str]:
        (found,) = self.uid("SEARCH", *criteria)
        return [uid.decode("ascii") for uid in (found or b"").split()]


def _move(mailbox: ImapMailbox, uid: str, target: str) -> str:
    mailbox.uid("MOVE", uid, target)
    return "MOVE"


def _copy_and_delete(mailbox: ImapMailbox, uid: str, target: str) -> str:
    mailbox.uid("COPY", uid, target)
    mailbox._delete(uid)  # noqa: SLF001 - one of the mailbox's methods
    return "COPY and delete"


def _connected(account: ImapAccount) -> imaplib.IMAP4:
    """Connect, encrypted except on this machine."""
    here = _is_here(account.host)
    context = ssl.create_default_context()
    if here:
        # Its certificate has this machine's public name, and the connection is local.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if account.port == _TLS_PORT:
        return imaplib.IMAP4_SSL(
            account.host, account.port, ssl_context=context, timeout=account.step_s
        )
    imap = imaplib.IMAP4(account.host, account.port, timeout=account.step_s)
    if "STARTTLS" in imap.capabilities:
        imap.starttls(context)
    elif not here:
        imap.shutdown()
        raise PeerError(
            f"{account.host} offers no encryption",
            hint="give the port of IMAP with TLS: --imap HOST:993",
        )
    return imap


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _folders(imap: imaplib.IMAP4) -> list[tuple[str, str]]:
    """Flags in lower case, and names."""
    found = []
    for line in _checked(imap.list()):
        match = _LISTED.fullmatch(line) if isinstance(line, bytes) else None
        if match:
            flags, name = (part.decode("utf-8", "surrogateescape") for part in match.groups())
            plain = _ESCAPED.sub(r"\1", name[1:-1]) if name.startswith('"') else name
            found.append((flags.lower(), plain))
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _checked(answer: tuple[str, Sequence[Any]]) -> list[Any]:
    """The result of a command; PeerError if the server refused it."""
    status, data = answer
    if status != "OK":
        text = b" ".join(part for part in data if isinstance(part, bytes))
        raise PeerError(text.decode("utf-8", "replace"), reply=text)
    return list(data)


@contextmanager
def _as_peer_errors() -> Iterator[None]:
    """Raise the library's and the network's errors as PeerError."""
    try:
        yield
    except imaplib.IMAP4.error as error:
        raise PeerError(f"the IMAP server: {_text(error)}") from error
    except OSError as error:
        raise PeerError(f"the IMAP server: {error.strerror or error}") from error


def _text(error: imaplib.IMAP4.error) -> str:
    text = error.args[0] if error.args else ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
