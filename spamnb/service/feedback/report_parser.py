"""Parse a message to a feedback address: the reported messages and their label.

Mail programs report in five ways, which preserve the message to different degrees:

    attached    message/rfc822 parts or files *.eml, one or several: the exact bytes
    arf         an abuse report (RFC 5965): its type is the label; the message, or only its header
    resent      redirected ("bounced"): the message below its Resent-* block (RFC 5322 3.6.6)
    quoted      a plain forward: found by the signature or the message id quoted in it
    nothing     none of these

Pure. Must not know trust: it uses the content and not the sender. The product's headers on the
outside belong to the report and not to the reported message, so no reference is taken from them.
Never raises; the work is bounded (`core.mail.body.attachments`, `core.mail.limits`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from spamnb.core.mail import headers, limits
from spamnb.core.mail.body import attachments, mime
from spamnb.core.mail.charset import Text
from spamnb.core.mail.headers import shown_value
from spamnb.core.mail.message import bare_id, read

How = Literal["attached", "arf", "resent", "quoted", "nothing"]

MAX_MESSAGES = 100
"""messages taken from one report"""
MAX_REFS = 8
"""references tried for one message"""

ARF_LABELS = {"abuse": "spam", "fraud": "spam", "virus": "spam", "not-spam": "ham"}
"""RFC 5965 7.3, RFC 6430; opt-out and others say nothing about the message"""

_LINES = re.IGNORECASE | re.MULTILINE
_SIGNATURE = re.compile(
    rb"^[>|* \t]{0,40}X-Spamnb-Signature[*]?:[* \t]*(?:\n[>| \t]{1,40})?(s[a-z2-7]{26})\b",
    _LINES,
)
_MESSAGE_ID = re.compile(
    rb"^[>|* \t]{0,40}Message-ID[*]?:[* \t]*(?:\n[>| \t]{1,40})?<([!-;=?-~]{3,255})>",
    _LINES,
)
_ID = re.compile(rb"<([!-;=?-~]{3,255})>")
_FEEDBACK_TYPE = re.compile(rb"^Feedback-Type:[ \t]*([a-z-]{1,40})[ \t]*$", _LINES)
_FIELD = re.compile(rb"[^\n]*+(?:\n[ \t][^\n]*+)*+\n?")
_RESENT = re.compile(rb"^Resent-(?:From|Sender|To|Date|Message-ID)[ \t]*:", _LINES)
_FORWARDS = (b"x-forwarded-message-id", b"in-reply-to", b"references")
"""fields that name the forwarded message; Thunderbird writes the first"""
_BY_MACHINES = (b"bulk", b"list", b"junk")


@dataclass(frozen=True, slots=True)
class ReportedMessage:
    """One reported message."""

    raw: bytes = b""
    """the message, if its bytes are included"""
    refs: tuple[str, ...] = ()
    """its references otherwise, the most reliable first"""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class FeedbackReport:
    """The content of a message to a feedback address."""

    how: How
    label: str
    """empty if the report is about something else"""
    items: tuple[ReportedMessage, ...] = ()
    left_out: int = 0
    """messages beyond `MAX_MESSAGES`"""
    automatic: bool = False
    """sent by a program, so it gets no answer (RFC 3834)"""
    message_id: str = ""
    subject: str = ""


def read_report(raw: bytes, label: str) -> FeedbackReport:
    """Parse a report; `label` is that of its address."""
    buffer = raw.replace(b"\r\n", b"\n")
    block, body = headers.split(buffer, (0, len(buffer)), mime.NO_HOSTS, set())
    how, label, items = _parse(buffer, body, block, label)
    kept = [item for item in items if item.raw.strip() or item.refs]
    return FeedbackReport(
        how=how,
        label=label,
        items=tuple(kept[:MAX_MESSAGES]),
        left_out=max(0, len(kept) - MAX_MESSAGES),
        automatic=_automatic(block),
        message_id=bare_id(_plain(block.special.get(b"message-id", b""))),
        subject=_one_line(block.special.get(b"subject", b"")),
    )


def _parse(
    buffer: bytes, body: int, block: headers.Block, label: str
) -> tuple[How, str, list[ReportedMessage]]:
    original = _resent(buffer[:body])
    if original >= 0:
        return "resent", label, [_item(buffer[original:])]
    opened = attachments.open_message(buffer)
    if opened.kind == "multipart/report" and opened.report_type == "feedback-report":
        return _arf(opened.attached)
    items = [_item(one.raw) for one in opened.attached if one.carrier == "message"]
    if items:
        return "attached", label, items
    refs = _quoted(buffer, block)
    return ("quoted", label, [ReportedMessage(refs=refs)]) if refs else ("nothing", label, [])


def _arf(parts: list[attachments.AttachedMessage]) -> tuple[How, str, list[ReportedMessage]]:
    kinds = [_FEEDBACK_TYPE.search(one.raw) for one in parts if one.carrier == "report"]
    kind = kinds[0][1].decode("ascii").lower() if kinds and kinds[0] else ""
    whole = [_item(one.raw) for one in parts if one.carrier == "message"]
    names = [_named(one.raw) for one in parts if one.carrier == "headers"]
    return "arf", ARF_LABELS.get(kind, ""), whole or names


def _item(raw: bytes) -> ReportedMessage:
    # Bytes need no reference: a message id may be another message's too, and a signature line in
    # the header is checked by `ownership`, which can compare the two messages.
    return ReportedMessage(raw, (), _named(raw).subject)


def _named(raw: bytes) -> ReportedMessage:
    """The references of a message, from its header alone."""
    head = _lines(raw)
    block, body = headers.split(head, (0, len(head)), mime.NO_HOSTS, set())
    signatures = _SIGNATURE.findall(head[:body])
    ids = _ID.findall(block.special.get(b"message-id", b"")[: limits.VALUE_BYTES])
    return ReportedMessage(
        refs=_refs(signatures, ids), subject=_one_line(block.special.get(b"subject", b""))
    )


def _lines(raw: bytes) -> bytes:
    """The header of a message, with LF line ends; its body is not copied."""
    blank = min(at for at in (raw.find(b"\r\n\r\n"), raw.find(b"\n\n"), len(raw)) if at >= 0)
    return raw[: blank + 4].replace(b"\r\n", b"\n")


def _refs(signatures: list[bytes], ids: list[bytes]) -> tuple[str, ...]:
    names = [one.decode("ascii").lower() for one in signatures]
    names += [one.decode("ascii") for one in ids]
    return tuple(dict.fromkeys(names))[:MAX_REFS]


def _resent(head: bytes) -> int:
    """Where the original begins, below the fields that the redirection added; -1 if there is none.

    Resent-* fields form a block above the redirected header, and the transport's fields are above
    them, so the original begins after the first such block.
    """
    if _RESENT.search(head) is None:
        return -1
    seen = False
    for found in _FIELD.finditer(head):
        if not found[0]:
            break
        resent = found[0][:7].lower() == b"resent-"
        if seen and not resent:
            return found.start()
        seen = seen or resent
    return -1


def _quoted(buffer: bytes, block: headers.Block) -> tuple[str, ...]:
    """The references in a plain forward: the signature, or the message's id."""
    signatures: list[bytes] = []
    ids: list[bytes] = []
    for part in read(buffer).parts:
        text = _bytes(part.text).replace(b"\r\n", b"\n")
        signatures += _SIGNATURE.findall(text)[:MAX_REFS]
        ids += _MESSAGE_ID.findall(text)[:MAX_REFS]
    for wanted in _FORWARDS:
        values = [value[-limits.VALUE_BYTES :] for name, value in block.fields if name == wanted]
        # The last reference is the message itself.
        ids += [found for value in values[:1] for found in _ID.findall(value)[-1:]]
    return _refs(signatures, ids)


def _bytes(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")


def _automatic(block: headers.Block) -> bool:
    """Whether a program sent it; such mail is never answered."""
    for name, value in block.fields:
        low = value[:80].lower()
        if name == b"auto-submitted" and not low.startswith(b"no"):
            return True
        if name == b"precedence" and low.strip() in _BY_MACHINES:
            return True
        if name in {b"list-id", b"x-autoreply", b"x-auto-response-suppress"}:
            return True
    return False


def _plain(value: bytes) -> str:
    return value[: limits.MESSAGE_ID_BYTES].decode("latin-1")


def _one_line(value: bytes) -> str:
    """A subject as text on one line, cut."""
    return shown_value(value[:500])[:100]
