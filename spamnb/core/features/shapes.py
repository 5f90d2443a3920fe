"""Shapes of a message: how header and text are written, and how its names and links agree.

Each shape is lines of text, and each line becomes one feature. A fact from a small set is a short
code, which is hashed in one step and takes little room in the store; `clue_texts` has the sentence
that users read. Must not know hashing or the model.

Invariants: values come from `Message`, so header fields that delivery adds never count; no text
raises an exception; the work is bounded by the constants here, and by the size of a header's value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

from spamnb.core.features.locations import Field, TokenLocation

HOPS = 8
"""Received lines that are read, the newest first; legitimate mail rarely has more."""
SHAPE_READ = 300
"""Bytes of a value from which its shape is taken."""
NAMES_READ = 60
"""Header names of which the order is read."""
NAME_WORDS = 8
"""Words of a display name that are looked for elsewhere."""
ADDRESS_BYTES = 60
"""Bytes of an address that are cut into parts of four."""
NAME_SOUGHT = 2_000
"""Bytes of the text in which the sender's name and the recipient's are looked for."""
LINKS_READ = 60
"""Links whose shape is read."""
HOST_READ, PATH_READ = 255, 60
"""Bytes of a link's host and path."""
STYLE_READ = 4_000
"""Bytes of the first text in which signs are counted."""
CASE_READ = 1_000
"""Bytes of it in which capitals are counted."""
EDGE_READ = 100
"""Bytes at its start and end in which the greeting is looked for."""

_CAPITALS, _DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"0123456789"
_LETTERS = _CAPITALS.lower() + _CAPITALS
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
    """the text before the address"""
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
_BUT_SIGNS = bytes(symbol for symbol in range(256) if symbol not in b"\n!$<")
_TO_WORDS = bytes(
    symbol if symbol >= 128 or symbol in _CAPITALS.lower() + b"'" else ord(" ")
    for symbol in bytes(range(256)).lower()
)
"""lower case; a blank for each byte that is in no word"""


def shape_fields(
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

    The usual names are codes, so most pairs are hashed in one step and stored in four bytes.
    """
    changed = [name for before, name in pairwise((b"", *names)) if name != before][:NAMES_READ]
    codes = list(map(_CODES.get, changed, changed))
    main = b">".join(filter(_MAIN_CODES.__contains__, codes))
    others = b">".join([code for code in codes if code != _RECEIVED])
    return list(map(b">".join, pairwise((b"^", *codes, b"$")))), main, others


def order_shown(text: bytes) -> bytes:
    """A result of `order`, with names in place of codes."""
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
        helo, reverse, address = match.groups(b"")
        helo, reverse = helo.lower(), reverse.lower()
        found.append(Hop(helo, reverse, address, registered(helo), registered(reverse)))
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
        return any(map(where.__contains__, words))

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


def hosts_and_paths(targets: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Hosts and paths of the first links, which are without their scheme."""
    parts = [target.partition(b"/") for target in islice(filter(None, targets), LINKS_READ)]
    servers = [server[:HOST_READ].lower().rpartition(b"@")[2] for server, _, _ in parts]
    hosts = [server.partition(b":")[0] for server in servers]
    return hosts, [path[:PATH_READ] for _, _, path in parts]


def link_lines(hosts: Iterable[bytes], domains: Sequence[bytes], author: bytes) -> list[bytes]:
    """Facts about the hosts of links, given their registered domains and the author's."""
    distinct = dict.fromkeys(hosts)
    found = [b"dots %d" % host.count(b".") for host in distinct]
    if any(host.replace(b".", b"").isdigit() for host in distinct):
        found.append(b"address")
    found.append(b"sites %d" % min(len(set(domains)), 9))
    if domains:
        found.append(b"own" if author in domains else b"foreign")
    return found


def style(text: bytes) -> list[bytes]:
    """How a text is written, in steps."""
    text = text[:STYLE_READ]
    signs = text.translate(None, _BUT_SIGNS)  # counts of single bytes are then nearly free
    lines = signs.count(b"\n")
    quotes = text.count(b"\n> ") if b">" in text else 0
    begin = text[:CASE_READ]
    letters = len(begin) - len(begin.translate(None, _LETTERS))
    capitals = len(begin) - len(begin.translate(None, _CAPITALS))
    return [
        b"quotes %d" % min(quotes // 3, 5),
        b"lines %d" % (lines + 1).bit_length(),
        b"caps %d" % (10 * capitals // (letters + 1)),
        b"! %d" % min(signs.count(b"!"), 8),
        b"$ %d" % min(signs.count(b"$"), 6),
        b"< %d" % (signs.count(b"<") + 1).bit_length(),
        b"empty %d" % (10 * text.count(b"\n\n") // (lines + 1)),
        b"ragged %d" % (text.count(b" \n") + 1).bit_length(),
    ]


def greeting(text: bytes) -> tuple[list[bytes], list[bytes]]:
    """The first word and the first two, and the last word."""
    first = text[:EDGE_READ].translate(_TO_WORDS).split(None, 2)[:2]
    last = text[-EDGE_READ:].translate(_TO_WORDS).rsplit(None, 1)[-1:]
    return [first[0], first[0] + b" " + b"".join(first[1:])] if first else [], last
