"""A relay between a test client and a test next hop, on real sockets in one event loop.

The next hop follows its script at each step and records every byte that it receives.
"""

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field, replace
from typing import Literal

from spamnb.net.address import Address
from spamnb.net.server import MemoryBudget
from spamnb.policy import headers
from spamnb.scan.values import ScanResult
from spamnb.settings.values import Limits, ListenerParams, Timeouts
from spamnb.smtp.relay import RelayListener
from spamnb.telemetry import Meters
from support.waiting import LIMIT_S, until_true

BRISK = Timeouts(sweep_s=0.02)
"""the defaults, with frequent deadline checks"""
OFFERS = ("PIPELINING", "SIZE 10240000", "8BITMIME", "SMTPUTF8", "DSN", "ENHANCEDSTATUSCODES")
MESSAGE = b"From: a@example.org\r\nSubject: hi\r\n\r\nHello\r\n.leading dot\r\n..two\r\n"
DIE = object()
"""in a script: close the connection"""
STALL = object()
"""in a script: send nothing"""


def loops():
    """The kinds of event loop to try: (name, factory)."""
    found = [("asyncio", asyncio.new_event_loop)]
    with contextlib.suppress(ImportError):
        import uvloop

        found.append(("uvloop", uvloop.new_event_loop))
    return found


@dataclass
class Got:
    """What the next hop received on one connection."""

    commands: list = field(default_factory=list)
    messages: list = field(default_factory=list)
    """wire form, without the final dot"""
    partial: bytes = b""
    """of a message that was never completed"""
    closed: bool = False

    @property
    def verbs(self):
        return [line.split(b" ")[0].upper() for line in self.commands]


class Hop(asyncio.Protocol):
    """One connection at the next hop: a strict server that ends DATA at CR LF . CR LF only."""

    def __init__(self, server):
        self.server, self.got = server, Got()
        server.connections.append(self.got)
        self.data, self.in_data, self.rcpts, self.seen = bytearray(), False, 0, 0

    def connection_made(self, transport):
        self.transport = transport
        self.server.transports.add(transport)
        self.do("connect", b"220 hop.example ESMTP\r\n")

    def connection_lost(self, exc):
        del exc
        self.got.closed = True
        self.got.partial = bytes(self.data) if self.in_data else b""
        self.server.transports.discard(self.transport)

    def data_received(self, data):
        self.data += data
        while self.data and not self.transport.is_closing():
            if self.in_data:
                self.do("body", None)
                if not self.take_message():
                    return
            else:
                end = self.data.find(b"\r\n")
                if end < 0:
                    return
                line = bytes(self.data[:end])
                del self.data[: end + 2]
                self.command(line)

    def take_message(self):
        end = 0 if self.data[:3] == b".\r\n" else self.data.find(b"\r\n.\r\n", self.seen) + 2
        if end == 1:
            self.seen = max(0, len(self.data) - 4)
            return False
        self.got.messages.append(bytes(self.data[:end]))
        del self.data[: end + 3]
        self.in_data, self.seen = False, 0
        for _ in range(self.rcpts if self.server.lmtp else 1):
            self.do("end", b"250 2.0.0 Ok: queued as 4ABC\r\n")
        self.rcpts = 0
        return True

    def command(self, line):
        self.got.commands.append(line)
        verb = line.split(b" ")[0].upper().decode("latin-1")
        usual = b"250 2.0.0 Ok\r\n"
        if verb in {"EHLO", "LHLO"}:
            lines = ["hop.example", *self.server.offers]
            usual = "".join(
                f"250{' ' if i == len(lines) - 1 else '-'}{text}\r\n"
                for i, text in enumerate(lines)
            ).encode()
        elif verb == "DATA":
            usual = b"354 go\r\n"
        elif verb == "QUIT":
            usual = b"221 bye\r\n"
        reply = self.do(verb, usual)
        if verb == "RCPT" and reply.startswith(b"2"):
            self.rcpts += 1
        elif verb in {"MAIL", "RSET"}:
            self.rcpts = 0
        elif verb == "DATA" and reply.startswith(b"354"):
            self.in_data = True
        elif verb == "QUIT":
            self.transport.close()

    def do(self, step, usual):
        """Send the scripted reply, else the usual one; returns what was sent."""
        reply = self.server.script.get(step, usual)
        if isinstance(reply, list):
            reply = reply.pop(0) if reply else usual
        if reply is DIE:
            self.transport.abort()
            return b""
        if reply is STALL or reply is None:
            return b""
        self.transport.write(reply)
        return reply


class Server:
    """The next hop."""

    def __init__(self, *, lmtp=False, offers=OFFERS, unix="", host="127.0.0.1"):
        self.lmtp, self.offers, self.unix, self.host = lmtp, offers, unix, host
        self.script, self.connections, self.transports = {}, [], set()

    @property
    def messages(self):
        return [message for got in self.connections for message in got.messages]

    @property
    def verbs(self):
        return [verb for got in self.connections for verb in got.verbs]


class StubScanner:
    """A scanner that answers immediately with the given result."""

    def __init__(self, outcome=None):
        self.outcome = outcome if outcome is not None else ScanResult()
        self.requests, self.waiting, self.holding = [], [], False
        self.late = ScanResult("defer")
        """the result of a scan that the relay stops at its deadline"""

    def border(self, request):
        """Mark no message: only a milter that is the border asks."""
        self.requests.append(request)
        return ()

    def scan(self, request, done):
        self.requests.append(request)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.holding:
            self.waiting.append(done)
        else:
            done(self.outcome)
        return lambda reason: done(self.late) if reason else None


class Client:
    """A client that sends any bytes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, data):
        self.writer.write(data)

    async def reply(self):
        """One reply with all its lines."""
        lines: list[bytes] = []
        async with asyncio.timeout(LIMIT_S):
            while not lines or lines[-1][3:4] == b"-":
                line = await self.reader.readline()
                if not line:
                    break
                lines.append(line)
        return b"".join(lines)

    async def ask(self, data):
        self.send(data)
        return await self.reply()

    async def hello(self, line=b"EHLO client.example\r\n"):
        greeting = await self.reply()
        assert greeting.startswith(b"220"), greeting
        return await self.ask(line)

    async def start(self, *rcpts, sender=b"<a@example.org>", hello=b"EHLO client.example\r\n"):
        """The session up to the 354."""
        assert (await self.hello(hello)).startswith(b"250")
        return await self.envelope(*rcpts, sender=sender)

    async def envelope(self, *rcpts, sender=b"<a@example.org>"):
        assert (await self.ask(b"MAIL FROM:" + sender + b"\r\n")).startswith(b"250")
        for rcpt in rcpts or (b"<b@example.net>",):
            assert (await self.ask(b"RCPT TO:" + rcpt + b"\r\n")).startswith(b"250")
        return await self.ask(b"DATA\r\n")

    async def ended(self):
        """All bytes until the server closes."""
        async with asyncio.timeout(LIMIT_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def close(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def abort(self):
        self.writer.transport.abort()


class Rig:
    """Client, relay and next hop of one test."""

    def __init__(self, param_changes, scanner=None, server=None, budget=None, unix=""):
        self.server = server or Server()
        self.scanner = scanner or StubScanner()
        self.meters, self.log = Meters(), []
        self.budget = budget or MemoryBudget(Limits().memory_bytes)
        self.changes, self.unix = param_changes, unix
        self.clients = []

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        upstream = await self.start_hops(loop)
        params = ListenerParams(
            address=Address("127.0.0.1", 0), upstream=upstream, hostname="relay.example"
        )
        self.params = replace(params, **({"times": BRISK} | self.changes))
        self.relay = RelayListener(
            self.params,
            self.scanner,
            meters=self.meters,
            log=self.log.append,
            budget=self.budget,
            loop=loop,
        )
        if self.unix:
            self._server_socket = await loop.create_unix_server(self.relay.protocol, self.unix)
            self.port = 0
        else:
            sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
            self.port = sock.getsockname()[1]
            self._server_socket = await loop.create_server(self.relay.protocol, sock=sock)
        return self

    async def start_hops(self, loop):
        """Start the next hop; returns its address."""
        protocol: Literal["smtp", "lmtp"] = "lmtp" if self.server.lmtp else "smtp"
        path = self.server.unix
        if path:
            self.hop_server = await loop.create_unix_server(lambda: Hop(self.server), path)
            return Address(path=path, protocol=protocol)
        host = self.server.host
        sock = socket.create_server(
            ("127.0.0.1" if host == "localhost" else host, 0),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        )
        self.hop_server = await loop.create_server(lambda: Hop(self.server), sock=sock)
        return Address(host, sock.getsockname()[1], protocol=protocol)

    async def __aexit__(self, *exc):
        for client in self.clients:
            await client.close()
        await self.relay.drain(1.0)
        self._server_socket.close()
        await until_true(lambda: not self.relay.open_sessions, "the sessions to end")
        await until_true(
            lambda: not self.server.transports or self.stop_hops(), "the next hop's ends"
        )
        self.hop_server.close()
        await self.hop_server.wait_closed()
        if exc[0] is None:
            assert self.budget.used == 0
            assert not [line for line in self.log if line["event"] == "fault"] or self.may_fault

    may_fault = False

    def stop_hops(self):
        for transport in list(self.server.transports):
            transport.abort()
        return False

    async def client(self):
        if self.unix:
            reader, writer = await asyncio.open_unix_connection(self.unix)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        client = Client(reader, writer)
        self.clients.append(client)
        return client

    def apply_settings(self, **changes):
        """Change parameters of the running listener."""
        self.relay.apply_settings(replace(self.relay.state.params, **changes), self.scanner)

    @property
    def paused(self):
        """The number of clients that are not read now."""
        return sum(bool(side.session.output.paused) for side in self.relay.state.connections)

    @property
    def messages(self):
        """The message records of the log."""
        return [line for line in self.log if line["event"] == "message"]


def times(**changes):
    """The test timeouts, some changed."""
    return BRISK._replace(**changes)


def limits(**changes):
    """The default limits, some changed."""
    return Limits(**changes)


UNSCANNED = headers.unscanned_fields("busy")


def stuffed(data):
    """The wire form of a message."""
    if data.startswith(b"."):
        data = b"." + data
    return data.replace(b"\r\n.", b"\r\n..")
