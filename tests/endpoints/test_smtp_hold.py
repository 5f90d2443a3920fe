"""Clients that hold what others need: commands, time, connections to the next hop, and memory."""

import asyncio
import contextlib

import pytest
from support.relay import MESSAGE, Rig, limits, times
from support.waiting import until_true

from spamnb.net.address import NetworkSet, wide_network_of
from spamnb.net.server import ConnectionCounts, MemoryBudget

STRANGERS = {"peers": NetworkSet(("192.0.2.0/24",)), "recipient_domains": frozenset(("x.net",))}
"""loopback is a stranger"""
RCPT = b"<b@x.net>"
END = MESSAGE + b".\r\n"
LINES = (b"x" * 70 + b"\r\n") * 100
MAIL = b"MAIL FROM:<a@b.example>\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        [b"NOOP\r\n"],
        [b"RSET\r\n"],
        [b"VRFY a\r\n"],
        [b"EHLO again.example\r\n"],
        [MAIL, b"RSET\r\n"],
        [MAIL, b"EHLO again.example\r\n"],
        [MAIL, b"RCPT TO:<b@x.net>\r\n", b"RSET\r\n"],
    ],
)
def test_commands_that_lead_to_no_message_are_few(on_loop, lines):
    """A client that is not trusted has a number of commands until its next accepted message."""

    async def main():
        async with Rig(STRANGERS | {"limits": limits(commands=20)}) as rig:
            client = await rig.client()
            await client.hello()
            replies = [await client.ask(line) for _ in range(10) for line in lines * 3][:30]
            too_many = b"421 4.7.0 Too many commands without a message, closing connection\r\n"
            assert too_many in replies
            await until_true(lambda: all(got.closed for got in rig.server.connections))
        async with Rig({"limits": limits(commands=20)}) as rig:
            client = await rig.client()
            await client.hello()
            replies = [await client.ask(line) for _ in range(10) for line in lines * 3]
            assert {text[:3] for text in replies} <= {b"250", b"252"}

    on_loop(main())


def test_many_messages_and_recipients_are_no_idle_commands(on_loop):
    """An accepted message renews the number of commands; accepted recipients do not count."""

    async def main():
        async with Rig(STRANGERS | {"limits": limits(commands=4)}) as rig:
            client = await rig.client()
            await client.hello()
            for _ in range(5):
                assert (await client.envelope(*[RCPT] * 30)).startswith(b"354")
                assert (await client.ask(END)).startswith(b"250")
            rig.server.script["end"] = b"554 5.7.1 no\r\n"
            assert (await client.envelope(RCPT)).startswith(b"354")
            assert (await client.ask(END)).startswith(b"554")
            assert (await client.ask(MAIL)).startswith(b"250")
            assert (await client.ask(b"RSET\r\n")).startswith(b"250")
            assert (await client.ask(b"NOOP\r\n")).startswith(b"421 4.7.0")

    on_loop(main())


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("lines", [[MAIL, b"RSET\r\n"], [b"RCPT TO:<b@x.net>\r\n"]])
def test_no_command_renews_the_time_until_a_message(on_loop, lines, trusted):
    """MAIL, RSET and recipients that come one by one end at one time; trusted clients go on."""

    async def main():
        few = {"times": times(message_s=0.6), "limits": limits(commands=10**6)}
        async with Rig(few if trusted else STRANGERS | few) as rig:
            client = await rig.client()
            await client.hello()
            assert (await client.ask(MAIL)).startswith(b"250")
            now = asyncio.get_running_loop().time
            since = now()
            with contextlib.suppress(ConnectionError):
                while rig.relay.open_sessions and (now() < since + 1.2 or not trusted):
                    for line in lines:
                        await client.ask(line)
                    await asyncio.sleep(0.02)
            assert rig.relay.open_sessions == trusted

    on_loop(main())


def test_the_time_of_the_next_hop_and_of_a_message_is_not_the_clients(on_loop):
    """A client is not ended because the next hop took long, or its own message did."""

    async def main():
        async with Rig(STRANGERS | {"times": times(message_s=0.4)}) as rig:
            rig.scanner.holding = True
            client = await rig.client()
            await client.start(RCPT)
            client.send(END)
            await until_true(lambda: rig.scanner.waiting)
            await asyncio.sleep(0.6)  # the scan takes longer than the client has
            rig.server.script["end"] = b"451 4.3.0 later\r\n"
            rig.scanner.waiting.pop()(rig.scanner.outcome)
            assert (await client.reply()).startswith(b"451")
            assert (await client.ask(MAIL)).startswith(b"250")

    on_loop(main())


def test_recipients_of_strangers_are_bounded(on_loop):
    """More than the limit are answered with 452, for the next message, and are no idle command."""

    async def main():
        async with Rig(STRANGERS | {"limits": limits(recipients=3, commands=6)}) as rig:
            client = await rig.client()
            await client.hello()
            assert (await client.ask(MAIL)).startswith(b"250")
            replies = [await client.ask(b"RCPT TO:<b@x.net>\r\n") for _ in range(20)]
            assert [text[:9] for text in replies] == [b"250 2.0.0"] * 3 + [b"452 4.5.3"] * 17
            assert (await client.ask(b"DATA\r\n")).startswith(b"354")
            assert (await client.ask(END)).startswith(b"250")

    on_loop(main())


def test_one_network_takes_no_more_connections_than_it_leaves_free(on_loop):
    """Many addresses of one network are one; the first of another network always finds room."""

    async def main():
        async with Rig(STRANGERS | {"limits": limits(connections=100, reserved=0.2)}) as rig:
            admission = rig.relay.state.connection_limits
            replies = [admission.refusal_for(f"198.51.100.{n}", trusted=False) for n in range(100)]
            assert replies.count(b"") == 40
            addresses = [f"2001:db8:{n:x}::1" for n in range(50)]
            replies = [admission.refusal_for(one, trusted=False) for one in addresses]
            assert replies.count(b"") == 40
            assert replies[-1].startswith(b"421 4.3.2")

    on_loop(main())


# -- the next hop ---------------------------------------------------------------------------------


def test_strangers_leave_connections_to_the_next_hop(on_loop):
    """Untrusted clients get a part of the connections; a trusted client always gets one."""

    async def main():
        few = limits(upstream_connections=10, reserved=0.2)
        async with Rig(STRANGERS | {"limits": few}) as rig:
            for network in range(20):
                rig.relay.state.connection_limits.counts.add(
                    f"upstream {rig.params.upstream}", network < 7
                )
            first, second = await rig.client(), await rig.client()
            assert (await first.hello()).startswith(b"250")
            await second.reply()
            assert (await second.ask(b"EHLO x\r\n")).startswith(b"421 4.7.0")
            await first.close()
            await until_true(lambda: rig.relay.open_sessions == 0)
            third = await rig.client()
            assert (await third.hello()).startswith(b"250")
            rig.apply_settings(peers=NetworkSet(("127.0.0.0/8",)))
            trusted = [await rig.client() for _ in range(20)]
            for client in trusted:
                assert (await client.hello()).startswith(b"250")

    on_loop(main())


def test_one_network_takes_no_more_of_the_next_hop_than_it_leaves_free(on_loop):
    """One that wants all gets half, and what it holds it gives back, however its sessions end."""

    async def main():
        few = limits(upstream_connections=10, reserved=0.0)
        async with Rig(STRANGERS | {"limits": few}) as rig:
            for _ in range(3):
                clients = [await rig.client() for _ in range(9)]
                replies = [await client.hello() for client in clients]
                assert [text[:3] for text in replies] == [b"250"] * 5 + [b"421"] * 4
                ways = [lambda c: c.abort(), lambda c: c.send(b"QUIT\r\n"), lambda c: c.send(MAIL)]
                for at, client in enumerate(clients):
                    ways[at % 3](client)
                for got in list(rig.server.transports)[:2]:
                    got.abort()
                for client in clients:
                    client.abort()
                await until_true(lambda: rig.relay.open_sessions == 0)
                assert (
                    rig.relay.state.connection_limits.counts.of(f"upstream {rig.params.upstream}")
                    == 0
                )

    on_loop(main())


def test_a_wide_network_is_what_one_customer_can_have():
    """A wide network has 24 bits of IPv4, also of mapped addresses, and 48 bits of IPv6."""
    same = [("192.0.2.1", "192.0.2.255"), ("::ffff:192.0.2.9", "192.0.2.1")]
    same += [("2001:db8:0:1::1", "2001:db8:0:ffff::2%eth0"), ("unix", "unix")]
    for one, other in same:
        assert wide_network_of(one) == wide_network_of(other)
    assert wide_network_of("192.0.2.1") != wide_network_of("192.0.3.1")
    assert wide_network_of("2001:db8:1::") != wide_network_of("2001:db8:2::")


def test_idle_strangers_go_first_when_the_next_hop_is_busy(on_loop):
    """A client without a message is disconnected first; a client that sends one stays."""

    async def main():
        few = {"limits": limits(upstream_connections=4, reserved=0.0, busy_share=0.5)}
        brief = {"times": times(first_mail_s=0.3, first_mail_busy_s=0.3)}
        async with Rig(STRANGERS | few | brief) as rig:
            rig.relay.state.connection_limits.counts.add(f"upstream {rig.params.upstream}")
            busy, idle = await rig.client(), await rig.client()
            await busy.start(RCPT)
            await idle.hello()
            assert (await idle.ask(MAIL)).startswith(b"250")
            assert (await idle.ended()).startswith(b"421 4.4.2")
            assert (await busy.ask(END)).startswith(b"250")

    on_loop(main())


def test_the_slowest_goes_when_another_network_finds_no_connection(on_loop):
    """A client of a network without connections is refused once; then the slowest message ends."""

    async def main():
        few = {"limits": limits(upstream_connections=2, reserved=0.0, busy_share=1.0)}
        async with Rig(STRANGERS | few | {"times": times(data_busy_s=0.2, sweep_s=0.05)}) as rig:
            fast, slow = await rig.client(), await rig.client()
            await fast.start(RCPT)
            rig.relay.state.connection_limits.counts.add(
                f"upstream {rig.params.upstream} 127.0.0", -1
            )
            await slow.start(RCPT)
            fast.send(b"Subject: x\r\n\r\n" + LINES * 100)
            slow.send(b"Subject: x\r\n")
            sides, now = list(rig.relay.state.connections), asyncio.get_running_loop().time
            await until_true(lambda: max(side.session.transfer.size for side in sides) > 700_000)
            await until_true(
                lambda: min(now() - side.session.transfer.rate.began for side in sides) > 0.2
            )
            rig.relay.state.connection_limits.counts.add(
                f"upstream {rig.params.upstream} 127.0.0", -1
            )
            word = asyncio.ensure_future(slow.reply())
            replies = b""
            while not replies.startswith(b"250"):
                other = await rig.client()
                replies = await other.hello()
                assert replies.startswith((b"250", b"421 4.3.2"))
                slow.send(b"x" * 50)
                await asyncio.sleep(0.05)
            assert (await word).startswith(b"421 4.4.2 Data arrives too slowly")
            assert (await fast.ask(END)).startswith(b"250")
            rig.relay.state.connection_limits.counts.add(
                f"upstream {rig.params.upstream} 127.0.0", 2
            )

    on_loop(main())


# -- memory ---------------------------------------------------------------------------------------


def test_strangers_leave_memory_to_trusted_clients():
    """Only trusted clients use the reserve; of the other memory they may use what is free."""
    budget = MemoryBudget(1000_000, reserved=0.2)
    trusted, strangers = budget.shares[True], budget.shares[False]
    one, other = Held(), Held()
    strangers.take(800_001, one, 800_001)
    strangers.take(1, other, 100_000)
    assert (one.is_paused, other.is_paused) == (False, True)  # the head goes on
    mine, third = Held(), Held()
    trusted.take(199_999, mine, 199_999)
    trusted.take(1, third, 100_000)
    assert (mine.is_paused, third.is_paused) == (False, False)
    trusted.take(2, mine, 200_001)
    trusted.take(1, third, 100_001)
    assert third.is_paused
    strangers.give(800_001)
    assert (third.is_paused, other.is_paused) == (False, False)
    trusted.take(700_000, mine, 900_000)
    assert not trusted.is_beyond()


def test_the_highest_memory_cost_is_shed_first():
    """While readers wait a sixteenth is freed in a second, least of what came last or is small."""
    budget = MemoryBudget(1600_000)
    share = budget.shares[False]
    readers = [Held(share, memory_cost) for memory_cost in (3.0, 9.0, 0.0, 6.0)]
    for reader in readers:
        share.take(reader.size, reader, reader.size)
    share.rotate(1.0)
    assert not any(reader.is_shed for reader in readers)  # no reader waits
    late = Held(share)
    share.take(100_000, late, 100_000)
    share.take(100_000, readers[0], 500_000)
    share.rotate(2.0)
    assert [reader.is_shed for reader in readers] == [False, True, False, False]
    share.rotate(2.1)
    assert sum(reader.is_shed for reader in readers) == 1


class Held:
    """A reader that records the calls of the budget."""

    def __init__(self, share=None, memory_cost=0.0, size=400_001):
        self.share, self.its_burden, self.size = share, memory_cost, size
        self.is_paused = self.is_shed = False

    def pause_for_memory(self):
        self.is_paused = True

    def resume_after_memory(self):
        self.is_paused = False

    def memory_cost(self, _now):
        return self.its_burden

    def shed(self):
        self.is_shed = True
        self.share.forget(self)
        self.share.give(self.size)
        return self.size


def test_a_large_first_part_does_not_protect_a_client_that_stalls(on_loop):
    """A client that stalls after much is ended when the memory is short; a steady one stays."""

    async def main():
        brief = {"times": times(data_busy_s=0.5, sweep_s=0.05)}
        async with Rig(brief, budget=MemoryBudget(1_200_000)) as rig:
            stalled, steady = await rig.client(), await rig.client()
            await stalled.start()
            stalled.send(b"Subject: x\r\n\r\n" + LINES * 140)
            await steady.start()
            steady.send(b"Subject: x\r\n\r\n")
            word = asyncio.ensure_future(stalled.reply())
            while not word.done():
                stalled.send(b"x")
                steady.send(b"x" * 98 + b"\r\n")
                await asyncio.sleep(0.02)
            assert (await word).startswith(b"421 4.4.2 Data arrives too slowly")
            assert (await steady.ask(END)).startswith(b"250")
            assert [line["action"] for line in rig.messages] == ["shed", "relay"]

    on_loop(main())


def test_a_trusted_client_does_not_wait_for_the_memory_of_strangers(on_loop):
    """Its message comes in while messages of strangers fill their share and stall."""

    async def main():
        brief = {"times": times(data_busy_s=60.0)}
        budget = MemoryBudget(500_000, reserved=0.2)
        async with Rig(STRANGERS | brief, budget=budget) as rig:
            stalled = [await rig.client() for _ in range(5)]
            for client in stalled:
                await client.start(RCPT)
                client.send(b"Subject: x\r\n\r\n" + LINES * 14)
            await until_true(lambda: rig.paused)
            rig.apply_settings(peers=NetworkSet(("127.0.0.0/8",)))
            trusted = await rig.client()
            await trusted.start()
            trusted.send(b"Subject: x\r\n\r\n" + LINES * 10)
            assert (await trusted.ask(END)).startswith(b"250")
            for client in stalled:
                client.abort()

    on_loop(main())


# -- counts ---------------------------------------------------------------------------------------


def test_counts_are_never_too_small():
    """Whatever keys share cells, each count is at least what was added under its key."""
    counts = ConnectionCounts.alone()
    for key in range(20_000):
        counts.add(f"client {key}", 1 + key % 3)
    assert all(counts.of(f"client {key}") >= 1 + key % 3 for key in range(20_000))
    for key in range(20_000):
        counts.add(f"client {key}", -1 - key % 3)
    assert counts.of("client 7") == 0
