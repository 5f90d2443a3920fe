"""The listener: new settings, draining, and its end."""

import asyncio
import socket

import pytest
from support.relay import MESSAGE, STALL, Rig, times
from support.waiting import until_true

from spamnb.net.address import NetworkSet
from spamnb.net.server import MemoryBudget

END = MESSAGE + b"\r\n.\r\n"


def test_new_settings_hold_between_messages(on_loop):
    """A renewal drops no session and changes no message under way."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.start()
            rig.apply_settings(size_limit_bytes=30)
            assert (await client.ask(END)).startswith(b"250")
            assert (await client.envelope()).startswith(b"354")
            assert (await client.ask(END)).startswith(b"552")

    on_loop(main())


def test_a_kept_connection_follows_new_settings(on_loop):
    """On an open connection new settings of trust and next hop apply to the next message."""

    async def main():
        async with Rig({}) as rig, Rig({}) as other:
            client = await rig.client()
            await client.start()
            assert (await client.ask(END)).startswith(b"250")
            rig.apply_settings(upstream=other.params.upstream)
            assert (await client.envelope()).startswith(b"354")
            assert (await client.ask(END)).startswith(b"250")
            assert (len(rig.server.messages), len(other.server.messages)) == (1, 1)
            rig.apply_settings(peers=NetworkSet(()), recipient_domains=frozenset(("ours.example",)))
            assert (await client.ask(b"RSET\r\n")).startswith(b"250")
            assert (await client.ask(b"MAIL FROM:<a@x.net>\r\n")).startswith(b"250")
            assert (await client.ask(b"RCPT TO:<b@where.example>\r\n")).startswith(b"550")

    on_loop(main())


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the kernel has no such option")
def test_the_next_bytes_are_acknowledged_at_once(on_loop):
    """After a reply the kernel would wait 40 ms, and a client as long for its next small write."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.start()
            (connection,) = rig.relay.state.connections
            server = connection._transport.get_extra_info("socket")
            assert server.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
            assert (await client.ask(END)).startswith(b"250")
            assert server.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1

    on_loop(main())


def test_draining_finishes_what_is_under_way(on_loop):
    """Idle sessions end immediately, a message may still end, and no new one begins."""

    async def main():
        async with Rig({}) as rig:
            idle, busy = await rig.client(), await rig.client()
            await idle.hello()
            await busy.start()
            draining = asyncio.ensure_future(rig.relay.drain(5.0))
            assert (await idle.ended()).startswith(b"421 4.3.2")
            late = await rig.client()
            assert (await late.reply()).startswith(b"421 4.3.2")
            assert (await busy.ask(END)).startswith(b"250")
            assert (await busy.ended()).startswith(b"421 4.3.2")
            await draining
            assert rig.relay.open_sessions == 0

    on_loop(main())


def test_draining_breaks_off_what_does_not_end(on_loop):
    """A message that takes longer than the draining time gets no 250."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.start()
            client.send(b"Subject: half")
            (side,) = rig.relay.state.connections
            await until_true(lambda: side.session.transfer.size)
            await rig.relay.drain(0.05)
            assert rig.server.messages == []
            assert [line["action"] for line in rig.messages] == ["stopped"]

    on_loop(main())


def test_draining_waits_for_the_next_hops_reply(on_loop):
    """A message without its client is still under way; one that does not end is given up."""

    async def main():
        async with Rig({}) as rig:
            rig.server.script["end"] = STALL
            for last in (b"250 2.0.0 Ok: queued as LATE\r\n", b""):
                client = await rig.client()
                await client.start()
                client.send(END)
                count = len(rig.messages)
                await until_true(lambda c=count: len(rig.server.messages) > c)
                client.abort()
                (side,) = rig.relay.state.connections
                await until_true(lambda s=side: s.session._is_gone or s.session._is_finished)
                draining = asyncio.ensure_future(rig.relay.drain(5.0 if last else 0.05))
                await asyncio.sleep(0)
                (hop,) = rig.server.transports
                hop.write(last)
                await draining
                await until_true(lambda c=count: len(rig.messages) > c)
                assert rig.relay.open_sessions == 0
                rig.relay.state.is_closing = False
            assert [line.get("upstream_id") for line in rig.messages] == ["LATE", ""]

    on_loop(main())


def test_a_client_that_is_held_and_leaves_frees_its_memory(on_loop):
    """A client that leaves while it waits frees its memory, or later clients would wait forever."""

    async def main():
        budget = MemoryBudget(1000)
        async with Rig({"times": times(data_s=0.2)}, budget=budget) as rig:
            for _ in range(3):
                clients = [await rig.client() for _ in range(4)]
                for client in clients:
                    await client.start()
                    client.send(b"Subject: x\r\n\r\n" + b"y" * 50_000)
                await until_true(lambda: rig.paused)
                for client in clients:
                    client.abort()
                await until_true(lambda: not rig.relay.open_sessions)
                assert budget.used == 0
            client = await rig.client()
            await client.start()
            assert (await client.ask(END)).startswith(b"250")

    on_loop(main())
