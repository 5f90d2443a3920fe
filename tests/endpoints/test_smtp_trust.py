"""Rules for connections, recipients and XFORWARD, each with a peer that breaks it."""

import asyncio
import socket
import struct

import pytest
from support.relay import MESSAGE, OFFERS, Rig, Server, limits, times
from support.waiting import until_true

from spamnb.net.actions import STUCK
from spamnb.net.address import SIGNATURE, NetworkSet

STRANGERS = {"peers": NetworkSet(("192.0.2.0/24",)), "recipient_domains": frozenset(("x.net",))}
"""loopback is a stranger; 192.0.2.0/24 is trusted"""
END = MESSAGE + b"\r\n.\r\n"


def xforwarding():
    return Server(offers=(*OFFERS, "XFORWARD NAME ADDR HELO IDENT SOURCE"))


def test_strangers_may_not_connect(on_loop):
    """Without recipient domains, an untrusted client is rejected immediately."""

    async def main():
        async with Rig({"peers": NetworkSet(("192.0.2.0/24",))}) as rig:
            for _ in range(20):
                client = await rig.client()
                assert (await client.reply()).startswith(b"554 5.7.1")
                assert await client.ended() == b""
            assert rig.server.connections == []
            assert rig.meters.value("connections_refused") == 20
            lines = [line for line in rig.log if line["event"] == "turned-away"]
            assert lines[0]["code"] == 554
            assert len(lines) < 5

    on_loop(main())


@pytest.mark.parametrize(
    "path",
    [
        b"<v@evil.example>", b"<v%evil.example@x.net>", b"<evil.example!v@x.net>",
        b"<@x.net:v@evil.example>", b"<@x.net,@y:v@evil.example>", b'<"v@evil.example"@x.net>',
        b'<"v%evil.example"@x.net>', b"<v@x.net@evil.example>", b"<v@evil.example@x.net>", b"<v>",
        b"v@x.net", b"<v@x.net", b"<v@x.net> <v@evil>x", b"<>", b"<v@[127.0.0.1]>",
        b"<v@x.net.evil>", b"<v@x.net\t>", b"<v\\@evil.example@x.net>", b"<v@x.net>\x7f",
        b"<evil=40y@evil.example>",
    ],
)  # fmt: skip
def test_strangers_send_to_our_domains_only(on_loop, path):
    """Whatever some server could take for a route to a third domain is refused."""

    async def main():
        async with Rig(STRANGERS) as rig:
            client = await rig.client()
            await client.hello()
            await client.ask(b"MAIL FROM:<a@b>\r\n")
            reply = await client.ask(b"RCPT TO:" + path + b"\r\n")
            assert reply.startswith(b"550 5.7.1"), path
            assert b"RCPT" not in rig.server.verbs

    on_loop(main())


@pytest.mark.parametrize(
    "path",
    [
        b"<v@x.net>", b"<V.W+tag@X.Net>", b'<"v w"@x.net>', b"<postmaster>", b"<PostMaster>",
        b"<=?utf-8?q?v=40evil?=@x.net>", "<jürgen@x.net>".encode(), b"<v@x.net> NOTIFY=NEVER",
    ],
)  # fmt: skip
def test_strangers_reach_our_domains(on_loop, path):
    """Recipients in the site's domains are forwarded unchanged."""

    async def main():
        async with Rig(STRANGERS) as rig:
            client = await rig.client()
            await client.hello()
            await client.ask(b"MAIL FROM:<a@b>\r\n")
            assert (await client.ask(b"RCPT TO:" + path + b"\r\n")).startswith(b"250")
            assert rig.server.connections[0].commands[-1] == b"RCPT TO:" + path

    on_loop(main())


def test_an_untrusted_client_may_not_use_xforward(on_loop):
    """XFORWARD is neither offered to them nor taken from them."""

    async def main():
        async with Rig(STRANGERS, server=xforwarding()) as rig:
            client = await rig.client()
            assert b"XFORWARD" not in await client.hello()
            reply = await client.ask(b"XFORWARD ADDR=192.0.2.1\r\n")
            assert reply.startswith(b"550 5.7.1")
            assert b"XFORWARD" not in rig.server.verbs
            await client.envelope(b"<v@x.net>")
            await client.ask(END)
            assert rig.messages[0]["client"] == "127.0.0.1"

    on_loop(main())


def test_trusted_peers_tell_of_their_clients(on_loop):
    """XFORWARD goes on as it came, is read for the log, and is forgotten after each message."""

    async def main():
        async with Rig({}, server=xforwarding()) as rig:
            client = await rig.client()
            assert b"250 XFORWARD NAME ADDR HELO IDENT SOURCE\r\n" in await client.hello()
            first = b"XFORWARD NAME=[UNAVAILABLE] ADDR=IPV6:2001:db8::1"
            second = b"XFORWARD HELO=mx+2Ex.org IDENT=4QF+0D+0A SOURCE=REMOTE"
            for line in (first, second):
                assert (await client.ask(line + b"\r\n")).startswith(b"250")
            await client.envelope()
            assert (await client.ask(b"XFORWARD ADDR=1.1.1.1\r\n.\r\n")).startswith(b"250")
            await client.envelope()
            assert (await client.ask(b"x\r\n.\r\n")).startswith(b"250")
            assert rig.server.connections[0].commands[1:3] == [first, second]
            peer = rig.scanner.requests[0].envelope.client
            assert (peer.address, peer.name) == ("2001:db8::1", "")
            assert (peer.helo, peer.ident, peer.source) == (
                "mx.x.org",
                "4QF{U+000D}{U+000A}",
                "REMOTE",
            )
            assert [line["client"] for line in rig.messages] == ["2001:db8::1", "127.0.0.1"]
            # Within a transaction it has no place.
            await client.ask(b"MAIL FROM:<>\r\n")
            assert (await client.ask(first + b"\r\n")).startswith(b"503")

    on_loop(main())


# -- PROXY ----------------------------------------------------------------------------------------

PROXIED = {
    "proxies": NetworkSet(("127.0.0.1",)),
    "peers": NetworkSet(("192.0.2.0/24", "2001:db8::/32")),
}


def version2(command, family, payload):
    return SIGNATURE + struct.pack("!BBH", 0x20 | command, family, len(payload)) + payload


FOUR = bytes((192, 0, 2, 9, 127, 0, 0, 1)) + struct.pack("!HH", 9, 25)
SIX = bytes.fromhex("20010db8" + "00" * 11 + "07") + bytes(16) + struct.pack("!HH", 9, 25)
HEADERS = {
    "v1 TCP4": (b"PROXY TCP4 192.0.2.9 127.0.0.1 9 25\r\n", "192.0.2.9"),
    "v1 TCP6": (b"PROXY TCP6 2001:db8::7 ::1 9 25\r\n", "2001:db8::7"),
    "v2 TCP4": (version2(1, 0x11, FOUR), "192.0.2.9"),
    "v2 TCP4 and TLVs": (version2(1, 0x11, FOUR + b"\x04\0\1x"), "192.0.2.9"),
    "v2 TCP6": (version2(1, 0x21, SIX), "2001:db8::7"),
}
NOBODY = {
    "v1 UNKNOWN": b"PROXY UNKNOWN\r\n",
    "v1 stranger": b"PROXY TCP4 127.0.0.1 127.0.0.1 9 25\r\n",
    "v2 LOCAL": version2(0, 0, b""),
    "v2 UNSPEC": version2(1, 0, b"abc"),
    "v2 UNIX": version2(1, 0x31, bytes(216)),
}
BROKEN = {
    "none": b"EHLO x\r\n",
    "lower case": b"proxy TCP4 192.0.2.9 127.0.0.1 9 25\r\n",
    "no address": b"PROXY TCP4 192.0.2.999 127.0.0.1 9 25\r\n",
    "wrong family": b"PROXY TCP6 192.0.2.9 127.0.0.1 9 25\r\n",
    "port": b"PROXY TCP4 192.0.2.9 127.0.0.1 9 65536\r\n",
    "endless": b"PROXY TCP4 " + b"1" * 200,
    "version": SIGNATURE + b"\x31\x11\0\x0c" + FOUR,
    "command": SIGNATURE + b"\x22\x11\0\x0c" + FOUR,
    "short": version2(1, 0x11, FOUR[:8]),
    "family": version2(1, 0x41, bytes(300)),
    "too long": version2(1, 0x11, FOUR + bytes(5000)),
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("size", [1, 1000], ids=["bytewise", "whole"])
def test_a_proxy_names_its_client(on_loop, name, size):
    """Trust and log use the address in the PROXY header; the relay sends nothing before it."""
    header, address = HEADERS[name]

    async def main():
        async with Rig(PROXIED) as rig:
            client = await rig.client()
            for at in range(0, len(header), size):
                client.send(header[at : at + size])
                await asyncio.sleep(0)
            await client.start()
            assert (await client.ask(END)).startswith(b"250")
            (line,) = rig.messages
            assert (line["client"], line["peer"]) == (address, "127.0.0.1")

    on_loop(main())


@pytest.mark.parametrize("name", NOBODY)
def test_a_proxy_line_without_a_trusted_client(on_loop, name):
    """The socket's address does not count: neither loopback nor a missing address is trusted."""

    async def main():
        async with Rig(PROXIED) as rig:
            client = await rig.client()
            client.send(NOBODY[name])
            assert (await client.reply()).startswith(b"554 5.7.1")

    on_loop(main())


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_proxy_header_ends_the_session(on_loop, name):
    """Without a valid PROXY header the relay neither greets nor connects to the next hop."""

    async def main():
        async with Rig(PROXIED) as rig:
            client = await rig.client()
            client.send(BROKEN[name])
            assert await client.ended() in {
                b"421 4.3.2 PROXY protocol header missing or invalid\r\n",
                b"",
            }
            assert rig.meters.value("connections_refused") == 1
            assert rig.server.connections == []

    on_loop(main())


def test_only_listed_proxies_may_connect(on_loop):
    """A client that is no listed proxy could name a trusted address, so it is refused."""

    async def main():
        async with Rig(PROXIED | {"proxies": NetworkSet(("192.0.2.1",))}) as rig:
            client = await rig.client()
            client.send(HEADERS["v1 TCP4"][0])
            assert await client.ended() in {
                b"554 5.7.1 Access denied: this client may not connect\r\n",
                b"",
            }

    on_loop(main())


def test_a_silent_proxy_is_shed(on_loop):
    """A connection without a PROXY header is closed after 5 seconds."""

    async def main():
        async with Rig(PROXIED | {"times": times(proxy_s=0.1)}) as rig:
            client = await rig.client()
            client.send(b"PROXY TC")
            assert (await client.ended()).startswith(b"421 4.4.2")

    on_loop(main())


# -- limits ---------------------------------------------------------------------------------------


def test_a_silent_client_costs_no_next_hop_and_is_shed(on_loop):
    """Until the first MAIL a client has 30 s, whatever other commands it sends."""

    async def main():
        async with Rig({"times": times(first_mail_s=0.3)}) as rig:
            silent, chatty = await rig.client(), await rig.client()
            await silent.reply()
            await chatty.reply()
            while (await chatty.ask(b"NOOP\r\n")).startswith(b"250"):  # noqa: ASYNC110 - its pace
                await asyncio.sleep(0.02)
            assert (await silent.ended()).startswith(b"421 4.4.2 Timeout")
            assert rig.server.connections == []

    on_loop(main())


def test_a_slow_body_is_shed(on_loop):
    """Each read of a message has its time; then 421, and the next hop gets no end."""

    async def main():
        async with Rig({"times": times(data_s=0.15)}) as rig:
            client = await rig.client()
            await client.start()
            client.send(b"Subject: x\r\n\r\nhalf")
            assert (await client.reply()).startswith(b"421 4.4.2")
            assert rig.server.messages == []
            assert rig.messages[0]["action"] == "timeout"
            await until_true(lambda: rig.server.connections[0].closed)

    on_loop(main())


def test_an_endless_line_is_shed(on_loop):
    """A line without an end is not stored, gets one reply, and ends the connection."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.hello()
            client.send(b"MAIL FROM:<" + b"x" * 1_000_000)
            await until_true(lambda: not rig.relay.open_sessions)
            assert set(rig.server.verbs) <= {b"EHLO", b"QUIT"}

    on_loop(main())


def test_a_long_line_is_answered_once(on_loop):
    """Text after the end of a long line is read as the next command."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.hello()
            assert (await client.ask(b"MAIL FROM:<" + b"x" * 100_000)).startswith(b"500 5.5.2")
            assert (await client.ask(b"tail>\r\nNOOP\r\n")).startswith(b"250 2.0.0 Ok\r\n")

    on_loop(main())


def test_a_client_that_only_errs_is_shed(on_loop):
    """After a number of invalid commands, 100 by default, the connection is closed."""

    async def main():
        async with Rig({"limits": limits(errors=10)}) as rig:
            client = await rig.client()
            await client.hello()
            client.send(b"JUNK\r\n" * 50)
            replies = await client.ended()
            assert replies.count(b"502") == 10
            assert replies.endswith(b"421 4.7.0 Too many errors, closing connection\r\n")

    on_loop(main())


def test_connections_of_one_stranger_are_few(on_loop):
    """Fifty for an address; those of trusted peers are not counted. A leaver makes room."""

    async def main():
        async with Rig(STRANGERS | {"limits": limits(connections_an_address=3)}) as rig:
            first = [await rig.client() for _ in range(3)]
            for client in first:
                assert (await client.reply()).startswith(b"220")
            assert (await (await rig.client()).reply()).startswith(b"421 4.7.0")
            await first[0].close()
            await until_true(lambda: rig.relay.open_sessions == 2)
            assert (await (await rig.client()).reply()).startswith(b"220")
        async with Rig({"limits": limits(connections_an_address=1)}) as rig:
            for _ in range(5):
                assert (await (await rig.client()).reply()).startswith(b"220")

    on_loop(main())


def test_a_customer_with_many_ipv6_addresses_is_one(on_loop):
    """Connections are counted by /64, which is what one customer has."""

    async def main():
        async with Rig(STRANGERS | {"limits": limits(connections_an_address=3)}) as rig:
            admission = rig.relay.state.connection_limits
            replies = [admission.refusal_for(f"2001:db8::{n:x}", trusted=False) for n in range(5)]
            assert [text[:3] for text in replies] == [b"", b"", b"", b"421", b"421"]
            assert admission.refusal_for("2001:db8:0:1::1", trusted=False) == b""
            assert admission.refusal_for("::ffff:192.0.2.1", trusted=False) == b""

    on_loop(main())


def test_connections_in_all_are_bounded(on_loop):
    """Above the limit 421, also for trusted peers; near it, silent ones make room early."""

    async def main():
        changes = {"limits": limits(connections=5), "times": times(first_mail_busy_s=0.2)}
        async with Rig(changes) as rig:
            busy = await rig.client()
            await busy.start()
            idle = [await rig.client() for _ in range(4)]
            for client in idle:
                assert (await client.reply()).startswith(b"220")
            assert (await (await rig.client()).reply()).startswith(b"421 4.3.2")
            await until_true(lambda: rig.relay.open_sessions <= 4)
            assert (await (await rig.client()).reply()).startswith(b"220")
            assert (await busy.ask(END)).startswith(b"250")

    on_loop(main())


@pytest.mark.parametrize("crowd", [True, False])
def test_a_byte_now_and_then_is_no_message_where_others_wait(on_loop, crowd):
    """Each byte renews the time of a read; in a crowd the rate counts, and honest ones stay."""

    async def main():
        changes = {
            "limits": limits(connections=5 if crowd else 50),
            "times": times(data_busy_s=0.5, sweep_s=0.05),
        }
        async with Rig(changes) as rig:
            slow, fast = [await rig.client() for _ in range(2)]
            for client in slow, fast:
                await client.start()
                client.send(b"Subject: x\r\n\r\n")
            others = [await rig.client() for _ in range(3)]
            for client in others:
                assert (await client.reply()).startswith(b"220")
            word = asyncio.ensure_future(slow.reply())
            for _ in range(75):
                if word.done():
                    break
                slow.send(b"x")
                fast.send(b"x" * 98 + b"\r\n")
                await asyncio.sleep(0.02)
            else:
                slow.send(b"\r\n" + END)
            assert (await fast.ask(END)).startswith(b"250")
            assert (await word).startswith(b"421" if crowd else b"250")

    on_loop(main())


def test_what_we_hold_back_is_not_held_against_the_client(on_loop):
    """Its time starts again when it is read again, also while resources are short."""

    async def main():
        brief = times(data_busy_s=0.4, sweep_s=0.05)
        changes = {"limits": limits(connections=5), "times": brief}
        async with Rig(changes) as rig:
            client = await rig.client()
            await client.start()
            client.send(b"Subject: x\r\n\r\n")
            (side,) = rig.relay.state.connections
            others = [await rig.client() for _ in range(4)]
            for other in others:
                assert (await other.reply()).startswith(b"220")
            side.pause_for_memory()
            await asyncio.sleep(1.0)
            side.resume_after_memory()
            for _ in range(30):
                client.send(b"x" * 98 + b"\r\n")
                await asyncio.sleep(0.02)
            assert (await client.ask(END)).startswith(b"250")

    on_loop(main())


def test_a_client_that_reads_no_replies_gets_no_more_time_for_a_message(on_loop):
    """The client causes the pause by not reading replies, so the time for DATA goes on."""

    async def main():
        async with Rig({"times": times(data_s=0.3)}) as rig:
            client = await rig.client()
            await client.start()
            client.send(b"Subject: x\r\n")
            (side,) = rig.relay.state.connections
            side.pause_writing()
            await until_true(lambda: rig.relay.open_sessions == 0)

    on_loop(main())


def test_a_client_that_does_not_read_is_not_read(on_loop):
    """Unread replies do not accumulate."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.hello()
            client.writer.transport.pause_reading()
            (side,) = rig.relay.state.connections
            # Buffers of replies alone: the commands would stall for minutes in small ones.
            for transport, buffer in (
                (side._transport, socket.SO_SNDBUF),
                (client.writer.transport, socket.SO_RCVBUF),
            ):
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, buffer, 4096)
            client.send(b"NOOP\r\n" * 200_000)
            await until_true(lambda: side.session.output.paused & STUCK)
            assert side._transport.get_write_buffer_size() < 200_000
            client.abort()

    on_loop(main())
