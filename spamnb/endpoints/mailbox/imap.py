"""A mailbox behind IMAP: one message is found by its Message-ID, moved, and taken away.

Messages of others are never touched: what is expunged is named by its UID, and where the server
cannot do that (no UIDPLUS, RFC 4315), nothing is expunged beside other deleted messages. A password
goes out encrypted, or stays on this machine.

Must not know what a move means. Failure: PeerError, with the server's words.
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
"""the server's day may be another one than ours"""
_LISTED = re.compile(rb'\(([^)]*)\) (?:"[^"]*"|NIL) (.+)')
_ESCAPED = re.compile(r"\\(.)")
_Say = Callable[..., tuple[str, list[Any]]]


@dataclass(frozen=True, slots=True)
class ImapAccount:
    """Where a mailbox is, and whose it is."""

    host: str
    port: int
    user: str
    password: str
    junk: str = ""
    """the folder of junk; empty: the one that the server calls so (RFC 6154), else Junk"""
    step_s: float = 30.0


class ImapMailbox:
    """One account, logged in. Made by `open`."""

    channels = frozenset(("imap", "maildir"))
    """the server tells of moves, or a watcher of the Maildir behind it"""
    advice = (
        "see docs/dovecot.md, Learn from moves; feedback.spool and serve.delegates; the logs of "
        "the IMAP server and of the daemon"
    )

    def __init__(self, account: ImapAccount, imap: imaplib.IMAP4) -> None:
        self.who = account.user
        self._imap = imap
        self._ways = [_move, _copy_and_delete] if "MOVE" in self._able() else [_copy_and_delete]
        listed = _folders(imap)
        self._all = [name for flags, name in listed if "\\noselect" not in flags]
        marked = [name for flags, name in listed if "\\junk" in flags]
        junk = account.junk or (marked[0] if marked else "Junk")
        self._names: dict[Side, str] = {"inbox": "INBOX", "junk": junk}
        self.about = f"{account.user} at {account.host}:{account.port}, junk is {junk}"

    @classmethod
    def open(cls, account: ImapAccount) -> ImapMailbox:
        """Log in, and see that both folders are there."""
        with _theirs():
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

    def _able(self) -> list[str]:
        told: bytes = _checked(self._imap.capability())[0]
        return told.decode("ascii", "replace").upper().split()

    def find(self, ident: str) -> FoundMessage | None:
        """The message, where it lies."""
        with _theirs():
            for side in SIDES:
                self._select(self._names[side])
                uids = self._search(ident, "UNDELETED")
                raw = self._fetched(uids[-1]) if uids else b""
                if raw:
                    return FoundMessage(side, raw)
        return None

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move it as mail programs do, each of their ways in turn; which it was."""
        way = self._ways[0]
        self._ways = [*self._ways[1:], way]
        with _theirs():
            self._select(self._names[source])
            uids = self._search(ident, "UNDELETED")
            if not uids:
                raise PeerError(f"the message is not in {self._names[source]} any more")
            return way(self, uids[-1], _quoted(self._names[target]))

    def purge(self, ident: str) -> int:
        """Take it out of every folder; from how many."""
        gone: list[bool] = []
        with _theirs():
            for name in self._all:
                with suppress(PeerError):
                    self._select(name)
                    gone += [self._delete(uid) for uid in self._search(ident, "ALL")]
        if not all(gone):
            raise PeerError("it is only marked as deleted, for others beside it are too")
        return len(gone)

    def close(self) -> None:
        """Log out."""
        with suppress(OSError, imaplib.IMAP4.error):
            self._imap.logout()

    # -- the protocol ---------------------------------------------------------------------------

    def uid(self, *words: str) -> list[Any]:
        """One command by UID."""
        say: _Say = self._imap.uid
        return _checked(say(*words))

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
        """Mark it as deleted, and expunge it if that touches nothing else; whether it is gone."""
        self.uid("STORE", uid, "+FLAGS.SILENT", r"(\Deleted)")
        if "UIDPLUS" in self._able():
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
    mailbox._delete(uid)  # noqa: SLF001 - one of the mailbox's own ways
    return "COPY and delete"


def _connected(account: ImapAccount) -> imaplib.IMAP4:
    """Connect, encrypted unless it is this machine."""
    here = _is_here(account.host)
    context = ssl.create_default_context()
    if here:
        # Its certificate names the world's name for this machine, and nobody stands between.
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
        raise PeerError(f"{account.host} offers no encryption", hint="give port 993 of --imap")
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
    """What a command gave; PeerError if the server would not."""
    status, data = answer
    if status != "OK":
        said = b" ".join(part for part in data if isinstance(part, bytes))
        raise PeerError(said.decode("utf-8", "replace"), reply=said)
    return list(data)


@contextmanager
def _theirs() -> Iterator[None]:
    """What the library raises is the server's fault, or the network's."""
    try:
        yield
    except imaplib.IMAP4.error as error:
        raise PeerError(f"the IMAP server: {_text(error)}") from error
    except OSError as error:
        raise PeerError(f"the IMAP server: {error.strerror or error}") from error


def _text(error: imaplib.IMAP4.error) -> str:
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
