"""The delivery agent's server and its sessions: aiosmtpd's command loop, with parts replaced.

aiosmtpd 1.4.6 differs from a mail server in points that are replaced here: addresses that it
rewrites, DSN parameters that it rejects, lines above 1,001 bytes, one dictionary of limits for all
connections, `500 (Class) text` for internal faults, passwords checked in the event loop, one LMTP
reply for all recipients, no limit of connections, and one timer for all of DATA.

Must not know Maildirs, passwords or reports: `DeliveryAgent` does. It needs asyncio's own event
loop, since aiosmtpd's STARTTLS is built on it. Failure: SettingsError for an unreadable
certificate, table or password file, before anything is served. The agent counts and logs a fault
with an incident id, and the client gets 451; a client's mistake gets a reply of the table.
"""

# ruff: noqa: N802 - aiosmtpd finds commands by these names

# ruff: noqa: N802 - aiosmtpd finds commands by these names

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from binascii import Error as Base64Error
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from aiosmtpd.smtp import MISSING, SMTP, TLSSetupException

from spamnb.mail.envelope import Client
from spamnb.net.address import MailProtocol
from spamnb.net.credentials import server_tls
from spamnb.settings.values import DeliveryParams
from spamnb.smtp import delivery_replies
from spamnb.smtp.delivery import DeliveryAgent
from spamnb.smtp.delivery_values import (
    AgentDeps,
    DeliveryTransaction,
    IncomingMessage,
    Listener,
    LoggedIn,
    RecipientMailbox,
)
from spamnb.smtp.syntax import XFORWARD, mail_refusal, rcpt_refusal, read_client, read_path

COMMAND_BYTES: Final = 4_096
READ_BYTES: Final = 65_536
"""the reader buffers twice this; also the longest line it waits for"""
MAX_FAILURES: Final = 3
"""wrong passwords in one connection"""
END: Final = b"\r\n.\r\n"
_GOODBYE_S: Final = 10.0
"""for a client that does not read the last reply"""
_HANDLING_S: Final = 900.0
"""for the processing after the final dot: each step in it has its own deadline"""


class DeliverySession(SMTP):
    """One connection."""

    line_length_limit = READ_BYTES

    def __init__(
        self,
        agent: DeliveryAgent,
        tls: Any,
        protocol: MailProtocol,
        open_sessions: set[DeliverySession],
    ) -> None:
        self.command_size_limits = defaultdict(lambda: COMMAND_BYTES)
        self.command_size_limit = COMMAND_BYTES
        self.agent = agent
        self._open_sessions = open_sessions
        """of all listeners; this one is in it while it is admitted"""
        self.protocol = protocol
        self.peer = ""
        self.admitted: bool | None = None
        self.is_stranger = True
        """whether the client is not one of the agent's peers; set when it is admitted"""
        self.login: LoggedIn | None = None
        self.helo = ""
        self.extended = False
        self.mail = DeliveryTransaction()
        self.failures = 0
        self.held_bytes = 0
        super().__init__(
            None,
            data_size_limit=agent.config.size_limit_bytes,
            enable_SMTPUTF8=True,
            hostname=agent.config.hostname,
            ident="spamnb",
            tls_context=tls,
            timeout=agent.config.command_timeout_s,
            loop=asyncio.get_running_loop(),
        )

    # -- the connection -------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Begin the session; called again after STARTTLS, which resets all client state."""
        if self.admitted is None:
            name = transport.get_extra_info("peername")
            self.peer = name[0] if isinstance(name, tuple) else "unix"
            self.is_stranger = not self.agent.is_peer(self.peer)
            self.admitted = self.agent.admit(self.peer, is_stranger=self.is_stranger)
            if not self.admitted:
                transport.write(delivery_replies.BUSY.encode() + b"\r\n")
                transport.close()
                return
            self._open_sessions.add(self)
        self.login, self.helo = None, ""
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        """End the session."""
        if self.admitted:
            self._account(-self.held_bytes)
            self._open_sessions.discard(self)
            self.agent.leave(self.peer, is_stranger=self.is_stranger)
            self.admitted = False
            super().connection_lost(error)

    def eof_received(self) -> bool | None:
        """The client has closed its sending side."""
        return bool(super().eof_received()) if self.admitted else None

    def _set_post_data_state(self) -> None:
        super()._set_post_data_state()  # type: ignore[no-untyped-call]
        self.mail = DeliveryTransaction()

    def _timeout_cb(self) -> None:
        self.say_goodbye(delivery_replies.TIMEOUT)

    def say_goodbye(self, reply: str) -> None:
        """Send a last reply and close the connection."""
        transport: Any = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(reply.encode() + b"\r\n")
            transport.close()
            # It closes after all bytes are sent; a client that does not read would keep it open.
            self.loop.call_later(_GOODBYE_S, transport.abort)
            if self._tls_protocol and self.session and self.session.ssl is None:
                # asyncio does not report the end of a connection that is closed in a TLS handshake.
                self.connection_lost(None)

    async def _handle_client(self) -> None:
        # A client that disconnects during a reply is no fault; nothing awaits this task.
        with suppress(ConnectionError):
            await super()._handle_client()

    def _account(self, more: int) -> None:
        self.held_bytes += more
        self.agent.hold(more, is_stranger=self.is_stranger)

    @property
    def idle(self) -> bool:
        """Whether no transaction is in progress."""
        return self.mail.sender is None

    async def push(self, status: str | bytes) -> None:
        """Send one line."""
        self._writer.write(delivery_replies.clean(status, self.hostname) + b"\r\n")
        await self._writer.drain()

    async def handle_exception(self, error: Exception) -> str:
        """Count and log an internal fault; the client gets 451 and keeps the message."""
        if isinstance(error, TLSSetupException):
            return delivery_replies.NO_TLS
        self.agent.fault(error, self.peer)
        self._set_post_data_state()
        return delivery_replies.FAULT

    # -- greetings ------------------------------------------------------------------------------

    async def smtp_EHLO(self, name: str | None) -> None:
        """Advertise SMTP extensions."""
        if self.protocol == "lmtp":
            await self.push(delivery_replies.NO_SUCH)
        else:
            await self._hello(name)

    async def smtp_LHLO(self, name: str | None) -> None:
        """Advertise LMTP extensions."""
        if self.protocol == "smtp":
            await self.push(delivery_replies.NO_SUCH)
        else:
            await self._hello(name)

    async def _hello(self, name: str | None) -> None:
        if not name:
            await self.push(delivery_replies.BAD_HELLO)
            return
        self._set_post_data_state()
        self.helo, self.extended = name, True
        config = self.agent.config
        offers = [
            config.hostname,
            f"SIZE {config.size_limit_bytes}",
            *("8BITMIME", "SMTPUTF8", "PIPELINING", "ENHANCEDSTATUSCODES"),
        ]
        if self.tls_context and not self._tls_protocol:
            offers.append("STARTTLS")
        if self._may_log_in():
            offers.append("AUTH PLAIN LOGIN")
        if self.agent.is_peer(self.peer):
            offers.append(f"XFORWARD {XFORWARD}")
        lines = [f"250-{offer}\r\n" for offer in offers[:-1]] + [f"250 {offers[-1]}\r\n"]
        self._writer.write("".join(lines).encode("ascii", "replace"))
        await self._writer.drain()

    async def smtp_HELO(self, hostname: str | None) -> None:
        """Greet without extensions."""
        if self.protocol == "lmtp":
            await self.push(delivery_replies.NO_SUCH)
            return
        if not hostname:
            await self.push(delivery_replies.BAD_HELLO)
            return
        self._set_post_data_state()
        self.helo, self.extended = hostname, False
        await self.push(f"250 {self.hostname}")

    async def smtp_STARTTLS(self, arg: str | None) -> None:
        """Start TLS."""
        if self._tls_protocol:
            await self.push(delivery_replies.TWICE)
            return
        await super().smtp_STARTTLS(arg)

    async def smtp_VRFY(self, arg: str | None) -> None:  # noqa: ARG002
        """Reply without revealing whether the user exists."""
        await self.push(delivery_replies.VRFY)

    # -- authentication -------------------------------------------------------------------------

    def _may_log_in(self) -> bool:
        config = self.agent.config
        return bool(config.passwords) and (bool(self._tls_protocol) or config.plain_login)

    async def smtp_AUTH(self, arg: str | None) -> None:
        """Check login and password in a thread, with a delay after repeated failures."""
        refusal = self._login_refusal()
        if refusal:
            await self.push(refusal)
            return
        given = await self._credentials((arg or "").split())
        if given is None:
            return
        answer = await self.agent.log_in(*given, self.peer)
        if isinstance(answer, LoggedIn):
            self.login = answer
            await self.push(delivery_replies.LOGGED_IN)
            return
        self.failures += 1
        if self.failures >= MAX_FAILURES:
            self.say_goodbye(delivery_replies.TOO_MANY_FAILURES)
            return
        await self.push(answer)

    def _login_refusal(self) -> str:
        if not self.agent.config.passwords:
            return delivery_replies.NO_SUCH
        if not self._may_log_in():
            return delivery_replies.TLS_FIRST
        if not self.extended:
            return delivery_replies.BAD_HELLO
        if not self.idle:
            return delivery_replies.IN_TRANSACTION
        return delivery_replies.TWICE if self.login else ""

    async def _credentials(self, words: list[str]) -> tuple[str, bytes] | None:
        """Login and password, by RFC 4616 or the de-facto LOGIN; None if a rejection was sent."""
        mechanism = words[0].upper() if words else ""
        if mechanism not in {"PLAIN", "LOGIN"} or len(words) > 2:
            await self.push(delivery_replies.UNKNOWN_MECHANISM)
            return None
        wanted = ("",) if mechanism == "PLAIN" else ("Username:", "Password:")
        answers: list[bytes] = []
        for number, prompt in enumerate(wanted):
            given = words[1] if number == 0 and len(words) == 2 else None
            found = await self._secret(given, prompt)
            if found is None:
                return None
            answers.append(found)
        fields = answers[0].split(b"\0")[1:] if mechanism == "PLAIN" else answers
        if len(fields) != 2 or not fields[0]:
            await self.push(delivery_replies.BAD_LOGIN)
            return None
        return fields[0].decode("utf-8", "replace"), fields[1]

    async def _secret(self, given: str | None, prompt: str) -> bytes | None:
        if given is None:
            try:
                answer = await self.challenge_auth(prompt)
            except ValueError:
                # The line is too long: its rest would be read as commands.
                self.say_goodbye(delivery_replies.BAD_LOGIN)
                return None
            return None if answer is MISSING else bytes(answer)
        try:
            return b64decode("" if given == "=" else given, validate=True)
        except (Base64Error, ValueError):
            await self.push(delivery_replies.BAD_LOGIN)
            return None

    async def smtp_XFORWARD(self, arg: str | None) -> None:
        """Take the client's attributes from a trusted peer, for the next message."""
        if not self.agent.is_peer(self.peer):
            await self.push(delivery_replies.NOT_YOU)
        elif not self.idle:
            await self.push(delivery_replies.IN_TRANSACTION)
        else:
            client = read_client(self.mail.client or Client(), arg)
            if client is None:
                await self.push(delivery_replies.BAD_XFORWARD)
                return
            self.mail.client = client
            await self.push(delivery_replies.XFORWARD_OK)

    # -- the envelope ---------------------------------------------------------------------------

    async def smtp_MAIL(self, arg: str | None) -> None:
        """Set the sender."""
        await self.push(self._mail(arg) if self.helo else delivery_replies.HELLO_FIRST)

    async def smtp_RCPT(self, arg: str | None) -> None:
        """Add a recipient."""
        await self.push(self._rcpt(arg))

    def _mail(self, arg: str | None) -> str:
        if self.agent.stopping:
            return delivery_replies.STOPPING
        if not self.idle:
            return delivery_replies.NESTED
        found = read_path("FROM:", arg)
        if found is None:
            return delivery_replies.BAD_MAIL
        limit = self.agent.config.size_limit_bytes
        refusal = mail_refusal(found, limit, extended=self.extended)
        if refusal:
            return refusal
        self.mail.sender = found.address
        self.mail.utf8 = "SMTPUTF8" in found.params
        return delivery_replies.SENDER_OK

    def _rcpt(self, arg: str | None) -> str:
        if self.idle:
            return delivery_replies.NO_SENDER
        found = read_path("TO:", arg)
        if found is None:
            return delivery_replies.BAD_RCPT
        refusal = rcpt_refusal(found, utf8=self.mail.utf8)
        if refusal:
            return refusal
        if len(self.mail.boxes) >= self.agent.config.recipients:
            return delivery_replies.TOO_MANY_RECIPIENTS
        box = self.agent.find(found.address)
        if isinstance(box, str):
            return box
        boxes = self.mail.boxes
        # One reply cannot report both a learning result and a delivery.
        if boxes and (box.label or boxes[0].label):
            return delivery_replies.ONE_REPORT
        boxes.append(box)
        return delivery_replies.RECIPIENT_OK

    # -- the message ----------------------------------------------------------------------------

    async def smtp_DATA(self, arg: str | None) -> None:
        """Read the message, and reply when it is delivered or learnt."""
        if arg or not self.mail.boxes:
            await self.push(delivery_replies.BAD_DATA if arg else delivery_replies.NO_RECIPIENT)
            return
        await self.push(delivery_replies.GO_ON)
        body = await self._body()
        boxes = tuple(self.mail.boxes)
        many = boxes if self.protocol == "lmtp" else boxes[:1]
        if isinstance(body, str):
            answers = [body] * len(many)
        else:
            self._reset_timeout(_HANDLING_S)
            answers = await self._taken(body, boxes)
        self._account(-self.held_bytes)
        self._set_post_data_state()
        self._reset_timeout()
        for answer in answers[: len(many)]:
            await self.push(answer)
        if self.agent.stopping:
            self.say_goodbye(delivery_replies.STOPPING)

    async def _taken(self, body: bytes, boxes: tuple[RecipientMailbox, ...]) -> list[str]:
        client = self.mail.client
        mail = IncomingMessage(
            raw=body,
            sender=self.mail.sender or "",
            boxes=boxes,
            client=client or Client(address=self.peer, helo=self.helo),
            xforwarded=client is not None,
            login=self.login,
            peer=self.peer,
            secure=bool(self._tls_protocol),
            protocol=self.protocol,
        )
        try:
            return await self.agent.take(mail)
        except Exception as error:  # noqa: BLE001 - the boundary: one reply a recipient in any case
            self.agent.fault(error, self.peer)
            return [delivery_replies.FAULT] * len(boxes)

    async def _body(self) -> bytes | str:
        """Read up to the final dot; return the message with LF line ends, or the rejecting reply.

        Only CR LF . CR LF ends the message, so a bare CR or LF before a dot stays data. A CR LF is
        put in front, so that a final dot in the first line is found, too.
        """
        config, loop = self.agent.config, asyncio.get_running_loop()
        until = loop.time() + config.message_timeout_s
        reader: Any = self._reader
        reader._buffer[:0] = b"\r\n"  # noqa: SLF001 - a reader has no method for this
        pieces: list[bytes] = []
        size, ended, refusal = 0, False, ""
        while not ended:
            self._reset_timeout(max(min(config.data_timeout_s, until - loop.time()), 0.001))
            try:
                piece: bytes = await reader.readuntil(END)
                ended = True
            except asyncio.LimitOverrunError as error:
                piece = await reader.read(error.consumed)
            size += len(piece)
            pieces.append(piece)
            self._account(len(piece))
            refusal = refusal or self._room_refusal(size)
            if refusal:
                self._account(-self.held_bytes)
                pieces.clear()
        if refusal:
            return refusal
        whole = b"".join(pieces)
        body = whole[: -len(END) + 2].replace(b"\r\n.", b"\r\n")[2:]
        return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _room_refusal(self, size: int) -> str:
        config = self.agent.config
        if size > config.size_limit_bytes + len(END) + 2:
            return delivery_replies.TOO_BIG
        return "" if self.agent.has_room(is_stranger=self.is_stranger) else delivery_replies.NO_ROOM


BACKLOG: Final = 128
DRAIN_S: Final = 30.0


class Server:
    """A listening delivery agent. Created within a running event loop."""

    def __init__(self, config: DeliveryParams, deps: AgentDeps) -> None:
        # aiosmtpd logs a line for each command, with the client's text in it.
        logging.getLogger("mail.log").setLevel(logging.CRITICAL)
        self._tls = server_tls(config.certificate, config.key)
        self.agent = DeliveryAgent(config, deps)
        self._servers: list[asyncio.Server] = []
        self._open_sessions: set[DeliverySession] = set()

    async def listen(self, listeners: Sequence[Listener]) -> None:
        """Serve on bound sockets."""
        loop = asyncio.get_running_loop()
        for listener in listeners:
            made = partial(self._session, listener)
            self._servers.append(
                await loop.create_server(made, sock=listener.sock, backlog=BACKLOG)
            )

    def _session(self, listener: Listener) -> DeliverySession:
        return DeliverySession(self.agent, self._tls, listener.protocol, self._open_sessions)

    @property
    def open_sessions(self) -> int:
        """The number of open sessions."""
        return len(self._open_sessions)

    def apply_settings(self, config: DeliveryParams) -> None:
        """Take new settings for new connections and transactions; listeners stay."""
        tls = server_tls(config.certificate, config.key)
        self.agent.apply_settings(config)
        self._tls = tls

    async def drain(self, seconds: float = DRAIN_S) -> None:
        """Accept no new connections, let transactions finish, then close."""
        agent = self.agent
        agent.stopping = True
        for server in self._servers:
            server.close()
        for session in list(self._open_sessions):
            if session.idle:
                session.say_goodbye(delivery_replies.STOPPING)
        with suppress(TimeoutError):
            await asyncio.wait_for(agent.empty.wait(), seconds)
        for session in list(self._open_sessions):
            session.say_goodbye(delivery_replies.STOPPING)
        await asyncio.sleep(0)
        agent.close()
