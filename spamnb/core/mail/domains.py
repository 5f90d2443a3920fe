"""Addresses and domains: which name the same mailbox, and which are served at this site. Pure.

Two addresses are one mailbox if they differ in case, in quotes around the local part, in what
follows the delimiter there (RFC 5233), in a trailing dot of the domain, or in whether the domain is
written in Unicode or ASCII (RFC 5890). Must not know messages or settings. Failure: none; a domain
that has no ASCII form stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_UPPER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
"""letters of ASCII alone: other rules of case make one name of two, such as a Kelvin sign of a k"""


def domain_of(address: str) -> str:
    """The domain of an address in its ASCII form; empty if there is none."""
    domain = address.strip().strip("<>").rpartition("@")[2] if "@" in address else ""
    if not domain.isascii():
        try:
            domain = domain.encode("idna").decode("ascii")
        except UnicodeError:
            return domain
    return domain.translate(_UPPER).rstrip(".")


def address_of(address: str, delimiter: str = "+") -> str:
    """The mailbox that an address, or a login, names."""
    local, at, _ = address.strip().strip("<>").rpartition("@")
    if not at:
        return address.strip().strip("<>").translate(_UPPER)
    quoted = _QUOTED.fullmatch(local)
    local = (_ESCAPE.sub(r"\1", quoted[1]) if quoted else local).translate(_UPPER)
    plain = local.partition(delimiter)[0] if delimiter else local
    return f"{plain or local}@{domain_of(address)}"


def domains_of(names: Iterable[str]) -> frozenset[str]:
    """Names of domains in the form that `domain_of` gives."""
    return frozenset(domain_of(f"@{name}") for name in names) - {""}


@dataclass(frozen=True, slots=True)
class LocalDomains:
    """What is known of the domains whose mailboxes are at this site, at one listener."""

    domains: frozenset[str] = frozenset()
    complete: bool = False
    """these are all: other recipients are elsewhere, whoever the client is"""
    final: bool = False
    """the next hop has the mailboxes, and relays nothing"""

    def holds(self, recipients: Iterable[str], *, outgoing: bool) -> bool:
        """Whether all recipients are at this site.

        Of mail from outside that is taken for granted unless all domains are known; of mail that
        the site's own clients send it is not.
        """
        if self.final or not (outgoing or self.complete):
            return True
        found = set(map(domain_of, recipients))
        return found <= self.domains | {""}
