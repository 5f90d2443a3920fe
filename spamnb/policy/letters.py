"""Letters: mail of the site's own users that says whom they know, and answers to it. Pure.

    letter_in(fields, recipients) -> Letter(addresses, message_id), or None
    answered_in(fields)           -> Message-IDs in In-Reply-To and References
    person_name(fields)           -> "ann lee" of From: "Lee, Ann" <al@mail.example>

`fields` are those of a header block: names in lower case, unfolded values.

Mail that a program sent is no letter: an answer by itself would make a correspondent of every
stranger, and a mailing list of every reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from spamnb.mail.envelope import address_of
from spamnb.mail.headers import Fields, shown_value
from spamnb.mail.message import bare_id
from spamnb.policy.senders import addresses_in

MOST_RECIPIENTS: Final = 50
"""of a letter; a message to more is for an audience"""
MOST_ANSWERED: Final = 12
"""Message-IDs that are looked up: the newest of References"""
_ID = re.compile(rb"<([^<>\s]{1,998})>")
_WORD = re.compile(r"[^\W\d_]{2,}")
_MOST_WORDS: Final = 6
_BY_PROGRAM: Final = frozenset((b"list-id", b"list-unsubscribe", b"feedback-id"))
_TO: Final = frozenset((b"to", b"cc", b"bcc"))


class Letter(NamedTuple):
    """What a message of a user says of whom the user knows."""

    addresses: tuple[str, ...]
    message_id: str


def letter_in(fields: Fields, recipients: Iterable[str] | None = None) -> Letter | None:
    """The letter with these fields; without recipients of an envelope it is to To, Cc and Bcc.

    None for mail of programs, for bulk mail, and for mail without recipients or to many.
    """
    if any(_is_by_program(name, value) for name, value in fields):
        return None
    named = recipients
    if named is None:
        named = addresses_in(value for name, value in fields if name in _TO)
    addresses = tuple(dict.fromkeys(address_of(one, "") for one in named if "@" in one))
    if not 0 < len(addresses) <= MOST_RECIPIENTS:
        return None
    ids = (value for name, value in fields if name == b"message-id")
    return Letter(addresses, bare_id(next(ids, b"").decode("latin-1").strip()))


def answered_in(fields: Fields) -> Sequence[str]:
    """The messages that this one answers, the last one first."""
    found = [
        one.decode("latin-1")
        for wanted in (b"references", b"in-reply-to")
        for name, value in fields
        if name == wanted
        for one in _ID.findall(value[-16_384:])
    ]
    return list(dict.fromkeys(reversed(found)))[:MOST_ANSWERED]


def person_name(fields: Fields) -> str:
    """The name of a person in From, its words in one order; empty if it is not of two words."""
    value = next((value for name, value in fields if name == b"from"), b"")
    name = shown_value(value).rpartition("<")[0]
    words = _WORD.findall(name.casefold())
    return " ".join(sorted(words)) if 1 < len(words) <= _MOST_WORDS and "@" not in name else ""


def _is_by_program(name: bytes, value: bytes) -> bool:
    low = value.lower()
    if name == b"auto-submitted":
        return not low.startswith(b"no")
    if name == b"precedence":
        return low in (b"bulk", b"junk", b"list", b"auto_reply")
    return name in _BY_PROGRAM
