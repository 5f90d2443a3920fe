"""Receipts: what became of a report, told to the person who sent it.

Whoever is answered has logged in, and is no machine (RFC 3834); the answer itself says that one
wrote it, and has no sender that could be answered. Pure: the time and the name are given. Never
holds words of the reported messages beyond their subjects.
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
HANDED_OVER: Final = "sent"
SENT: Final = (DELIVERED, HANDED_OVER)
"""what became of a receipt that will arrive"""
_LISTED: Final = 50
_LF: Final = SMTP.clone(linesep="\n")
_NOTHING: Final = """\
Nothing was learnt: in your message no other message could be found.

Forward it as an attachment (most programs have "Forward as attachment"),
redirect it, or forward it with all its headers. A forwarded text alone does
not show what the message was.
"""
_STATES: Final = {
    "learnt": "learnt",
    "unchanged": "no change",
    "review": "waits for review",
    "refused": "not learnt",
}


@dataclass(frozen=True, slots=True)
class ReceiptHeaders:
    """When and between whom."""

    hostname: str
    to: str
    date: str
    """as in a Date field"""
    message_id: str


def compose(
    receipt_headers: ReceiptHeaders,
    report: FeedbackReport,
    done: Sequence[tuple[ReportedMessage, Answer]],
) -> bytes:
    """Write the receipt, with LF line ends."""
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
    """Say in one line what became of a report."""
    states = [answer.state for _, answer in done]
    told = [f"{states.count(key)} {text}" for key, text in _STATES.items() if key in states]
    return ", ".join(told) or "nothing was learnt"


def reply(
    report: FeedbackReport, done: Sequence[tuple[ReportedMessage, Answer]], *, authentic: bool
) -> str:
    """The reply to a report that no receipt answers: what was dropped is never thanked for.

    A relay makes a bounce of a refusal, and a sender who proves nothing may be forged: the bounce
    would go to somebody else. So only a user, or the recipient of the reported message, is refused:
    for now, if a limit is reached, since the relay then sends the report again (what was learnt of
    it does not count twice); or for good. Others are told within a 250.
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
    lines = [line for item, answer in done[:_LISTED] for line in (*_told(item, answer), "")]
    if len(done) > _LISTED:
        lines.append(f"... and {len(done) - _LISTED} more.")
    if report.left_out:
        lines.append(f"{report.left_out} more messages were not looked at; send them again.")
    return "\n".join(lines).rstrip("\n") + "\n"


def _told(item: ReportedMessage, answer: Answer) -> list[str]:
    receipt = answer.receipt
    name = item.subject or (receipt.message_id if receipt else "") or "a message"
    lines = [f"* {name}", f"  {_STATES[answer.state]}{_change(receipt)}"]
    if answer.reason:
        lines.append(f"  {' '.join(answer.reason.split())[:300]}")
    if answer.state == "learnt" and receipt is not None:
        lines.append(f"  To take it back: spamnb undo {receipt.event}")
    return lines


def _change(receipt: Receipt | None) -> str:
    if receipt is None:
        return ""
    labels = f"{receipt.before or 'not taught'} -> {receipt.after or 'not taught'}"
    text = f": {labels}" if receipt.changed else f": {receipt.after or 'not taught'}"
    if receipt.probability_before is None or receipt.probability_after is None:
        return text
    return f"{text}; spam {receipt.probability_before:.2%} -> {receipt.probability_after:.2%}"
