"""The front door relays: bytes in, bytes out, on both loops."""

import asyncio
import random

import pytest
from smtp_rig import Client, Judge, Rig, Server, loops, until

from spamnb.core import stamp
from spamnb.faces.smtp.wire import stuffed, unstuffed
from spamnb.service.letters import Outcome


@pytest.fixture(params=loops(), ids=lambda kind: kind[0])
def run(request):
    """Run a coroutine function on a loop of each kind."""

    def runner(main):
        with asyncio.Runner(loop_factory=request.param[1]) as it:
            it.run(main())

    return runner


MESSAGE = b"From: a@example.org\r\nSubject: hi\r\n\r\nHello\r\n.leading dot\r\n..two\r\n"


def test_a_message_arrives_with_its_envelope_byte_for_byte(run):
    """MAIL, RCPT and the message reach the next hop as they came; its reply is the client's."""

    async def main():
        async with Rig({}, Judge(Outcome(block=b"X-Spam-Flag: NO\r\n", facts={"p": 1}))) as rig:
            client = await rig.client()
            offered = await client.hello()
            assert offered.startswith(b"250-door.example\r\n")
            assert b"250-SIZE 10240000\r\n" in offered
            assert (await client.ask(b"mail from:<A@Example.org> SIZE=100 ENVID=q+3Dx\r\n"))[:3] == b"250"
            assert (await client.ask(b"RCPT TO:<b@example.net> NOTIFY=NEVER\r\n"))[:3] == b"250"
            assert (await client.ask(b"DATA\r\n")) == b"354 go\r\n"
            reply = await client.ask(stuffed(MESSAGE) + b".\r\n")
            assert reply == b"250 2.0.0 Ok: queued as 4ABC\r\n"
            assert (await client.ask(b"QUIT\r\n")).startswith(b"221")
            got = rig.server.connections[0]
            await until(lambda: got.closed)
            assert got.commands == [
                b"EHLO client.example",
                b"mail from:<A@Example.org> SIZE=100 ENVID=q+3Dx",
                b"RCPT TO:<b@example.net> NOTIFY=NEVER",
                b"DATA",
                b"QUIT",
            ]
            assert got.messages == [b"X-Spam-Flag: NO\r\n" + stuffed(MESSAGE)]
            letter = rig.judge.letters[0]
            assert letter.raw == MESSAGE
            assert letter.whole
            assert letter.envelope.sender == "A@Example.org"
            assert letter.envelope.recipients == ("b@example.net",)
            (line,) = rig.messages
            assert line["upstream_id"] == "4ABC"
            assert (line["code"], line["action"], line["p"]) == (250, "relay", 1)
            assert rig.meters.value("messages") == 1

    run(main)
