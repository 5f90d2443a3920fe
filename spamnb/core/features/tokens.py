"""Turn a message into fields: which text is read, and at which location.

This module holds, for each header, its location and how much of it is read; `shapes` reads the
fields that have lines. It must not know how words are split or hashed (`extract`), nor what a model
does with them.

Invariants: no text raises an exception; the work is bounded by `limits`; and text that occurs in
one message only (dates, random ids, boundaries) is left out, because such words never come back and
only fill the store. The one exception is the message's digest (`SELF`): a user's correction moves
this feature where a change of other features would harm other mail.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from spamnb.core.features.locations import Field, TokenLocation
from spamnb.core.features.shapes import LINKS_READ, shape_fields
from spamnb.core.mail.confusables import plain, plain_and_whole
from spamnb.core.mail.marks import PARTLY
from spamnb.core.mail.message import Message, Part, Text

HEADERS_READ = 512
"""Headers that become features; legitimate messages have fewer than a hundred."""
VALUE_READ = 4096
"""Bytes of one header's value."""
URLS_READ = 512
"""Links of one part; the largest newsletters have two hundred."""
TEXT_MEASURED = 16_384
"""Characters of a part in which the longest line is looked for. Of thirty-three such facts it is
the best: it lowers 1-AUC in every stream (docs/decisions/0013)."""
DOCUMENT_READ = 262_144
"""Characters of a plain text document."""

_URLS = re.compile(rb"://([^\s<>\"'\\)\]]{1,512})")
"""A pattern that begins with literal letters is found by memory search: 2 us instead of 20, and
half the time of the operator `in`."""
_HOSTS = re.compile(rb"@([^\s<>@]{1,255})")
_RANDOM = re.compile(rb"[0-9A-Fa-f]{4,}|[0-9]+")
_DKIM_TAGS = re.compile(rb"\b([adshi])=\s*([^;\s]{1,128})")
_ZONE = re.compile(rb"(?=[-+CEGMPU])(?:[-+]\d{4}\b|\b(?:GMT|UTC?|[ECMP][SD]T)\b)")
"""The lookahead at the first character halves the time."""
_ZONE_LETTERS = bytes.maketrans(b"+-", b"pm")


def _transport(value: bytes) -> bytes:
    """A Received line without its time and queue id, which never come back."""
    before, _, rest = (value.rpartition(b";")[0] or value).partition(b" id ")
    return before + b" " + rest.partition(b" ")[2]


def _hosts(value: bytes) -> bytes:
    return b" ".join(_HOSTS.findall(value)[:8])


def _without_random(value: bytes) -> bytes:
    return _RANDOM.sub(b"0", value) if b"boundary" in value else value


def _signature(value: bytes) -> bytes:
    return b" ".join(tag + b"." + text for tag, text in _DKIM_TAGS.findall(value)[:16])


def _zone(value: bytes) -> bytes:
    """The time zone alone: day and month would only show when the training mail was collected."""
    found = _ZONE.search(value)
    return b"zone" + found[0].translate(_ZONE_LETTERS) if found else b"nozone"


class HeaderRule(NamedTuple):
    """How a header is read: its location, and which part of its value."""

    location: TokenLocation
    keep: Callable[[bytes], bytes] | None = None
    """None keeps the whole value"""


HEADER_RULES: dict[bytes, HeaderRule] = {
    b"subject": HeaderRule(TokenLocation.SUBJECT),
    b"from": HeaderRule(TokenLocation.FROM),
    b"reply-to": HeaderRule(TokenLocation.REPLY),
    b"sender": HeaderRule(TokenLocation.REPLY),
    b"errors-to": HeaderRule(TokenLocation.REPLY),
    b"to": HeaderRule(TokenLocation.TO),
    b"cc": HeaderRule(TokenLocation.TO),
    b"received": HeaderRule(TokenLocation.RECEIVED, _transport),
    b"message-id": HeaderRule(TokenLocation.ID, _hosts),
    b"in-reply-to": HeaderRule(TokenLocation.ID, _hosts),
    b"references": HeaderRule(TokenLocation.ID, _hosts),
    b"resent-message-id": HeaderRule(TokenLocation.ID, _hosts),
    b"content-type": HeaderRule(TokenLocation.CONTENT, _without_random),
    b"content-transfer-encoding": HeaderRule(TokenLocation.CONTENT),
    b"content-disposition": HeaderRule(TokenLocation.CONTENT),
    b"mime-version": HeaderRule(TokenLocation.CONTENT),
    b"authentication-results": HeaderRule(TokenLocation.AUTH),
    b"received-spf": HeaderRule(TokenLocation.AUTH),
    b"dkim-signature": HeaderRule(TokenLocation.HEADER, _signature),
    b"x-google-dkim-signature": HeaderRule(TokenLocation.HEADER, _signature),
    b"arc-seal": HeaderRule(TokenLocation.HEADER, _signature),
    b"arc-message-signature": HeaderRule(TokenLocation.HEADER, _signature),
    b"date": HeaderRule(TokenLocation.HEADER, _zone),
    b"delivery-date": HeaderRule(TokenLocation.HEADER, _zone),
    b"resent-date": HeaderRule(TokenLocation.HEADER, _zone),
}
_HEADER = TokenLocation.HEADER
_INNER = TokenLocation.INNER
_KNOWN = {
    name: (location, name if location is _HEADER else b"", keep)
    for name, (location, keep) in HEADER_RULES.items()
}
"""the rules as plain tuples, with the name for headers that share a location"""


def fields(message: Message) -> list[Field]:
    """The fields of a message: every text that is read, with its location."""
    found: list[Field] = []
    own: list[tuple[bytes, bytes]] = []
    headers = message.headers[:HEADERS_READ]
    names = [name for name, _ in headers]
    values = [value if isinstance(value, bytes) else plain(value) for _, value in headers]
    texts = [plain_and_whole(part.text) for part in message.parts]
    for name, value in zip(names, values, strict=True):
        text = value[:VALUE_READ]
        known = _KNOWN.get(name)
        if known is not None:
            location, shown, keep = known
            found.append((location, shown, keep(text) if keep else text))
        elif name.startswith(b"inner-"):
            found.append((_INNER, b"", text))
            continue
        else:
            found.append((_HEADER, name, text))
        own.append((name, text))
    links: list[bytes] = []
    for part, (text, is_whole) in zip(message.parts, texts, strict=True):
        _add_part_fields(part, text, found, links)
        if not is_whole:
            found.append((TokenLocation.MARK, b"", mark_of(PARTLY).encode("ascii")))
    found += shape_fields(own, next((text for text, _ in texts if text), b""), links)
    found.append(
        (TokenLocation.MARK, b"", " ".join(marks(message, names)).encode("ascii", "replace"))
    )
    found.append(digest_field(message.digest))
    return found


def digest_field(digest: bytes) -> Field:
    """The one feature that no other message has."""
    return TokenLocation.SELF, b"", digest.hex().encode()


def _add_part_fields(part: Part, text: bytes, found: list[Field], links: list[bytes]) -> None:
    """Add the fields and the links of a part."""
    if text:
        found.append((TokenLocation.BODY, b"", text))
    targets = [_bytes(target) for target in (*part.links, *part.images)]
    shown = _URLS.findall(text)[:URLS_READ]
    if len(links) < LINKS_READ:
        links += [target.partition(b"://")[2] for target in targets]
        links += shown
    targets += shown
    if targets:
        found.append((TokenLocation.URL, b"", b" ".join(targets)))
    about = f"{part.kind} {part.charset} {part.encoding} {part.disposition}"
    found.append((TokenLocation.PART, b"", about.encode() if about.isascii() else plain(about)))
    if part.name:
        found.append((TokenLocation.FILE, b"", _bytes(part.name)))
    if part.hidden:
        found.append((TokenLocation.HIDDEN, b"", _bytes(part.hidden)))
    if part.markup:
        found.append((TokenLocation.MARKUP, b"", part.markup))
    if part.digest:
        about_content = f"{part.digest.hex()} head{part.head[:4].hex()}"
        found.append((TokenLocation.DIGEST, b"", about_content.encode()))


def _bytes(text: Text) -> bytes:
    return text if isinstance(text, bytes) else plain(text)


def document(text: str, digest: bytes) -> list[Field]:
    """A plain text that is no mail, as one field, and the field of its digest."""
    return [(TokenLocation.WORD, b"", plain(text[:DOCUMENT_READ])), digest_field(digest)]


def _bucket(number: int) -> int:
    """Logarithmic size class: 0, 1, 2, 3-4 -> 3, 5-8 -> 4 ..."""
    return (number - 1).bit_length() + 1 if number > 0 else 0


def marks(message: Message, names: list[bytes]) -> list[str]:
    """Oddities and facts about the message, as words that this program defines."""
    first = dict(reversed(message.headers[:HEADERS_READ]))
    hops = names.count(b"received")
    parts = message.parts
    letters = links = images = hidden = longest = 0
    for part in parts:
        letters += len(part.text)
        lines = part.text[:TEXT_MEASURED].splitlines()
        longest = max(longest, max(map(len, lines), default=0))
        links += len(part.links)
        images += len(part.images)
        hidden += len(part.hidden)
    found = [mark_of(oddity) for oddity in message.oddities]
    found += [missing for name, missing in _EXPECTED if name not in first]
    found += (
        f"hops-{_bucket(hops)}",
        f"text-{_bucket(letters)}",
        f"parts-{_bucket(len(parts))}",
        f"links-{_bucket(links)}",
        f"images-{_bucket(images)}",
        f"hidden-{_bucket(hidden)}",
        # Steps of the square root of 2: a step of 2 would put wrapped and unwrapped text together.
        f"line-{(longest * longest).bit_length()}",
    )
    return found + _people(first)


def mark_of(oddity: str) -> str:
    """`charset:undeclared-8bit` as one word of two parts: a third would make a second feature."""
    kind, _, what = oddity.partition(":")
    return f"{kind}-{what.replace('-', '')}"


EXPECTED_HEADERS = {
    name.lower().encode(): name
    for name in ("From", "To", "Subject", "Date", "Message-ID", "MIME-Version", "Received")
}
"""Headers that most messages have."""


def missing_mark(name: bytes) -> str:
    """The mark of a message without a header that most messages have."""
    return f"missing-{name.decode().replace('-', '')}"


_EXPECTED = [(name, missing_mark(name)) for name in EXPECTED_HEADERS]


def _people(first: dict[bytes, Text]) -> list[str]:
    """How many addresses To has, and whether the subject is in capitals."""
    found = [f"to-{_bucket(_bytes(first.get(b'to', b'')).count(b'@'))}"]
    subject = first.get(b"subject", b"")
    if len(subject) > _SHOUT and subject.isupper():
        found.append(mark_of("subject:shouts"))
    return found


_SHOUT = 8
