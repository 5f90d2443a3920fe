"""Packets of the milter protocol, versions 2 to 6, without I/O.

A packet is a length of four bytes, a command byte and data. Texts end with NUL. Numbers are
unsigned, 32 bits, big-endian. Failure: MilterError, after which the connection must be closed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

MAX_PACKET_BYTES: Final = (1 << 20) + 65_536
"""the MTA sends a body in parts of 65,535 bytes, and a header field in one packet"""
MAX_TEXT_BYTES: Final = 2048
"""of a client's name, and of a macro's value"""
OLDEST_VERSION: Final = 2
VERSION: Final = 6
_LENGTH: Final = struct.Struct("!I")


class MilterError(Exception):
    """The MTA has broken the protocol."""


class Capability(IntEnum):
    """What a filter may change: the MTA offers, the filter accepts (SMFIF_*)."""

    ADD_HEADERS = 0x01
    CHANGE_HEADERS = 0x10
    SET_MACROS = 0x100
    """name the macros that the filter needs; the MTA then sends only these"""


class Step(IntEnum):
    """How the MTA and the filter talk (SMFIP_*).

    NO_REPLY_x: no reply is sent to command x. Other NO_x: the MTA does not send command x.
    Plain numbers: every packet is compared with them, and `&` of an IntFlag takes 2 us.
    """

    NO_HEADER_END = 0x40
    NO_UNKNOWN = 0x100
    NO_DATA = 0x200
    NO_REPLY_HEADER = 0x80
    NO_REPLY_CONNECT = 0x1000
    NO_REPLY_HELO = 0x2000
    NO_REPLY_MAIL = 0x4000
    NO_REPLY_RCPT = 0x8000
    NO_REPLY_UNKNOWN = 0x20000
    NO_REPLY_BODY = 0x80000
    LEADING_SPACE = 0x100000
    """header values come, and are sent, with the blank after the colon"""


CHANGES: Final = Capability.ADD_HEADERS | Capability.CHANGE_HEADERS
WANTED_CAPABILITIES: Final = sum(Capability)
WANTED_STEPS: Final = sum(Step)
_MACROS: Final = (b"", b"", b"{auth_authen}", b"", b"", b"i", b"")
"""at connect, HELO, MAIL, RCPT, DATA, the end of the message, the end of the header (SMFIM_*)"""


Packet = tuple[bytes, bytes]
"""command and data"""


class PacketReader:
    """Splits a stream of bytes into packets."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def held_bytes(self) -> int:
        """The bytes of a packet that is not complete."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> Iterator[Packet]:
        """Yield the packets that are complete."""
        buffer = self._buffer
        if buffer:
            # A packet is copied only once, even if its chunks are small.
            buffer += chunk
            if len(buffer) < 4 or len(buffer) < _end_of(buffer, 0):
                return
            chunk = bytes(buffer)
            buffer.clear()
        at, size = 0, len(chunk)
        try:
            while size - at >= 4:
                end = _end_of(chunk, at)
                if end > size:
                    return
                start, at = at + 4, end
                yield chunk[start : start + 1], chunk[start + 1 : end]
        finally:
            buffer += chunk[at:]


def _end_of(data: bytes | bytearray, at: int) -> int:
    """The end of the packet that begins here."""
    length: int = _LENGTH.unpack_from(data, at)[0]
    if not 0 < length <= MAX_PACKET_BYTES:
        raise MilterError(f"a packet of {length} bytes")
    return at + 4 + length


class Offer(NamedTuple):
    """What one side of a negotiation offers."""

    version: int
    capabilities: int
    steps: int

    @classmethod
    def parse(cls, data: bytes) -> Offer:
        """Read the data of a negotiation packet; later versions may append more."""
        if len(data) < 12:
            raise MilterError("the negotiation is too short")
        return cls(*struct.unpack_from("!III", data))

    def answer(self) -> Offer:
        """Return the part of the MTA's offer that is used."""
        if self.version < OLDEST_VERSION:
            raise MilterError(f"version {self.version} is too old")
        return Offer(
            min(self.version, VERSION),
            self.capabilities & WANTED_CAPABILITIES,
            self.steps & WANTED_STEPS,
        )

    def packet(self) -> bytes:
        """Return the negotiation packet."""
        parts = [struct.pack("!III", *self)]
        if self.capabilities & Capability.SET_MACROS:
            parts += [_LENGTH.pack(stage) + names + b"\0" for stage, names in enumerate(_MACROS)]
        return packet_of(b"O", b"".join(parts))


class ConnectInfo(NamedTuple):
    """The client of the MTA."""

    name: str
    address: str
    """empty if the MTA itself submits the message, or for a family that is not known"""

    @classmethod
    def parse(cls, data: bytes) -> ConnectInfo:
        """Read the data of a connect packet."""
        name, _, rest = data[:MAX_TEXT_BYTES].partition(b"\0")
        if rest[:1] not in (b"4", b"6"):
            return cls(text_of(name), "")
        address = text_of(rest[3:].partition(b"\0")[0])
        return cls(text_of(name), address.removeprefix("IPv6:"))


def texts_of(data: bytes) -> list[bytes]:
    """Return the texts of a packet, each of which ends with NUL."""
    if data and not data.endswith(b"\0"):
        raise MilterError("a text has no end")
    return data.split(b"\0")[:-1]


def text_of(data: bytes) -> str:
    """Return a text for rules and logs."""
    return data.decode("utf-8", "replace")


# --- replies -------------------------------------------------------------------------------------


def packet_of(command: bytes, data: bytes = b"") -> bytes:
    """Return a packet as bytes."""
    return struct.pack("!I", len(data) + 1) + command + data


CONTINUE: Final = packet_of(b"c")
DISCARD: Final = packet_of(b"d")
PROGRESS: Final = packet_of(b"p")


def change_header(index: int, name: bytes, value: bytes) -> bytes:
    """Change the field with this index among those of its name; an empty value deletes it."""
    return packet_of(b"m", struct.pack("!I", index) + name + b"\0" + value + b"\0")


def insert_header(index: int, name: bytes, value: bytes) -> bytes:
    """Insert a field before the field with this index."""
    return packet_of(b"i", struct.pack("!I", index) + name + b"\0" + value + b"\0")


def refuse(reply: str) -> bytes:
    """Refuse the message with a reply of one line. Sendmail takes the text as a format."""
    return packet_of(b"y", reply.replace("%", "%%").encode("ascii", "replace") + b"\0")
