"""The header lines above a delivered message, and the verdict in its header.

Pure except for the date.
"""

from __future__ import annotations

import re
from email.utils import formatdate
from typing import Final

from spamnb.core.mail.message import without_mbox
from spamnb.endpoints.smtp.delivery.params import DeliveryParams
from spamnb.endpoints.smtp.delivery.types import IncomingMessage

HEADER_BYTES: Final = 262_144
"""the longest header section that the relay lets through"""

_FLAG = re.compile(rb"^X-Spam-Flag[ \t]*:[ \t]*(\w{1,8})", re.IGNORECASE | re.MULTILINE)


def is_junk(raw: bytes) -> bool:
    """Whether the relay marked the message as junk.

    The first X-Spam-Flag line comes from the relay, since the relay removes all others.
    """
    raw = without_mbox(raw[:HEADER_BYTES])
    end = raw.find(b"\n\n") if raw[:1] != b"\n" else 0
    found = _FLAG.search(raw, 0, end if end >= 0 else len(raw))
    return found is not None and found[1].upper() == b"YES"


def head(mail: IncomingMessage, address: str, config: DeliveryParams) -> bytes:
    """The lines above a delivered message (RFC 5321 4.4)."""
    lines = [f"Return-Path: <{mail.sender}>", f"Delivered-To: {address}"]
    if config.received:
        lines.append(_received(mail, config))
    # A message that begins with a blank would continue the last of these lines.
    gap = "\n" if without_mbox(mail.raw)[:1] in {b" ", b"\t"} else ""
    return ("\n".join(lines) + "\n" + gap).encode()


def _received(mail: IncomingMessage, config: DeliveryParams) -> str:
    client = mail.client
    protocol = "LMTP" if mail.protocol == "lmtp" else "ESMTP"
    protocol += ("S" if mail.secure else "") + ("A" if mail.login else "")
    helo = re.sub(r"[^A-Za-z0-9.:\[\]_-]", "?", client.helo)[:255] or "unknown"
    where = re.sub(r"[^A-Za-z0-9.:]", "?", client.address)[:80] or "unknown"
    return (
        f"Received: from {helo} ([{where}])\n\tby {config.hostname} with {protocol};\n"
        f"\t{formatdate(localtime=True)}"
    )
