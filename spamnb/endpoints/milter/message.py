"""One message as an MTA describes it in milter packets: envelope, header fields, body.

Forged copies of the added fields are left out of what is scanned; their place among the fields of
their name is kept, by which the MTA deletes them. Must not know packets.
"""

from __future__ import annotations

from collections import Counter

from spamnb.core.mail.envelope import Client, Envelope
from spamnb.core.policy.verdict_headers import is_own
from spamnb.endpoints.milter.packets import text_of
from spamnb.service.scanning.types import ScanRequest

HeaderPlace = tuple[int, bytes]
"""index among the fields of the same name, from 1; the name as it came"""


class MilterMessage:
    """What is kept of one message."""

    __slots__ = (
        "_body", "_counts", "_header", "_header_bytes", "_kept", "_limit", "began", "forged",
        "mail", "rcpts", "size", "subjects",
    )  # fmt: skip

    def __init__(self, mail: list[bytes], scan_limit_bytes: int, now: float) -> None:
        self.mail = mail
        """the sender in angle brackets, and its parameters"""
        self.rcpts: list[list[bytes]] = []
        self.forged: list[HeaderPlace] = []
        self.subjects: list[tuple[HeaderPlace, bytes]] = []
        self.size = 0
        self.began = now
        self._limit = scan_limit_bytes
        self._header: list[bytes] = []
        self._header_bytes = 0
        self._counts: Counter[bytes] = Counter()
        self._body = bytearray()
        self._kept = 0

    @property
    def header_bytes(self) -> int:
        """The size of the header, with forged copies."""
        return self._header_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes of memory."""
        return self._kept + len(self._body)

    def add_field(self, name: bytes, value: bytes) -> None:
        """Add a header field; LF separates the lines of a folded value."""
        key = name.strip().lower()
        self._counts[key] += 1
        place = (self._counts[key], name)
        value = value.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        line = b"%b:%b\r\n" % (name, value)
        self.size += len(line)
        self._header_bytes += len(line)
        if is_own(name):
            self.forged.append(place)
            return
        if key == b"subject":
            self.subjects.append((place, value))
        self._header.append(line)
        self._kept += len(line)

    def add_body(self, data: bytes) -> None:
        """Add a part of the body."""
        self.size += len(data)
        room = self._limit - self._kept - len(self._body)
        self._body += data[: max(0, room)]

    def envelope(self, client: Client) -> Envelope:
        """Return the envelope."""
        return Envelope(
            sender=_address_of(self.mail),
            recipients=tuple(map(_address_of, self.rcpts)),
            client=client,
            mail_line=_command_of(b"MAIL FROM:", self.mail),
            rcpt_lines=tuple(_command_of(b"RCPT TO:", rcpt) for rcpt in self.rcpts),
        )

    def request(self, client: Client, *, before_queue: bool) -> ScanRequest:
        """Return the message for the scanner."""
        header = b"".join(self._header) + b"\r\n"
        whole = self.size - self._header_bytes == len(self._body)
        raw = header + self._body
        return ScanRequest(raw, len(header), self.envelope(client), before_queue, whole)


def _address_of(arguments: list[bytes]) -> str:
    path = arguments[0] if arguments else b""
    return text_of(path.removeprefix(b"<").removesuffix(b">"))


def _command_of(verb: bytes, arguments: list[bytes]) -> bytes:
    """The SMTP command for a path and its parameters. No argument has a line end or a blank."""
    safe = [bytes(byte for byte in one if byte > 0x20 and byte != 0x7F) for one in arguments]
    path, *parameters = safe or [b"<>"]
    if not path.startswith(b"<"):
        path = b"<%b>" % path
    return b" ".join([verb + path, *parameters])
