"""The mail of a digest: text and HTML without remote content. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from html import escape
from typing import Final, NamedTuple

from spamnb.core.mail.printable import visible
from spamnb.endpoints.console.pages.texts import text

MOST: Final = 100
"""messages in one digest; it says how many more there are"""
_MOST_CHARS: Final = 160
_POLICY: Final = SMTP.clone(cte_type="7bit", max_line_length=900)
"""An address in a header field must stay on one line."""
_STYLE: Final = (
    "<style>body{font:16px/1.5 sans-serif}td{padding:.4em 1em .4em 0;vertical-align:top}"
    "small{color:#59636b}</style>"
)


class DigestEntry(NamedTuple):
    """One message that waits for the recipient."""

    sender: str
    subject: str
    time: datetime
    probability: float | None
    """of spam; None without a verdict"""
    url: str


class DigestHead(NamedTuple):
    """Who sends a digest to whom, and when."""

    sender: str
    recipient: str
    time: datetime
    message_id: str
    off_url: str
    """where the recipient can turn digests off"""


def digest_mail(head: DigestHead, entries: Sequence[DigestEntry], foot: str) -> bytes:
    """Return the mail: the messages that are most likely to be ham come first."""
    ordered = sorted(entries, key=lambda one: (one.probability or 0.0, one.time))
    shown, more = ordered[:MOST], len(ordered) - MOST
    closing = [text("digest.more", count=more)] if more > 0 else []
    closing += [foot, text("digest.off_at", url=head.off_url)]
    mail = EmailMessage(policy=_POLICY)
    mail["From"], mail["To"] = head.sender, head.recipient
    mail["Subject"] = _title(len(ordered))
    mail["Date"] = format_datetime(head.time)
    mail["Message-ID"] = head.message_id
    mail["Auto-Submitted"] = "auto-generated"
    mail["List-Unsubscribe"] = f"<{head.off_url}>"
    mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    mail.set_content(_plain(shown, closing))
    mail.add_alternative(_html(shown, closing), subtype="html")
    return mail.as_bytes()


def _title(count: int) -> str:
    return text("digest.one") if count == 1 else text("digest.title", count=count)


def _plain(entries: Sequence[DigestEntry], closing: Sequence[str]) -> str:
    rows = [f"{_subject(one)}\n  {_people(one)}\n  {_why(one)}\n  {one.url}\n" for one in entries]
    return "\n".join([text("digest.help"), "", *rows, *closing]) + "\n"


def _html(entries: Sequence[DigestEntry], closing: Sequence[str]) -> str:
    rows = "".join(
        f'<tr><td><a href="{escape(one.url)}"><bdi>{escape(_subject(one))}</bdi></a><br>'
        f"<bdi>{escape(_people(one))}</bdi><br><small>{escape(_why(one))}</small></td></tr>"
        for one in entries
    )
    foot = "".join(f"<p><small>{escape(one)}</small></p>" for one in closing)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{_STYLE}</head><body>'
        f"<p>{escape(text('digest.help'))}</p><table>{rows}</table>{foot}</body></html>"
    )


def _subject(entry: DigestEntry) -> str:
    return visible(entry.subject)[:_MOST_CHARS] or text("no_subject")


def _people(entry: DigestEntry) -> str:
    sender = visible(entry.sender)[:_MOST_CHARS] or text("no_sender")
    return text("digest.from", sender=sender, time=f"{entry.time:%Y-%m-%d %H:%M}")


def _why(entry: DigestEntry) -> str:
    if entry.probability is None:
        return text("digest.unknown")
    return text("digest.why", percent=f"{entry.probability:.1%}")
