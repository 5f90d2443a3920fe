"""The Message-ID by which the doctor's test message asks to be marked as junk. Pure.

    <doctor.NUMBER.CODE@spamnb.invalid>

The code is made by a key of the model, so only a program that can read the model writes it. A user
who received such a message can send its Message-ID again: only the user's own message is then
marked as junk. The code is a part of the Message-ID because relays remove header fields that are
named like those of this program, and leave the Message-ID as it is.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

_NUMBER_DIGITS: Final = 24
_CODE_BYTES: Final = 16
_FIELD = re.compile(
    rb"(?im)^message-id[ \t]*:[ \t]*(?:\r?\n[ \t]+)?<doctor\.([0-9a-f]{%d})\.([0-9a-f]{%d})@"
    rb"spamnb\.invalid>" % (_NUMBER_DIGITS, 2 * _CODE_BYTES)
)


def marked_message_id(key: bytes, number: str) -> str:
    """The Message-ID of a test message that is marked as junk; `number` has 24 hex digits."""
    return f"<doctor.{number}.{_code(key, number.encode())}@spamnb.invalid>"


def asks_for_junk(header: bytes, key: bytes) -> bool:
    """Whether a message is the doctor's, and has to be marked as junk."""
    if not key or b"@spamnb.invalid" not in header:
        return False
    found = _FIELD.search(header)
    return found is not None and compare_digest(found[2].decode(), _code(key, found[1]))


def _code(key: bytes, number: bytes) -> str:
    return blake2b(number, key=key, digest_size=_CODE_BYTES).hexdigest()
