"""The facts of a message that the history stores beside its verdict. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from spamnb.core.mail.filter_marks import read_mark
from spamnb.core.mail.headers import subject_of
from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.model.verdict import Verdict
from spamnb.core.policy.sender_evidence import SenderEvidence, sender_form
from spamnb.service.scanning.types import Notes, ScanRequest

_MAX_RECIPIENT_BYTES: Final = 16_384
"""for some 500 recipients in a history entry; others cannot correct by reference alone"""
_MAX_NOTE_CHARS: Final = 256
_MAX_SENDER_CHARS: Final = 128
_MAX_SUBJECT_CHARS: Final = 160
_MAX_MARK_CHARS: Final = 512
_NO_HOSTS: Final = LocalHosts()
_BLANK = re.compile(r"\s")


def notes_of(request: ScanRequest, listener: str = "", *, described: bool = False) -> Notes:
    """What the history stores beside the verdict.

    `to`: the recipients that the next hop accepted, joined by blanks, to check a later corrector's
    ownership; `client`, `queue`: as trusted peers named them. An address with a blank in it
    (quoted) would look like two, so it is left out. If the message is `described`, also `from`,
    `subject`, `size` in bytes and `listener`, by which an administrator finds a verdict.
    """
    envelope = request.envelope
    kept, left = [], _MAX_RECIPIENT_BYTES
    for recipient in envelope.recipients:
        left -= len(recipient) + 1
        if left < 0:
            break
        if not _BLANK.search(recipient):
            kept.append(recipient)
    notes = {
        "to": " ".join(kept),
        "client": envelope.client.address[:_MAX_NOTE_CHARS],
        "queue": envelope.client.ident[:_MAX_NOTE_CHARS],
    }
    if described:
        notes |= {
            "from": envelope.sender[:_MAX_SENDER_CHARS],
            "subject": subject_of(request.raw[: request.header_bytes])[:_MAX_SUBJECT_CHARS],
            "size": str(len(request.raw)),
            "listener": listener,
        }
    return {name: text for name, text in notes.items() if text}


def author_notes(request: ScanRequest) -> Notes:
    """The note `author`, which a user may want or not: the one address in From.

    It takes 8 us, and is left out if it is the sender of the envelope.
    """
    head, sender = request.raw[: request.header_bytes], request.envelope.sender
    found = SenderEvidence(head, _NO_HOSTS, "").may_claim
    is_other = len(found) == 1 and sender_form(found[0]) != sender_form(sender)
    return {"author": found[0][:_MAX_SENDER_CHARS]} if is_other else {}


def other_notes(header: bytes, hosts: Collection[str], other: str) -> Notes:
    """What another filter said of a message, by its marks: the note `other`, if there are any."""
    mark = read_mark(header, hosts, other)
    return {"other": mark.text()[:_MAX_MARK_CHARS]} if mark is not None else {}


def known_note(verdict: Verdict) -> Notes:
    """The share of the message's features that the model knew, in percent."""
    return {"known": f"{100 * verdict.known:.0f}"}
