"""The newest verdicts of all workers in shared memory, for readers that may be slow or absent.

A memfd that each worker and the console inherit; there is none without a console. Each worker has a
ring of `RECORDS` records of `RECORD_BYTES` and writes one for each message that it logs. A worker
never waits: a reader that is too slow is told how many records it has missed.

    ring     number of the newest record, 8 bytes | records
    record   number | fields | the same number

Invariant: the second number is zero while a record is written, and is checked after a record was
copied, so a torn record is never returned. A ring is written by one process.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from math import isnan, nan
from typing import Any, Self

from spamnb.service.telemetry.log import Log

RECORDS = 4096
RECORD_BYTES = 256
_NUMBER = struct.Struct("<Q")
_FIELDS = struct.Struct("<QddfIH27s10s12s18s32s32s40s16s")
_TEXTS = ("signature", "decision", "mail_action", "action", "reason", "listener", "upstream_id",
          "verdict")  # fmt: skip
_RING_BYTES = _NUMBER.size + RECORDS * RECORD_BYTES
_END = RECORD_BYTES - _NUMBER.size
assert _FIELDS.size <= _END


def create_feed(rings: int) -> int:
    """Create the shared memory; return its descriptor."""
    fd = os.memfd_create("spamnb-verdicts", os.MFD_CLOEXEC)
    os.ftruncate(fd, rings * _RING_BYTES)
    return fd


class FeedWriter:
    """Writes the ring of one worker."""

    __slots__ = ("_first", "_map", "_number")

    def __init__(self, fd: int, ring: int) -> None:
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._first = ring * _RING_BYTES
        # The earlier process of this slot has written the records so far.
        self._number = _NUMBER.unpack_from(self._map, self._first)[0]

    def log_of(self, listener: str, log: Log) -> Log:
        """Return a log that also writes the messages of a listener to the ring."""
        name, write = listener.encode(), self._write

        def logged(record: dict[str, object]) -> None:
            log(record)
            if record["event"] == "message":
                write(name, record)

        return logged

    def _write(self, listener: bytes, record: dict[str, Any]) -> None:
        self._number = number = self._number + 1
        at = self._first + _NUMBER.size + number % RECORDS * RECORD_BYTES
        get = record.get
        _NUMBER.pack_into(self._map, at + _END, 0)
        _FIELDS.pack_into(
            self._map, at, number, time.time(), get("probability", nan), get("scan_ms", 0.0),
            min(get("size", 0), 0xFFFF_FFFF), get("code", 0), get("signature", "").encode(),
            get("decision", "").encode(), get("mail_action", "").encode(),
            get("action", "").encode(), get("reason", "").encode("utf-8", "replace"), listener,
            get("upstream_id", "").encode("utf-8", "replace"), get("verdict", "").encode(),
        )  # fmt: skip
        _NUMBER.pack_into(self._map, at + _END, number)
        _NUMBER.pack_into(self._map, self._first, number)


class FeedReader:
    """Reads the records of all rings from now on, and on request those written earlier."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
        self._rings = range(0, len(self._map), _RING_BYTES)
        self._next = {ring: self._newest(ring) + 1 for ring in self._rings}

    @classmethod
    def open(cls, fd: int) -> Self | None:
        """Return a reader; None without a feed."""
        return cls(fd) if fd >= 0 else None

    def _newest(self, ring: int) -> int:
        return int(_NUMBER.unpack_from(self._map, ring)[0])

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """Return the new records in the order of their times, and how many were missed."""
        spans = {ring: (self._next[ring], self._newest(ring) + 1) for ring in self._rings}
        found = self._within(spans)
        self._next = {ring: end for ring, (_, end) in spans.items()}
        return found, sum(end - first for first, end in spans.values()) - len(found)

    def earlier(self) -> list[dict[str, Any]]:
        """Return the records that were there before this reader, in the order of their times."""
        return self._within({ring: (1, self._next[ring]) for ring in self._rings})

    def _within(self, spans: dict[int, tuple[int, int]]) -> list[dict[str, Any]]:
        records = [
            self._record(ring, number)
            for ring, (first, end) in spans.items()
            for number in range(max(first, end - RECORDS), end)
        ]
        found = [record for record in records if record is not None]
        return sorted(found, key=lambda record: float(record["time"]))

    def _record(self, ring: int, number: int) -> dict[str, Any] | None:
        """Return a record; None if it is overwritten."""
        at = ring + _NUMBER.size + number % RECORDS * RECORD_BYTES
        data = self._map[at : at + _END]
        if _NUMBER.unpack_from(self._map, at + _END)[0] != number:
            return None
        _, when, probability, scan_ms, size, code, *texts = _FIELDS.unpack_from(data)
        named = {
            name: raw.rstrip(b"\0").decode("utf-8", "replace")
            for name, raw in zip(_TEXTS, texts, strict=True)
        }
        return {
            "time": when,
            "probability": None if isnan(probability) else probability,
            "scan_ms": round(scan_ms, 3),
            "size": size,
            "code": code,
            **named,
        }
