"""The counters and the log line of one message. Each message has one line."""

from __future__ import annotations

from spamnb.core.mail.printable import shown
from spamnb.endpoints.net import reply_parser
from spamnb.endpoints.smtp.relay.message_transfer import MessageTransfer
from spamnb.service.telemetry.metrics import Meters

LOGGED_RECIPIENTS = 3
"""recipients that a log line names"""


def count(transfer: MessageTransfer, meters: Meters, now: float, *, client_has_left: bool) -> None:
    """Count a message that is over."""
    if transfer.is_accepted:
        meters.count("messages")
        meters.count("bytes", transfer.size)
        if transfer.sent_at and client_has_left:
            meters.count("duplicates_likely")
            transfer.facts["duplicate_likely"] = True
    elif transfer.best_code:
        meters.count("deferred" if transfer.best_code < 500 else "refused")
    if transfer.sent_at:
        meters.observe("upstream_seconds", now - transfer.sent_at)


def record(transfer: MessageTransfer, peer: str, started: float, now: float) -> dict[str, object]:
    """The log line of a message that is over; it began at `started`."""
    envelope, sent = transfer.envelope, b"".join(transfer.replies)
    client = envelope.client
    found: dict[str, object] = {
        "event": "message",
        "peer": peer,
        "client": client.address,
        "helo": client.helo,
        "ident": client.ident,
        "from": envelope.sender,
        "to": list(envelope.recipients[:LOGGED_RECIPIENTS]),
        "recipients": len(envelope.recipients),
        "size": transfer.size,
        "action": transfer.action,
        "code": int(sent[:3]) if sent else 0,
        "reply": shown(sent.partition(b"\r\n")[0])[:200],
        "ms": int((now - started) * 10_000) / 10,
    }
    if transfer.sent_at:
        found["upstream_id"] = reply_parser.queue_id(sent)
        found["upstream_ms"] = int((now - transfer.sent_at) * 10_000) / 10
    found.update(transfer.facts)
    return found
