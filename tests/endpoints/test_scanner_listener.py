"""The scanner listener on real sockets: half-closed connections, refused peers, memory, drain."""

import asyncio
import contextlib

from spamnb.errors import StoreBusyError
from spamnb.net.address import NetworkSet
from spamnb.net.server import MemoryBudget
from spamnb.scan.values import ScanResult
from spamnb.scanner.request import ScannerParams
from spamnb.scanner.session import ScannerListener
from spamnb.telemetry import Meters

BODY = b"Subject: plums\n\n" + b"fresh\n" * 50_000


class Unscanned:
    """Answers at once that the message was not scanned."""

    def advise(self, request, done):
        del request
        done(ScanResult(facts={"verdict": "unscanned", "reason": "fault"}))


def away(op, body, **fields):
    raise StoreBusyError("the daemon does not answer")


def with_listener(on_loop, talk, **params):
    """Run a coroutine with a listener and its port; return its result and the listener."""

    async def run():
        loop = asyncio.get_running_loop()
        listener = ScannerListener(
            ScannerParams(**params), Unscanned(), meters=Meters(), log=lambda _: None,
            budget=MemoryBudget(1 << 26), loop=loop, ask=away,
        )  # fmt: skip
        server = await loop.create_server(listener.protocol, "127.0.0.1", 0)
        found = await talk(server.sockets[0].getsockname()[1], listener)
        server.close()
        await listener.drain(5)
        return found, listener

    return on_loop(run())


async def asked(port, data):
    """Send, close the own side, and read all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_a_client_that_has_closed_its_side_gets_the_whole_reply(on_loop):
    """Spamc sends the message, closes its side and reads; all memory is given back."""

    async def talk(port, _listener):
        return await asked(port, b"PROCESS SPAMC/1.2\r\n\r\n" + BODY)

    sent, listener = with_listener(on_loop, talk)
    assert sent.endswith(BODY)
    assert listener.budget.used == 0
    assert listener.open_sessions == 0


def test_a_stranger_is_closed_without_a_word(on_loop):
    """A client that is not a peer learns nothing."""

    async def talk(port, _listener):
        try:
            return await asked(port, b"PING SPAMC/1.2\r\n")
        except OSError:
            return b""

    sent, listener = with_listener(on_loop, talk, peers=NetworkSet(["192.0.2.0/24"]))
    assert sent == b""
    assert listener.meters.value("connections_refused") == 1


def test_a_correction_while_the_learner_is_away(on_loop):
    """The client may try again; the event loop does not wait for the learner."""

    async def talk(port, _listener):
        data = b"POST /learnspam HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"
        return await asked(port, data)

    sent, _ = with_listener(on_loop, talk, teachers=NetworkSet(["127.0.0.1"]))
    assert sent.startswith(b"HTTP/1.0 503 ")


def test_many_requests_at_once_are_answered_in_turn(on_loop):
    """Scans that end immediately do not call each other, so no number of them is too large."""
    one = b"POST /checkv2 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"

    async def talk(port, _listener):
        return await asked(port, one * 1200)

    sent, listener = with_listener(on_loop, talk)
    assert sent.count(b"HTTP/1.1 200 ") == 1200
    assert listener.meters.value("faults") == 0


def test_idle_connections_end_when_the_daemon_stops(on_loop):
    """A kept HTTP connection does not hold up the end."""

    async def talk(port, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /ping HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"pong\r\n")
        await listener.drain(5)
        rest = await reader.read()
        writer.close()
        return rest

    rest, listener = with_listener(on_loop, talk)
    assert rest == b""
    assert listener.open_sessions == 0
