"""A fault of the relay itself: it ends one session, with a 421."""

import weakref

import pytest
from support.relay import MESSAGE, Rig, StubScanner
from support.waiting import until_true

from spamnb.scan.values import ScanResult


def test_an_internal_error_ends_one_session_only(on_loop):
    """The client gets 421 without the cause, which is in the log under an incident id."""

    async def main():
        async with Rig({}) as rig:
            rig.may_fault = True
            good = await rig.client()
            await good.start()
            rig.relay.state.connection_limits.refusal_for = None
            bad = await rig.client()
            assert (await bad.reply()).startswith(b"421 4.3.0")
            assert await bad.ended() == b""
            assert (await good.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"250")
            assert rig.meters.value("faults") == 1
            fault = next(line for line in rig.log if line["event"] == "fault")
            assert "NoneType" in fault["error"]
            assert len(fault["incident"]) == 8

    on_loop(main())


def test_a_scan_result_that_cannot_be_applied_ends_the_session(on_loop):
    """There is no second result to wait for: the client gets 421, the next hop no message."""

    async def main():
        async with Rig({}, StubScanner(ScanResult(tag="no bytes"))) as rig:
            rig.may_fault = True
            client = await rig.client()
            await client.start()
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"421 4.3.0")
            assert await client.ended() == b""
            await until_true(lambda: rig.messages)
            assert not rig.server.messages
            fault = next(line for line in rig.log if line["event"] == "fault")
            assert rig.messages[0]["incident"] == fault["incident"]

    on_loop(main())


def test_a_scan_that_cannot_be_started_ends_the_session(on_loop):
    """The scanner has no result for it: the client gets 421, the next hop no message."""

    async def main():
        async with Rig({}, StubScanner(RuntimeError("no scan"))) as rig:
            rig.may_fault = True
            client = await rig.client()
            await client.start()
            assert (await client.ask(MESSAGE + b"\r\n.\r\n")).startswith(b"421 4.3.0")
            assert await client.ended() == b""
            assert not rig.server.messages

    on_loop(main())


@pytest.mark.parametrize("is_later", [False, True])
def test_an_idle_connection_holds_no_scanned_message(on_loop, is_later):
    """The function that stops a scan refers to the message; it is dropped with the result."""
    stops = []

    class Scanner(StubScanner):
        def scan(self, request, done):
            stops.append(weakref.ref(stop := super().scan(request, done)))
            return stop

    async def main():
        scanner = Scanner()
        scanner.holding = is_later
        async with Rig({}, scanner) as rig:
            client = await rig.client()
            await client.start()
            client.send(MESSAGE + b"\r\n.\r\n")
            await until_true(lambda: stops)
            if is_later:
                assert stops[0]() is not None
                scanner.waiting.pop()(scanner.outcome)
            assert (await client.reply()).startswith(b"250")
            assert stops[0]() is None

    on_loop(main())
