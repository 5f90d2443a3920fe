"""Receipts: a mail to the user that sent a report, with its result.

Only logged-in users get one, and no automatic sender does (RFC 3834); the receipt itself is marked
as automatic and has a null sender. Pure: the time and id are given. Of the reported messages only
the subjects appear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final

from spamnb.endpoints.smtp.delivery import replies
from spamnb.errors import LimitError
from spamnb.service.engine.receipt import Receipt
from spamnb.service.feedback.report_parser import FeedbackReport, ReportedMessage
from spamnb.service.feedback.types import Answer

DELIVERED: Final = "delivered"
"""the result of writing a receipt into a Maildir"""
_LISTED: Final = 50
_LF: Final = SMTP.clone(linesep="\n")
_NOTHING: Final = """\
Nothing was learnt: your message contains no other message.

Forward the message as an attachment (most programs have "Forward as
attachment"), redirect it, or forward it with all its headers. The forwarded
text alone does not identify the message.
"""
_STATES: Final = {
    "learnt": "learnt",
    "listed": "listed",
    "unchanged": "no change",
    "waiting": "waits to be learnt",
    "review": "waits for review",
    "refused": "not learnt",
}


@dataclass(frozen=True, slots=True)
class ReceiptHeaders:
    """The header fields of a receipt."""

    hostname: str
    to: str
    date: str
    """in the form of a Date field"""
    message_id: str


def compose(
    receipt_headers: ReceiptHeaders,
    report: FeedbackReport,
    done: Sequence[tuple[ReportedMessage, Answer]],
) -> bytes:
    """The receipt as a message, with LF line ends."""
    mail = EmailMessage(policy=_LF)
    mail["From"] = Address("spamnb", addr_spec=f"postmaster@{receipt_headers.hostname}")
    mail["To"] = receipt_headers.to
    mail["Subject"] = _subject(report, done)
    mail["Date"] = receipt_headers.date
    mail["Message-ID"] = receipt_headers.message_id
    if report.message_id.isascii() and report.message_id.isprintable() and report.message_id:
        mail["In-Reply-To"] = f"<{report.message_id}>"
    mail["Auto-Submitted"] = "auto-replied"
    mail["X-Auto-Response-Suppress"] = "All"
    mail.set_content(_body(report, done), cte="8bit")
    return mail.as_bytes()


def summary(done: Sequence[tuple[ReportedMessage, Answer]]) -> str:
    """The result of a report in one line."""
    states = [answer.state for _, answer in done]
    counts = [f"{states.count(key)} {text}" for key, text in _STATES.items() if key in states]
    return ", ".join(counts) or "nothing was learnt"


def reply(
    report: FeedbackReport, done: Sequence[tuple[ReportedMessage, Answer]], *, authentic: bool
) -> str:
    """The SMTP reply to a report that gets no receipt; it thanks only for accepted reports.

    A relay turns a rejection into a bounce, and an unauthenticated sender may be forged, so the
    bounce would go to an uninvolved user. Therefore only an authenticated user, or the recipient of
    the reported message, gets a rejection. It is temporary if a limit is reached: the relay then
    sends the report again, and messages that were already taught do not count twice. Otherwise it
    is permanent. All other senders get the result in a 250.
    """
    answers = [answer for _, answer in done]
    dropped = [answer for answer in answers if answer.state == "refused"]
    if done and not dropped and not report.left_out:
        return replies.THANKS
    authentic = authentic or any(answer.facts.get("proven") for answer in dropped)
    if authentic and any(
        answer.facts.get("error_type") == LimitError.__name__ for answer in dropped
    ):
        return replies.TOO_MUCH
    if len(dropped) < len(done):
        return replies.IN_PART
    return replies.NOT_LEARNT if authentic else replies.NOTHING_TAKEN


def _subject(report: FeedbackReport, done: Sequence[tuple[ReportedMessage, Answer]]) -> str:
    as_what = f" as {report.label}" if report.label and done else ""
    return f"Your report{as_what}: {summary(done)}"


def _body(report: FeedbackReport, done: Sequence[tuple[ReportedMessage, Answer]]) -> str:
    if not done:
        return _NOTHING
    lines = [line for item, answer in done[:_LISTED] for line in (*_item_lines(item, answer), "")]
    if len(done) > _LISTED:
        lines.append(f"... and {len(done) - _LISTED} more.")
    if report.left_out:
        lines.append(f"{report.left_out} more messages were not processed; send them again.")
    return "\n".join(lines).rstrip("\n") + "\n"


def _item_lines(item: ReportedMessage, answer: Answer) -> list[str]:
    receipt = answer.receipt
    name = item.subject or (receipt.message_id if receipt else "") or "a message"
    lines = [f"* {name}", f"  {_STATES[answer.state]}{_change(receipt)}"]
    if answer.reason:
        lines.append(f"  {' '.join(answer.reason.split())[:300]}")
    if answer.state == "learnt" and receipt is not None:
        lines.append(f"  To undo it: spamnb undo {receipt.event}")
    if answer.state == "listed":
        lines.append(f"  To undo it: spamnb senders remove {answer.facts.get('sender')}")
    return lines


def _change(receipt: Receipt | None) -> str:
    if receipt is None:
        return ""
    labels = f"{receipt.before or 'not taught'} -> {receipt.after or 'not taught'}"
    text = f": {labels}" if receipt.changed else f": {receipt.after or 'not taught'}"
    if receipt.probability_before is None or receipt.probability_after is None:
        return text
    return f"{text}; spam {receipt.probability_before:.2%} -> {receipt.probability_after:.2%}"
