"""Hostile clients and broken next hops do not disturb the relay."""

import asyncio
import socket
import struct

import pytest
from support.relay import MESSAGE, UNSCANNED, Rig, times
from support.waiting import until_true

from spamnb.net.server import MemoryBudget
from spamnb.policy.headers import as_block
from spamnb.scan.values import ScanResult

LINES = b"y" * 70 + b"\r\n"


def test_what_is_kept_too_late_is_taken_back(on_loop):
    """A quarantine slower than the scan may be: the message is relayed, and is not kept as well."""

    async def main():
        brief = times(scan_s=0.2, scan_wait_s=0.0)
        async with Rig({"times": brief}) as rig:
            rig.scanner.holding, withdrawn = True, []
            rig.scanner.late = ScanResult(add=UNSCANNED)
            client = await rig.client()
            await client.start()
            reply = await client.ask(MESSAGE + b".\r\n")
            assert reply.startswith(b"250 2.0.0 Ok: queued as 4ABC"), reply
            assert rig.server.messages == [as_block(UNSCANNED) + MESSAGE]
            (done,) = rig.scanner.waiting
            done(ScanResult("keep", reply=b"2.0.0 kept", withdraw=lambda: withdrawn.append(1)))
            assert withdrawn == [1]
            assert len(rig.messages) == 1

    on_loop(main())


def test_what_is_kept_for_a_client_that_left_is_taken_back(on_loop):
    """A client without a 250 sends again, so a kept message would exist twice."""

    async def main():
        async with Rig({}) as rig:
            rig.scanner.holding, withdrawn = True, []
            client = await rig.client()
            await client.start()
            client.send(MESSAGE + b".\r\n")
            await until_true(lambda: rig.scanner.waiting)
            gone = client.writer.get_extra_info("socket")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.abort()
            await until_true(lambda: rig.messages)
            rig.scanner.waiting[0](ScanResult("keep", withdraw=lambda: withdrawn.append(1)))
            assert withdrawn == [1]
            assert rig.server.messages == []

    on_loop(main())


def test_what_is_kept_in_time_stays(on_loop):
    """A kept message is answered with 250 and never withdrawn."""

    async def main():
        async with Rig({}) as rig:
            withdrawn = []
            rig.scanner.outcome = ScanResult("keep", withdraw=lambda: withdrawn.append(1))
            client = await rig.client()
            await client.start()
            assert (await client.ask(MESSAGE + b".\r\n")).startswith(b"250 ")
            assert not withdrawn
            assert rig.server.messages == []

    on_loop(main())


def test_forged_lines_of_a_header_above_the_scan_limit_are_removed(on_loop):
    """However slowly a long header comes, all of it is held back and cleaned."""

    async def main():
        async with Rig({"scan_limit_bytes": 2048, "header_limit_bytes": 65536}) as rig:
            client = await rig.client()
            await client.start()
            client.send(b"Subject: x\r\n" + (b"X-Pad: " + LINES) * 60 + b"X-Spam-")
            await until_true(lambda: rig.budget.used > 2048)
            client.send(b"Flag: NO\r\nX-Spamnb-Verdict: ham\r\n\r\n" + LINES * 60)
            assert (await client.ask(b".\r\n")).startswith(b"250")
            (message,) = rig.server.messages
            assert b"X-Spam" not in message
            assert message.endswith((b"X-Pad: " + LINES) + b"\r\n" + LINES * 60)

    on_loop(main())


def test_a_long_header_without_a_body_is_whole_all_the_same(on_loop):
    """A message that is all header, above the scan limit, goes on cleaned."""

    async def main():
        async with Rig({"scan_limit_bytes": 2048, "header_limit_bytes": 65536}) as rig:
            client = await rig.client()
            await client.start()
            client.send((b"X-Pad: " + LINES) * 60)
            assert (await client.ask(b"X-Spam-Flag: NO\r\n.\r\n")).startswith(b"250")
            (message,) = rig.server.messages
            assert message == (b"X-Pad: " + LINES) * 60

    on_loop(main())


def test_all_that_was_sent_before_the_end_is_worked_off(on_loop):
    """A client may send any number of commands in one piece and shut its side."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            client.send(
                b"EHLO x\r\n" + b"NOOP\r\n" * 500
                + b"MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nDATA\r\n"
                + MESSAGE + b".\r\nQUIT\r\n"
            )  # fmt: skip
            client.writer.write_eof()
            reply = await client.ended()
            assert reply.endswith(b"queued as 4ABC\r\n221 2.0.0 Bye\r\n"), reply[-200:]
            assert rig.server.messages == [MESSAGE]

    on_loop(main())


@pytest.mark.parametrize("size", ["123456789012345678x", "9" * 5000, "-1", ""])
def test_an_odd_size_of_the_next_hop_is_none(on_loop, size):
    """A reply about the next hop's limits is not counted as a fault."""

    async def main():
        async with Rig({}) as rig:
            rig.server.offers = (f"SIZE {size}", "PIPELINING")
            client = await rig.client()
            reply = await client.hello()
            assert reply == b"250-relay.example\r\n250-SIZE\r\n250 PIPELINING\r\n"

    on_loop(main())


def test_the_rest_of_a_refused_stream_may_take_its_time(on_loop):
    """After the scan of a message's beginning the client has its full time again."""

    async def main():
        changes = {"scan_limit_bytes": 2048, "times": times(scan_s=0.1, data_s=5)}
        async with Rig(changes) as rig:
            rig.scanner.outcome = ScanResult("defer")
            client = await rig.client()
            await client.start()
            client.send(b"Subject: x\r\n\r\n" + LINES * 60)
            await until_true(lambda: rig.server.connections[0].closed)
            await asyncio.sleep(0.3)  # the client is slow; nothing is waited for
            assert (await client.ask(b"z\r\n.\r\n")).startswith(b"451")

    on_loop(main())


def test_a_client_that_stalls_while_the_memory_is_full_is_disconnected(on_loop):
    """A client that waits only for memory of others is read before its time ends."""

    async def main():
        changes = {"times": times(data_s=0.5, sweep_s=0.1)}
        async with Rig(changes, budget=MemoryBudget(50_000)) as rig:
            idle = []
            for _ in range(12):
                client = await rig.client()
                idle.append(client)
                await client.start()
                client.send(b"Subject: x\r\n\r\n" + LINES * 200)
            await until_true(lambda: len(rig.messages) == 12, "the idle to be shed")
            assert {line["action"] for line in rig.messages} == {"timeout"}

    on_loop(main())


@pytest.mark.parametrize(("start", "limit"), [(b"", 1 << 20), (b".", 1 << 20), (b"", 4096)])
def test_a_copy_that_waits_for_its_scan_is_counted(on_loop, start, limit):
    """The queue of the scanner holds no memory that the budget does not know; all comes back."""
    body = b"Subject: x\r\n\r\n" + (start + LINES) * 400

    async def main():
        async with Rig({"scan_limit_bytes": limit}, budget=MemoryBudget(1 << 20)) as rig:
            rig.scanner.holding = True
            client = await rig.client()
            await client.start()
            client.send(body.replace(b"\r\n.", b"\r\n..") + b".\r\n")
            await until_true(lambda: rig.scanner.waiting)
            (request,) = rig.scanner.requests
            copied = len(request.raw) if start or not request.whole else 0
            assert rig.budget.used >= copied + min(limit, len(body))
            rig.scanner.waiting[0](ScanResult())
            assert (await client.reply()).startswith(b"250")
            assert rig.budget.used == 0

    on_loop(main())


def test_a_session_that_ends_takes_its_message_back(on_loop):
    """After the client has left, the scan is cancelled and the message freed."""

    async def main():
        async with Rig({}) as rig:
            taken = []
            rig.scanner.scan = lambda *_: taken.append
            client = await rig.client()
            await client.start()
            client.send(MESSAGE + b".\r\n")
            await until_true(lambda: rig.relay.open_sessions and rig.budget.used)
            gone = client.writer.get_extra_info("socket")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.abort()
            await until_true(lambda: taken == [""])
            assert rig.budget.used == 0

    on_loop(main())
