"""A next hop, a scanner or a client that fails: no false 250, no 5xx for a fault."""

import asyncio
import re
import select
from pathlib import Path

import pytest
from support.relay import DIE, MESSAGE, STALL, UNSCANNED, Rig, Server, StubScanner, times
from support.scanning import scanner_deps
from support.waiting import until_true

from spamnb.scan.judge import ModelSession, SessionConfig
from spamnb.scan.scanner import Scanner, ScanPolicy
from spamnb.scan.values import ScanResult
from spamnb.telemetry import Meters

STEPS = ["connect", "EHLO", "MAIL", "RCPT", "DATA", "end"]
QUICK = {
    "times": times(connect_s=2.0, reply_s=2.0, final_s=2.0, scan_s=1.0, command_s=20.0, data_s=5.0)
}
"""The next hop of the tests answers within milliseconds, on a busy machine within half a second."""
NONSENSE = {
    "dies": DIE,
    "stalls": STALL,
    "garbage": b"hello there\r\n",
    "continues": b"250-and\r\n250-so\r\n250-on\r\n" * 2000,
    "no end of line": b"250 " + b"x" * 100000,
    "another code": b"250-a\r\n550 b\r\n",
    "too low": b"100 no\r\n",
    "go on": b"334 go\r\n",
}


async def play(rig):
    """Try to send one message; gives all replies, up to the end of the session."""
    client = await rig.client()
    replies = []
    for line in (b"", b"EHLO x\r\n", b"MAIL FROM:<a@b>\r\n", b"RCPT TO:<c@d>\r\n", b"DATA\r\n",
                 MESSAGE + b"\r\n.\r\n", b"QUIT\r\n"):  # fmt: skip
        if line == b"QUIT\r\n" or (replies and not replies[-1].startswith((b"2", b"354"))):
            break
        client.send(line)
        replies.append(await client.reply())
    client.abort()
    return replies


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", NONSENSE)
def test_a_next_hop_that_fails_at_a_step(on_loop, step, how):
    """The client gets a 4xx at that step, its message is not acknowledged, and we go on."""

    async def main():
        async with Rig(QUICK) as rig:
            rig.server.script[step] = NONSENSE[how]
            replies = await play(rig)
            expected = {"connect": 2, "EHLO": 2, "MAIL": 3, "RCPT": 4, "DATA": 5, "end": 6}[step]
            assert len(replies) == expected, replies
            assert replies[-1][:1] == b"4", replies
            assert rig.meters.value("messages") == 0
            assert rig.meters.value("upstream_failures") == 1
            assert len(rig.messages) == (1 if step == "end" else 0)
            assert [line["event"] for line in rig.log].count("upstream-lost") == 1
            rig.server.script.clear()
            replies = await play(rig)
            assert replies[-1].startswith(b"250 2.0.0 Ok: queued")

    on_loop(main())


@pytest.mark.parametrize("code", [b"421", b"450", b"451", b"452", b"550", b"552", b"554"])
@pytest.mark.parametrize("step", STEPS[2:])
def test_a_refusal_of_the_next_hop_is_the_clients_reply(on_loop, step, code):
    """The text of the next hop's refusal reaches the client, also if it has several lines."""
    refusal = code + b"-4.7.1 not\r\n" + code + b" 4.7.1 now <why>\r\n"

    async def main():
        async with Rig({}) as rig:
            rig.server.script[step] = refusal
            replies = await play(rig)
            assert replies[-1] == refusal
            assert rig.meters.value("messages") == 0

    on_loop(main())


@pytest.mark.parametrize("greeting", [b"554 5.7.1 go away\r\n", b"421 busy\r\n"])
def test_a_next_hop_that_refuses_us_is_no_refusal_of_the_client(on_loop, greeting):
    """If the next hop refuses the relay's connection with any code, the client gets 421."""

    async def main():
        async with Rig({}) as rig:
            rig.server.script["connect"] = greeting
            assert (await play(rig))[-1].startswith(b"421 4.4.1")

    on_loop(main())


def test_a_next_hop_that_is_not_there(on_loop):
    """421 at the hello, and the session ends."""

    async def main():
        async with Rig({}) as rig:
            rig.hop_server.close()
            await rig.hop_server.wait_closed()
            client = await rig.client()
            assert (await client.hello()).startswith(b"421 4.4.1")
            assert await client.ended() == b""

    on_loop(main())


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA"])
def test_two_replies_to_one_command_are_not_believed(on_loop, step):
    """A reply too many must not be taken for the answer to what comes later, least to the dot."""

    async def main():
        async with Rig({}) as rig:
            good = b"354 go\r\n" if step == "DATA" else b"250 ok\r\n"
            rig.server.script[step] = good + b"250 2.0.0 Ok: queued as FALSE\r\n"
            replies = await play(rig)
            assert replies[-1].startswith(b"4")
            assert b"FALSE" not in b"".join(replies)

    on_loop(main())


def arrived(transport):
    """Wait until something lies unread at a connection, while the event loop stands still."""
    assert select.select([transport.get_extra_info("socket").fileno()], [], [], 10)[0]


@pytest.mark.parametrize("step", ["RCPT", "end", "MAIL"])
@pytest.mark.parametrize("large", [False, True])
def test_a_reply_that_arrived_before_a_command_does_not_answer_it(on_loop, step, large):
    """A surplus reply that lies unread when a command goes out breaks the next hop off: no 250."""

    async def main():
        async with Rig({"scan_limit_bytes": 64 if large else 1 << 20}) as rig:
            rig.server.script |= {"RCPT": b"550 5.1.1 unknown\r\n"} if step == "RCPT" else {}
            rig.server.script |= {"end": b"451 4.3.0 disk full\r\n"} if step == "end" else {}
            client = await rig.client()
            await client.hello()
            lines = [b"MAIL FROM:<a@example.org>\r\n", b"RCPT TO:<b@example.net>\r\n", b"DATA\r\n"]
            for line in lines[: {"MAIL": 0, "RCPT": 1, "end": 3}[step]]:
                assert (await client.ask(line))[:1] in b"23"
            if step == "end" and large:
                client.send(MESSAGE * 2)
                (side,) = rig.relay.state.connections
                await until_true(lambda: side.session.transfer.state == "stream")
            (side,), (hop,) = rig.relay.state.connections, rig.server.transports
            client.send({"MAIL": lines[0], "RCPT": lines[1], "end": MESSAGE + b".\r\n"}[step])
            arrived(side._transport)
            hop.write(b"250 2.0.0 Ok: queued as FALSE\r\n")
            arrived(side._upstream.transport)
            replies = await client.reply()
            assert b"FALSE" not in replies
            # Between two messages the relay reconnects; within one the client tries again.
            assert replies.startswith(b"250 2.0.0 Ok\r\n" if step == "MAIL" else b"4"), replies
            assert len(rig.server.connections) == (2 if step == "MAIL" else 1)

    on_loop(main())


def test_a_second_greeting_is_no_answer_to_the_hello(on_loop):
    """With replies shifted by one, the answer to EHLO would be taken for the answer to MAIL."""

    async def main():
        async with Rig({}) as rig:
            rig.server.script["EHLO"] = b"220 hop.example once more\r\n"
            client = await rig.client()
            await client.reply()
            assert (await client.ask(b"EHLO client.example\r\n")).startswith(b"421")

    on_loop(main())


def test_a_250_before_the_dot_is_not_believed(on_loop):
    """A 250 in the middle of a message: the rest of the message is read, then the reply is 451."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.start()
            client.send(b"Subject: x\r\n\r\n")
            (hop,) = rig.server.transports
            hop.write(b"250 2.0.0 Ok: queued as FALSE\r\n")
            await until_true(lambda: rig.server.connections[0].closed)
            assert (await client.ask(b"more\r\n.\r\n")).startswith(b"451")
            assert rig.server.messages == []

    on_loop(main())


@pytest.mark.parametrize("word", [b"552 5.3.4 too much\r\n", b"452 4.3.1 full\r\n"])
def test_a_refusal_in_the_middle_of_a_message_is_kept_for_its_end(on_loop, word):
    """A reply of the next hop to half a message reaches the client after its final dot."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.start()
            client.send(b"Subject: x\r\n\r\n")
            (hop,) = rig.server.transports
            hop.write(word)
            await until_true(lambda: rig.server.connections[0].closed)
            assert await client.ask(b"more\r\n.\r\n") == word

    on_loop(main())


@pytest.mark.parametrize("large", [False, True], ids=["stored", "streamed"])
def test_a_next_hop_that_dies_in_the_middle_of_a_message(on_loop, large):
    """The rest is read, the end gets a 451, and the next message is tried again."""

    async def main():
        async with Rig({"scan_limit_bytes": 3000, "header_limit_bytes": 2000}) as rig:
            client = await rig.client()
            await client.start()
            client.send(b"Subject: x\r\n\r\n" + b"y" * (9000 if large else 10) + b"\r\n")
            await until_true(lambda: rig.server.transports)
            (hop,) = rig.server.transports
            hop.abort()
            await until_true(lambda: rig.server.connections[0].closed)
            assert (await client.ask(b"more\r\n.\r\n")).startswith(b"451")
            assert (await client.envelope()).startswith(b"354")
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"250")
            assert [line["code"] for line in rig.messages] == [451, 250]

    on_loop(main())


def test_a_next_hop_that_stalls_in_the_stream(on_loop):
    """No room for too long: 451 once the client has sent the whole message."""

    async def main():
        changes = {"scan_limit_bytes": 3000, "header_limit_bytes": 2000}
        async with Rig(QUICK | changes) as rig:
            client = await rig.client()
            await client.start()
            (hop,) = rig.server.transports
            hop.pause_reading()
            client.send(b"Subject: x\r\n\r\n" + b"y" * (24 << 20))
            assert (await client.ask(b"\r\n.\r\n")).startswith(b"451")
            hop.abort()

    on_loop(main())


# -- the scanner ----------------------------------------------------------------------------------


def test_a_message_that_is_kept_never_reaches_the_next_hop(on_loop):
    """A message in quarantine gets 250; DATA is aborted, and the relay reconnects."""

    async def main():
        async with Rig({}, StubScanner(ScanResult("keep", reply=b"kept as 17"))) as rig:
            client = await rig.client()
            await client.start(b"<b@x>", b"<c@x>")
            assert await client.ask(MESSAGE + b"\r\n.\r\n") == b"250 2.0.0 kept as 17\r\n"
            await until_true(lambda: rig.server.connections[0].closed)
            assert rig.server.messages == []
            rig.scanner.outcome = ScanResult()
            assert (await client.envelope()).startswith(b"354")
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"250 2.0.0 Ok: queued")
            assert rig.server.connections[1].commands[0] == b"EHLO client.example"
            assert [line["action"] for line in rig.messages] == ["keep", "relay"]
            assert rig.meters.value("messages") == 2

    on_loop(main())


@pytest.mark.parametrize(
    ("queue", "reply", "arrived"), [("before", b"550 5.7.1 no (", 0), ("after", b"250", 1)]
)
def test_a_refusal_exists_before_the_queue_only(on_loop, queue, reply, arrived):
    """After it, a refusal would be a bounce: the message is relayed, and the log says so."""

    async def main():
        scanner = StubScanner(ScanResult("refuse", add=(("X-Spam-Flag", "YES"),), reply=b"no"))
        async with Rig({"queue": queue}, scanner) as rig:
            client = await rig.client()
            await client.start()
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(reply)
            assert len(rig.server.messages) == arrived
            (line,) = rig.messages
            assert line.get("instead_of") == ("refuse" if arrived else None)

    on_loop(main())


def test_a_deferral_is_a_451_with_safe_text(on_loop):
    """The scanner's text becomes one line of printable characters."""

    async def main():
        async with Rig({}, StubScanner(ScanResult("defer", reply=b"a\r\n250 b\xff"))) as rig:
            client = await rig.client()
            await client.start()
            reply = await client.ask(MESSAGE + b"\r\n.\r\n")
            assert re.fullmatch(rb"451 4\.7\.1 a\?\?250 b\? \(reference [0-9a-f]{8}\)\r\n", reply)
            assert rig.server.messages == []

    on_loop(main())


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (ScanResult("refuse", reply=b"5.7.9 no"), MESSAGE),
        (ScanResult("defer"), MESSAGE),
        (ScanResult(), b"Subject: x\r\n\r\na bare \n line"),
        (ScanResult(), b"Subject: x\r\n\r\n" + b"large\r\n" * 300),
    ],
)
def test_the_reply_to_a_refused_message_names_its_line_in_the_log(on_loop, outcome, text):
    """With the reference of a quoted reply the administrator finds the line of the log."""

    async def main():
        params = {"size_limit_bytes": 1000, "bare_newlines": "refuse"}
        async with Rig(params, StubScanner(outcome)) as rig:
            client = await rig.client()
            await client.start()
            reply = await client.ask(text + b"\r\n.\r\n")
            (line,) = rig.messages
            assert reply[:1] in b"45"
            assert reply.endswith(b" (reference " + line["reference"].encode() + b")\r\n")

    on_loop(main())


@pytest.mark.parametrize("scanner", ["raises", "silent"])
@pytest.mark.parametrize("policy", ["deliver", "defer"])
def test_a_scanner_that_fails(on_loop, policy, scanner):
    """The policy decides: the message is relayed with the header `unscanned`, or deferred."""

    async def main():
        log, meters = [], Meters()
        broken = {"bypassed": lambda: Path("/secret").read_bytes()} if scanner == "raises" else {}
        around = {"call_soon": lambda _: None, "log": log.append, "meters": meters} | broken
        model_session = ModelSession(SessionConfig(Path("/nowhere")))
        real = Scanner(
            model_session,
            ScanPolicy(on_fault=policy, busy=policy),
            scanner_deps(model_session, **around),
        )
        async with Rig({"times": times(scan_s=0.2, scan_wait_s=0.2)}, real) as rig:
            client = await rig.client()
            await client.start()
            reply = await client.ask(MESSAGE + b"\r\n.\r\n")
            if policy == "deliver":
                assert reply.startswith(b"250 2.0.0 Ok: queued")
                (message,) = rig.server.messages
                assert message.startswith(b"X-Spamnb-Verdict: unscanned; reason=")
            else:
                assert reply.startswith(b"451")
                assert rig.server.messages == []
            assert b"secret" not in reply
            (line,) = rig.messages
            assert line["reason"] == ("fault" if scanner == "raises" else "busy")
            assert [line["incident"] for _ in log] == [fault["incident"] for fault in log]
            assert len(log) == (scanner == "raises")
            assert meters.value("unscanned") == (policy == "deliver")
            assert meters.value("unscanned_deferred") == (policy == "defer")

    on_loop(main())


def test_a_scanner_may_answer_later(on_loop):
    """Other sessions go on meanwhile; what this client sends behind its dot waits."""

    async def main():
        async with Rig({}) as rig:
            rig.scanner.holding = True
            slow, quick = await rig.client(), await rig.client()
            await slow.start()
            slow.send(MESSAGE + b"\r\n.\r\nMAIL FROM:<>\r\nQUIT\r\n")
            await until_true(lambda: rig.scanner.waiting)
            rig.scanner.holding = False
            await quick.start()
            assert (await quick.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"250")
            rig.scanner.waiting[0](ScanResult(add=UNSCANNED))
            replies = await slow.ended()
            assert [line[:3] for line in replies.split(b"\r\n")[:-1]] == [b"250", b"250", b"221"]

    on_loop(main())


def test_the_next_hop_may_die_while_we_scan(on_loop):
    """The client gets 451, unless the quarantine has the message."""

    async def main():
        for outcome, reply in ((ScanResult(), b"451"), (ScanResult("keep"), b"250")):
            async with Rig({}) as rig:
                rig.scanner.holding = True
                client = await rig.client()
                await client.start()
                client.send(MESSAGE + b"\r\n.\r\n")
                await until_true(lambda r=rig: r.scanner.waiting)
                (hop,) = rig.server.transports
                hop.abort()
                await until_true(lambda r=rig: r.server.connections[0].closed)
                await asyncio.sleep(0)
                rig.scanner.waiting[0](outcome)
                assert (await client.reply()).startswith(reply)

    on_loop(main())


# -- the client -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"Subject: x\r\n\r\nhalf", b"Subject: x\r\n\r\n.", b"x\r\n"])
def test_a_client_that_leaves_within_its_message_has_sent_none(on_loop, sent):
    """The next hop's DATA is broken off; half a message must not look like a whole one."""

    async def main():
        async with Rig({"scan_limit_bytes": 10, "header_limit_bytes": 100}) as rig:
            client = await rig.client()
            await client.start()
            client.send(sent)
            (side,) = rig.relay.state.connections
            await until_true(lambda: side.session.transfer.size)
            client.abort()
            await until_true(lambda: rig.messages)
            await until_true(lambda: rig.server.connections[0].closed)
            assert rig.server.messages == []
            assert rig.messages[0]["action"] == "client-lost"
            assert b".\r\n" not in rig.server.connections[0].partial

    on_loop(main())


@pytest.mark.parametrize("how", ["abort", "close"])
def test_a_client_that_leaves_before_our_250(on_loop, how):
    """The next hop has its message: a duplicate is likely, counted and logged."""

    async def main():
        async with Rig({}) as rig:
            rig.server.script["end"] = STALL
            client = await rig.client()
            await client.start()
            client.send(MESSAGE + b"\r\n.\r\n")
            await until_true(lambda: rig.server.messages)
            client.abort() if how == "abort" else await client.close()
            (side,) = rig.relay.state.connections
            await until_true(lambda: side.session._is_gone or side.session._is_finished)
            (hop,) = rig.server.transports
            hop.write(b"250 2.0.0 Ok: queued as 5DUP\r\n")
            await until_true(lambda: rig.messages)
            assert rig.messages[0]["duplicate_likely"]
            assert rig.messages[0]["upstream_id"] == "5DUP"
            assert rig.meters.value("duplicates_likely") == 1
            await until_true(lambda: not rig.relay.open_sessions)

    on_loop(main())


def test_ehlo_may_be_unknown_to_the_next_hop(on_loop):
    """The client gets the refusal of the next hop, and can send HELO."""

    async def main():
        server = Server()
        server.script["EHLO"] = b"502 5.5.2 what?\r\n"
        async with Rig({}, server=server) as rig:
            client = await rig.client()
            assert (await client.hello()).startswith(b"502")
            assert (await client.ask(b"HELO x\r\n")) == b"250 relay.example\r\n"
            assert (await client.envelope()).startswith(b"354")
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"250")
            assert len(rig.server.connections) == 1

    on_loop(main())
