"""Commands: those for the next hop, those that the relay answers, announced extensions."""

import pytest
from support.relay import MESSAGE, Rig, Server

LONG_LOCAL = b"x" * 3000


@pytest.mark.parametrize(
    "command",
    [
        b"MAIL FROM:<=?utf-8?q?alice=0d=0aRCPT_TO:evil?=@d>",
        b"MAIL FROM:<=?utf-8?q?alice?=@d>",
        b"MAIL FROM:<> RET=HDRS ENVID=QQ+2B314159",
        b"MAIL FROM:<a@b> BODY=8BITMIME SMTPUTF8 AUTH=<> MT-PRIORITY=3",
        b"MAIL FROM:<@a,@b:c@d>",
        b'MAIL FROM:<"a b"@d> (comment)',
        b"MAIL FROM: a@b",
        b"MAIL FROM:<" + LONG_LOCAL + b"@d>",
        "MAIL FROM:<jürgen@dömäin>".encode(),
        b"MAIL FROM:<\xff\xfe@d>",
        b"mAiL  FROM:<a@b>",
    ],
)
def test_commands_go_on_unchanged(on_loop, command):
    """No envelope is read and written again: encoded words, DSN, long lines, odd spelling."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.hello()
            assert (await client.ask(command + b"\r\n")).startswith(b"250")
            assert (await client.ask(b"RCPT TO:<b@c> ORCPT=rfc822;B+2B@c\r\n")).startswith(b"250")
            await client.ask(b"DATA\r\n")
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"250")
            got = rig.server.connections[0].commands
            assert got[1:3] == [command, b"RCPT TO:<b@c> ORCPT=rfc822;B+2B@c"]
            assert all(str(value).isprintable() for value in rig.messages[0].values())

    on_loop(main())


def test_what_is_announced(on_loop):
    """Only extensions that the next hop offers and that the relay can pass on."""
    offers = ("SIZE", "STARTTLS", "AUTH PLAIN", "CHUNKING", "BINARYMIME", "ETRN", "VRFY", "XCLIENT",
              "XFORWARD NAME ADDR", "8BITMIME", "X-NEW", "dsn")  # fmt: skip

    async def main():
        async with Rig({}, server=Server(offers=offers)) as rig:
            client = await rig.client()
            assert await client.hello() == (
                b"250-relay.example\r\n250-SIZE\r\n250-XFORWARD NAME ADDR\r\n"
                b"250-8BITMIME\r\n250 dsn\r\n"
            )
            again = await client.ask(b"HELO me\r\n")
            assert again == b"250 relay.example\r\n"
            assert rig.server.connections[0].commands == [b"EHLO client.example", b"HELO me"]

    on_loop(main())


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"STARTTLS\r\n", b"502"),
        (b"AUTH PLAIN AGEAYg==\r\n", b"502"),
        (b"BDAT 3 LAST\r\n", b"502"),
        (b"XCLIENT ADDR=1.2.3.4\r\n", b"502"),
        (b"EXPN list\r\n", b"502"),
        (b"VRFY b\r\n", b"252"),
        (b"NOOP x\r\n", b"250"),
        (b"RSET\r\n", b"250"),
        (b"LHLO x\r\n", b"500"),
        (b"\r\n", b"500"),
        (b"  MAIL FROM:<>\r\n", b"500"),
        (b"MAIL\x0bFROM:<>\r\n", b"500"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", b"502"),
        (b"RCPT TO:<b@c>\r\n", b"503"),
        (b"DATA\r\n", b"503"),
        (b"MAIL FROM:<a>\nRCPT TO:<evil@x>\r\n", b"500"),
        (b"NOOP\r NOOP\r\n", b"500"),
        (b"NOOP \0\r\n", b"500"),
        (b"NOOP " + b"x" * 5000 + b"\r\n", b"500"),
    ],
)
def test_commands_that_the_relay_answers(on_loop, line, reply):
    """They never reach the next hop; a line that two servers may read differently is refused."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.hello()
            assert (await client.ask(line)).startswith(reply)
            while rig.server.connections[0].verbs == [] or line.startswith(b"MAIL FROM:<a>\n"):
                assert (await client.reply()).startswith(b"50")
                break
            assert (await client.ask(b"NOOP\r\n")).startswith(b"250")
            assert set(rig.server.verbs) <= {b"EHLO", b"RSET"}

    on_loop(main())


def test_a_message_before_hello_is_out_of_sequence(on_loop):
    """It gets 503, and the relay opens no connection to the next hop."""

    async def main():
        async with Rig({}) as rig:
            client = await rig.client()
            await client.reply()
            assert (await client.ask(b"MAIL FROM:<>\r\n")).startswith(b"503")
            assert (await client.ask(b"RSET\r\n")).startswith(b"250")
            assert (await client.ask(b"QUIT\r\n")).startswith(b"221")
            assert rig.server.connections == []

    on_loop(main())
