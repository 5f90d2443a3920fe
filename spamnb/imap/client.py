"""An IMAP client for one mailbox (RFC 3501). It never adds a message or changes its bytes.

`ImapConnection` moves bytes, `ResponseReader` reads responses, `ImapClient` has the commands. Must
not know verdicts. Failure: PeerError, which ends the connection; ImapRefusedError if the server
refuses one command, which does not end it; LoginRefusedError.
"""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import subprocess
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

from spamnb.errors import PeerError, SettingsError, UserError
from spamnb.mail.limits import visible
from spamnb.settings.values import ImapParams, ImapTimes

_READ_BYTES: Final = 1 << 16


class StopSignal:
    """Tells threads to stop, and wakes those that wait for a socket."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reader, self._writer = socket.socketpair()

    def set(self) -> None:
        """Tell all to stop; safe in a signal handler."""
        self._event.set()
        self._writer.close()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for this time; return True at once when told to stop."""
        return self._event.wait(seconds)

    def fileno(self) -> int:
        """A descriptor that becomes readable when all are told to stop."""
        return self._reader.fileno()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class _ProgramPipes:
    """The standard input and output of a program, used as a socket.

    Dovecot's `imap` refuses to start with a real one, because inetd would start it so.
    """

    def __init__(self, command: Sequence[str], times: ImapTimes) -> None:
        self._times = times
        try:
            self._program = subprocess.Popen(  # noqa: S603 - the administrator's command
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            raise PeerError(f"{command[0]}: {_reason(error)}") from error
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._to, self._from = self._program.stdin, self._program.stdout

    def settimeout(self, seconds: float) -> None:
        """No limit: a write waits only while the program lives, and reads wait by `fileno`."""

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._to.write(rest) :]

    def recv(self, most: int) -> bytes:
        return os.read(self._from.fileno(), most)

    def fileno(self) -> int:
        return self._from.fileno()

    def close(self) -> None:
        """Close its input, so that it ends; kill it if it does not."""
        with suppress(OSError):
            self._to.close()
        self._from.close()
        try:
            self._program.wait(self._times.step_s)
        except subprocess.TimeoutExpired:
            with suppress(PermissionError):  # it may have taken the rights of the mailbox's user
                self._program.kill()
                self._program.wait()


class ImapConnection:
    """A connected socket. Made by `connect`.

    Every wait ends: after `step_s` without a byte, at the end of the command's time, or when the
    program is told to stop. Must not know IMAP. Failure: PeerError.
    """

    def __init__(
        self,
        sock: socket.socket | _ProgramPipes,
        times: ImapTimes,
        stop: StopSignal,
        *,
        verify: bool,
    ) -> None:
        self._socket = sock
        self._verify = verify
        self._times = times
        self._stop = stop

    @classmethod
    def connect(
        cls, params: ImapParams, times: ImapTimes, stop: StopSignal, *, verify: bool
    ) -> ImapConnection:
        """Connect, with TLS from the first byte if the settings say so."""
        try:
            sock = socket.create_connection((params.host, params.effective_port), times.step_s)
        except (OSError, UnicodeError) as error:
            raise PeerError(f"{params.host}: {_reason(error)}") from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made = cls(sock, times, stop, verify=verify)
        if params.tls == "implicit":
            made.start_tls(params)
        return made

    @classmethod
    def of_program(
        cls, command: Sequence[str], times: ImapTimes, stop: StopSignal
    ) -> ImapConnection:
        """Start a program that speaks IMAP on its standard input and output."""
        return cls(_ProgramPipes(command, times), times, stop, verify=False)

    def start_tls(self, params: ImapParams) -> None:
        """Encrypt; a certificate that is verified must be valid for the host."""
        try:
            context = ssl.create_default_context(cafile=params.ca_file or None)
            if not self._verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._socket.settimeout(self._times.step_s)
            assert isinstance(self._socket, socket.socket), "a program needs no encryption"
            self._socket = context.wrap_socket(self._socket, server_hostname=params.host)
        except (OSError, ValueError) as error:
            self.close()
            raise PeerError(f"{params.host}: no encryption: {_reason(error)}") from error

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        try:
            self._socket.settimeout(self._times.step_s)
            self._socket.sendall(data)
        except OSError as error:
            raise PeerError(f"the connection is lost: {_reason(error)}") from error

    def receive(self, until: float) -> bytes:
        """Return what has arrived, at least one byte; `until` is a time of the monotonic clock."""
        left = min(self._times.step_s, until - time.monotonic())
        if not self.wait(left):
            raise PeerError("the server does not answer")
        try:
            self._socket.settimeout(max(left, 0.01))
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise PeerError(f"the connection is lost: {_reason(error)}") from error
        if not data:
            raise PeerError("the server closed the connection")
        return data

    def wait(self, seconds: float) -> bool:
        """Wait for bytes, for a limited time; False if there are none. Stops early when told to."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        ready = poller.poll(max(seconds, 0.0) * 1000)
        if self._stop.is_set():
            raise PeerError("the program is told to stop")
        return bool(ready)

    def close(self) -> None:
        self._socket.close()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


_SHIFTED = re.compile(r"&([A-Za-z0-9+,]*)-")
_QUOTABLE = re.compile(rb"[ -~]{1,1000}")
_USUAL_JUNK: Final = ("junk", "spam", "junk e-mail", "junk email", "bulk mail", "spamverdacht")
_SILENT_FLAGS: Final = frozenset(
    (r"\all", r"\flagged", r"\important", r"\trash", r"\sent", r"\drafts", r"\noselect",
     r"\nonexistent")
)  # fmt: skip
"""flags of folders (RFC 6154) with copies of other folders, own mail, deleted mail, or no mail"""
_SILENT_NAMES: Final = frozenset(
    ("trash", "deleted messages", "deleted items", "sent", "sent messages", "sent items", "drafts",
     "templates", "outbox")
)  # fmt: skip
MOST_OTHERS: Final = 50
"""folders that are checked for moved messages, each with one command a minute"""


class ListedFolder(NamedTuple):
    """A folder as the server lists it."""

    wire: str
    """its name in commands"""
    flags: frozenset[str]
    """in lower case"""
    delimiter: str

    @property
    def name(self) -> str:
        """Its name for people."""
        return decoded_name(self.wire)

    @property
    def last(self) -> str:
        """Its name without the folders above it, in lower case."""
        parts = self.name.split(self.delimiter) if self.delimiter else [self.name]
        return parts[-1].lower()

    @property
    def is_selectable(self) -> bool:
        return r"\noselect" not in self.flags

    def is_below(self, names: frozenset[str]) -> bool:
        """Return True if it, or a folder above it, has one of these names."""
        parts = self.name.split(self.delimiter) if self.delimiter else [self.name]
        return any(part.lower() in names for part in parts)


class WatchedFolders(NamedTuple):
    """The folders of a mailbox that are read, by their names in commands.

    Names on the wire are in modified UTF-7 (RFC 3501, 5.1.3); settings and logs have plain text.
    """

    inbox: str
    junk: str
    others: tuple[str, ...]
    """folders of the user: wanted mail"""


def listed_folder(values: Sequence[Any]) -> ListedFolder | None:
    """Return the folder of a LIST response; None if a command cannot name it."""
    match values:
        case [list() as flags, (bytes() | None) as delimiter, bytes() as wire] if (
            _QUOTABLE.fullmatch(wire)
        ):
            names = frozenset(_ascii(one).lower() for one in flags if isinstance(one, bytes))
            return ListedFolder(_ascii(wire), names, _ascii(delimiter or b""))
    return None


def watched(listed: Sequence[ListedFolder], inbox: str, junk: str) -> WatchedFolders | None:
    """Choose the folders by the names in the settings; None if there is no junk folder."""
    usable = [one for one in listed if one.is_selectable]
    found = junk_folder(usable, junk)
    wire = next((one.wire for one in usable if _same(one.name, inbox)), inbox)
    if found is None or found.wire == wire:
        return None
    others = [
        one.wire
        for one in usable
        if one.wire not in (wire, found.wire)
        and not one.wire.startswith(found.wire + (one.delimiter or "\0"))
        and not one.flags & _SILENT_FLAGS
        and not one.is_below(_SILENT_NAMES)
    ]
    return WatchedFolders(wire, found.wire, tuple(others[:MOST_OTHERS]))


def junk_folder(usable: Sequence[ListedFolder], junk: str) -> ListedFolder | None:
    """Return the folder in the settings, else the one marked by the server, else a usual name."""
    if junk:
        return next((one for one in usable if _same(one.name, junk)), None)
    marked = next((one for one in usable if r"\junk" in one.flags), None)
    named = (one for name in _USUAL_JUNK for one in usable if one.last == name)
    return marked or next(named, None)


def _same(name: str, setting: str) -> bool:
    """Compare names; the case of INBOX does not matter (RFC 3501, 5.1)."""
    return name == setting or name.upper() == setting.upper() == "INBOX"


def decoded_name(wire: str) -> str:
    """Return a name from the wire as text; an invalid name stays as it is."""

    def plain(found: re.Match[str]) -> str:
        if not found[1]:
            return "&"
        padded = found[1].replace(",", "/") + "=" * (-len(found[1]) % 4)
        try:
            return b64decode(padded).decode("utf-16-be")
        except ValueError:
            return found[0]

    return _SHIFTED.sub(plain, wire)


def quoted(text: str) -> bytes:
    """Return a text as a quoted string; ValueError if it has characters that cannot be in one."""
    if not text.isascii() or not text.isprintable():
        raise ValueError(text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'.encode("ascii")


def _ascii(data: bytes) -> str:
    return data.decode("ascii", "backslashreplace")


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
    """Log in by the best method that the server offers.

    A password is never in a log or an error: it is masked in texts of the server. Failure:
    LoginRefusedError if the server refuses the login.
    """
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


LINE_BYTES: Final = 1 << 16
SEARCH_BYTES: Final = 4 << 20
"""of the only response that grows with the mailbox: 600,000 UIDs"""
LITERAL_BYTES: Final = (1 << 20) + 1024
"""of all literals of a response: the client asks for at most 1 MB of a message"""
_MOST_TOKENS: Final = 2000
_MOST_DEPTH: Final = 16
_MOST_NUMBER: Final = 1 << 32

_LITERAL = re.compile(rb"\{(\d{1,10})\+?\}\Z")
_STATUS = re.compile(
    rb"(\S{1,20}) (OK|NO|BAD|BYE|PREAUTH)(?: (?:\[([^\]]*)\] ?)?(.*))?", re.IGNORECASE | re.DOTALL
)
_NUMBERED = re.compile(rb"\* (\d{1,10}) ([A-Za-z]+)(.*)", re.DOTALL)
_NAMED = re.compile(rb"\* ([A-Za-z][A-Za-z0-9-]*)(.*)", re.DOTALL)
# A section such as BODY[HEADER.FIELDS (FROM)]<0> is one token.
_TOKEN = re.compile(
    rb'\s*(?:([()])|"((?:[^"\\]|\\.)*)"|([^\s()"\[\]]*\[[^\]]*\](?:<\d+>)?|[^\s()"]+))', re.DOTALL
)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_PARSED: Final = ("FETCH", "LIST", "STATUS")
"""responses with values that are read; the values of other untagged responses are ignored"""


class ImapResponse(NamedTuple):
    """One response."""

    tag: str
    """of the command that it ends; * for data, + for a request to continue"""
    kind: str
    """such as OK, FETCH, EXISTS, in upper case; empty for +"""
    number: int = 0
    """the number before the kind"""
    code: str = ""
    """the response code of a status: the text in brackets"""
    text: str = ""
    values: tuple[Any, ...] = ()
    """atoms and strings as bytes, NIL as None, lists as lists; of SEARCH numbers"""


class ResponseReader:
    """Splits received bytes into responses.

    A response is one line, or several lines with literals (byte strings of an announced length)
    between them. The reader keeps at most one incomplete response. If a line or a literal is longer
    than any that this client asks for, the conversation ends.

    Must not know what the client asked. Failure: PeerError for bytes that are no response, or too
    many.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._lines: list[bytes] = []
        """of the response that is not complete"""
        self._literals: list[bytes] = []
        self._missing = -1
        """missing bytes of the current literal; -1: a line is being received"""
        self._looked = 0

    @property
    def is_empty(self) -> bool:
        """Return True if no byte is left over."""
        return not (self._buffer or self._lines)

    def feed(self, data: bytes) -> Iterator[ImapResponse]:
        """Yield the responses that these bytes complete."""
        self._buffer += data
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> ImapResponse | None:
        while self._take_literal():
            line = self._take_line()
            if line is None:
                return None
            announced = None if self._is_status(line) else _LITERAL.search(line)
            if announced is None:
                self._lines.append(line)
                lines, literals = self._lines, self._literals
                self._lines, self._literals = [], []
                return _parse(lines, literals)
            self._lines.append(line[: announced.start()])
            self._missing = int(announced[1])
            if self._missing + sum(map(len, self._literals)) > LITERAL_BYTES:
                raise PeerError(f"the server announces {self._missing} bytes, too many")
        return None

    def _is_status(self, line: bytes) -> bool:
        """Return True for a text of the server, which may end like a literal."""
        return not self._lines and (line.startswith(b"+") or bool(_STATUS.match(line)))

    def _take_literal(self) -> bool:
        """Take the literal that is being received; False if bytes of it are missing."""
        if self._missing < 0:
            return True
        if len(self._buffer) < self._missing:
            return False
        self._literals.append(bytes(self._buffer[: self._missing]))
        del self._buffer[: self._missing]
        self._missing = -1
        return True

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._looked)
        size = (end if end >= 0 else len(self._buffer)) + sum(map(len, self._lines))
        is_search = not self._lines and self._buffer[:9].upper() == b"* SEARCH "
        if size > (SEARCH_BYTES if is_search else LINE_BYTES):
            raise PeerError("the server sends a line that is too long")
        if end < 0:
            self._looked = len(self._buffer)
            return None
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        self._looked = 0
        return line


def _parse(lines: list[bytes], literals: list[bytes]) -> ImapResponse:
    first = lines[0]
    if first.startswith(b"+"):
        return ImapResponse("+", "", text=_text(first[1:].strip()))
    if status := _STATUS.fullmatch(first):
        tag, word, code, text = map(_text, status.groups(b""))
        return ImapResponse(tag, word.upper(), code=code, text=text)
    number = 0
    if found := _NUMBERED.fullmatch(first):
        number, name, rest = _number(found[1]), found[2], found[3]
    elif found := _NAMED.fullmatch(first):
        name, rest = found.groups()
    else:
        raise PeerError(f"the server sends {_text(first[:80])!r}, which is not IMAP")
    kind = _text(name).upper()
    if kind == "SEARCH":
        return ImapResponse("*", kind, values=tuple(map(_number, rest.split())))
    if kind == "CAPABILITY":
        return ImapResponse("*", kind, text=_text(rest.strip()))
    values = _values([rest, *lines[1:]], literals) if kind in _PARSED else ()
    return ImapResponse("*", kind, number, values=values)


def _values(lines: list[bytes], literals: list[bytes]) -> tuple[Any, ...]:
    """Return the values of the lines, with a literal after each line except the last."""
    stack: list[list[Any]] = [[]]
    count = 0
    for index, line in enumerate(lines):
        at = 0
        while found := _TOKEN.match(line, at):
            at, count = found.end(), count + 1
            _push(stack, found)
            if count > _MOST_TOKENS or len(stack) > _MOST_DEPTH:
                raise PeerError("the server sends a response with too many values")
        if line[at:].strip():
            raise PeerError("the server sends a response that cannot be read")
        if index < len(literals):
            stack[-1].append(literals[index])
    if len(stack) != 1:
        raise PeerError("the server sends a response with an open bracket")
    return tuple(stack[0])


def _push(stack: list[list[Any]], found: re.Match[bytes]) -> None:
    """Add one token to the innermost list."""
    bracket, quoted, atom = found.groups()
    if bracket == b"(":
        inner: list[Any] = []
        stack[-1].append(inner)
        stack.append(inner)
    elif bracket == b")":
        if len(stack) == 1:
            raise PeerError("the server sends a response with one bracket too many")
        stack.pop()
    elif quoted is not None:
        stack[-1].append(_ESCAPED.sub(rb"\1", quoted))
    else:
        stack[-1].append(None if atom.upper() == b"NIL" else atom)


def _number(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 10 or int(digits) >= _MOST_NUMBER:
        raise PeerError("the server sends an invalid number")
    return int(digits)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


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
    """One connection, logged in. Made by `open`.

    It moves (RFC 6851) or copies messages, sets flags, and expunges single UIDs (RFC 4315); it
    waits for new mail with IDLE (RFC 2177). All results are limited in size, count and time. Data
    that the client did not ask for is dropped; message numbers are ignored, and only UIDs are used.
    """

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

    @classmethod
    def of_program(cls, command: Sequence[str], times: ImapTimes, stop: StopSignal) -> ImapClient:
        """The mailbox that a program opens without a login, such as `doveadm exec imap -u NAME`."""
        connection = ImapConnection.of_program(command, times, stop)
        try:
            made = cls(connection, times)
            made._greeted("PREAUTH")
            made.read_capabilities()
        except BaseException:
            connection.close()
            raise
        return made

    def _greeted(self, kind: str = "OK") -> None:
        greeting = next(self._responses(time.monotonic() + self._times.command_s))
        if (greeting.tag, greeting.kind) != ("*", kind):
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

    def uids_by_flag(self, flag: str) -> list[int]:
        """Return the messages of the selected folder with a flag: ALL, SEEN, ANSWERED, DELETED."""
        return sorted(self._searched(f"UID SEARCH {flag}".encode()))

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
