"""The milter: one message, the session with an MTA, and the listener.

`MilterMessage` is a message as an MTA describes it in packets, `MilterSession` takes packets and
gives packets and scans, `MilterListener` has the connections.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal, NamedTuple

from spamnb.errors import incident_id
from spamnb.mail.envelope import Client, Envelope
from spamnb.mail.limits import shown
from spamnb.mail.results import RESULT_NAMES, claims
from spamnb.mail.site_results import PROOF_NAMES
from spamnb.milter import packets
from spamnb.milter.packets import (
    CHANGES,
    MAX_TEXT_BYTES,
    ConnectInfo,
    MilterError,
    Offer,
    PacketReader,
    Step,
    text_of,
)
from spamnb.net.actions import (
    CloseConnection,
    LogMessage,
    ScanAction,
    SendBytes,
    StartScan,
    StopScan,
    Withdraw,
)
from spamnb.net.address import LOOPBACK
from spamnb.net.server import ScanConnection, ScanListener
from spamnb.policy.headers import Fields, is_own, normalized
from spamnb.scan.values import Done, MessageScanner, ScanRequest, ScanResult
from spamnb.settings.values import MilterParams
from spamnb.telemetry import Meters

_ITEM_BYTES: Final = 200
"""what Python needs for a recipient, or for the place of a header field"""

_PROVING: Final = RESULT_NAMES | PROOF_NAMES
_UNSAFE: Final = bytes((*range(0x21), 0x7F))

HeaderPlace = tuple[int, bytes]
"""index among the fields of the same name, from 1; the name as it came"""


class MilterMessage:
    """What is kept of one message.

    Forged copies of the added fields are not scanned. The index of each copy among the fields of
    its name is kept, because the MTA needs it to delete the copy. The MTA does not show its own
    Received field, so the place of a field proves nothing. Must not know packets.
    """

    __slots__ = (
        "_body", "_body_bytes", "_counts", "_header", "_limit", "_places_bytes", "_rcpts",
        "_shared", "_site", "began", "claims", "envelope", "envelope_bytes", "forged",
        "header_bytes", "mail", "subjects",
    )  # fmt: skip

    def __init__(
        self,
        mail: list[bytes],
        scan_limit_bytes: int,
        now: float,
        *,
        shared: bool = True,
        site: tuple[str, ...] = (),
    ) -> None:
        self.mail = mail
        """the sender in angle brackets, and its parameters"""
        self._rcpts: list[list[bytes]] = []
        self.envelope_bytes = sum(map(len, mail))
        """memory for sender and recipients"""
        self.forged: list[HeaderPlace] = []
        self.claims: list[HeaderPlace] = []
        """fields that report results of authentication under a name of `site`"""
        self.subjects: list[tuple[HeaderPlace, bytes]] = []
        """with their values; LF before each folded line, as the MTA expects changed values"""
        self.began = now
        self.envelope = Envelope()
        """known from `end` on"""
        self._limit = scan_limit_bytes
        self._shared = shared
        """whether fields with names that other filters use, too, are forged copies"""
        self._site = site
        self._header = bytearray()
        self.header_bytes = 0
        """the size of the header, with forged copies"""
        self._counts: Counter[bytes] = Counter()
        self._body = bytearray()
        self._body_bytes = 0
        """the size of the body, including the part beyond the limit"""
        self._places_bytes = 0

    @property
    def size(self) -> int:
        """The size of the message, with forged copies."""
        return self.header_bytes + self._body_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes of memory."""
        return len(self._header) + len(self._body) + self.envelope_bytes + self._places_bytes

    def add_recipient(self, arguments: list[bytes]) -> None:
        """Add the address of a recipient, with its parameters."""
        self._rcpts.append(arguments)
        self.envelope_bytes += sum(map(len, arguments)) + _ITEM_BYTES * (len(arguments) + 1)

    def add_field(self, name: bytes, value: bytes) -> None:
        """Add a header field; LF separates the lines of a folded value."""
        value = value.replace(b"\r\n", b"\n")
        line = b"%b:%b\r\n" % (name, value.replace(b"\n", b"\r\n"))
        self.header_bytes += len(line)
        if is_own(name, shared=self._shared):
            self.forged.append(self._place(name))
            return
        if self._site and (plain := normalized(name)) in _PROVING:
            place = self._place(name)
            if plain in PROOF_NAMES:
                self.forged.append(place)
            elif claims(plain, value, self._site):
                self.claims.append(place)
        if name.strip().lower() == b"subject":
            self.subjects.append((self._place(name), value))
            self._places_bytes += len(value)
        self._header += line

    def _place(self, name: bytes) -> HeaderPlace:
        key = name.strip().lower()
        self._counts[key] += 1
        self._places_bytes += len(name) + _ITEM_BYTES
        return (self._counts[key], name)

    def add_body(self, data: bytes) -> None:
        """Add a part of the body."""
        self._body_bytes += len(data)
        room = self._limit - len(self._header) - len(self._body)
        self._body += data[: max(0, room)]

    def end(self, client: Client) -> None:
        """Complete the envelope with the client, which is known only at the end."""
        self.envelope = Envelope(
            sender=_address_of(self.mail),
            recipients=tuple(map(_address_of, self._rcpts)),
            client=client,
            mail_line=_command_of(b"MAIL FROM:", self.mail),
            rcpt_lines=tuple(_command_of(b"RCPT TO:", rcpt) for rcpt in self._rcpts),
        )

    def request(self, *, before_queue: bool) -> ScanRequest:
        """Return the message for the scanner."""
        whole = self._body_bytes == len(self._body)
        raw = b"\r\n".join((self._header, self._body))
        return ScanRequest(
            raw, len(self._header) + 2, self.envelope, before_queue, whole, is_received=False
        )


def _address_of(arguments: list[bytes]) -> str:
    path = arguments[0] if arguments else b""
    return text_of(path.removeprefix(b"<").removesuffix(b">"))


def _command_of(verb: bytes, arguments: list[bytes]) -> bytes:
    """The SMTP command for a path and its parameters. No argument has a line end or a blank."""
    safe = [one.translate(None, _UNSAFE) for one in arguments]
    path, *parameters = safe or [b"<>"]
    if not path.startswith(b"<"):
        path = b"<%b>" % path
    return b" ".join([verb + path, *parameters])


State = Literal["new", "ready", "mail", "rcpt", "header", "body", "scanning"]

IDLE_S: Final = 7210.0
"""until a silent connection is closed: the default of the MTAs' own milter library"""
PROGRESS_S: Final = 5.0
"""interval of progress packets during a scan; Sendmail waits for 10 seconds"""
LOGGED_RECIPIENTS: Final = 3
_USED_MACROS: Final = (b"i", b"auth_authen")
_MAX_ENVELOPE_BYTES: Final = 4 << 20
"""of all recipients with their parameters"""
_MESSAGE_STAGES: Final = (b"M", b"R", b"T", b"E")
"""not L, N and B: Postfix sends the queue id before each header field, and again at the end"""
_STAGES: Final = (b"C", b"H", *_MESSAGE_STAGES)
_REFUSED: Final = b"5.7.1 Message rejected"
_DEFERRED: Final = b"4.3.0 Temporary failure, try again later"
_LONG_HEADER: Final = b"5.3.4 Message header size exceeds the limit"


# --- the session ---------------------------------------------------------------------------------


class _MilterCommand(NamedTuple):
    states: frozenset[State]
    then: State | None
    """None: the state stays"""
    no_reply: Step | None
    """without this step the command gets a reply; None: it never gets one"""
    handle: Callable[[Any, bytes], None]


def _states(*names: State) -> frozenset[State]:
    return frozenset(names)


_OPEN: Final = _states("ready", "mail", "rcpt", "header", "body")
_MESSAGE: Final = _states("rcpt", "header", "body")
_ALL: Final = _states("ready", "mail", "rcpt", "header", "body", "scanning")


class MilterSession:
    """The state of one connection.

        state      legal commands                       then
        new        O                                    ready
        ready      C H M                                M: mail
        mail       R                                    rcpt
        rcpt       R T L N B E                          L: header, N and B: body, E: scanning
        header     L N B E                              N and B: body, E: scanning
        body       B E                                  E: scanning
        scanning   none                                 the result: ready

    A (abort), Q (quit) and K (next connection) are legal in all states but `new`; A and K lead to
    `ready`. D (macros) and U (unknown command) are legal in all but `new` and `scanning`.
    Everything else closes the connection: the MTA then does what its `milter_default_action` or
    `F=` says.

    No sockets and no clock: events come in, actions go out. Invariants: a message gets one final
    reply; the scanner's result decides it, and after a fault no reply is sent, so the MTA defers
    the message; DISCARD is sent only for a message that is in quarantine, on disk.
    """

    def __init__(self, params: MilterParams, meters: Meters, peer: str, now: float) -> None:
        self.params = params
        self.actions: deque[ScanAction] = deque()
        self.state: State = "new"
        self.closed = False
        self.deadline = now + IDLE_S
        self._meters, self._peer, self._now = meters, peer, now
        self._reader = PacketReader()
        self._offer = Offer(0, 0, 0)
        self._client = Client()
        self._macros: dict[bytes, dict[bytes, bytes]] = {}
        self._message: MilterMessage | None = None
        self._request: ScanRequest | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes of memory."""
        return self._reader.held_bytes + (self._message.held_bytes if self._message else 0)

    @property
    def is_idle(self) -> bool:
        """Whether there is no message."""
        return self.state in ("new", "ready")

    # -- events -----------------------------------------------------------------------------------

    def receive(self, chunk: bytes, now: float) -> None:
        """Take bytes from the MTA."""
        self._now = now
        if self.closed:
            return
        if self.state != "scanning":
            self.deadline = now + IDLE_S
        try:
            self._take_all(chunk)
        except MilterError as error:
            self._meters.count("faults")
            self._warn("milter protocol error", str(error))
            self.close(now)

    def scan_done(self, request: ScanRequest, result: ScanResult, now: float) -> None:
        """Answer the message; if a result is late, only the message that it stored is deleted."""
        self._now = now
        if request is not self._request:
            if result.withdraw is not None:
                self._add(Withdraw(result.withdraw))
            return
        self._request = None
        self._reply(result)

    def progress(self, now: float) -> None:
        """Tell the MTA that the scan goes on."""
        self._now = now
        if self.state == "scanning":
            self._add(SendBytes(packets.PROGRESS))

    def timeout(self, now: float) -> None:
        """Handle the passed deadline."""
        if self.state == "scanning":
            # The scanner itself ends a scan that takes too long; this scan has not begun in time.
            self._add(StopScan("busy"))
        else:
            self.close(now)

    def close(self, now: float) -> None:
        """End the session: the MTA has disconnected, or is no longer served."""
        self._now = now
        self._forget_message()
        if not self.closed:
            self.closed = True
            self._reader = PacketReader()
            self._add(CloseConnection())

    # -- commands ---------------------------------------------------------------------------------

    def _take_all(self, chunk: bytes) -> None:
        for name, data in self._reader.feed(chunk):
            self._take(name, data)
            if self.closed:
                return

    def _take(self, name: bytes, data: bytes) -> None:
        command = self._COMMANDS.get(name)
        if command is None or self.state not in command.states:
            raise MilterError(f"command {name!r} in state {self.state}")
        if command.then is not None:
            self.state = command.then
        command.handle(self, data)
        if command.no_reply is not None and not self._offer.steps & command.no_reply:
            self._add(SendBytes(packets.CONTINUE))

    def _negotiate(self, data: bytes) -> None:
        self._offer = Offer.parse(data).answer()
        self._add(SendBytes(self._offer.packet()))
        if not self._can_change:
            self._warn("milter cannot change headers", "the MTA does not offer it")

    def _store_macros(self, data: bytes) -> None:
        stage = data[:1]
        if stage not in _STAGES:
            return
        words, stored = packets.texts_of(data[1:]), self._macros.setdefault(stage, {})
        for braced, value in zip(words[::2], words[1::2], strict=False):
            name = braced.removeprefix(b"{").removesuffix(b"}")
            if name in _USED_MACROS and len(value) <= MAX_TEXT_BYTES:
                stored[name] = value

    def _connect(self, data: bytes) -> None:
        found = ConnectInfo.parse(data)
        self._client = Client(address=found.address, name=found.name)

    def _helo(self, data: bytes) -> None:
        self._client = self._client._replace(
            helo=packets.text_of(data[:MAX_TEXT_BYTES].rstrip(b"\0"))
        )

    def _mail(self, data: bytes) -> None:
        arguments = packets.texts_of(data)
        params = self.params
        self._message = MilterMessage(
            arguments,
            params.scan_limit_bytes,
            self._now,
            shared=not params.other,
            site=params.authserv_ids if params.border else (),
        )

    def _rcpt(self, data: bytes) -> None:
        self._current.add_recipient(packets.texts_of(data))
        if self._current.envelope_bytes > _MAX_ENVELOPE_BYTES:
            raise MilterError("too many recipients")

    def _header(self, data: bytes) -> None:
        name, *values = data.split(b"\0")
        if len(values) != 2 or values[1]:
            raise MilterError("a header field without a name or a value")
        value = values[0] if self._has_leading_space else b" " + values[0]
        message = self._current
        if message.header_bytes <= self.params.header_limit_bytes:
            message.add_field(name, value)

    def _body(self, data: bytes) -> None:
        self._current.add_body(data)

    def _end(self, data: bytes) -> None:
        self._body(data)
        message = self._current
        message.end(self._scanned_client)
        if message.header_bytes > self.params.header_limit_bytes:
            facts: dict[str, object] = {}
            self._finish("refuse", self._refusal("550", _LONG_HEADER, facts), facts)
            return
        self.deadline = self._now + self.params.times.scan_total_s
        self._request = message.request(before_queue=self._is_refusable)
        self._add(StartScan(self._request))

    def _abort(self, _data: bytes) -> None:
        self._forget_message()

    def _next_connection(self, _data: bytes) -> None:
        self._forget_message()
        self._macros.clear()
        self._client = Client()

    def _quit(self, _data: bytes) -> None:
        self.close(self._now)

    def _nothing(self, _data: bytes) -> None:
        """Ignore unknown commands, DATA and the end of the header: their data is not used."""

    # -- what is known ----------------------------------------------------------------------------

    @property
    def _current(self) -> MilterMessage:
        assert self._message is not None, "its state has a message"
        return self._message

    @property
    def _can_change(self) -> bool:
        return self._offer.capabilities & CHANGES == CHANGES

    @property
    def _has_leading_space(self) -> bool:
        return bool(self._offer.steps & Step.LEADING_SPACE)

    @property
    def _is_local(self) -> bool:
        """Whether the MTA itself submits the mail: no client, or loopback without a HELO."""
        address = self._client.address
        return not address or (LOOPBACK.contains(address) and not self._client.helo)

    @property
    def _is_refusable(self) -> bool:
        """Whether an SMTP client waits; a refusal of the MTA's own mail would cause a bounce."""
        return self.params.queue == "before" and not self._is_local

    def _macro(self, name: bytes) -> str:
        for stage in reversed(_STAGES):
            if name in (found := self._macros.get(stage, {})):
                return packets.text_of(found[name])
        return ""

    @property
    def _scanned_client(self) -> Client:
        """The client with its queue id. An authenticated user's mail is local, as with XFORWARD."""
        is_local = self._is_local or bool(self._macro(b"auth_authen"))
        source = "LOCAL" if is_local else "REMOTE"
        return self._client._replace(ident=self._macro(b"i"), source=source)

    # -- the answer -------------------------------------------------------------------------------

    def _reply(self, result: ScanResult) -> None:
        facts = dict(result.facts)
        if result.action == "refuse" and self._is_refusable:
            self._finish("refuse", self._refusal("550", result.reply or _REFUSED, facts), facts)
        elif result.action == "defer":
            self._finish("defer", self._refusal("451", result.reply or _DEFERRED, facts), facts)
        elif result.action == "keep" and self.params.keeps:
            self._add(SendBytes(packets.DISCARD))
            self._finish("keep", "", facts)
        else:
            if result.action != "relay":
                facts["instead_of"] = result.action
            if result.withdraw is not None:
                self._add(Withdraw(result.withdraw))
            self._add(SendBytes(self._changes(result.add, result.tag) + packets.CONTINUE))
            self._finish("relay", "", facts)

    def _refusal(self, code: str, text: bytes, facts: dict[str, object]) -> str:
        """Send a reply with a reference by which an administrator finds the message in the log."""
        facts["reference"] = incident_id()
        shown_text = text.decode("ascii", "replace")
        reply = f"{code} {shown_text} (reference {facts['reference']})"
        self._add(SendBytes(packets.refuse(reply)))
        return reply

    def _changes(self, add: Fields, tag: bytes) -> bytes:
        """Delete forged copies, tag the subject, insert fields after the MTA's Received line.

        Copies of a name are deleted in reverse order, so that the other indices do not change.
        Fields are inserted in reverse order, all at the same index.
        """
        if not self._can_change:
            return b""
        message, blank = self._current, b" " if self._has_leading_space else b""
        strangers = message.claims if message.envelope.client.source == "REMOTE" else []
        forged = (*message.forged, *strangers)
        sent = [packets.change_header(index, name, b"") for index, name in forged[::-1]]
        if tag:
            sent += [
                packets.change_header(
                    index, name, blank + tag.rstrip() + b" " + value.lstrip(b" \t")
                )
                for (index, name), value in message.subjects
            ] or [packets.insert_header(1, b"Subject", blank + tag.rstrip())]
        sent += [
            packets.insert_header(1, name.encode(), (blank if value else b"") + value.encode())
            for name, value in add[::-1]
        ]
        return b"".join(sent)

    def _finish(self, action: str, reply: str, facts: dict[str, object]) -> None:
        meters, size = self._meters, self._current.size
        if action in ("relay", "keep"):
            meters.count("messages")
            meters.count("bytes", size)
        else:
            meters.count("deferred" if action == "defer" else "refused")
        self._add(LogMessage(self._record(action, reply) | facts))
        self._forget_message()

    def _record(self, action: str, reply: str) -> dict[str, object]:
        message = self._current
        envelope, client = message.envelope, message.envelope.client
        return {
            "event": "message",
            "peer": self._peer,
            "client": client.address,
            "helo": client.helo,
            "ident": client.ident,
            "from": envelope.sender,
            "to": list(envelope.recipients[:LOGGED_RECIPIENTS]),
            "recipients": len(envelope.recipients),
            "size": message.size,
            "action": action,
            "code": int(reply[:3]) if reply else 250,
            "reply": shown(reply.encode())[:200],
            "ms": int((self._now - message.began) * 10_000) / 10,
        }

    def _warn(self, event: str, what: str) -> None:
        record: dict[str, object] = {"event": event, "level": "warning", "peer": self._peer}
        self._add(LogMessage(record | {"error": what}))

    def _forget_message(self) -> None:
        """Drop the message and the macros of its commands, which MTAs do not clear."""
        if self._request is not None:
            self._request = None
            self._add(StopScan())
        self._message = None
        for stage in _MESSAGE_STAGES:
            self._macros.pop(stage, None)
        if self.state != "new":
            self.state = "ready"
        self.deadline = self._now + IDLE_S

    def _add(self, action: ScanAction) -> None:
        self.actions.append(action)

    _COMMANDS: ClassVar[dict[bytes, _MilterCommand]] = {
        b"O": _MilterCommand(_states("new"), "ready", None, _negotiate),
        b"D": _MilterCommand(_OPEN, None, None, _store_macros),
        b"C": _MilterCommand(_states("ready"), None, Step.NO_REPLY_CONNECT, _connect),
        b"H": _MilterCommand(_states("ready"), None, Step.NO_REPLY_HELO, _helo),
        b"M": _MilterCommand(_states("ready"), "mail", Step.NO_REPLY_MAIL, _mail),
        b"R": _MilterCommand(_states("mail", "rcpt"), "rcpt", Step.NO_REPLY_RCPT, _rcpt),
        b"T": _MilterCommand(_states("rcpt"), None, Step.NO_DATA, _nothing),
        b"U": _MilterCommand(_OPEN, None, Step.NO_REPLY_UNKNOWN, _nothing),
        b"L": _MilterCommand(_states("rcpt", "header"), "header", Step.NO_REPLY_HEADER, _header),
        b"N": _MilterCommand(_states("rcpt", "header"), "body", Step.NO_HEADER_END, _nothing),
        b"B": _MilterCommand(_MESSAGE, "body", Step.NO_REPLY_BODY, _body),
        b"E": _MilterCommand(_MESSAGE, "scanning", None, _end),
        b"A": _MilterCommand(_ALL, "ready", None, _abort),
        b"K": _MilterCommand(_ALL, "ready", None, _next_connection),
        b"Q": _MilterCommand(_ALL, None, None, _quit),
    }


class MilterListener(ScanListener[MilterParams, MessageScanner]):
    """The connections of one listener.

    If a connection is closed at once, the MTA takes the filter for being down, and does what its
    `milter_default_action` or `F=` says.
    """

    def protocol(self) -> MilterConnection:
        """Make the protocol of a new connection."""
        return MilterConnection(self)


class MilterConnection(ScanConnection):
    """The connection to an MTA. It is never ended for others: an MTA sends without pauses."""

    __slots__ = ("_progress_at",)

    name = "milter"
    is_trusted = True

    def begin_session(self, peer: str, now: float) -> MilterSession:
        """Begin the session of a new MTA."""
        return MilterSession(self._listener.params, self._listener.meters, peer, now)

    def start(self, request: ScanRequest, done: Done) -> Callable[[str], None] | None:
        """Scan a message, or only mark it; progress is due after some time."""
        if self.session.params.border:
            done(ScanResult("relay", self._listener.scanner.border(request)))
            return None
        self._progress_at = self._listener.loop.time() + PROGRESS_S
        stop: Callable[[str], None] | None = self._listener.scanner.scan(request, done)
        return stop

    def check_time(self, now: float) -> None:
        """Handle a passed deadline; send progress."""
        super().check_time(now)
        if self.session.state == "scanning" and now >= self._progress_at:
            self._progress_at = now + PROGRESS_S
            self.run(self.session.progress)
