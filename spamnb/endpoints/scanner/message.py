"""The message of a request: what is scanned, and what a client gets back. Pure."""

from __future__ import annotations

import re
from typing import Final

from spamnb.core.mail.envelope import Client, Envelope
from spamnb.core.mail.site_results import is_first_hop
from spamnb.core.policy.verdict_headers import (
    Fields,
    add_to_message,
    header_end,
    is_own,
    may_be_forged,
)
from spamnb.endpoints.scanner.request import ClientRequest
from spamnb.service.scanning.types import ScanRequest

MOST_RECIPIENTS: Final = 1000
_EXIM_LINES = re.compile(
    rb"(From [^\n]*\n)(?:X-Envelope-From: <[^\n]*>\r?\n)?(?:X-Envelope-To: [^\n]*\n)?"
)
"""what Exim puts before a message that it has scanned: it is not part of the message"""
_NAME = re.compile(rb"^([!-9;-~]+)[ \t]*:", re.MULTILINE)
_MESSAGE_ID = re.compile(rb"\nmessage-id:[ \t\r\n]*<([^>\r\n]{1,500})>")
_SUBJECT = re.compile(rb"\nsubject:([^\r\n]*)")
"""for a header in lower case that begins with a line end: ten times as fast as ^ and IGNORECASE"""


def original(request: ClientRequest) -> bytes:
    """The message without the lines that the client's mail server put before it."""
    found = _EXIM_LINES.match(request.body) if request.dialect != "http" else None
    return found[1] + request.body[found.end() :] if found else request.body


def scan_request(
    request: ClientRequest, *, named: bool, refusable: bool, limit_bytes: int
) -> ScanRequest:
    """Return the message for the scanner; `named`: the client may name the recipients."""
    message = original(request)
    whole = len(message) <= limit_bytes
    lines = message[:limit_bytes].replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    raw = add_to_message(lines, ())
    end = header_end(raw)
    end = len(raw) if end < 0 else end
    envelope = envelope_of(request, named=named)
    # A mail server that names its queue id has written it into its Received field, too.
    queue = envelope.client.ident
    is_received = not queue or is_first_hop(raw[:end], queue)
    return ScanRequest(raw, end, envelope, refusable, whole, is_received)


def envelope_of(request: ClientRequest, *, named: bool) -> Envelope:
    """Return the envelope that the client names, with recipients only if it may name them."""
    rcpts = request.headers.get("rcpt", ()) or request.headers.get("deliver-to", ())
    names = [_path(one) for text in rcpts for one in text.split(",")] if named else []
    recipients = tuple(name for name in names[:MOST_RECIPIENTS] if name)
    sender, address = _path(request.header("from")), request.header("ip")
    return Envelope(
        sender=sender,
        recipients=recipients,
        client=Client(
            address=address,
            name=request.header("hostname"),
            helo=request.header("helo"),
            ident=request.header("queue-id"),
            source="REMOTE" if address else "",
        ),
    )


def marked(message: bytes, fields: Fields, tag: bytes) -> tuple[bytes, bytes]:
    """Header section with the fields, and body, with the line ends of the message."""
    end = header_end(message)
    header = message if end < 0 else message[:end]
    changed = add_to_message(header, fields, tag)
    if b"\r\n" not in header:
        changed = changed.replace(b"\r\n", b"\n")
    return changed, message[len(header) :]


def header_of(request: ClientRequest) -> bytes:
    """The header section of a request's message; replies repeat parts of it."""
    end = header_end(request.body)
    return request.body[: end if end >= 0 else 65_536]


def message_id_in(header: bytes) -> str:
    """The first Message-ID without its brackets; `undef` if there is none, as rspamd says."""
    return _first(_MESSAGE_ID, header).decode("ascii", "replace") or "undef"


def subject_in(header: bytes) -> str:
    """The text of the first subject, as it is written."""
    return _first(_SUBJECT, header).strip().decode("utf-8", "replace")


def _first(pattern: re.Pattern[bytes], header: bytes) -> bytes:
    found = pattern.search(b"\n" + header.lower())
    return header[found.start(1) - 1 : found.end(1) - 1] if found else b""


def own_names_in(header: bytes) -> list[str]:
    """Names of header fields that are forged copies of added ones, sorted."""
    if not may_be_forged(header):
        return []
    return sorted({name.decode("ascii") for name in _NAME.findall(header) if is_own(name)})


def _path(text: str) -> str:
    return text.strip().removeprefix("<").removesuffix(">")
