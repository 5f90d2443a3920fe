"""Server-sent events: what happens is published once, and each stream sends it to its client.

A client that reads too slowly loses the oldest events and is told how many (`missed`). A client
that comes back with `Last-Event-ID` gets what it has not seen, as far as it is kept.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from spamnb.endpoints.console.problems import ApiError

MOST_STREAMS: Final = 100
KEPT: Final = 1000
"""events for clients that come back, and for a client that reads slowly"""
_ALIVE_S: Final = 15.0
"""A comment this often, so that proxies keep the connection, and a dead client is noticed."""


class _SentEvent(NamedTuple):
    number: int
    text: bytes


class _EventStream:
    def __init__(self, waiting: list[_SentEvent], missed: int) -> None:
        self.waiting = deque(waiting, KEPT)
        self.missed = missed
        self.changed = asyncio.Event()
        self.changed.set()

    def put(self, event: _SentEvent) -> None:
        self.missed += len(self.waiting) == KEPT
        self.waiting.append(event)
        self.changed.set()


class EventHub:
    """Publishes events to all streams; used in the thread of the event loop."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(4)
        """another process numbers other events"""
        self._number = 0
        self._kept: deque[_SentEvent] = deque(maxlen=KEPT)
        self._streams: set[_EventStream] = set()
        self._closed = False

    def publish(self, kind: str, value: dict[str, Any]) -> None:
        """Send an event to all streams."""
        self._number += 1
        lines = f"id: {self._name}-{self._number}\nevent: {kind}\ndata: {json.dumps(value)}\n\n"
        event = _SentEvent(self._number, lines.encode())
        self._kept.append(event)
        for stream in self._streams:
            stream.put(event)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for stream in self._streams:
            stream.changed.set()

    def require_room(self) -> None:
        """Raise if there are as many streams as may be; may be called in any thread."""
        if len(self._streams) >= MOST_STREAMS:
            raise ApiError(503, f"there are {MOST_STREAMS} streams", hint="try again later")

    async def events(self, last_id: str) -> AsyncIterator[bytes]:
        """Yield the events from now on, or those after the last one that the client has."""
        stream = self._stream_after(last_id)
        self._streams.add(stream)
        try:
            yield b": spamnb\n\n"
            while not self._closed:
                try:
                    await asyncio.wait_for(stream.changed.wait(), _ALIVE_S)
                except TimeoutError:
                    yield b":\n\n"
                    continue
                stream.changed.clear()
                if stream.missed:
                    count, stream.missed = stream.missed, 0
                    yield f'event: missed\ndata: {{"events": {count}}}\n\n'.encode()
                while stream.waiting:
                    yield stream.waiting.popleft().text
        finally:
            self._streams.discard(stream)

    def _stream_after(self, last_id: str) -> _EventStream:
        name, _, number = last_id.partition("-")
        if name != self._name or not (number.isascii() and number.isdecimal()):
            return _EventStream([], 0)
        last = int(number[:20])
        waiting = [event for event in self._kept if event.number > last]
        return _EventStream(waiting, max(self._number - last - len(waiting), 0))
