"""Server-sent events: an event is published once, and each stream sends it to its client.

A client that reads too slowly loses the oldest events and is told how many (`missed`). A client
that reconnects with `Last-Event-ID` gets the events that it has not seen, if they are still kept.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from spamnb.endpoints.console.problems import ApiError

MOST_STREAMS: Final = 100
KEPT: Final = 1000
"""events that are kept for clients that reconnect or read slowly"""
_ALIVE_S: Final = 15.0
"""Interval of comments, which make proxies keep the connection and show that a client is gone."""


_CHANGES_S: Final = 1.0
_SETTLED_S: Final = 2.0


class _SentEvent(NamedTuple):
    number: int
    kind: str
    value: dict[str, Any]
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

    async def change(self, wait_s: float) -> bool:
        """Wait for events; False if none arrived in time."""
        try:
            await asyncio.wait_for(self.changed.wait(), wait_s)
        except TimeoutError:
            return False
        self.changed.clear()
        return True


class EventHub:
    """Publishes events to all streams; used in the thread of the event loop."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(4)
        """part of each event ID, because another process has the same numbers for other events"""
        self._number = 0
        self._kept: deque[_SentEvent] = deque(maxlen=KEPT)
        self._streams: set[_EventStream] = set()
        self._closed = False

    def publish(self, kind: str, value: dict[str, Any]) -> None:
        """Send an event to all streams."""
        event = self.keep(kind, value)
        for stream in self._streams:
            stream.put(event)

    def keep(self, kind: str, value: dict[str, Any]) -> _SentEvent:
        """Keep an event for `recent`, without sending it."""
        self._number += 1
        lines = f"id: {self._name}-{self._number}\nevent: {kind}\ndata: {json.dumps(value)}\n\n"
        event = _SentEvent(self._number, kind, value, lines.encode())
        self._kept.append(event)
        return event

    def recent(self, kind: str) -> list[dict[str, Any]]:
        """Return the kept events of a kind, newest last; may be called in any thread."""
        return [event.value for event in self._kept.copy() if event.kind == kind]

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for stream in self._streams:
            stream.changed.set()

    def require_room(self) -> None:
        """Raise if no further stream is allowed; may be called in any thread."""
        if len(self._streams) >= MOST_STREAMS:
            raise ApiError(503, f"there are already {MOST_STREAMS} streams", hint="try again later")

    async def events(self, last_id: str) -> AsyncIterator[bytes]:
        """Yield new events; with `last_id`, first the events that the client has missed."""
        with self._joined(last_id) as stream:
            yield b": spamnb\n\n"
            while not self._closed:
                if not await stream.change(_ALIVE_S):
                    yield b":\n\n"
                    continue
                if stream.missed:
                    count, stream.missed = stream.missed, 0
                    yield f'event: missed\ndata: {{"events": {count}}}\n\n'.encode()
                while stream.waiting:
                    yield stream.waiting.popleft().text

    async def changes(self) -> AsyncIterator[bytes]:
        """Yield one event `changed` for all events of a second, and another one after the last.

        `changed` does not say what has changed. The additional event is needed because a verdict
        can be read only some time after it is published.
        """
        with self._joined("") as stream:
            yield b": spamnb\n\n"
            told = False
            while not self._closed:
                changed = await stream.change(_SETTLED_S if told else _ALIVE_S)
                stream.waiting.clear()
                yield b"event: changed\ndata:\n\n" if changed or told else b":\n\n"
                told = changed
                await asyncio.sleep(_CHANGES_S)

    @contextmanager
    def _joined(self, last_id: str) -> Iterator[_EventStream]:
        stream = self._stream_after(last_id)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    def _stream_after(self, last_id: str) -> _EventStream:
        name, _, number = last_id.partition("-")
        if name != self._name or not (number.isascii() and number.isdecimal()):
            return _EventStream([], 0)
        last = int(number[:20])
        waiting = [event for event in self._kept if event.number > last]
        return _EventStream(waiting, max(self._number - last - len(waiting), 0))
