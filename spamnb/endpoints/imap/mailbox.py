"""A mailbox on an IMAP server: find one message by its Message-ID, move it, delete it.

Other messages are never touched: an expunge names the UID. If the server cannot do that (no
UIDPLUS, RFC 4315), nothing is expunged while other messages are marked as deleted. A password is
sent only encrypted or on this machine.

Must not know what a move means. Failure: PeerError, with the server's text.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final

from spamnb.endpoints.imap.client import ImapClient, ImapRefusedError, ImapTrust, NoTlsError
from spamnb.endpoints.imap.connection import StopSignal
from spamnb.endpoints.imap.folders import ListedFolder, junk_folder
from spamnb.endpoints.imap.params import ImapParams, ImapTimes, ImapTls, is_here
from spamnb.errors import PeerError
from spamnb.service.diagnostics.ports import SIDES, FoundMessage, Side

_NO_FOLDER: Final = (
    "name the junk folder with --junk, or make one: `doveadm mailbox create -u USER Junk`; for all "
    "users see docs/dovecot.md, The junk folder"
)
_TLS_PORT: Final = 993
_DAYS_S: Final = 2 * 86_400
"""how far the search goes back, because the date of the server may differ"""
_MESSAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ImapAccount:
    """An account and its server."""

    host: str
    port: int
    user: str
    password: str
    junk: str = ""
    """the junk folder; empty: the one that the server marks (RFC 6154), else a usual name"""
    step_s: float = 30.0


class ImapMailbox:
    """`Mailbox` of one account, logged in. Created by `open`."""

    channels = frozenset(("imap", "maildir"))
    """The IMAP server may report the move, or a watcher of its Maildir."""
    advice = (
        "see docs/dovecot.md, Learn from moves; feedback.spool and serve.delegates; the logs of "
        "the IMAP server and of the daemon"
    )

    def __init__(self, account: ImapAccount, client: ImapClient, resources: ExitStack) -> None:
        self.user = account.user
        self._client = client
        self._resources = resources
        self._move_methods = [_copy_and_delete]
        if client.has("MOVE"):
            self._move_methods = [_move, _copy_and_delete]
        self._all = [one.wire for one in client.folders() if one.is_selectable]
        junk = _junk_of(client.folders(), account.junk)
        self._names: dict[Side, str] = {"inbox": "INBOX", "junk": junk.wire}
        self.about = f"{account.user} at {account.host}:{account.port}, junk is {junk.name}"

    @classmethod
    def open(cls, account: ImapAccount) -> ImapMailbox:
        """Log in, and check that both folders exist."""
        with ExitStack() as resources:
            stop = resources.enter_context(closing(StopSignal()))
            client = resources.enter_context(closing(_connected(account, stop)))
            made = cls(account, client, resources)
            for side in SIDES:
                made._select(made._names[side])
            made._resources = resources.pop_all()
        return made

    def find(self, ident: str) -> FoundMessage | None:
        for side in SIDES:
            self._select(self._names[side])
            uids = self._search(ident)
            raw = self._client.fetch(uids[-1:], "", _MESSAGE_BYTES) if uids else {}
            for found in raw.values():
                return FoundMessage(side, found)
        return None

    def move(self, ident: str, source: Side, target: Side) -> str:
        """Move the message as mail programs do, each time by the next method; return the method."""
        method = self._move_methods[0]
        self._move_methods = [*self._move_methods[1:], method]
        self._select(self._names[source])
        uids = self._search(ident)
        if not uids:
            raise PeerError(f"the message is not in {self._names[source]} any more")
        return method(self._client, uids[-1], self._names[target])

    def purge(self, ident: str) -> int:
        gone: list[bool] = []
        for name in self._all:
            with suppress(ImapRefusedError):
                self._client.select(name)
                gone += [_delete(self._client, uid) for uid in self._search(ident, deleted=True)]
        if not all(gone):
            raise PeerError(
                "the message is only marked as deleted: an expunge would also delete other messages"
            )
        return len(gone)

    def close(self) -> None:
        self._resources.close()

    def _select(self, name: str) -> None:
        try:
            self._client.select(name)
        except ImapRefusedError as error:
            raise PeerError(
                f"the folder {name} cannot be opened: {error}", hint=_NO_FOLDER
            ) from error

    def _search(self, ident: str, *, deleted: bool = False) -> list[int]:
        # Without a date the server would read the header of every message.
        since = "-".join(formatdate(time.time() - _DAYS_S).split()[1:4])
        return self._client.uids_with(ident, since, deleted=deleted)


def _move(client: ImapClient, uid: int, target: str) -> str:
    client.move([uid], target)
    return "MOVE"


def _copy_and_delete(client: ImapClient, uid: int, target: str) -> str:
    client.copy([uid], target)
    _delete(client, uid)
    return "COPY and delete"


def _delete(client: ImapClient, uid: int) -> bool:
    """Mark a message as deleted; expunge it if that affects no other. Whether it is gone."""
    client.add_flag([uid], rb"\Deleted")
    if client.has("UIDPLUS"):
        client.expunge([uid])
        return True
    return client.expunge_only(uid)


def _junk_of(listed: list[ListedFolder], name: str) -> ListedFolder:
    found = junk_folder([one for one in listed if one.is_selectable], name)
    if found is None:
        raise PeerError(f"the folder {name or 'Junk'} cannot be opened: it is not in the list")
    return found


def _connected(account: ImapAccount, stop: StopSignal) -> ImapClient:
    """Connect, encrypted except on this machine."""
    if account.port == _TLS_PORT:
        return _logged_in(account, "implicit", stop)
    try:
        return _logged_in(account, "starttls", stop)
    except NoTlsError as error:
        if not is_here(account.host):
            hint = "give the port of IMAP with TLS: --imap HOST:993"
            raise PeerError(str(error), hint=hint) from error
    return _logged_in(account, "none", stop)


def _logged_in(account: ImapAccount, tls: ImapTls, stop: StopSignal) -> ImapClient:
    # The connection is local, and the certificate of a server here is for another name.
    trust = ImapTrust(lambda _: account.password, verify=not is_here(account.host))
    params = ImapParams(account.host, account.port, tls, user=account.user)
    try:
        return ImapClient.open(params, ImapTimes(account.step_s), stop, trust)
    except NoTlsError:
        raise
    except PeerError as error:
        # The hint is left out, because it names a setting.
        raise PeerError(f"the IMAP server: {error}") from error
