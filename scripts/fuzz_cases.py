"""Cases of scripts/fuzz beside those of milters and scanners, and what all cases use."""

import asyncio
import contextlib
import json
import re
import socket
import sys
from importlib import import_module
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "tests")]

from support.relay_core import HELD, LARGE, LOST, OK, QUEUED, SessionDriver

from spamnb.errors import PeerError, StoreBusyError
from spamnb.imap.client import ResponseReader
from spamnb.net.clients import ScanAnswer
from spamnb.net.server import MemoryBudget
from spamnb.opensmtpd import OpensmtpdFilter, VersionError
from spamnb.telemetry import Meters

SIZES = (0, 1, 3, 60, 700, 9000, 70_000)
MOST_DEADLINES = 20
"""deadlines of a session, after which it must have ended"""
WAIT_S = 60.0
"""time limit for the end of a connection"""


def text(dice):
    """Make a few bytes that have a meaning in protocols."""
    found = (
        b"",
        b"<a@b>",
        b"X-Spam-Flag",
        b"Subject",
        b" %s%n",
        b"\xff\xfe",
        b"a\nb",
        b"\r\n",
        b"i",
    )
    return dice.choice(found) if dice.random() < 0.9 else dice.randbytes(dice.choice(SIZES[:5]))


def in_pieces(dice, data):
    """Split bytes."""
    at, most = 0, dice.choice((1 << 20, 65_536, 500, 7))
    most = max(most, len(data) // 2000)
    while at < len(data):
        size = dice.randint(1, most)
        yield data[at : at + size]
        at += size


def changed(dice, data, places=2000):
    """Change bytes at a few places near the start, or nothing."""
    for _ in range(dice.choice((0, 0, 0, 1, 5, 50))):
        at = dice.randrange(min(len(data), places) or 1)
        data[at : at + dice.choice((0, 1, 1, 9))] = text(dice)
    return bytes(data)


# --- relay ---------------------------------------------------------------------------------------

STEPS = ("connect", "EHLO", "LHLO", "MAIL", "RCPT", "DATA", "end", "RSET", "NOOP", "QUIT")
REPLIES = (
    OK,
    b"451 4.3.0 later\r\n",
    b"550-5.1.1 no\r\n550 5.1.1 no\r\n",
    b"354 go\r\n",
    LOST,
    HELD,
)
REPLIES += (
    b"250-hop\r\n250-XFORWARD NAME ADDR\r\n250 DSN\r\n",
    b"x\r\n",
    b"2" * 70_000,
    b"421 bye\r\n",
)
LINES = (
    b"RSET\r\n",
    b"NOOP\r\n",
    b"EHLO c\r\n",
    b"HELO c\r\n",
    b"VRFY x\r\n",
    b"BDAT 3\r\n",
    b"x\n",
)
LINES += (
    b"\0\r\n",
    b"AUTH PLAIN\r\n",
    b"STARTTLS\r\n",
    b"y" * 5000,
    b"QUIT\r\n",
    b"LHLO c\r\n",
    b".\r\n",
)


class RelayCase:
    """A client and a next hop, either of which may say anything."""

    def __init__(self, dice, result):
        self.dice, self.result = dice, result

    def conversation(self):
        """Some messages in the usual order, then changed."""
        dice, found = self.dice, bytearray(b"EHLO c.example\r\n")
        for _ in range(dice.randint(1, 4)):
            found += b"MAIL FROM:<a@x.example>\r\n"
            found += b"RCPT TO:<b@y.example>\r\n" * dice.choice((1, 1, 2, 200))
            found += b"DATA\r\n" + dice.choice((b"Subject: x\r\n\r\n", b"", b"X-Spam-Flag: NO\r\n"))
            found += dice.choice((b"..two\r\n", b"\r.\n.\r\n", b"", b"\n.\n", b"\0"))
            found += dice.randbytes(dice.choice(SIZES)) + b"\r\n.\r\n"
            found += dice.choice(LINES) if dice.random() < 0.3 else b""
        return changed(dice, found, len(found))

    def play(self, *, measured):
        """Feed the conversation with events in between; at the end no memory is held."""
        del measured
        dice = self.dice
        script = {step: [dice.choice(REPLIES) for _ in range(3)] for step in STEPS}
        script["connect"] = b"220 hop ESMTP\r\n"
        for step in dice.sample(STEPS[1:], dice.randint(4, 9)):
            del script[step]
        changes = LARGE if dice.random() < 0.3 else {}
        driver = SessionDriver(script, self.result, lmtp=dice.random() < 0.2, **changes)
        driver.is_holding_scans = dice.random() < 0.3
        for piece in in_pieces(dice, self.conversation()):
            if driver.is_closed:
                break
            driver.run(driver.session.client_bytes, piece)
            self.events(driver)
        if not driver.is_closed:
            driver.run(dice.choice((driver.session.client_lost, driver.session.client_eof)))
            driver.settle()
        for _ in range(MOST_DEADLINES):  # the next hop may still reply to the message
            if not driver.is_closed:
                driver.pass_time()
        assert driver.is_closed, "not ended"
        assert driver.session.output.held_bytes == 0, "memory is accounted for after the end"
        self.check(driver)

    def events(self, driver):
        dice, session = self.dice, driver.session
        while (driver.to_deliver or driver.later) and dice.random() < 0.9:
            if driver.to_deliver:
                driver.deliver(dice.choice((1 << 20, 1 << 20, 3)))
            else:
                driver.later -= 1
                driver.run(session.resume, 0)
        chance = dice.random()
        if chance < 0.2 and driver.requests:
            driver.run(session.scan_done, dice.choice(driver.requests), self.result)
        elif chance < 0.25:
            driver.now += dice.choice((1.0, 1000.0))
            if session.output.deadline <= driver.now:
                driver.run(session.timeout)
        elif chance < 0.27:
            session.apply_settings(driver.params)
        elif chance < 0.28:
            driver.run(dice.choice((session.drain, session.shed)))

    @staticmethod
    def check(driver):
        """Check that the client gets whole replies, and no 250 that the next hop did not send."""
        sent = bytes(driver.client)
        for line in sent.split(b"\r\n")[:-1]:
            assert re.match(rb"[2345]\d\d[ -]|x$|2222", line), line[:100]
        if not driver.lmtp:
            ends = sum(bytes(hop.received).count(b"\r\n.\r\n") for hop in driver.hops)
            assert sent.count(QUEUED) <= ends, "a 250 that the next hop did not send"


# --- OpenSMTPD -----------------------------------------------------------------------------------


class OpensmtpdCase:
    """OpenSMTPD with several clients, whose lines come in any order."""

    KNOWN = (b"register|", b"filter-dataline|", b"filter-result|")

    def __init__(self, dice, _result):
        self.dice = dice
        self.filter = OpensmtpdFilter(dice.choice((1 << 20, 3000)))
        self.asked = []

    def lines_of(self, session):
        dice, found = self.dice, []

        def report(event, rest):
            found.append(b"report|0.6|1.2|smtp-in|%b|%b|%b" % (event, session, rest))

        report(b"link-connect", b"host|pass|203.0.113.9:25|127.0.0.1:25")
        report(b"link-identify", b"EHLO|c.example")
        for number in range(dice.randint(1, 3)):
            token = b"%b-%d" % (session, number)
            report(b"tx-mail", b"m1|ok|a@x.example")
            report(b"tx-rcpt", b"m1|ok|b@y.example")
            for _ in range(dice.choice((0, 1, 5, 50))):
                line = text(dice).replace(b"\n", b"") or b"Subject: x"
                line = line if line != b"." else b".."
                found.append(b"filter|0.6|1.2|smtp-in|data-line|%b|%b|%b" % (session, token, line))
            found.append(b"filter|0.6|1.2|smtp-in|data-line|%b|%b|." % (session, token))
            found.append(b"filter|0.6|1.2|smtp-in|commit|%b|%b|" % (session, token))
            report(b"tx-reset", b"m1")
        report(b"link-disconnect", b"")
        return found

    def play(self, *, measured):
        """Mix the clients, change lines, answer at any time."""
        del measured
        dice = self.dice
        clients = [self.lines_of(b"s%d" % number) for number in range(dice.randint(1, 4))]
        while clients:
            lines = dice.choice(clients)
            line = lines.pop(0)
            clients = [one for one in clients if one]
            if dice.random() < 0.05 and not line.endswith(b"|."):
                other = changed(dice, bytearray(line)).replace(b"\n", b" ")
                # OpenSMTPD itself sends no second end of a message.
                line = line if other.endswith(b"|.") else other
            with contextlib.suppress(VersionError):
                self.filter.receive(line)
            self.asked += self.filter.pending
            self.filter.pending.clear()
            while self.asked and dice.random() < 0.5:
                self.answer()
        while self.asked:
            self.answer()
        for session in list(self.filter._clients):
            self.filter.receive(b"report|0.6|1|smtp-in|link-disconnect|%b|" % session)
        assert self.filter.held_bytes == 0, "memory is accounted for after the end"
        self.check(bytes(self.filter.output))

    def answer(self):
        message = self.asked.pop(self.dice.randrange(len(self.asked)))
        outcome = self.dice.choice(({}, {"action": "reject"}, {"action": "relay"}))
        header = bytes(message.raw.partition(b"\r\n\r\n")[0]) + b"\r\n\r\n"
        answer = ScanAnswer(header if outcome else b"", outcome)
        self.filter.answered(message, self.dice.choice((None, answer)))

    def check(self, output):
        ends = []
        for line in output.split(b"\n")[:-1]:
            assert line.startswith(self.KNOWN), line[:100]
            if line.startswith(b"filter-dataline|") and line.endswith(b"|."):
                ends.append(line)
        assert len(ends) == len(set(ends)), "a message ends twice"


# --- IMAP ----------------------------------------------------------------------------------------

SAID = (
    b"* OK [UIDVALIDITY 5] valid\r\n", b'* LIST (\\Junk) "/" "Junk"\r\n', b"* SEARCH 1 2 3\r\n",
    b"* 3 FETCH (UID 7 BODY[]<0> {5}\r\nhello)\r\n", b"* STATUS x (UIDNEXT 4 UIDVALIDITY 1)\r\n",
    b"+ go\r\n", b"s3 NO [TRYCREATE] no such {3}\r\n", b"* BYE\r\n", b"* 4 EXISTS\r\n",
    b"* LIST () NIL {4}\r\nJunk\r\n", b'* 1 FETCH (BODY[HEADER.FIELDS (A "b")] "x\\"y" UID 9)\r\n',
    b"* SEARCH " + b"9" * 300 + b"\r\n", b"* LIST " + b"(" * 40 + b"\r\n",
)  # fmt: skip


class ImapCase:
    """Bytes of an IMAP server, which the client also reads in other pieces."""

    def __init__(self, dice, _result):
        self.dice = dice

    def play(self, *, measured):
        """Check that responses do not depend on the pieces, and that only PeerError is raised."""
        del measured
        dice = self.dice
        said = bytearray(b"".join(dice.choice(SAID) for _ in range(dice.randint(1, 12))))
        data = changed(dice, said)
        whole, error = self.read([data])
        split, other = self.read(list(in_pieces(dice, data)))
        assert (whole, error) == (split, other), "it depends on the pieces"

    @staticmethod
    def read(pieces):
        reader, found = ResponseReader(), []
        try:
            for piece in pieces:
                found += reader.feed(piece)
        except PeerError:
            return found, True
        return found, False


# --- sockets -------------------------------------------------------------------------------------


class SocketsCase:
    """A listener on an event loop, and clients that send the conversations of another case."""

    def __init__(self, loop_of, made, case):
        self.loop_of, self.made, self.case = loop_of, made, case
        self.dice, self.faults = case.dice, []

    def play(self, *, measured):
        """Run some clients at once; afterwards no connection and no memory may be left."""
        del measured
        loop = self.loop_of()
        loop.set_exception_handler(lambda _, context: self.faults.append(str(context)))
        try:
            loop.run_until_complete(self.run(loop))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
        assert self.faults == []

    async def run(self, loop):
        listener = self.made(
            self.case.session.params, self, meters=Meters(), log=self.log,
            budget=MemoryBudget(self.dice.choice((1 << 26, 1 << 18))), loop=loop,
        )  # fmt: skip
        self.loop = loop
        count = self.dice.randint(1, 3)
        await asyncio.gather(*(self.client(loop, listener) for _ in range(count)))
        await listener.drain(self.dice.choice((0.0, 0.01)))
        assert listener.open_sessions == 0, "a connection is left"
        assert listener.budget.used == 0, "memory is accounted for after the end"

    async def client(self, loop, listener):
        dice, data = self.dice, self.case.conversation()
        ours, theirs = socket.socketpair()
        await loop.connect_accepted_socket(listener.protocol, theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        sending = loop.create_task(self.send(writer, data))
        breaks_off = dice.random() < 0.2
        with contextlib.suppress(ConnectionError):
            while not breaks_off and await asyncio.wait_for(reader.read(65_536), WAIT_S):
                breaks_off = dice.random() < 0.02
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        if breaks_off:
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def send(self, writer, data):
        with contextlib.suppress(ConnectionError):
            for piece in in_pieces(self.dice, data):
                writer.write(piece)
                if self.dice.random() < 0.3:
                    await writer.drain()
            writer.write_eof()

    def log(self, record):
        if "incident" in record:
            self.faults.append(json.dumps(record, default=str))

    # -- the scanner ------------------------------------------------------------------------------

    def scan(self, _request, done):
        """Answer at once, later, or when the scan is stopped."""
        result, chance = self.case.result(), self.dice.random()
        if chance < 0.5:
            done(result)
            return None
        timer = self.loop.call_later(self.dice.choice((0.0, 0.002, 0.05)), done, result)
        if chance < 0.9:
            return lambda _reason: (timer.cancel(), done(result))
        return lambda _reason: None

    advise = scan


def loops():
    """List the event loops that are installed: (name, what makes one)."""
    found = [("asyncio", asyncio.SelectorEventLoop)]
    with contextlib.suppress(ImportError):
        found.append(("uvloop", import_module("uvloop").new_event_loop))
    return found


def no_learner(_op, _body, **_fields):
    """Answer as if the daemon were away."""
    raise StoreBusyError("away")
