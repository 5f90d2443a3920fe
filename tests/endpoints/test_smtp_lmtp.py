"""LMTP on either side: two recipients of which one fails, in each combination (rule 8)."""

from support.relay import MESSAGE, Rig, Server, StubScanner
from support.waiting import until_true

from spamnb.scan.values import ScanResult

LHLO = b"LHLO client.example\r\n"
END = MESSAGE + b"\r\n.\r\n"
GOOD, BAD = b"250 2.0.0 first\r\n", b"452 4.2.2 second is full\r\n"


def test_smtp_before_lmtp_takes_one_recipient(on_loop):
    """One reply cannot report two recipients: the second one gets a new transaction."""

    async def main():
        server = Server(lmtp=True)
        server.script["end"] = [GOOD, BAD]
        async with Rig({}, server=server) as rig:
            client = await rig.client()
            await client.hello()
            got = server.connections[0]
            assert got.commands == [b"LHLO client.example"]
            replies = []
            for first, second in ((b"b", b"c"), (b"c", None)):
                await client.ask(b"MAIL FROM:<a@x>\r\n")
                assert (await client.ask(b"RCPT TO:<%s@x>\r\n" % first)).startswith(b"250")
                if second:
                    reply = await client.ask(b"RCPT TO:<%s@x>\r\n" % second)
                    assert reply.startswith(b"452 4.5.3")
                await client.ask(b"DATA\r\n")
                replies.append(await client.ask(END))
            assert replies == [GOOD, BAD]
            assert (await client.ask(b"NOOP\r\n")).startswith(b"250")
            assert got.commands.count(b"RCPT TO:<c@x>") == 1

    on_loop(main())


def test_smtp_before_lmtp_tries_on_after_a_refused_recipient(on_loop):
    """After a rejected recipient the client may send another one in the same transaction."""

    async def main():
        server = Server(lmtp=True)
        server.script["RCPT"] = [b"550 5.1.1 who?\r\n"]
        async with Rig({}, server=server) as rig:
            client = await rig.client()
            await client.hello(b"HELO x\r\n")
            await client.ask(b"MAIL FROM:<a@x>\r\n")
            assert (await client.ask(b"RCPT TO:<b@x>\r\n")).startswith(b"550 5.1.1")
            assert (await client.ask(b"RCPT TO:<c@x>\r\n")).startswith(b"250")
            await client.ask(b"DATA\r\n")
            assert (await client.ask(END)).startswith(b"250")
            assert server.connections[0].commands[0] == b"LHLO x"
            assert rig.scanner.requests[0].envelope.recipients == ("c@x",)

    on_loop(main())


def test_lmtp_before_smtp_repeats_the_final_reply(on_loop):
    """Once for each recipient that was taken, in order; of three one was refused."""

    async def main():
        for final in (GOOD, BAD):
            server = Server()
            server.script["RCPT"] = [b"250 ok\r\n", b"550 5.1.1 who?\r\n", b"250 ok\r\n"]
            server.script["end"] = final
            async with Rig({"protocol": "lmtp"}, server=server) as rig:
                client = await rig.client()
                await client.hello(LHLO)
                assert server.connections[0].commands == [b"EHLO client.example"]
                await client.ask(b"MAIL FROM:<a@x>\r\n")
                for name, code in ((b"b", b"250"), (b"c", b"550"), (b"d", b"250")):
                    assert (await client.ask(b"RCPT TO:<%s@x>\r\n" % name)).startswith(code)
                await client.ask(b"DATA\r\n")
                client.send(END + b"NOOP\r\n")
                assert [await client.reply() for _ in range(2)] == [final] * 2
                assert (await client.reply()).startswith(b"250 2.0.0 Ok\r\n")
                assert len(rig.messages) == 1

    on_loop(main())


def test_lmtp_before_lmtp_passes_each_reply_on(on_loop):
    """The client gets the replies for each recipient in order, as they arrive."""

    async def main():
        server = Server(lmtp=True)
        server.script["end"] = [GOOD, BAD]
        async with Rig({"protocol": "lmtp"}, server=server) as rig:
            client = await rig.client()
            assert (await client.start(b"<b@x>", b"<c@x>", hello=LHLO)).startswith(b"354")
            client.send(END + b"NOOP\r\n")
            assert [await client.reply() for _ in range(2)] == [GOOD, BAD]
            assert (await client.reply()).startswith(b"250 2.0.0 Ok\r\n")
            (line,) = rig.messages
            assert (line["code"], line["recipients"]) == (250, 2)
            assert rig.meters.value("messages") == 1

    on_loop(main())


def test_lmtp_before_lmtp_without_its_second_reply(on_loop):
    """The reply for the first recipient holds; the second gets a 451, and no third reply."""

    async def main():
        server = Server(lmtp=True)
        server.script["end"] = [GOOD, b""]
        async with Rig({"protocol": "lmtp"}, server=server) as rig:
            client = await rig.client()
            await client.start(b"<b@x>", b"<c@x>", hello=LHLO)
            client.send(END)
            assert await client.reply() == GOOD
            (hop,) = server.transports
            hop.abort()
            assert (await client.reply()).startswith(b"451")
            assert (await client.ask(b"NOOP\r\n")).startswith(b"250 2.0.0 Ok\r\n")

    on_loop(main())


def test_our_own_replies_are_repeated_for_each_recipient(on_loop):
    """What we keep, defer or refuse counts for each recipient of an LMTP client."""

    async def main():
        outcomes = {
            b"250": ScanResult("keep"),
            b"451": ScanResult("defer"),
            b"550": ScanResult("refuse"),
        }
        for code, outcome in outcomes.items():
            server = Server(lmtp=True)
            async with Rig({"protocol": "lmtp"}, StubScanner(outcome), server=server) as rig:
                client = await rig.client()
                await client.start(b"<b@x>", b"<c@x>", hello=LHLO)
                client.send(END)
                assert [(await client.reply())[:3] for _ in range(2)] == [code] * 2
                await until_true(lambda s=server: s.connections[0].closed)
                assert server.messages == []

    on_loop(main())


def test_each_side_uses_its_own_protocol(on_loop):
    """An LMTP listener greets as such and takes no EHLO (RFC 2033, 4.1)."""

    async def main():
        async with Rig({"protocol": "lmtp"}) as rig:
            client = await rig.client()
            assert await client.reply() == b"220 relay.example LMTP\r\n"
            assert (await client.ask(b"EHLO x\r\n")).startswith(b"500")
            assert (await client.ask(b"HELO x\r\n")).startswith(b"500")
            assert (await client.ask(LHLO)).startswith(b"250")

    on_loop(main())


def test_many_recipients_get_as_many_replies(on_loop):
    """Recipients are as the next hop says; the envelope is whole, the log names a few."""
    count = 10_000

    async def main():
        async with Rig({"protocol": "lmtp"}) as rig:
            client = await rig.client()
            await client.hello(LHLO)
            client.send(b"MAIL FROM:<>\r\n" + b"RCPT TO:<b@x>\r\n" * count + b"DATA\r\n")
            for _ in range(count + 1):
                assert (await client.reply()).startswith(b"250")
            assert (await client.reply()).startswith(b"354")
            client.send(END)
            for _ in range(count):
                assert (await client.reply()).startswith(b"250 2.0.0 Ok: queued")
            (line,) = rig.messages
            assert (line["recipients"], len(line["to"])) == (count, 3)

    on_loop(main())


def test_the_next_hop_may_be_on_a_unix_socket(on_loop, tmp_path):
    """As Dovecot's LMTP usually is; and if it is not there, 421."""

    async def main():
        server = Server(lmtp=True, unix=str(tmp_path / "lmtp"))
        async with Rig({}, server=server) as rig:
            client = await rig.client()
            await client.start()
            assert (await client.ask(END)).startswith(b"250 2.0.0 Ok: queued")
            rig.hop_server.close()
            await rig.hop_server.wait_closed()
            (tmp_path / "lmtp").unlink(missing_ok=True)
            late = await rig.client()
            assert (await late.hello()).startswith(b"421 4.4.1")

    on_loop(main())
