"""The client's unprocessed input, split into lines. Pure; never fails."""

from __future__ import annotations


class LineBuffer:
    """A queue of bytes with line access."""

    __slots__ = ("_at", "_data", "is_skipping", "left", "skipped")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self.left = 0
        """bytes in the buffer"""
        self.is_skipping = False
        """whether the rest of a too long line is being dropped"""
        self.skipped = 0
        """bytes dropped from too long lines"""

    def append(self, data: bytes) -> None:
        """Add received bytes."""
        self._data = self._data[self._at :] + data
        self._at, self.left = 0, len(self._data)

    def take_all(self) -> bytes:
        """Remove and return all bytes."""
        data = self._data[self._at :]
        self.clear()
        return data

    def peek(self) -> bytes:
        """Return all bytes without removing them."""
        return self._data[self._at :]

    def skip(self, count: int) -> None:
        """Remove that many bytes."""
        self._at += count
        self.left -= count

    def clear(self) -> None:
        """Remove all bytes."""
        self._data, self._at, self.left = b"", 0, 0

    def line(self, most: int) -> bytes:
        """Remove and return the next line with its LF; empty if it is incomplete.

        Of a line above `most` bytes the beginning is returned, without LF; the rest is dropped.
        """
        while True:
            end = self._data.find(b"\n", self._at) + 1
            if not end:
                return self._unfinished(most)
            line = self._data[self._at : end]
            self._at, self.left = end, len(self._data) - end
            if not self.is_skipping:
                return line
            self.is_skipping = False
            self.skipped += len(line)

    def _unfinished(self, most: int) -> bytes:
        if self.is_skipping:
            self.skipped += self.left
            self.clear()
        elif self.left > most:
            line = self._data[self._at : self._at + most + 1]
            self.skipped += self.left - len(line)
            self.clear()
            self.is_skipping = True
            return line
        return b""
