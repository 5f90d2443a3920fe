"""The labels of messages in a backup of SpamAssassin's Bayes database (`sa-learn --backup`).

Its tokens are hashes, but its list of trained messages names each one: `s FLAG ID`, with `s` or `h`
as the flag. Version 4 makes the ID of To, Date and the body, version 3.4 of Date and the beginning
of the body; older ones took the Message-ID. All of them are tried. Must not know folders.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from email.errors import HeaderParseError
from email.header import decode_header, make_header

from spamnb.errors import UserError
from spamnb.mail.message import bare_id
from spamnb.store.files import open_named

LABELS = {b"s": "spam", b"h": "ham"}
_LINE = 4096
_GENERATED = "@sa_generated"
_FOLD = re.compile(rb"\r?\n[ \t]+")
_FIRST = 1024
"""bytes of the body that version 3.4 reads; half of a body of up to twice as many"""
_SMALL = 64
"""a body that it reads as a whole"""


def read_seen(path: str) -> dict[str, str]:
    """Return the label of each message in a backup; UserError if the file lists none."""
    found: dict[str, str] = {}
    with os.fdopen(open_named(path), "rb") as file:
        for line in iter(lambda: file.readline(_LINE), b""):
            fields = line.rstrip(b"\r\n").split(b"\t", 2)
            if len(fields) == 3 and fields[0] == b"s" and fields[1] in LABELS:
                found[fields[2].decode("utf-8", "replace")] = LABELS[fields[1]]
    if not found:
        raise UserError(
            f"{path} lists no trained messages", hint="make it with `sa-learn --backup > FILE`"
        )
    return found


def seen_as(raw: bytes, seen: dict[str, str]) -> str | None:
    """Return the label under which SpamAssassin learnt a message; None if it did not."""
    return next((seen[name] for name in _names(raw) if name in seen), None)


def _names(raw: bytes) -> Iterator[str]:
    """Yield the IDs that versions of SpamAssassin give a message."""
    if raw.startswith(b"From "):
        raw = raw.partition(b"\n")[2]
    gap = re.search(rb"\r?\n\r?\n", raw)
    head, body = (raw[: gap.start()], raw[gap.end() :]) if gap else (raw, b"")
    headers = _headers(head)
    to, date = _shown(headers.get(b"to")), _shown(headers.get(b"date"))
    digest = _sha1(body.replace(b"\r\n", b"\n"))
    yield _sha1(b"\0".join((to, date, digest.encode()))) + _GENERATED
    kept = body
    if len(body) > _SMALL:
        kept = body[: _FIRST if len(body) > 2 * _FIRST else len(body) // 2]
    yield _sha1((date or b"None") + b"\0" + re.sub(rb"[\r\n]", b"", kept)) + _GENERATED
    yield bare_id(headers.get(b"message-id", b"").decode("latin-1"))


def _headers(head: bytes) -> dict[bytes, bytes]:
    """Return the last header of each name, unfolded."""
    found = {}
    for line in _FOLD.sub(b" ", head).split(b"\n"):
        name, colon, value = line.partition(b":")
        if colon:
            found[name.strip().lower()] = value.rstrip(b"\r").lstrip()
    return found


def _shown(value: bytes | None) -> bytes:
    """Return a header as SpamAssassin does: decoded, with a line feed; empty if it is missing."""
    if value is None:
        return b""
    if b"=?" in value:
        try:
            text = str(make_header(decode_header(value.decode("latin-1"))))
            value = text.encode("utf-8", "replace")
        except (HeaderParseError, LookupError, ValueError):
            pass  # not decodable for SpamAssassin either
    return value + b"\n"


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
