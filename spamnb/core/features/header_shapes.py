"""Shapes of the header: how its lines are ordered and written, and how its names agree.

The functions give lines of text, each of which becomes one feature. What is one of few facts is a
short code, which is hashed in one step and takes little room in the store; `clue_texts` has the
sentence that users read. Must not know locations, hashing or the model.

Invariants: values come from `Message`, so what delivery adds never counts; no text raises an
exception; the work is bounded by the constants here, and by the size of a header's value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

HOPS = 8
"""Received lines that are read, the newest first; legitimate mail rarely has more."""
SHAPE_READ = 300
"""Bytes of a value whose shape is taken."""
NAMES_READ = 60
"""Header names whose order is read."""
NAME_WORDS = 8
"""Words of a display name that are looked for elsewhere."""
ADDRESS_BYTES = 60
"""Bytes of an address that are cut into parts of four."""

_LETTERS, _DIGITS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", b"0123456789"
_MAIN = (
    b"from to cc subject date message-id reply-to sender mime-version content-type"
    b" content-transfer-encoding x-mailer in-reply-to references"
).split()
_OTHERS = (
    b"received user-agent precedence list-id list-unsubscribe list-unsubscribe-post"
    b" list-subscribe list-post list-help list-archive list-owner errors-to x-beenthere"
    b" x-mailman-version x-mailman-approved-at x-priority x-msmail-priority x-mimeole importance"
    b" thread-index thread-topic content-language content-disposition organization"
    b" dkim-signature domainkey-signature x-google-dkim-signature x-gm-message-state x-received"
    b" arc-seal arc-message-signature arc-authentication-results authentication-results"
    b" received-spf feedback-id auto-submitted x-auto-response-suppress x-originating-ip"
    b" x-google-smtp-source x-ms-has-attach x-originalarrivaltime x-loop x-accept-language"
    b" mail-followup-to x-original-date x-sender delivery-date"
).split()
_CODES = dict(zip((*_MAIN, *_OTHERS), map(bytes, zip(_LETTERS + _DIGITS)), strict=False))
"""A byte for each usual header name. They are part of ids on disk: only append names."""
_RECEIVED = _CODES[b"received"]
_NAMES = {code: name for name, code in _CODES.items()}
_MAIN_CODES = frozenset(map(_CODES.__getitem__, _MAIN))


def _fact(code: bytes, holds: object) -> bytes:
    return code + (b"=" if holds else b"!")


class HeaderAddress(NamedTuple):
    """The first address of a header, in lower case."""

    local: bytes = b""
    host: bytes = b""
    name: bytes = b""
    """what stands before it"""
    domain: bytes = b""
    """the registered domain"""


class Hop(NamedTuple):
    """The client that a Received line names, in lower case, and its registered domains."""

    helo: bytes
    reverse: bytes
    address: bytes
    helo_domain: bytes
    reverse_domain: bytes


_DELIMITERS = bytes.maketrans(b'<>"\t', b"    ")
_HOP = re.compile(rb"from (\S{1,255})(?: \((\S{1,255})? ?\[([0-9A-Fa-f.:IPv]{1,60})\])?")
_NAME_WORD = re.compile(rb"[a-z\x80-\xff]{3,}")
_REPEATED = re.compile(rb"(?<=a)a+|(?<=A)A+|(?<=9)9+")
_CASE = bytes.maketrans(_LETTERS + _DIGITS, b"a" * 26 + b"A" * 26 + b"9" * 10)


@lru_cache(maxsize=4096)
def registered(host: bytes) -> bytes:
    """The last two labels of a host."""
    return b".".join(host.rstrip(b".").rsplit(b".", 2)[-2:])


def address_in(value: bytes) -> HeaderAddress:
    """The first address in a value; empty if there is none."""
    before, _, after = value.partition(b"@")
    local = before.translate(_DELIMITERS).rpartition(b" ")[2][-255:].lower()
    host = after[:255].translate(_DELIMITERS).partition(b" ")[0].lower()
    if not (local and host):
        return HeaderAddress()
    name = before[: len(before) - len(local)].strip(b' "<').lower()
    return HeaderAddress(local, host, name, registered(host))


def order(names: Sequence[bytes]) -> tuple[list[bytes], bytes, bytes]:
    """Neighbouring names, the sequence of the main ones, and that of all but Received.

    The usual names are codes: most pairs then are hashed in one step, and stored in four bytes.
    """
    changed = [name for before, name in pairwise((b"", *names)) if name != before][:NAMES_READ]
    codes = list(map(_CODES.get, changed, changed))
    main = b">".join(filter(_MAIN_CODES.__contains__, codes))
    others = b">".join([code for code in codes if code != _RECEIVED])
    return list(map(b">".join, pairwise((b"^", *codes, b"$")))), main, others


def order_shown(text: bytes) -> bytes:
    """What `order` gives, with names in place of codes."""
    return b">".join([_NAMES.get(code, code) for code in text.split(b">")])


def pattern(value: bytes) -> bytes:
    """Letters as `a` or `A`, digits as `9`."""
    return value[:SHAPE_READ].translate(_CASE)


def author_lines(value: bytes, author: HeaderAddress) -> tuple[bytes, list[bytes]]:
    """The case of the author's header, and facts about it."""
    case = _REPEATED.sub(b"", pattern(value))
    top = author.host.rpartition(b".")[2]
    name, local = len(author.name.split()), len(author.local)
    return case[:60], [b"words %d" % name, b"length %d" % local, b"top " + top]


def hop_lines(values: Iterable[bytes]) -> list[bytes]:
    """The first Received lines without their dates, with single blanks."""
    return [
        b" ".join((value.rpartition(b";")[0] or value).split()) for value in islice(values, HOPS)
    ]


def hops_in(lines: Iterable[bytes]) -> list[Hop]:
    """The clients that these lines name."""
    found = []
    for match in filter(None, map(_HOP.match, lines)):
        helo, reverse = match[1].lower(), (match[2] or b"").lower()
        found.append(Hop(helo, reverse, match[3] or b"", registered(helo), registered(reverse)))
    return found


def client_lines(hops: Iterable[Hop]) -> list[bytes]:
    """Whether the two names of each client are there, and agree."""
    return [
        _fact(b"hop", hop.helo == hop.reverse)
        if hop.reverse
        else (b"no rDNS" if hop.address else b"no IP")
        for hop in hops
    ]


def net_lines(hops: Iterable[Hop]) -> list[bytes]:
    """The first byte, and the first two, of each client's address."""
    found: list[bytes] = []
    for hop in hops:
        net, _, rest = hop.address.partition(b".")
        if rest:
            found += (net, net + b"." + rest.partition(b".")[0])
    return found


def agreement(
    first: Mapping[bytes, bytes], author: HeaderAddress, hops: Sequence[Hop], links: Sequence[bytes]
) -> list[bytes]:
    """Whether the sender's domain is that of the hops, the other addresses and the links.

    `links` are registered domains.
    """
    domain = author.domain or b"-"
    helos, reverses = [hop.helo_domain for hop in hops], [hop.reverse_domain for hop in hops]
    identity = address_in(first.get(b"message-id", b"")).domain
    helo, reverse = domain in helos, domain in reverses
    found = [
        _fact(b"helo", helo),
        _fact(b"rdns", reverse),
        b"in %d%d%d" % (helo, reverse, identity == domain),
        _fact(b"first", bool(hops) and helos[-1] == domain),
        _fact(b"id-hop", identity in helos or identity in reverses),
    ]
    if hops:
        found.append(_fact(b"client", helos[-1] == reverses[-1]))
    reply = first.get(b"reply-to")
    same = reply is not None and address_in(reply).domain == domain
    found.append(b"no reply" if reply is None else _fact(b"reply", same))
    if not links:
        return [*found, b"no links"]
    top = max(dict.fromkeys(links), key=links.count)
    return [
        *found,
        _fact(b"links", top == domain),
        _fact(b"link", domain in links),
        _fact(b"link1", links[0] == domain),
        _fact(b"url-hop", top in helos or top in reverses),
    ]


def sender_lines(
    author: HeaderAddress, recipient: HeaderAddress, subject: bytes, text: bytes
) -> list[bytes]:
    """Where the display name, the sender's domain and the recipient occur; all in lower case."""
    words = _NAME_WORD.findall(author.name)[:NAME_WORDS]

    def named(where: bytes) -> bool:
        return any(word in where for word in words)

    found = [_fact(b"name-s", named(subject)), _fact(b"name-t", named(text))]
    if author.host:
        found += (
            _fact(b"name-d", named(author.host)),
            _fact(b"name-l", named(author.local)),
            _fact(b"domain", author.domain.partition(b".")[0] in subject),
        )
    if recipient.host:
        found.append(_fact(b"rcpt", recipient.local in text))
        found.append(_fact(b"to", recipient.domain == author.domain))
    return found


def address_parts(author: HeaderAddress) -> list[bytes]:
    """Every four neighbouring bytes of the author's address, with marks at both ends."""
    if not author.host:
        return []
    address = author.local + b"@" + author.host
    address = b"^" + address[:ADDRESS_BYTES] + b"$"
    return [address[at : at + 4] for at in range(len(address) - 3)]
