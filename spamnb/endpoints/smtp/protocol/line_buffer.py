"""What a client has sent and nobody has worked off yet, cut into lines. Pure; never fails."""

from __future__ import annotations


class LineBuffer:
    """A queue of bytes."""

    __slots__ = ("_at", "_data", "is_skipping", "left", "skipped")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self.left = 0
        """bytes that wait"""
        self.is_skipping = False
        """whether a line too long is being dropped"""
        self.skipped = 0
        """bytes dropped because they were of a line too long"""

    def put(self, data: bytes) -> None:
        """More has come."""
        self._data = self._data[self._at :] + data
        self._at, self.left = 0, len(self._data)

    def everything(self) -> bytes:
        """Take all there is."""
        data = self._data[self._at :]
        self.clear()
        return data

    def peek(self) -> bytes:
        """See all there is."""
        return self._data[self._at :]

    def skip(self, count: int) -> None:
        """Take so many bytes."""
        self._at += count
        self.left -= count

    def clear(self) -> None:
        """Forget all there is."""
        self._data, self._at, self.left = b"", 0, 0

    def line(self, most: int) -> bytes:
        """Take the next line with its LF; empty if it has not come as a whole.

        Of a line above `most` bytes its beginning is given, without LF; the rest is dropped.
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
