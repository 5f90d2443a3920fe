"""Tokens: which text of a message is read, at which location, and how users read it.

`TokenLocation` has the locations; the same word at two locations is two features. `fields` turns a
message into fields, `shape_fields` says how header and text are written and how names and links
agree, and `text_shown` gives the text that users read for a feature. Must not know how words are
split or hashed, nor the model. Invariants: no text raises an exception; the work is bounded by
`limits` and the constants here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum, unique
from functools import lru_cache
from itertools import islice, pairwise, product
from math import isqrt
from typing import NamedTuple

from spamnb.mail.confusables import plain, plain_and_whole
from spamnb.mail.limits import PARTLY
from spamnb.mail.message import Message, Part, Text


@unique
class TokenLocation(IntEnum):
    """The part of a message where a word was found. The numbers are on disk: never reuse one.

    A location in `SHAPES` has lines instead of words, each of which is one feature.
    """

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
    # Shapes: each line is one feature. The number is 1-AUC without the shape; .0371 with all
    # (0033).
    HEADER_ORDER = 22  # every mail program has its own order of headers: .0383
    ID_SHAPE = 23  # every mail program has its own form of Message-ID: .0379
    FROM_SHAPE = 24  # how the author's name and address are written: .0375
    RECEIVED_SHAPE = 25  # every server has its own form of Received lines: .0372
    HOP = 26  # names and nets of the clients in Received lines: .0373
    AGREEMENT = 27  # whether hops, reply address and links are of the sender's domain: .0412
    SENDER = 28  # whether display name and recipient occur elsewhere: .0377
    ADDRESS_PART = 29  # four bytes of the author's address: .0357, but the best on newer mail
    LINK_SHAPE = 30  # form of hosts and paths, which a campaign varies only in part: .0372
    STYLE = 31  # lines, quotes, capitals and signs of the text, in steps: .0372
    GREETING = 32  # first two words and last word: .0372
    PASSAGE = 33  # no word, and never on disk: what the strongest passage adds to the score
    IDENTITY = 34  # whether the author's domain is authenticated: with forged authors -13 % (0083)


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
        *(TokenLocation.STYLE, TokenLocation.GREETING, TokenLocation.IDENTITY),
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
HEADER, and kinds of lines of one shape; the text is UTF-8 in its original case. A plain tuple,
because a message has fifty of them."""


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
HIDDEN_READ = 250
"""Bytes of a message's hidden text of which the words are features. With all of it, a sender could
fill the features of the transport with words that no ham has hidden, so that the message is of a
new kind: 10 % of such spam was not filed, now 2 % (docs/decisions/0080)."""
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
_NAMED_HOST = re.compile(rb"(?<![a-z0-9@.-])((?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,12})(?![a-z0-9.-])")
LABEL_COMPARED = 4
"""Bytes of a label that is looked for in other hosts; a shorter one is in many by chance."""
HOSTS_COMPARED = 20
"""Hosts of links that are compared with those of sender and recipient."""
_LABELS = 3
_LOOKALIKES = str.maketrans("01345аеорсухіјѕԁԛԝһοανρı", "oleasaeopcyxijsdqwhoavpi", "-")
"""digits, Cyrillic and Greek letters that look like the Latin ones; hyphens are left out"""
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
    """The shapes of a message, given its headers, its first text, and its links.

    A fact from a small set is a short code, which is hashed in one step and takes little room in
    the store; `_SENTENCES` has the sentence that users read. Values come from `Message`, so header
    fields that delivery adds never count.
    """
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
        (TokenLocation.LINK_SHAPE, b"", link_lines(hosts, domains, author, to)),
        (TokenLocation.LINK_SHAPE, b"host", hosts),
        (TokenLocation.LINK_SHAPE, b"path", paths),
        (TokenLocation.STYLE, b"", style(text)),
        (TokenLocation.GREETING, b"starts", starts),
        (TokenLocation.GREETING, b"ends", ends),
        (TokenLocation.IDENTITY, b"", identity_lines(headers, author)),
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


def identity_lines(headers: Iterable[tuple[bytes, bytes]], author: HeaderAddress) -> list[bytes]:
    """What results of authentication say of the author; nothing in a message without results.

    A domain that is always authenticated at a site has two features, and the rarer one, without
    proof, is that of forged mail.
    """
    values = [value for name, value in headers if name == b"authentication-results"]
    listed = [
        (role + (b" not in " if result == b"none" else b" in ") + zone + b" " + code).rstrip()
        for value in values
        for result, zone, role, code in _LISTED.findall(value)[:RESULTS_READ]
        if result != b"temperror"
    ]
    listed += [b"name of a user of this site" for value in values if _USERS_NAME in value]
    listed += [
        _RELATIONS[relation] for value in values for relation in _KNOWN_AUTHOR.findall(value)[:1]
    ]
    found = [
        (method, result, domain.lower())
        for value in values
        for method, result, domain in _RESULT.findall(value)[:RESULTS_READ]
    ]
    if not found:
        return listed
    passed = {(method == b"dmarc", one) for method, result, one in found if result == b"pass"}
    is_proven = any(_speaks_for(author.host, one, is_dmarc) for is_dmarc, one in passed)
    signers = {registered(one) for is_dmarc, one in passed if one and not is_dmarc}
    others = sorted(signers - {author.domain} if is_proven else signers)
    proven = b"authentic" if is_proven else b"not authentic"
    lines = [b"author " + proven]
    if author.domain:
        lines.append(b"author " + author.domain + b" " + proven)
    if others and not is_proven:
        lines.append(b"authentic for another domain")
    return [*lines, *(b"authentic for " + one for one in others), *listed]


def _speaks_for(author: bytes, passed: bytes, is_dmarc: bool) -> bool:  # noqa: FBT001
    """Whether a pass for a domain proves an author's host.

    DMARC, which knows the public suffixes, proves the host that it names. Without it one host must
    be within the other: two domains below co.uk have the same last two labels.
    """
    if author == passed or is_dmarc or b"." not in passed or b"." not in author:
        return author == passed
    return author.endswith(b"." + passed) or passed.endswith(b"." + author)


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
        if any(registered(one) != author.domain for one in _NAMED_HOST.findall(author.name)):
            found.append(b"name has another domain")
    if recipient.host:
        found.append(_fact(b"rcpt", recipient.local in text))
        found.append(_fact(b"to", recipient.domain == author.domain))
        if like := likeness(author.host, recipient.host):
            found.append(b"sender " + like)
    return found


@lru_cache(maxsize=4096)
def main_label(host: bytes) -> bytes:
    """The label of a host that says whose it is: acme of www.acme.com and of mail.acme.co.uk."""
    labels = host.rstrip(b".").split(b".")[-3:]
    if len(labels) == _LABELS and len(labels[1]) < LABEL_COMPARED <= len(labels[0]):
        return labels[0]
    return labels[-2] if len(labels) > 1 else b""


@lru_cache(maxsize=4096)
def likeness(host: bytes, other: bytes) -> bytes:
    """How a host looks like that of another organisation; empty if it does not."""
    own = main_label(other)
    if len(own) <= LABEL_COMPARED or registered(host) == registered(other):
        return b""
    label = main_label(host)
    if label == own:
        return b"top"
    if own in host:
        return b"within"
    # One changed letter leaves the first or the last as it was; most labels are told apart so.
    may_be_near = label[:1] == own[:1] or label[-1:] == own[-1:] or label.startswith(b"xn--")
    return b"near" if may_be_near and _is_near(skeleton(label), skeleton(own)) else b""


def skeleton(label: bytes) -> str:
    """A label with one letter for all that look alike: paypal of paypa1 and of xn--pypal-4ve."""
    text = label.decode("utf-8", "replace")
    if label.startswith(b"xn--"):
        with suppress(UnicodeError):
            text = label[4:].decode("punycode")
    return text.translate(_LOOKALIKES).replace("rn", "m").replace("vv", "w")


def _is_near(one: str, other: str) -> bool:
    """Whether at most one letter is added, left out, replaced, or exchanged with its neighbour."""
    if abs(len(one) - len(other)) > 1:
        return False
    letters = enumerate(zip(one, other, strict=False))
    at = next((n for n, (a, b) in letters if a != b), min(len(one), len(other)))
    one, other = one[at:], other[at:]
    exchanged = one[1:2] + one[:1] + one[2:]
    return other in (one, one[1:], exchanged) or one == other[1:] or one[1:] == other[1:]


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


def link_lines(
    hosts: Iterable[bytes],
    domains: Sequence[bytes],
    author: HeaderAddress,
    recipient: HeaderAddress,
) -> list[bytes]:
    """Facts about the hosts of links, given their registered domains; whom they imitate."""
    distinct = dict.fromkeys(hosts)
    found = [b"dots %d" % host.count(b".") for host in distinct]
    if any(host.replace(b".", b"").isdigit() for host in distinct):
        found.append(b"address")
    found.append(b"sites %d" % min(len(set(domains)), 9))
    if not domains:
        return found
    found.append(b"own" if author.domain in domains else b"foreign")
    if not author.host:
        return found
    words, own = _NAME_WORD.findall(author.name)[:NAME_WORDS], main_label(author.host)
    others = [host for host in distinct if registered(host) != author.domain][:HOSTS_COMPARED]
    labels = b" ".join(map(main_label, distinct))
    imitated = {b"link of " + likeness(host, author.host) for host in others}
    imitated |= {b"link " + likeness(host, recipient.host) for host in others}
    return [
        *found,
        _fact(b"name-k", any(map(labels.__contains__, words))),
        _fact(b"own-k", len(own) >= LABEL_COMPARED and any(own in host for host in others)),
        *sorted(imitated - {b"link of ", b"link "}),
    ]


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


RESULTS_READ = 16
"""Results of authentication of one field."""
_RESULT = re.compile(
    rb"\b(dkim|spf|dmarc)=([a-z]{1,12})\b"
    rb"(?:[^;]*?(?:header\.(?:d|from)|smtp\.mailfrom)=(?:[^\s;@]*@)?([A-Za-z0-9.-]{1,253}))?"
)

_KNOWN_AUTHOR = re.compile(rb"\bx-known=(none|correspondent|reply)\b")
_USERS_NAME = b"x-name=user"
_RELATIONS = {
    b"none": b"author whom the recipient never wrote to",
    b"correspondent": b"author whom the recipient wrote to",
    b"reply": b"answer to mail of the recipient",
}
_LISTED = re.compile(
    rb"\bx-dnslist=([a-z]{1,12}) policy\.zone=(\S{1,253}) policy\.of=([a-z]{1,12})"
    rb"(?: policy\.code=([0-9.+]{1,80}))?"
)


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
    """The fields of a message: every text that is read, with its location.

    Invariants: no text raises an exception; the work is bounded by `limits`; and text that occurs
    in one message only (dates, random ids, boundaries) is left out, because such words never come
    back and only fill the store. The one exception is the message's digest (`SELF`): a user's
    correction moves this feature where a change of other features would harm other mail.
    """
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
    hidden = b" ".join(_bytes(part.hidden[:HIDDEN_READ]) for part in message.parts if part.hidden)
    if hidden:
        found.append((TokenLocation.HIDDEN, b"", hidden[:HIDDEN_READ]))
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


_COMPARED = {
    b"helo": "HELO {} sender domain",
    b"rdns": "reverse DNS {} sender domain",
    b"first": "first hop {} sender domain",
    b"reply": "Reply-To domain {} sender domain",
    b"client": "HELO of the first hop {} its reverse DNS",
    b"link": "link domain {} sender domain",
    b"link1": "first link domain {} sender domain",
    b"links": "commonest link domain {} sender domain",
    b"to": "recipient domain {} sender domain",
    b"hop": "HELO {} reverse DNS",
}
_SOUGHT = {
    b"name-d": "display name {} domain",
    b"name-l": "display name {} local part",
    b"name-s": "display name {} subject",
    b"name-t": "display name {} text",
    b"domain": "sender domain {} subject",
    b"rcpt": "recipient {} text",
    b"name-k": "display name {} link domains",
    b"own-k": "name of sender domain {} other link domains",
    b"id-hop": "Message-ID domain {} hops",
    b"url-hop": "commonest link domain {} hops",
}


def _number(step: int) -> str:
    return str(step)


def _doubling(step: int) -> str:
    """The numbers of one step in which each step is twice as wide as the one before."""
    return str(step) if step < 3 else f"{(1 << step - 2) + 1} to {1 << step - 1}"


def _counted_from_one(step: int) -> str:
    """The numbers that have `step` bits when 1 is added."""
    first, last = (1 << step - 1) - 1, (1 << step) - 2
    return str(first) if first == last else f"{first} to {last}"


def _length(step: int) -> str:
    """The numbers that have a square of `step` bits."""
    return f"{isqrt((1 << step - 1) - 1) + 1} to {isqrt((1 << step) - 1)}" if step else "0"


def _percent(tenths: int) -> str:
    return f"{10 * tenths} to {10 * tenths + 9} %"


def _up_to(last: int, width: int = 1) -> Callable[[int], str]:
    """Steps of `width` numbers; the step `last` stands for all above."""

    def shown(step: int) -> str:
        first = step * width
        if step >= last:
            return f"{first} or more"
        return str(first) if width == 1 else f"{first} to {first + width - 1}"

    return shown


_COUNTED: dict[bytes, tuple[str, Callable[[int], str]]] = {
    b"length": ("bytes in local part", _number),
    b"words": ("words in display name", _number),
    b"dots": ("dots in link host", _number),
    b"sites": ("linked domains", _up_to(9)),
    b"quotes": ("quoted lines", _up_to(5, 3)),
    b"lines": ("lines", _counted_from_one),
    b"caps": ("capitals", _percent),
    b"!": ("exclamation marks", _up_to(8)),
    b"$": ("dollar signs", _up_to(6)),
    b"<": ("signs <", _counted_from_one),
    b"empty": ("blank lines", _percent),
    b"ragged": ("lines with trailing blanks", _counted_from_one),
}
_MARKS: dict[bytes, tuple[str, Callable[[int], str]]] = {
    b"hops": ("Received lines", _doubling),
    b"text": ("characters of text", _doubling),
    b"parts": ("parts", _doubling),
    b"links": ("links in html", _doubling),
    b"images": ("images in html", _doubling),
    b"hidden": ("characters of hidden text", _doubling),
    b"line": ("characters of the longest line", _length),
    b"to": ("addresses in To", _doubling),
}
_ODDITIES = {
    "charset:unknown": "unknown charset",
    "charset:wrong": "text does not fit its charset",
    "charset:undeclared-8bit": "bytes above 127 without a charset",
    "text:zero-width": "invisible characters in a word",
    "text:bidi": "characters that turn the direction of text",
    "text:mixed-script": "words of mixed scripts",
    "text:styled-letters": "letters that imitate others",
    "text:bare-cr": "CR without LF in the text",
    "header:many": "too many headers",
    "header:none": "no header",
    "header:junk": "a line in the header that is no header",
    "header:broken-word": "broken encoded word in the header",
    "header:many-words": "too many encoded words in the header",
    "header:8bit": "bytes above 127 in the header",
    "header:huge": "header too large",
    "header:long": "header too long",
    "header:bare-cr": "CR without LF in the header",
    "html:torn-quotes": "html with a quote that does not end",
    "html:stripped": "html that is no tree",
    "html:base": "html with a base address",
    "html:huge": "html too large",
    "html:hidden": "hidden text in html",
    "url:text-differs": "link text names another host than the link",
    "url:data-image": "image inside html",
    "text:huge": "text too large",
    "text:nul": "NUL bytes in the text",
    "boundary:again": "parts after the end of a multipart",
    "boundary:missing": "multipart without its boundary",
    "boundary:unclosed": "multipart without an end",
    "encoding:unknown": "unknown transfer encoding",
    "qp:broken": "malformed quoted-printable",
    "uuencode:broken": "malformed uuencode",
    "param:double": "a MIME parameter twice",
    "param:many": "too many MIME parameters",
    "mime:bad-type": "malformed Content-Type",
    "mime:depth": "parts nested too deeply",
    "mime:parts": "too many parts",
    "subject:shouts": "subject in capitals",
    PARTLY: "message read only in part",
}
_PLACES = ("HELO", "reverse DNS", "Message-ID")
_FACTS = {
    code + sign: sentence.format(word)
    for table, words in ((_COMPARED, ("differs from", "=")), (_SOUGHT, ("not in", "in")))
    for code, sentence in table.items()
    for sign, word in zip((b"!", b"="), words, strict=True)
}
_FACTS |= {
    b"in %d%d%d" % here: "sender domain in "
    + (", ".join(place for place, true in zip(_PLACES, here, strict=True) if true) or "no hop")
    for here in product((False, True), repeat=3)
}
_FACTS |= {
    b"no reply": "no Reply-To",
    b"no rDNS": "client without reverse DNS",
    b"no IP": "client without address",
    b"no links": "no links",
    b"own": "link domain = sender domain",
    b"foreign": "all link domains differ from sender domain",
    b"address": "link to an IP address",
    b"name has another domain": "another domain in the display name",
}
_FACTS |= {
    kind + b" " + like: f"{who} {how} {whose}"
    for kind, who, whose in (
        (b"sender", "sender domain", "the recipient's"),
        (b"link", "link domain", "the recipient's"),
        (b"link of", "link domain", "the sender's"),
    )
    for like, how in (
        (b"near", "differs by a letter from"),
        (b"within", "has the name of"),
        (b"top", "differs by its end from"),
    )
}
_CODED = frozenset(
    {
        *(TokenLocation.ID_SHAPE, TokenLocation.FROM_SHAPE, TokenLocation.HOP),
        *(TokenLocation.AGREEMENT, TokenLocation.SENDER, TokenLocation.LINK_SHAPE),
        TokenLocation.STYLE,
    }
)


_SENTENCES = {mark_of(oddity).encode(): sentence for oddity, sentence in _ODDITIES.items()} | {
    missing_mark(name).encode(): f"no {shown}" for name, shown in EXPECTED_HEADERS.items()
}

_NAMING = {"header-double": "more than one header {}", "url-": "link of the scheme {}"}


NOT_STORED = "text not stored"
_KINDS: dict[str, tuple[TokenLocation, ...]] = {
    "words": (TokenLocation.BODY, TokenLocation.SUBJECT, TokenLocation.WORD,
        TokenLocation.GREETING),
    "strongest passage": (TokenLocation.PASSAGE,),
    "links": (TokenLocation.URL, TokenLocation.LINK_SHAPE),
    "sender and recipient": (TokenLocation.FROM, TokenLocation.REPLY, TokenLocation.TO,
        TokenLocation.FROM_SHAPE, TokenLocation.SENDER, TokenLocation.ADDRESS_PART),
    "route and authentication": (TokenLocation.RECEIVED, TokenLocation.HOP, TokenLocation.AUTH,
        TokenLocation.RECEIVED_SHAPE, TokenLocation.AGREEMENT, TokenLocation.IDENTITY),
    "form of the header": (TokenLocation.ID, TokenLocation.HEADER, TokenLocation.HEADER_ORDER,
        TokenLocation.ID_SHAPE, TokenLocation.INNER),
    "form of the text": (TokenLocation.STYLE, TokenLocation.MARKUP),
    "hidden text": (TokenLocation.HIDDEN,),
    "parts and attachments": (TokenLocation.CONTENT, TokenLocation.PART, TokenLocation.FILE,
        TokenLocation.DIGEST),
    "oddities and counts": (TokenLocation.MARK,),
    "this message itself": (TokenLocation.SELF,),
}  # fmt: skip
_HEX = re.compile(r"[0-9a-f]{16,}")


def kind_shown(location: str, token: str) -> str:
    """The kind of a clue, for sums, by the name of its location."""
    if token_shown(location, token) == NOT_STORED:
        return NOT_STORED
    return _KIND_OF[location]


def token_shown(location: str, token: str) -> str:
    """The text of a clue for people: a sentence in place of a number that tells them nothing."""
    if location == location_shown(TokenLocation.SELF):
        return "labels of this message"
    if _HEX.match(token) is None:
        return token
    if location == location_shown(TokenLocation.DIGEST):
        return "an attachment that was seen before"
    return NOT_STORED if location == location_shown(TokenLocation.MARK) else token


def location_shown(location: TokenLocation) -> str:
    """The name of a location."""
    return location.name.lower().replace("_", " ")


def text_shown(location: TokenLocation, text: bytes) -> str:
    """The text of a feature as users read it."""
    if location is TokenLocation.HEADER_ORDER:
        kind, colon, rest = text.rpartition(b":")
        prefix = "all: " if colon and kind == b"all" else ""
        return prefix + order_shown(rest).decode("utf-8", "replace")
    shown = text.decode("utf-8", "replace")
    if location is TokenLocation.ADDRESS_PART:
        return f'"{shown}"'
    if location is TokenLocation.MARKUP:
        return f"<{shown}>"
    if location is TokenLocation.MARK:
        return _count_shown(_MARKS, *text.rsplit(b"-", 1)) or _mark_shown(text, shown)
    if location not in _CODED:
        return shown
    if text.startswith(b"top "):
        return f"top-level domain {shown[4:]}"
    return _count_shown(_COUNTED, *text.split(b" ", 1)) or _FACTS.get(text, shown)


def _mark_shown(text: bytes, shown: str) -> str:
    if sentence := _SENTENCES.get(text):
        return sentence
    for prefix, sentence in _NAMING.items():
        if shown.startswith(prefix):
            return sentence.format(shown.removeprefix(prefix))
    return shown


def _count_shown(
    table: dict[bytes, tuple[str, Callable[[int], str]]], code: bytes, step: bytes = b""
) -> str:
    """A counted fact with its range of numbers, or nothing where `table` has no such code."""
    sentence, numbers = table.get(code, ("", _number))
    return f"{sentence}: {numbers(int(step))}" if sentence and step.isdigit() else ""


_KIND_OF = {location_shown(one): kind for kind, every in _KINDS.items() for one in every}
