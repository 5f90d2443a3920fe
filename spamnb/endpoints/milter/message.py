"""One message as an MTA describes it in milter packets: envelope, header fields, body.

Forged copies of the added fields are not scanned. The index of each copy among the fields of its
name is kept, because the MTA needs it to delete the copy. The MTA does not show its own Received
field, so the place of a field proves nothing. Must not know packets.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from spamnb.core.mail.envelope import Client, Envelope
from spamnb.core.mail.results import RESULT_NAMES, claims
from spamnb.core.mail.site_results import PROOF_NAMES
from spamnb.core.policy.verdict_headers import is_own, normalized
from spamnb.endpoints.milter.packets import text_of
from spamnb.service.scanning.types import ScanRequest

_ITEM_BYTES: Final = 200
"""what Python needs for a recipient, or for the place of a header field"""

_PROVING: Final = RESULT_NAMES | PROOF_NAMES
_UNSAFE: Final = bytes((*range(0x21), 0x7F))

HeaderPlace = tuple[int, bytes]
"""index among the fields of the same name, from 1; the name as it came"""


class MilterMessage:
    """What is kept of one message."""

    __slots__ = (
        "_body", "_body_bytes", "_counts", "_header", "_limit", "_places_bytes", "_rcpts",
        "_shared", "_site", "began", "claims", "envelope", "envelope_bytes", "forged",
        "header_bytes", "mail", "subjects",
    )  # fmt: skip

    def __init__(
        self,
        mail: list[bytes],
        scan_limit_bytes: int,
        now: float,
        *,
        shared: bool = True,
        site: tuple[str, ...] = (),
    ) -> None:
        self.mail = mail
        """the sender in angle brackets, and its parameters"""
        self._rcpts: list[list[bytes]] = []
        self.envelope_bytes = sum(map(len, mail))
        """memory for sender and recipients"""
        self.forged: list[HeaderPlace] = []
        self.claims: list[HeaderPlace] = []
        """fields that report results of authentication under a name of `site`"""
        self.subjects: list[tuple[HeaderPlace, bytes]] = []
        """with their values; LF before each folded line, as the MTA expects changed values"""
        self.began = now
        self.envelope = Envelope()
        """known from `end` on"""
        self._limit = scan_limit_bytes
        self._shared = shared
        """whether fields with names that other filters use, too, are forged copies"""
        self._site = site
        self._header = bytearray()
        self.header_bytes = 0
        """the size of the header, with forged copies"""
        self._counts: Counter[bytes] = Counter()
        self._body = bytearray()
        self._body_bytes = 0
        """the size of the body, including the part beyond the limit"""
        self._places_bytes = 0

    @property
    def size(self) -> int:
        """The size of the message, with forged copies."""
        return self.header_bytes + self._body_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes of memory."""
        return len(self._header) + len(self._body) + self.envelope_bytes + self._places_bytes

    def add_recipient(self, arguments: list[bytes]) -> None:
        """Add the address of a recipient, with its parameters."""
        self._rcpts.append(arguments)
        self.envelope_bytes += sum(map(len, arguments)) + _ITEM_BYTES * (len(arguments) + 1)

    def add_field(self, name: bytes, value: bytes) -> None:
        """Add a header field; LF separates the lines of a folded value."""
        value = value.replace(b"\r\n", b"\n")
        line = b"%b:%b\r\n" % (name, value.replace(b"\n", b"\r\n"))
        self.header_bytes += len(line)
        if is_own(name, shared=self._shared):
            self.forged.append(self._place(name))
            return
        if self._site and (plain := normalized(name)) in _PROVING:
            place = self._place(name)
            if plain in PROOF_NAMES:
                self.forged.append(place)
            elif claims(plain, value, self._site):
                self.claims.append(place)
        if name.strip().lower() == b"subject":
            self.subjects.append((self._place(name), value))
            self._places_bytes += len(value)
        self._header += line

    def _place(self, name: bytes) -> HeaderPlace:
        key = name.strip().lower()
        self._counts[key] += 1
        self._places_bytes += len(name) + _ITEM_BYTES
        return (self._counts[key], name)

    def add_body(self, data: bytes) -> None:
        """Add a part of the body."""
        self._body_bytes += len(data)
        room = self._limit - len(self._header) - len(self._body)
        self._body += data[: max(0, room)]

    def end(self, client: Client) -> None:
        """Complete the envelope with the client, which is known only at the end."""
        self.envelope = Envelope(
            sender=_address_of(self.mail),
            recipients=tuple(map(_address_of, self._rcpts)),
            client=client,
            mail_line=_command_of(b"MAIL FROM:", self.mail),
            rcpt_lines=tuple(_command_of(b"RCPT TO:", rcpt) for rcpt in self._rcpts),
        )

    def request(self, *, before_queue: bool) -> ScanRequest:
        """Return the message for the scanner."""
        whole = self._body_bytes == len(self._body)
        raw = b"\r\n".join((self._header, self._body))
        return ScanRequest(
            raw, len(self._header) + 2, self.envelope, before_queue, whole, is_received=False
        )


def _address_of(arguments: list[bytes]) -> str:
    path = arguments[0] if arguments else b""
    return text_of(path.removeprefix(b"<").removesuffix(b">"))


def _command_of(verb: bytes, arguments: list[bytes]) -> bytes:
    """The SMTP command for a path and its parameters. No argument has a line end or a blank."""
    safe = [one.translate(None, _UNSAFE) for one in arguments]
    path, *parameters = safe or [b"<>"]
    if not path.startswith(b"<"):
        path = b"<%b>" % path
    return b" ".join([verb + path, *parameters])
