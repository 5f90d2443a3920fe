"""An IMAP client for one mailbox (RFC 3501). It never adds a message or changes its bytes.

It moves (RFC 6851) or copies messages, sets flags, and expunges single UIDs (RFC 4315); it waits
for new mail with IDLE (RFC 2177). All results are limited in size, count and time. Data that the
client did not ask for is dropped; message numbers are ignored, and only UIDs are used.

Must not know verdicts. Failure: PeerError, which ends the connection; ImapRefusedError if the
server refuses one command, which does not end it.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple

from spamnb.core.mail.printable import visible
from spamnb.endpoints.imap.connection import ImapConnection, StopSignal
from spamnb.endpoints.imap.folders import ListedFolder, listed_folder, quoted
from spamnb.endpoints.imap.login import LoginRefusedError, log_in, secret_of
from spamnb.endpoints.imap.params import ImapParams, ImapTimes
from spamnb.endpoints.imap.responses import ImapResponse, ResponseReader
from spamnb.errors import PeerError

COMMAND_BYTES: Final = 64 << 20
"""of the answer to one command"""
_MOST_RESPONSES: Final = 10_000
"""responses kept of the answer to one command, such as folders in a list"""
LATER: Final = ("UNAVAILABLE", "INUSE", "LIMIT", "SERVERBUG")
"""response codes (RFC 5530) after which the same command may work"""
_SHOWN_CHARS: Final = 200
_IDLE_BYTES: Final = 1 << 20
"""of one IDLE"""
_CHANGES: Final = ("EXISTS", "EXPUNGE")


class ImapRefusedError(PeerError):
    """The server refuses one command (NO, BAD)."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
        """the response code, such as TRYCREATE"""


class NoTlsError(PeerError):
    """The server has no STARTTLS."""


class FolderState(NamedTuple):
    """What the server says of a folder."""

    uidvalidity: int
    uidnext: int
    """0: the server does not say"""


class ImapTrust(NamedTuple):
    """Where the password comes from, and whether the server must prove its name."""

    secret: Callable[[ImapParams], str] = secret_of
    verify: bool = True


SETTINGS_TRUST: Final = ImapTrust()


class ImapClient:
    """One connection, logged in. Made by `open`."""

    def __init__(self, connection: ImapConnection, times: ImapTimes) -> None:
        self._connection = connection
        self._times = times
        self._reader = ResponseReader()
        self._tags = count(1)
        self._capabilities: frozenset[str] = frozenset()
        self.selected = ""
        """the folder that is selected for writing, by its name in commands"""
        self.changed = False
        """whether the server said that the selected folder changed, since this flag was reset"""

    @classmethod
    def open(
        cls,
        params: ImapParams,
        times: ImapTimes,
        stop: StopSignal,
        trust: ImapTrust = SETTINGS_TRUST,
    ) -> ImapClient:
        """Connect, encrypt and log in."""
        connection = ImapConnection.connect(params, times, stop, verify=trust.verify)
        try:
            made = cls(connection, times)
            made._greeted()
            made.read_capabilities()
            if params.tls == "starttls":
                made._start_tls(params)
            log_in(made, params, trust.secret(params))
            made.read_capabilities()
        except BaseException:
            connection.close()
            raise
        return made

    def _greeted(self) -> None:
        greeting = next(self._responses(time.monotonic() + self._times.command_s))
        if (greeting.tag, greeting.kind) != ("*", "OK"):
            # PREAUTH before TLS could be an attacker's: there is no STARTTLS after it.
            raise PeerError(f"the server greets with {_shown(f'{greeting.kind} {greeting.text}')}")

    def _start_tls(self, params: ImapParams) -> None:
        if not self.has("STARTTLS"):
            raise NoTlsError(
                f"{params.host} offers no encryption", hint='set tls to "implicit", port 993'
            )
        self._run(b"STARTTLS")
        if not self._reader.is_empty:
            raise PeerError("the server sends data before the encryption has begun")
        self._connection.start_tls(params)
        self.read_capabilities()

    def has(self, capability: str) -> bool:
        """Return True if the server has it."""
        return capability in self._capabilities

    def read_capabilities(self) -> None:
        """Ask what the server can do; the answer changes with TLS and login."""
        found = self._run(b"CAPABILITY", ("CAPABILITY",))
        texts = [one.text.upper() for one in found]
        self._capabilities = frozenset(word for text in texts for word in text.split())

    def login(self, user: bytes, password: bytes) -> None:
        """Log in with quoted strings."""
        self._logged_in(b"LOGIN " + user + b" " + password, ())

    def authenticate(self, mechanism: str, answer: bytes) -> None:
        """Log in by SASL with one answer of the client."""
        encoded = b64encode(answer)
        line = b"AUTHENTICATE " + mechanism.encode()
        if self.has("SASL-IR"):
            self._logged_in(line + b" " + encoded, ())
        else:
            self._logged_in(line, (encoded,))

    def _logged_in(self, line: bytes, answers: Sequence[bytes]) -> None:
        try:
            self._run(line, answers=answers)
        except ImapRefusedError as error:
            if error.code in LATER:
                raise
            raise LoginRefusedError(
                f"the server refuses the login: {error}", hint="check user and password"
            ) from None

    # -- folders --------------------------------------------------------------------------------

    def folders(self) -> list[ListedFolder]:
        """List all folders."""
        extended = self.has("LIST-EXTENDED") and self.has("SPECIAL-USE")
        line = b'LIST "" "*"' + (b" RETURN (SPECIAL-USE)" if extended else b"")
        listed = (listed_folder(one.values) for one in self._run(line, ("LIST",)))
        return [one for one in listed if one is not None]

    def status(self, folder: str) -> FolderState:
        """Ask for the state of a folder that is not selected."""
        line = b"STATUS " + quoted(folder) + b" (UIDVALIDITY UIDNEXT)"
        for response in self._run(line, ("STATUS",)):
            match response.values:
                case [_, list() as pairs]:
                    found = _pairs(pairs)
                    return FolderState(
                        _whole(found.get(b"UIDVALIDITY")), _whole(found.get(b"UIDNEXT"))
                    )
        raise PeerError(f"the server gives no status of {_shown(folder)}")

    def select(self, folder: str, *, readonly: bool = False) -> FolderState:
        """Open a folder."""
        self.selected = ""
        command = b"EXAMINE " if readonly else b"SELECT "
        found = self._run(command + quoted(folder), ("OK",))
        codes = dict(_code(one.code) for one in found)
        self.selected, self.changed = "" if readonly else folder, False
        if not readonly and codes.get("READ-ONLY") is not None:
            raise ImapRefusedError(f"{_shown(folder)} can only be read", "READ-ONLY")
        return FolderState(codes.get("UIDVALIDITY") or 0, codes.get("UIDNEXT") or 0)

    def uids_from(self, first: int) -> list[int]:
        """Return the UIDs of the selected folder from `first` on, in order."""
        line = f"UID SEARCH UID {first}:*".encode()
        # For `n:*` a server also returns its last message, even if its UID is below n.
        return sorted({uid for uid in self._searched(line) if uid >= first})

    def uids_among(self, uids: Sequence[int]) -> set[int]:
        """Return the UIDs that the selected folder has, without messages marked as deleted."""
        return set(self._searched(b"UID SEARCH UNDELETED UID " + _set(uids))) & set(uids)

    def uids_with(self, ident: str, since: str, *, deleted: bool = False) -> list[int]:
        r"""Return the messages with a Message-ID that arrived on a day or later, in order.

        With `deleted`, also messages that are marked \Deleted.
        """
        line = b"UID SEARCH " + (b"" if deleted else b"UNDELETED ")
        line += b"SINCE " + since.encode() + b" HEADER Message-ID " + quoted(ident)
        return sorted(self._searched(line))

    def _searched(self, line: bytes) -> list[int]:
        return [uid for one in self._run(line, ("SEARCH",)) for uid in one.values]

    # -- messages -------------------------------------------------------------------------------

    def fetch(self, uids: Sequence[int], section: str, most: int) -> dict[int, bytes]:
        """Return the first `most` bytes of a section of each message that is still there.

        The messages stay unseen.
        """
        item = f"BODY.PEEK[{section}]<0.{most}>".encode()
        found: dict[int, bytes] = {}
        line = b"UID FETCH " + _set(uids) + b" (UID " + item + b")"
        for response in self._run(line, ("FETCH",)):
            match response.values:
                case [list() as pairs]:
                    items = _pairs(pairs)
                    uid, body = _whole(items.get(b"UID")), items.get(b"BODY")
                    if uid in uids and isinstance(body, bytes) and uid not in found:
                        found[uid] = body[:most]
        return found

    def move(self, uids: Sequence[int], folder: str) -> None:
        """Move messages out of the selected folder in one step; missing messages are left out."""
        self._run(b"UID MOVE " + _set(uids) + b" " + quoted(folder))

    def copy(self, uids: Sequence[int], folder: str) -> None:
        """Copy messages into another folder."""
        self._run(b"UID COPY " + _set(uids) + b" " + quoted(folder))

    def add_flag(self, uids: Sequence[int], flag: bytes) -> None:
        """Set a flag on messages."""
        self._run(b"UID STORE " + _set(uids) + b" +FLAGS.SILENT (" + flag + b")")

    def expunge(self, uids: Sequence[int]) -> None:
        r"""Expunge those of these messages that are marked \Deleted, and no others."""
        self._run(b"UID EXPUNGE " + _set(uids))

    def expunge_only(self, uid: int) -> bool:
        r"""Expunge a message without UIDPLUS; False if others are marked \Deleted, too."""
        if self._searched(b"UID SEARCH DELETED") != [uid]:
            return False
        self._run(b"EXPUNGE")
        return True

    # -- waiting --------------------------------------------------------------------------------

    def noop(self) -> None:
        """Let the server tell what changed."""
        self._run(b"NOOP")

    def idle(self, seconds: float) -> None:
        """Wait for a change in the selected folder, at most `seconds`."""
        if not self.has("IDLE"):
            raise ImapRefusedError("the server has no IDLE", "")
        tag = self._send(b"IDLE")
        until = time.monotonic() + self._times.command_s
        started = next(self._until_tagged(tag, until, ("+",)), None)
        if started is None:
            raise PeerError("the server ends IDLE at once")
        self._wait_for_change(time.monotonic() + seconds)
        self._connection.send(b"DONE\r\n")
        for _ in self._until_tagged(tag, time.monotonic() + self._times.command_s, ()):
            pass

    def _wait_for_change(self, until: float) -> None:
        data, size = b"", 0
        while size < _IDLE_BYTES:
            for response in self._reader.feed(data):
                self._noted(response)
            left = until - time.monotonic()
            if self.changed or left <= 0 or not self._connection.wait(left):
                return
            data = self._connection.receive(until + self._times.step_s)
            size += len(data)

    def close(self) -> None:
        """Log out, if the server answers soon, and close."""
        self._times = self._times._replace(command_s=1.0)
        with suppress(PeerError):
            self._run(b"LOGOUT")
        self._connection.close()

    # -- the conversation -----------------------------------------------------------------------

    def _run(
        self, line: bytes, kinds: Collection[str] = (), answers: Sequence[bytes] = ()
    ) -> list[ImapResponse]:
        """Send a command; return the data of these kinds that came before its end."""
        tag = self._send(line)
        left = list(answers)
        found: list[ImapResponse] = []
        until = time.monotonic() + self._times.command_s
        for response in self._until_tagged(tag, until, (*kinds, "+")):
            if response.tag == "+":
                # Without a further answer an empty line ends the exchange (error of XOAUTH2).
                self._connection.send((left.pop(0) if left else b"") + b"\r\n")
            elif len(found) < _MOST_RESPONSES:
                found.append(response)
            else:
                raise PeerError("the server's answer is too long")
        return found

    def _send(self, line: bytes) -> str:
        tag = f"s{next(self._tags)}"
        self._connection.send(tag.encode() + b" " + line + b"\r\n")
        return tag

    def _until_tagged(
        self, tag: str, until: float, kinds: Collection[str]
    ) -> Iterator[ImapResponse]:
        """Yield data of these kinds until the command ends; ImapRefusedError if it is refused."""
        for response in self._responses(until):
            if response.tag == tag:
                if response.kind != "OK":
                    raise ImapRefusedError(_shown(response.text), response.code.upper())
                return
            self._noted(response)
            if (response.kind or response.tag) in kinds:
                yield response

    def _noted(self, response: ImapResponse) -> None:
        """Note what data tells that the client did not ask for."""
        if response.tag not in ("*", "+"):
            raise PeerError("the server answers a command that was not sent")
        if response.kind == "BYE":
            raise PeerError(f"the server ends the connection: {_shown(response.text)}")
        if response.kind in _CHANGES:
            self.changed = True

    def _responses(self, until: float) -> Iterator[ImapResponse]:
        """Yield what the server sends, within the limits of one command."""
        size, data = 0, b""
        while True:
            yield from self._reader.feed(data)
            data = self._connection.receive(until)
            size += len(data)
            if size > COMMAND_BYTES or time.monotonic() > until:
                raise PeerError("the server's answer is too long")


def _pairs(values: Sequence[Any]) -> dict[bytes, Any]:
    """Return the items of a list of names and values; the name of a section becomes BODY."""
    names = [one.upper() if isinstance(one, bytes) else b"" for one in values[::2]]
    plain = [b"BODY" if name.startswith(b"BODY[") else name for name in names]
    return dict(zip(plain, values[1::2], strict=False))


def _code(text: str) -> tuple[str, int | None]:
    """Return the name of a response code and its number; 0 without one."""
    name, _, rest = text.partition(" ")
    return name.upper(), int(rest) if rest.isascii() and rest.isdigit() and len(rest) < 11 else 0


def _whole(value: Any) -> int:
    """Return a number of the server; 0 if the value is not a number."""
    good = isinstance(value, bytes) and value.isdigit() and len(value) < 11
    return int(value) if good else 0


def _set(uids: Sequence[int]) -> bytes:
    """Write UIDs as a set, with ranges."""
    ranges: list[list[int]] = []
    for uid in sorted(uids):
        if ranges and ranges[-1][1] == uid - 1:
            ranges[-1][1] = uid
        else:
            ranges.append([uid, uid])
    return ",".join(str(a) if a == b else f"{a}:{b}" for a, b in ranges).encode()


def _shown(text: str) -> str:
    """Return a text of the server as one short line."""
    return visible(text[:_SHOWN_CHARS]).strip() or "(no reason)"
