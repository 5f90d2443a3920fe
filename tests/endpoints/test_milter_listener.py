"""The milter listener on real sockets, on both event loops, and the daemon asked by miltertest."""

import asyncio
import contextlib
import gc
import shutil
import socket
import struct
import subprocess
import weakref
from functools import partial
from pathlib import Path

import pytest
from support.cli import spamnb
from support.daemon import serve, settings_in
from support.waiting import LIMIT_S

from spamnb.milter.packets import PacketReader, packet_of
from spamnb.milter.session import MilterListener
from spamnb.net.address import NetworkSet
from spamnb.net.server import MemoryBudget
from spamnb.scan.values import ScanResult
from spamnb.settings.values import Limits, MilterParams
from spamnb.telemetry import Meters

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
NEGOTIATION = packet_of(b"O", struct.pack("!III", 6, 0x1FF, 0x1FFFFF))
MESSAGE = (
    packet_of(b"C", b"mx\x004\0\x19203.0.113.9\0")
    + packet_of(b"M", b"<ann@a.example>\0")
    + packet_of(b"R", b"<bob@b.example>\0")
    + packet_of(b"L", b"Subject\0 plums\0")
    + packet_of(b"N")
    + packet_of(b"B", b"plum\r\n")
)
END = packet_of(b"E")


class Scans:
    """A scanner that keeps its requests, and answers when it is told to."""

    def __init__(self):
        self.waiting, self.stopped, self.stops = [], [], []
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        self.holds = False

    def scan(self, request, done):
        if self.holds:
            self.waiting.append((request, done))
            self.begun.set()
        elif b"plum" in request.raw:
            done(ScanResult())
        else:
            raise RuntimeError("no plum")
        stop = partial(self.stop, request)
        self.stops.append(weakref.ref(stop))
        return stop

    def stop(self, _request, reason):
        self.stopped.append(reason)
        self.ended.set()


class MilterRig:
    """A listener on a port of this machine."""

    def __init__(self, **params):
        self.scans, self.records, self.meters = Scans(), [], Meters()
        self.params = MilterParams(**params)
        self.mtas = []

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self.budget = MemoryBudget(1 << 20, 0.2)
        self.listener = MilterListener(
            self.params, self.scans, meters=self.meters, log=self.records.append,
            budget=self.budget, loop=loop,
        )  # fmt: skip
        self.server = await loop.create_server(self.listener.protocol, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for mta in self.mtas:
            mta.writer.close()
            with contextlib.suppress(OSError):
                await mta.writer.wait_closed()
        await self.listener.drain(0.0)

    async def mta(self):
        self.mtas.append(Mta(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.mtas[-1]


class Mta:
    """One connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.packets = reader, writer, PacketReader()

    async def ask(self, data):
        """Send packets; the commands of the packets that come next."""
        self.writer.write(data)
        found = []
        while not found:
            chunk = await asyncio.wait_for(self.reader.read(65536), LIMIT_S)
            if not chunk:
                return None
            found = [command for command, _ in self.packets.feed(chunk)]
        return found

    async def ended(self):
        return await asyncio.wait_for(self.reader.read(65536), LIMIT_S) == b""


def test_messages_of_one_connection_are_scanned_in_turn(on_loop):
    """One connection serves many messages; the memory of each is given back."""

    async def main():
        async with MilterRig() as rig:
            mta = await rig.mta()
            assert await mta.ask(NEGOTIATION) == [b"O"]
            for _ in range(3):
                assert await mta.ask(MESSAGE + END) == [b"c"]
            assert rig.budget.used == 0
            assert [one["action"] for one in rig.records] == ["relay"] * 3

    on_loop(main())


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the kernel has no such option")
def test_the_next_bytes_are_acknowledged_at_once(on_loop):
    """After a reply the kernel would wait 40 ms, and the MTA as long for its next small write."""

    async def main():
        async with MilterRig() as rig:
            mta = await rig.mta()
            assert await mta.ask(NEGOTIATION) == [b"O"]
            (connection,) = rig.listener.connections
            server = connection.transport.get_extra_info("socket")
            for _ in range(3):
                assert await mta.ask(MESSAGE + END) == [b"c"]
                assert server.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1

    on_loop(main())


@pytest.mark.parametrize(
    "params", [{"peers": NetworkSet(("192.0.2.0/24",))}, {"limits": Limits(connections=0)}]
)
def test_a_connection_that_cannot_be_served_is_closed(on_loop, params):
    """The MTA then does what its own settings say, as if the filter were down."""

    async def main():
        async with MilterRig(**params) as rig:
            assert await (await rig.mta()).ended()
            assert rig.records[0]["event"] == "turned-away"
            assert rig.listener.open_sessions == 0

    on_loop(main())


def test_draining_finishes_what_is_under_way(on_loop):
    """Idle connections close immediately; a message that is scanned gets its reply first."""

    async def main():
        async with MilterRig() as rig:
            idle, busy = await rig.mta(), await rig.mta()
            rig.scans.holds = True
            for mta in (idle, busy):
                assert await mta.ask(NEGOTIATION) == [b"O"]
            busy.writer.write(MESSAGE + END)
            await rig.scans.begun.wait()
            draining = asyncio.ensure_future(rig.listener.drain(30.0))
            assert await idle.ended()
            rig.scans.waiting[0][1](ScanResult())
            assert await busy.ask(b"") == [b"c"]
            assert await busy.ended()
            await draining
            assert await (await rig.mta()).ended()

    on_loop(main())


def test_an_mta_that_leaves_ends_its_scan(on_loop):
    """The scan is stopped without a result, and the message's memory is given back."""

    async def main():
        async with MilterRig() as rig:
            mta = await rig.mta()
            rig.scans.holds = True
            await mta.ask(NEGOTIATION)
            mta.writer.write(MESSAGE + END)
            await rig.scans.begun.wait()
            mta.writer.close()
            await rig.scans.ended.wait()
            assert rig.scans.stopped == [""]
            assert rig.budget.used == 0

    on_loop(main())


def test_reading_waits_for_memory_and_for_the_mta(on_loop):
    """Reading that is paused for two reasons resumes after the last of them."""

    async def main():
        async with MilterRig() as rig:
            await (await rig.mta()).ask(NEGOTIATION)
            (connection,) = rig.listener.connections
            connection.pause_for_memory()
            connection.pause_writing()
            connection.resume_writing()
            assert not connection.transport.is_reading()
            connection.pause_writing()
            connection.resume_after_memory()
            assert not connection.transport.is_reading()
            connection.resume_writing()
            assert connection.transport.is_reading()

    on_loop(main())


def test_a_message_is_not_kept_after_its_reply(on_loop):
    """A connection that waits for the next message holds nothing of the last one."""

    async def main():
        async with MilterRig() as rig:
            mta = await rig.mta()
            rig.scans.holds = True
            await mta.ask(NEGOTIATION)
            mta.writer.write(MESSAGE + END)
            await rig.scans.begun.wait()
            _, done = rig.scans.waiting.pop()
            done(ScanResult())
            assert await mta.ask(b"") == [b"c"]
            gc.collect()
            assert rig.scans.stops[0]() is None

    on_loop(main())


def test_a_fault_ends_one_connection_and_no_message(on_loop):
    """The MTA gets no reply, so it keeps the message; other connections go on."""

    async def main():
        async with MilterRig() as rig:
            one, other = await rig.mta(), await rig.mta()
            await one.ask(NEGOTIATION)
            await other.ask(NEGOTIATION)
            assert await one.ask(MESSAGE.replace(b"plum", b"pear") + END) is None
            assert rig.records[0]["event"] == "fault"
            assert rig.budget.used == 0
            assert await other.ask(MESSAGE + END) == [b"c"]

    on_loop(main())


SCRIPT = """
local conn = mt.connect("inet:{port}@127.0.0.1")
if conn == nil then error "no connection" end
if mt.negotiate(conn, {offer}) ~= nil then error "no negotiation" end
mt.macro(conn, SMFIC_CONNECT, "j", "mx.example.org")
local function expect(what, failed)
    if failed ~= nil then error(what .. " was not sent") end
    if mt.getreply(conn) ~= SMFIR_CONTINUE and mt.getreply(conn) ~= 0 then
        error("an unexpected reply to " .. what)
    end
end
expect("connect", mt.conninfo(conn, "client.example.net", "203.0.113.9"))
expect("helo", mt.helo(conn, "client.example.net"))
expect("mail", mt.mailfrom(conn, "<ann@a.example>", "SIZE=100"))
expect("rcpt", mt.rcptto(conn, "<bob@example.org>"))
if {unsent} == 0 then expect("data", mt.data(conn)) end
expect("from", mt.header(conn, "From", "ann@a.example"))
expect("forged", mt.header(conn, "X-Spam-Flag", "NO"))
expect("subject", mt.header(conn, "Subject", "plums"))
if {unsent} == 0 then expect("end of header", mt.eoh(conn)) end
expect("body", mt.bodystring(conn, "plum cake\\r\\n"))
if mt.eom(conn) ~= nil then error "the end was not sent" end
if mt.getreply(conn) ~= SMFIR_CONTINUE then error "not continued" end
for _, name in ipairs({{"X-Spam-Flag", "X-Spam-Status", "X-Spamnb-Signature"}}) do
    if not mt.eom_check(conn, MT_HDRINSERT, name) then error(name .. " is missing") end
end
if not mt.eom_check(conn, MT_HDRDELETE, "X-Spam-Flag") then error "a forged copy stays" end
mt.disconnect(conn)
"""
OFFERS = {"nil, nil, nil": 2, "2, 0, 0x3F": 0, "6, 0x1FFFFF, 0x1FF": 2, "6, 0x80, 0x1FF": 0}
"""Version, steps, actions: miltertest sends the last two in this order, unlike its manual says. How
many commands are not to be sent; miltertest ends if its script sends them."""


@pytest.mark.skipif(shutil.which("miltertest") is None, reason="miltertest is not installed")
def test_miltertest_sees_what_a_milter_must_do(tmp_path):
    """With each kind of negotiation, the fields are inserted and the forged copy is deleted."""
    home = tmp_path / "home"
    spamnb(home, "train", SAMPLE / "ham", SAMPLE / "spam")
    config = settings_in(tmp_path, listener='protocol = "milter"')
    with serve(tmp_path, config=config) as daemon:
        daemon.ready()
        for offer, unsent in OFFERS.items():
            script = tmp_path / "script.lua"
            script.write_text(SCRIPT.format(port=daemon.port(), offer=offer, unsent=unsent))
            done = subprocess.run(
                ["miltertest", "-s", script], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (offer, done.stderr, daemon.records)
        daemon.wait_for("message", count=len(OFFERS))
        assert daemon.stop() == 0
