"""Turn a message into fields: which text is read, and at which location.

A *location* is the part of the message where a word occurs; the same word at two locations is two
features. A location in `SHAPES` has lines instead, each of which is one feature. This module holds
the table of locations and, for each header, how much of it is read. It must not know how words are
split or hashed (`extract`), nor what a model does with them.

Invariants: no text raises an exception; the work is bounded by `limits`; and whatever occurs in one
message only (dates, random ids, boundaries) is left out, because such words never come back and
only fill the store. The one exception is the message's digest (`SELF`): a person's correction puts
there what cannot be changed elsewhere without harm to other mail.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum, unique
from typing import NamedTuple

from spamnb.core.features.header_shapes import (
    SHAPE_READ,
    HeaderAddress,
    address_in,
    address_parts,
    agreement,
    author_lines,
    client_lines,
    hop_lines,
    hops_in,
    net_lines,
    order,
    pattern,
    registered,
    sender_lines,
)
from spamnb.core.features.text_shapes import (
    LINKS_READ,
    greeting,
    hosts_and_paths,
    link_lines,
    style,
)
from spamnb.core.mail.confusables import plain, plain_and_whole
from spamnb.core.mail.marks import PARTLY
from spamnb.core.mail.message import Message, Part, Text


@unique
class TokenLocation(IntEnum):
    """The part of a message where a word was found. The numbers are on disk: never reuse one."""

    BODY = 1  # the visible text
    SUBJECT = 2  # the strongest twenty words of most messages
    URL = 3  # hosts and paths of links, which spam cannot leave out
    FROM = 4  # name, address and domain of the author
    REPLY = 5  # Reply-To, Sender: the addresses for answers besides the author's
    TO = 6  # To and Cc
    RECEIVED = 7  # hosts and nets of the transport, without times and queue ids
    ID = 8  # hosts of Message-ID, References, In-Reply-To
    CONTENT = 9  # MIME headers, without the random part of boundaries
    AUTH = 10  # authentication results that the local mail server wrote
    # 11 was the names of all headers; their order tells more
    HEADER = 12  # every other header, by its name
    PART = 13  # type, charset, encoding and disposition of each part
    FILE = 14  # names of attachments
    HIDDEN = 15  # invisible text; kept apart, so that it cannot change the score of the body
    MARKUP = 16  # names of html tags
    MARK = 17  # oddities and other facts that the reader found, under names of this program
    INNER = 18  # headers of a message inside
    DIGEST = 19  # attachments by content
    WORD = 20  # plain text documents
    SELF = 21  # the message's own digest, for corrections that concern this message alone
    # Shapes: each line is one feature. 1-AUC without it is behind each; .0371 with all (0033).
    HEADER_ORDER = 22  # every mail program has its own order of headers: .0383
    ID_SHAPE = 23  # ... and its own form of Message-ID: .0379
    FROM_SHAPE = 24  # how the author's name and address are written: .0375
    RECEIVED_SHAPE = 25  # every server has its own form of Received lines: .0372
    HOP = 26  # names and nets of the clients in Received lines: .0373
    AGREEMENT = 27  # whether hops, reply address and links are of the sender's domain: .0412
    SENDER = 28  # whether display name and recipient occur elsewhere: .0377
    ADDRESS_PART = 29  # four bytes of the author's address: .0357, but the best on newer mail
    LINK_SHAPE = 30  # form of hosts and paths, which a campaign varies only in part: .0372
    STYLE = 31  # lines, quotes, capitals and signs of the text, in steps: .0372
    GREETING = 32  # first two words and last word: .0372


HEADERS_READ = 512
"""Headers that become features; legitimate messages have fewer than a hundred."""
VALUE_READ = 4096
"""Bytes of one header's value."""
URLS_READ = 512
"""Links of one part; the largest newsletters have two hundred."""
TEXT_MEASURED = 16_384
"""Characters of a part in which the longest line is looked for. Of thirty-three such facts it is
the one that paid in every stream (docs/decisions/0013)."""
NAME_SOUGHT = 2_000
"""Bytes of the text in which the sender's name and the recipient's are looked for."""
DOCUMENT_READ = 262_144
"""Characters of a plain text document."""

WRITTEN = frozenset(
    {
        *(TokenLocation.BODY, TokenLocation.SUBJECT, TokenLocation.URL, TokenLocation.WORD),
        *(TokenLocation.ADDRESS_PART, TokenLocation.LINK_SHAPE, TokenLocation.STYLE),
        TokenLocation.GREETING,
    }
)
"""Group 0: what the author wrote; all else is group 1, how it was sent. Each is averaged and
tempered on its own: 1-AUC 0.050 % against 0.057 % with one group; three were worse (decision
0001)."""

SHAPES = frozenset(
    {
        *(TokenLocation.HEADER_ORDER, TokenLocation.ID_SHAPE, TokenLocation.FROM_SHAPE),
        *(TokenLocation.RECEIVED_SHAPE, TokenLocation.HOP, TokenLocation.AGREEMENT),
        *(TokenLocation.SENDER, TokenLocation.ADDRESS_PART, TokenLocation.LINK_SHAPE),
        *(TokenLocation.STYLE, TokenLocation.GREETING),
    }
)
"""Locations whose texts are not split into words: each line is one feature."""
ROUGH = frozenset(
    {
        *((TokenLocation.ID_SHAPE, b"local part"), (TokenLocation.ID_SHAPE, b"host")),
        *((TokenLocation.FROM_SHAPE, b"header"), (TokenLocation.FROM_SHAPE, b"local part")),
        *((TokenLocation.HOP, b"HELO"), (TokenLocation.HOP, b"reverse DNS")),
        *((TokenLocation.LINK_SHAPE, b"host"), (TokenLocation.LINK_SHAPE, b"path")),
        (TokenLocation.RECEIVED_SHAPE, b""),
    }
)
"""Of these, by location and name, the lines of which only the rough shape is a feature."""

Field = tuple[TokenLocation, bytes, bytes]
"""A piece of text: location, name, text. The name distinguishes headers that share the location
HEADER, and kinds of lines of one shape; the text is UTF-8 in its original case. A plain tuple, as a
message has fifty of them."""


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
    for name, value in headers:
        text = value if isinstance(value, bytes) else plain(value)
        if len(text) > VALUE_READ:
            text = text[:VALUE_READ]
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
    names = [name for name, _ in headers]
    links: list[bytes] = []
    texts = [_part_fields(part, found, links) for part in message.parts]
    found += _shape_fields(own, next(filter(None, texts), b""), links)
    found.append(
        (TokenLocation.MARK, b"", " ".join(marks(message, names)).encode("ascii", "replace"))
    )
    found.append(digest_field(message.digest))
    return found


def digest_field(digest: bytes) -> Field:
    """The one feature that no other message has."""
    return TokenLocation.SELF, b"", digest.hex().encode()


def _shape_fields(
    headers: list[tuple[bytes, bytes]], text: bytes, links: list[bytes]
) -> list[Field]:
    """The shapes of a message, given its headers, its first text, and its links."""
    first = dict(reversed(headers))
    author, to = address_in(first.get(b"from", b"")), address_in(first.get(b"to", b""))
    lines = hop_lines([value for name, value in headers if name == b"received"])
    hops = hops_in(lines)
    hosts, paths = hosts_and_paths(links)
    domains = list(map(registered, hosts))
    subject, begin = first.get(b"subject", b"").lower(), text[:NAME_SOUGHT].lower()
    starts, ends = greeting(text)
    found: list[tuple[TokenLocation, bytes, list[bytes]]] = [
        *_written_shapes([name for name, _ in headers], first, author),
        (TokenLocation.RECEIVED_SHAPE, b"", [line[:SHAPE_READ] for line in lines]),
        (TokenLocation.HOP, b"", client_lines(hops)),
        (TokenLocation.HOP, b"HELO", [hop.helo for hop in hops]),
        (TokenLocation.HOP, b"reverse DNS", [hop.reverse for hop in hops]),
        (TokenLocation.HOP, b"HELO domain", [hop.helo_domain for hop in hops]),
        (TokenLocation.HOP, b"reverse DNS domain", [hop.reverse_domain for hop in hops]),
        (TokenLocation.HOP, b"net", net_lines(hops)),
        (TokenLocation.AGREEMENT, b"", agreement(first, author, hops, domains)),
        (TokenLocation.SENDER, b"", sender_lines(author, to, subject, begin)),
        (TokenLocation.ADDRESS_PART, b"", address_parts(author)),
        (TokenLocation.LINK_SHAPE, b"", link_lines(hosts, domains, author.domain)),
        (TokenLocation.LINK_SHAPE, b"host", hosts),
        (TokenLocation.LINK_SHAPE, b"path", paths),
        (TokenLocation.STYLE, b"", style(text)),
        (TokenLocation.GREETING, b"starts", starts),
        (TokenLocation.GREETING, b"ends", ends),
    ]
    return [(location, name, b"\n".join(lines)) for location, name, lines in found if lines]


def _written_shapes(
    names: list[bytes], first: dict[bytes, bytes], author: HeaderAddress
) -> tuple[tuple[TokenLocation, bytes, list[bytes]], ...]:
    """How the header was written by the sender's program."""
    pairs, main, others = order(names)
    value, identity = first.get(b"from", b""), first.get(b"message-id", b"")
    local, _, host = identity.strip(b"<>").partition(b"@")
    case, facts = author_lines(value, author)
    return (
        (TokenLocation.HEADER_ORDER, b"", pairs),
        (TokenLocation.HEADER_ORDER, b"main", [main]),
        (TokenLocation.HEADER_ORDER, b"all", [others]),
        (TokenLocation.ID_SHAPE, b"", [b"length %d" % len(local)]),
        (TokenLocation.ID_SHAPE, b"pattern", [pattern(local)]),
        (TokenLocation.ID_SHAPE, b"local part", [local[:SHAPE_READ]]),
        (TokenLocation.ID_SHAPE, b"host", [host[:SHAPE_READ]]),
        (TokenLocation.FROM_SHAPE, b"", facts),
        (TokenLocation.FROM_SHAPE, b"case", [case]),
        (TokenLocation.FROM_SHAPE, b"header", [value[:SHAPE_READ]]),
        (TokenLocation.FROM_SHAPE, b"local part", [author.local]),
    )


def _part_fields(part: Part, found: list[Field], links: list[bytes]) -> bytes:
    """Add the fields and the links of a part; its text."""
    text, is_whole = (
        (part.text, True) if isinstance(part.text, bytes) else plain_and_whole(part.text)
    )
    if text:
        found.append((TokenLocation.BODY, b"", text))
    if not is_whole:
        found.append((TokenLocation.MARK, b"", mark_of(PARTLY).encode("ascii")))
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
    return text


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
    letters = links = images = hidden = 0
    lines = [0]
    for part in parts:
        letters += len(part.text)
        lines += map(len, part.text[:TEXT_MEASURED].splitlines())
        links += len(part.links)
        images += len(part.images)
        hidden += len(part.hidden)
    longest = max(lines)
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
