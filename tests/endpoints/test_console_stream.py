"""The stream of verdicts: a real daemon's messages as server-sent events, and its limits."""

import asyncio
import json
import socket

import pytest
from support.console import console, token
from support.daemon import send
from support.sink import Sink
from support.waiting import LIMIT_S

from spamnb.console.site import KEPT, MOST_STREAMS, ApiError, EventHub
from spamnb.engine.filter import Filter


class Stream:
    """One client of the stream."""

    def __init__(self, address, text, last=""):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        lines = ["GET /api/v1/verdicts/stream HTTP/1.1", "Host: localhost"]
        lines += [f"Authorization: Bearer {text}", f"Last-Event-ID: {last}", "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])

    def event(self):
        """Wait for the next event; its id and its value."""
        identity = ""
        for line in self.file:
            if line.startswith(b"id: "):
                identity = line[4:].decode().strip()
            elif line.startswith(b"data: "):
                return identity, json.loads(line[6:])
        return None

    def close(self):
        self.file.close()
        self.socket.close()


def test_messages_are_streamed_as_they_come(tmp_path):
    """Each message is one event; a client that comes back gets those that it has not seen."""
    with Filter.open(tmp_path / "home", create=True, history=False):
        pass
    sink = Sink()
    with console(tmp_path, listener=f'upstream = "{sink.address}"') as (daemon, address):
        text = token(tmp_path / "home", "reader", "read")
        user = token(tmp_path / "home", "user", "read", user="bob@example.org")
        score = token(tmp_path / "home", "score", "score")
        for bad, status in ((user, 403), (score, 403), ("spamnb_x", 401)):
            refused = Stream(address, bad)
            assert refused.status == status
            refused.close()
        first = Stream(address, text)
        assert first.status == 200
        assert first.file.readline()
        while first.file.readline().strip() != b": spamnb":
            pass
        for _ in range(2):
            send(daemon.port())
        identity, one = first.event()
        assert (one["listener"], one["code"], one["action"]) == ("mx", 250, "relay")
        assert one["signature"].startswith("s")
        _, two = first.event()
        first.close()
        again = Stream(address, text, last=identity)
        assert again.event()[1] == two
        send(daemon.port())
        assert again.event()[1]["signature"] not in (one["signature"], two["signature"])
        assert daemon.stop() == 0
        assert again.event() is None
        again.close()
    sink.close()


def test_a_slow_client_is_told_what_it_missed():
    """It gets the newest events, and the number of the others; streams are limited."""

    async def main():
        hub = EventHub()
        events = hub.events("")
        assert await anext(events) == b": spamnb\n\n"
        for number in range(KEPT + 7):
            hub.publish("verdict", {"number": number})
        assert await anext(events) == b'event: missed\ndata: {"events": 7}\n\n'
        assert b'{"number": 7}' in await anext(events)
        await events.aclose()
        many = [hub.events("") for _ in range(MOST_STREAMS)]
        for one in many:
            await anext(one)
        with pytest.raises(ApiError, match="streams"):
            hub.require_room()
        hub.close()
        for one in many:
            assert [event async for event in one] == []
        hub.require_room()

    asyncio.run(main())


@pytest.mark.parametrize("last", ["", "x-1", "0-", "-", "\xff-9", "9" * 400])
def test_an_unknown_event_is_no_error(last):
    """A client that names an event of another process gets what comes from now on."""

    async def main():
        hub = EventHub()
        hub.publish("verdict", {"number": 1})
        events = hub.events(last)
        await anext(events)
        hub.publish("verdict", {"number": 2})
        assert b'{"number": 2}' in await anext(events)
        await events.aclose()

    asyncio.run(main())
