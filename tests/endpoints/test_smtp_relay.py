"""The relay forwards the same bytes, stored or streamed."""

import asyncio
import random
import re

import pytest
from support.relay import MESSAGE, Rig, Server, StubScanner, stuffed, times
from support.waiting import until_true
from test_smtp_wire import ENDINGS

from spamnb.net.server import MemoryBudget
from spamnb.scan.values import ScanResult

ADDED = (("X-Spam-Flag", "NO"),)
BLOCK = b"X-Spam-Flag: NO\r\n"
SMALL = {"scan_limit_bytes": 3000, "header_limit_bytes": 2000}
"""so that small messages are stored and large ones streamed"""


def test_a_message_arrives_with_its_envelope_byte_for_byte(on_loop):
    """MAIL, RCPT and the message reach the next hop as they came; its reply is the client's."""

    async def main():
        async with Rig({}, StubScanner(ScanResult(add=ADDED, facts={"p": 1}))) as rig:
            client = await rig.client()
            offered = await client.hello()
            assert offered.startswith(b"250-relay.example\r\n")
            assert b"250-SIZE 10240000\r\n" in offered
            mail = b"mail from:<A@Example.org> SIZE=100 ENVID=q+3Dx"
            assert (await client.ask(mail + b"\r\n")).startswith(b"250")
            assert (await client.ask(b"RCPT TO:<b@x.net> NOTIFY=NEVER\r\n")).startswith(b"250")
            assert (await client.ask(b"DATA\r\n")) == b"354 go\r\n"
            reply = await client.ask(stuffed(MESSAGE) + b".\r\n")
            assert reply == b"250 2.0.0 Ok: queued as 4ABC\r\n"
            assert (await client.ask(b"QUIT\r\n")).startswith(b"221")
            got = rig.server.connections[0]
            await until_true(lambda: got.closed)
            assert got.commands == [
                b"EHLO client.example",
                mail,
                b"RCPT TO:<b@x.net> NOTIFY=NEVER",
                b"DATA",
                b"QUIT",
            ]
            assert got.messages == [BLOCK + stuffed(MESSAGE)]
            request = rig.scanner.requests[0]
            assert request.raw == MESSAGE
            assert request.whole
            assert request.before_queue
            assert request.envelope.sender == "A@Example.org"
            assert request.envelope.recipients == ("b@x.net",)
            assert request.envelope.rcpt_lines == (b"RCPT TO:<b@x.net> NOTIFY=NEVER",)
            (line,) = rig.messages
            assert line["upstream_id"] == "4ABC"
            assert (line["code"], line["action"], line["p"]) == (250, "relay", 1)
            assert rig.meters.value("messages") == 1

    on_loop(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_next_hop_on_this_host_is_called(on_loop, host):
    """By its number or by its name, and again after a message that was kept from it."""

    async def main():
        async with Rig({}, StubScanner(ScanResult("keep")), Server(host=host)) as rig:
            client = await rig.client()
            await client.hello()
            for outcome in (ScanResult("keep"), ScanResult()):
                rig.scanner.outcome = outcome
                for step in (b"MAIL FROM:<a@x.org>", b"RCPT TO:<b@x.net>", b"DATA"):
                    assert (await client.ask(step + b"\r\n"))[:1] in b"23"
                assert (await client.ask(stuffed(MESSAGE) + b".\r\n")).startswith(b"250")
            assert len(rig.server.connections) == 2
            assert len(rig.server.messages) == 1

    on_loop(main())


def a_message(chance):
    """A message of dotted lines, stored or streamed by its length; the wire form is `stuffed`."""
    header = b"".join(b"X-%d: %s\r\n" % (i, b"v" * chance.randrange(40)) for i in range(5))
    lines = [
        chance.choice([b"", b".", b"..", b".x", b"x" * chance.randrange(900), b"\0", b"\xff."])
        for _ in range(chance.choice([0, 3, 30, 300]))
    ]
    return header + b"\r\n" + b"".join(line + b"\r\n" for line in lines)


async def send_cut(client, data, chance):
    """Send bytes in random pieces, so that the other side sees them arrive so."""
    while data:
        cut = chance.choice([1, 2, 3, 50, 4000, 100000])
        client.send(data[:cut])
        data = data[cut:]
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(4))
def test_random_messages_arrive_byte_for_byte(on_loop, seed):
    """Dotted bodies, random cuts, pipelined commands, several messages a session, both paths."""
    chance = random.Random(seed)

    async def session(rig):
        client = await rig.client()
        await client.hello()
        sent = []
        for _ in range(3):
            message = a_message(chance)
            commands = b"MAIL FROM:<>\r\nRCPT TO:<b@x.net>\r\nDATA\r\n"
            await send_cut(client, commands, chance)
            replies = [await client.reply() for _ in range(3)]
            assert [reply[:3] for reply in replies] == [b"250", b"250", b"354"]
            await send_cut(client, stuffed(message) + b".\r\nNOOP\r\n", chance)
            assert (await client.reply()).startswith(b"250 2.0.0 Ok: queued")
            assert (await client.reply()).startswith(b"250")
            sent.append(BLOCK + stuffed(message))
        assert (await client.ask(b"QUIT\r\n")).startswith(b"221")
        return sent

    async def main():
        async with Rig(SMALL, StubScanner(ScanResult(add=ADDED))) as rig:
            sent = await asyncio.gather(*(session(rig) for _ in range(6)))
            assert sorted(rig.server.messages) == sorted(m for each in sent for m in each)
            assert {request.whole for request in rig.scanner.requests} == {True, False}
            assert len(rig.messages) == 18

    on_loop(main())


@pytest.mark.parametrize("changes", [{}, SMALL], ids=["stored", "streamed"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_smuggled_endings_stay_data(on_loop, changes, ending):
    """What ends no message here can end none at the next hop, whatever it takes for an end."""
    smuggled = b"MAIL FROM:<evil@x.org>\r\nRCPT TO:<v@x.net>\r\nDATA\r\nSubject: s\r\n\r\nspam"
    body = b"Subject: x\r\n\r\n" + (b"y" * 70 + b"\r\n") * 60 + b"z" + ending + smuggled

    async def main():
        async with Rig(changes) as rig:
            for chance in (None, random.Random(1)):
                client = await rig.client()
                assert (await client.start()).startswith(b"354")
                if chance is None:
                    client.send(body + b"\r\n.\r\n")
                else:
                    await send_cut(client, body[:-200], chance)
                    for byte in body[-200:] + b"\r\n.\r\n":
                        client.send(bytes([byte]))
                        await asyncio.sleep(0)
                assert (await client.reply()).startswith(b"250 2.0.0 Ok: queued")
            assert rig.server.verbs.count(b"MAIL") == 2
            for message in rig.server.messages:
                assert smuggled in message
                assert not re.search(rb"\r(?!\n)|(?<!\r)\n", message)
                assert b"." not in re.split(rb"\r\n|\r|\n", message)

    on_loop(main())


@pytest.mark.parametrize("changes", [{}, SMALL], ids=["stored", "streamed"])
def test_bare_newlines_are_refused_where_asked(on_loop, changes):
    """The other policy: 550 at the end, and the next hop gets no complete message."""

    async def main():
        async with Rig(changes | {"bare_newlines": "refuse"}) as rig:
            client = await rig.client()
            assert (await client.start()).startswith(b"354")
            client.send(b"Subject: x\r\n\r\n" + b"y\r\n" * 2000 + b"bare\nhere\r\n")
            reply = await client.ask(b"more\r\n.\r\n")
            assert reply.startswith(b"550 5.5.2")
            assert rig.server.messages == []
            # The session goes on, with a new connection to the next hop.
            assert (await client.envelope()).startswith(b"354")
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"250")
            assert len(rig.server.connections) == 2
            assert rig.server.connections[1].verbs == [b"EHLO", b"MAIL", b"RCPT", b"DATA"]
            assert [line["code"] for line in rig.messages] == [550, 250]

    on_loop(main())


def test_bare_newlines_never_bounce_after_the_queue(on_loop):
    """After the queue a 5xx would make a bounce: such a message is normalised."""

    async def main():
        async with Rig({"bare_newlines": "refuse", "queue": "after"}) as rig:
            client = await rig.client()
            await client.start()
            assert (await client.ask(b"a\nb\r\n.\r\n")).startswith(b"250")
            assert rig.server.messages == [b"a\r\nb\r\n"]

    on_loop(main())


def test_long_lines_pass(on_loop):
    """Lines of 5,000 bytes are no fault of the sender's; nothing is folded or refused."""
    body = b"Subject: " + b"s" * 5000 + b"\r\n\r\n" + (b"l" * 5000 + b"\r\n") * 3

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.start()
            assert (await client.ask(body + b".\r\n")).startswith(b"250")
            assert rig.server.messages == [body]

    on_loop(main())


@pytest.mark.parametrize(
    "body",
    [b"", b"\r\n", b"no header\r\n", b" begins with a blank\r\n\r\nx\r\n", b".\t\r\n", b"..\r\n"],
)
def test_odd_beginnings_cannot_join_our_lines(on_loop, body):
    """Empty messages and those without header keep their bytes, below the added block."""

    async def main():
        async with Rig({}, StubScanner(ScanResult(add=ADDED))) as rig:
            client = await rig.client()
            await client.start()
            assert (await client.ask(body + b".\r\n")).startswith(b"250")
            (message,) = rig.server.messages
            assert message.startswith(BLOCK)
            assert message.endswith(body)
            between = message[len(BLOCK) : len(message) - len(body)]
            assert between in {b"", b"\r\n"}
            assert not message[len(BLOCK) :].startswith((b" ", b"\t", b"."))

    on_loop(main())


@pytest.mark.parametrize("changes", [{}, SMALL], ids=["stored", "streamed"])
def test_forged_verdicts_are_removed(on_loop, changes):
    """Forged copies are removed also with bypass, while streaming, and behind a stuffed dot."""
    forged = b"Subject: x\r\nX-Spam-Flag: NO\r\n.X-Spamnb-Verdict: ham\r\nTo: b\r\n\r\n"
    body = b"X-Spam-Flag: stays\r\n" * 500

    async def main():
        async with Rig(changes) as rig:
            client = await rig.client()
            await client.start()
            assert (await client.ask(forged + body + b".\r\n")).startswith(b"250")
            assert rig.server.messages == [b"Subject: x\r\nTo: b\r\n\r\n" + body]

    on_loop(main())


@pytest.mark.parametrize("changes", [{}, SMALL], ids=["stored", "streamed"])
def test_marks_of_a_filter_in_front_stay(on_loop, changes):
    """Behind another filter only forged copies of this program's own fields are removed."""
    marks = b"Subject: x\r\nX-Spam-Flag: YES\r\nX-Spam-Status: Yes, score=9\r\n"
    body = b"text\r\n" * 500

    async def main():
        async with Rig(changes | {"other": "spamassassin"}) as rig:
            client = await rig.client()
            await client.start()
            forged = b"X-Spamnb-Verdict: ham\r\n.x-spamnb-signature: s1\r\n\r\n"
            assert (await client.ask(marks + forged + body + b".\r\n")).startswith(b"250")
            assert rig.server.messages == [marks + b"\r\n" + body]

    on_loop(main())


def test_a_large_message_streams_and_is_marked(on_loop):
    """The scanner gets its first bytes; the block comes before the first byte of the message."""
    body = b"Subject: x\r\n\r\n" + (b"y" * 70 + b"\r\n") * 20000

    async def main():
        async with Rig({}, StubScanner(ScanResult(add=ADDED, tag=b"[?]"))) as rig:
            client = await rig.client()
            await client.start()
            client.send(body)
            assert (await client.ask(b".\r\n")).startswith(b"250 2.0.0 Ok: queued")
            (request,) = rig.scanner.requests
            assert (request.raw, request.whole) == (body[: rig.params.scan_limit_bytes], False)
            assert rig.server.messages == [BLOCK + b"Subject: [?] x" + body[10:]]
            assert rig.messages[0]["size"] == len(body)

    on_loop(main())


def test_a_large_message_is_judged_by_its_head(on_loop):
    """By default the first bytes are scanned, exactly as many as the limit allows."""
    body = b"Subject: x\r\n\r\n" + (b"y" * 70 + b"\r\n") * 200

    async def main():
        async with Rig(SMALL, StubScanner(ScanResult("refuse"))) as rig:
            client = await rig.client()
            await client.start()
            assert (await client.ask(body + b".\r\n")).startswith(b"550 5.7.1 Message rejected")
            (request,) = rig.scanner.requests
            assert (request.raw, request.whole) == (body[:3000], False)
            assert rig.server.messages == []

    on_loop(main())


@pytest.mark.parametrize(("queue", "reply"), [("before", b"552 5.3.4"), ("after", b"451")])
def test_a_header_above_the_limit_is_not_taken(on_loop, queue, reply):
    """A header section of 1 MB is neither stored nor passed uncleaned."""

    async def main():
        async with Rig({"queue": queue}) as rig:
            client = await rig.client()
            await client.start()
            client.send(b"X: y\r\n" * 170000)
            assert (await client.ask(b"\r\nbody\r\n.\r\n")).startswith(reply)
            assert rig.server.messages == []
            (line,) = rig.messages
            assert line["code"] == int(reply[:3])

    on_loop(main())


def test_our_own_size_limit(on_loop):
    """Announced where smaller, held against the declaration, and against what comes."""

    async def main():
        async with Rig({"size_limit_bytes": 5000}) as rig:
            client = await rig.client()
            assert b"SIZE 5000\r\n" in await client.hello()
            assert (await client.ask(b"MAIL FROM:<> SIZE=5001\r\n")).startswith(b"552")
            await client.envelope()
            reply = await client.ask(b"x\r\n" * 3000 + b".\r\n")
            assert reply.startswith(b"552 5.3.4")
            assert rig.server.messages == []

    on_loop(main())


def test_a_slow_next_hop_holds_the_client(on_loop):
    """Streaming, no more is read than the next hop takes."""

    async def main():
        async with Rig(SMALL) as rig:
            client = await rig.client()
            await client.start()
            (hop,) = rig.server.transports
            hop.pause_reading()
            total = 24 << 20
            client.send(b"Subject: x\r\n\r\n" + b"y" * total)
            (side,) = rig.relay.state.connections
            await until_true(lambda: side.session.output.paused)
            held = side._upstream.transport.get_write_buffer_size()
            assert held < 1 << 20
            hop.resume_reading()
            assert (await client.ask(b"\r\n.\r\n")).startswith(b"250")
            assert len(rig.server.messages[0]) == total + 16

    on_loop(main())


def test_over_the_budget_reading_stops_and_all_mail_arrives(on_loop):
    """Ten messages, memory for two: nothing is refused, and each comes through."""
    body = b"Subject: x\r\n\r\n" + b"y" * 500_000 + b"\r\n"

    async def main():
        budget = MemoryBudget(1_000_000)
        async with Rig({"times": times(sweep_s=0.2)}, budget=budget) as rig:
            clients = [await rig.client() for _ in range(10)]
            for client in clients:
                assert (await client.start()).startswith(b"354")
            for client in clients:
                client.send(body)
            await until_true(lambda: rig.paused >= 7)
            assert budget.used < 1_000_000 + 500_000 + 10 * 131072
            replies = await asyncio.gather(*(client.ask(b".\r\n") for client in clients))
            assert all(reply.startswith(b"250") for reply in replies)
            assert rig.server.messages == [body] * 10

    on_loop(main())


def test_a_next_hop_that_tired_of_waiting_is_called_anew(on_loop):
    """Between messages its leaving goes unnoticed: the next MAIL finds a new one, greeted alike."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.hello(b"EHLO me.example\r\n")
            (hop,) = rig.server.transports
            hop.write(b"421 4.4.2 too slow\r\n")
            hop.close()
            await until_true(lambda: rig.server.connections[0].closed)
            assert (await client.envelope()).startswith(b"354")
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"250")
            assert rig.server.connections[1].commands[0] == b"EHLO me.example"

    on_loop(main())


def test_commands_may_arrive_byte_by_byte_or_in_one_piece(on_loop):
    """A whole session in one packet, and the same in packets of one byte."""
    script = (
        b"EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nRCPT TO:<e@f>\r\nDATA\r\n"
        + MESSAGE
        + b"\r\n.\r\nMAIL FROM:<>\r\nRSET\r\nQUIT\r\n"
    )

    async def main():
        async with Rig({}) as rig:
            for size in (1, 7, len(script)):
                client = await rig.client()
                for at in range(0, len(script), size):
                    client.send(script[at : at + size])
                    await asyncio.sleep(0)
                replies = await client.ended()
                codes = [line[:3] for line in replies.split(b"\r\n") if line[3:4] == b" "]
                assert codes == [b"220", b"250", b"250", b"250", b"250", b"354", b"250", b"250",
                                 b"250", b"221"]  # fmt: skip
            assert len(rig.server.messages) == 3

    on_loop(main())


def test_a_unix_socket_is_as_good(on_loop, tmp_path):
    """Clients may come over a unix socket; its peers are named `unix`."""

    async def main():
        async with Rig({}, unix=str(tmp_path / "s")) as rig:
            client = await rig.client()
            await client.start()
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"250")
            assert rig.messages[0]["peer"] == "unix"

    on_loop(main())


def test_a_client_that_shuts_its_side_still_gets_its_replies(on_loop):
    """The relay processes all that the client sent before, then it closes."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            client.send(b"EHLO x\r\nNOOP\r\nMAIL FROM:<>\r\n")
            client.writer.write_eof()
            replies = await client.ended()
            assert replies.count(b"\r\n250 ") == 3

    on_loop(main())
