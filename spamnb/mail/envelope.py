"""The envelope of a message, its addresses and domains, and the names of the site. Pure.

`Envelope` is a parsed copy for rules, logs and reports; the next hop always gets the original bytes
(filters that wrote a parsed envelope out again have become open relays). Parsing never fails: an
unreadable part gives an empty text, and does not change what is sent.

Two addresses are one mailbox if they differ only in case, in quotes around the local part, in the
text after the delimiter (RFC 5233; unless the name itself has one), in a trailing dot of the
domain, or in whether the domain is written in Unicode or ASCII (RFC 5890). A domain without an
ASCII form stays as it is. Must not know messages, sockets or settings.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from spamnb.mail import limits

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_UPPER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
"""ASCII letters only: other case rules merge distinct names, such as those with a Kelvin sign"""


def same_name(one: str, other: str) -> bool:
    """Whether two names of users differ at most in the case of ASCII letters.

    Other letters do not count as equal: `str.casefold` takes a long s for an s.
    """
    return one.translate(_UPPER) == other.translate(_UPPER)


def domain_of(address: str) -> str:
    """The domain of an address in its ASCII form; empty if there is none."""
    domain = address.strip().strip("<>").rpartition("@")[2] if "@" in address else ""
    if not domain.isascii():
        try:
            domain = domain.encode("idna").decode("ascii")
        except UnicodeError:
            return domain
    return domain.translate(_UPPER).rstrip(".")


def address_of(address: str, delimiter: str = "+", exact: Container[str] = ()) -> str:
    """The mailbox of an address or a login, in normal form.

    In the addresses of `exact`, the delimiter is a part of the mailbox's name.
    """
    local, at, _ = address.strip().strip("<>").rpartition("@")
    if not at:
        return address.strip().strip("<>").translate(_UPPER)
    quoted = _QUOTED.fullmatch(local)
    local = (_ESCAPE.sub(r"\1", quoted[1]) if quoted else local).translate(_UPPER)
    whole = f"{local}@{domain_of(address)}"
    if not delimiter or delimiter not in local or whole in exact:
        return whole
    return f"{local.partition(delimiter)[0] or local}@{domain_of(address)}"


def domains_of(names: Iterable[str]) -> frozenset[str]:
    """Domain names in the form that `domain_of` returns."""
    return frozenset(domain_of(f"@{name}") for name in names) - {""}


@dataclass(frozen=True, slots=True)
class LocalDomains:
    """The domains with mailboxes at this site, as far as one listener knows them."""

    domains: frozenset[str] = frozenset()
    complete: bool = False
    """`domains` has all local domains: for every client, other recipients are at another site"""
    final: bool = False
    """the next hop stores all mail and relays none"""

    def holds(self, recipients: Iterable[str], *, outgoing: bool) -> bool:
        """Whether all recipients are at this site.

        For mail from outside the answer is yes, unless `domains` is complete. For mail that the
        site's own clients send, the domain of each recipient must be in `domains`.
        """
        if self.final or not (outgoing or self.complete):
            return True
        found = set(map(domain_of, recipients))
        return found <= self.domains | {""}


class Client(NamedTuple):
    """The client that handed the message to this site, as far as trusted peers report it."""

    address: str = ""
    """IP address; by XFORWARD or PROXY if a trusted peer sent one, else the socket's"""
    name: str = ""
    helo: str = ""
    ident: str = ""
    """the queue id at the peer (XFORWARD IDENT)"""
    source: str = ""
    """XFORWARD SOURCE: LOCAL or REMOTE"""


def network_of(address: str) -> str:
    """The network of one customer: an IPv4 address, or 64 bits of IPv6."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped) if mapped else str(int(found) >> 64)
    return str(found)


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message's envelope."""

    sender: str = ""
    """without the angle brackets; empty for the null sender"""
    recipients: tuple[str, ...] = ()
    """those that the next hop accepted"""
    client: Client = field(default_factory=Client)
    mail_line: bytes = b""
    """the command as it came, with its parameters, without CRLF"""
    rcpt_lines: tuple[bytes, ...] = ()
    """one for each of `recipients`"""
    xforward_lines: tuple[bytes, ...] = ()


BY = re.compile(rb"\bby[ \t]++([^\s;()]++)", re.IGNORECASE)
"""the host that wrote a Received field"""


class LocalHosts(NamedTuple):
    """Names of the local site; the headers that it adds are not part of a message."""

    hosts: tuple[str, ...] = ()
    """a Received field "by" one of these hosts is dropped"""
    authserv_ids: tuple[str, ...] = ()
    """results of authentication are kept only from these servers, and only if they are proven"""
    domains: tuple[str, ...] = ()
    """domains with mailboxes at this site"""
    key: bytes = b""
    """by which a message proves its results; empty: only the place of a field proves them"""

    test_key: bytes = b""
    """by which the test message of the doctor proves that it must be marked as junk"""

    def keyed(self, secret: bytes) -> LocalHosts:
        """These names with the key of the model that has this secret."""
        test = blake2b(secret[:64], digest_size=32, person=b"spamnb doctor").digest()
        if not self.authserv_ids:
            return self._replace(test_key=test)
        key = blake2b(secret[:64], digest_size=32, person=b"spamnb results")
        return self._replace(key=key.digest(), test_key=test)


def is_local_hop(value: bytes, local: LocalHosts) -> bool:
    """Whether a Received field names a host of the site as its writer.

    An MTA may copy words of the client, also another `by`, in front of its own name.
    """
    found = BY.findall(value[: limits.VALUE_BYTES])
    return not {name.lower().encode() for name in local.hosts}.isdisjoint(map(bytes.lower, found))
