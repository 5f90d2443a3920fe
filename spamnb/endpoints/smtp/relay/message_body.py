"""The stored part of one message, in wire form, and the end of its header section. Pure."""

from __future__ import annotations

from spamnb.core.policy import verdict_headers


class MessageBody:
    """The bytes of a message that are stored until it is scanned."""

    __slots__ = ("_header_end", "_searched", "data")

    def __init__(self) -> None:
        self.data: bytes | bytearray = bytearray()
        self._header_end = -1
        self._searched = 0

    def add(self, data: bytes) -> None:
        """Store more of the message."""
        self.data += data

    def find_header(self) -> bool:
        """Whether the header section has ended; searches only bytes that came since."""
        if self._header_end < 0:
            self._header_end = verdict_headers.header_end(self.data, self._searched)
            self._searched = len(self.data)
        return self._header_end >= 0

    def header_bytes(self) -> int:
        """Length of the header section, or of all stored bytes if it has not ended."""
        return self._header_end if self.find_header() else len(self.data)

    def remove_forged(self) -> None:
        """Remove forged copies of the added headers."""
        end = self.header_bytes()
        header = bytes(self.data[:end])
        clean = verdict_headers.remove_forged(header)
        if clean != header:
            self.data = bytearray(clean + self.data[end:])
        self._header_end = len(clean)

    def freeze(self) -> bytes:
        """The whole message, with one copy: what is scanned is what is sent."""
        self.data = bytes(self.data)
        return self.data

    def beginning(self, most: int) -> bytes:
        """A copy of the first bytes."""
        with memoryview(self.data) as view:
            return bytes(view[:most])

    def release(self) -> None:
        """Forget the bytes; the header's length stays known."""
        self.data = b""
