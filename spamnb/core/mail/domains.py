"""Addresses and domains: which name the same mailbox, and which are served at this site. Pure.

Two addresses are one mailbox if they differ only in case, in quotes around the local part, in the
text after the delimiter (RFC 5233; unless the name itself has one), in a trailing dot of the
domain, or in whether the domain is written in Unicode or ASCII (RFC 5890). Must not know messages
or settings. Nothing fails; a domain without an ASCII form stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass

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
