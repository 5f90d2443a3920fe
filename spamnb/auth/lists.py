"""Lists by DNS: zones that the administrator names, for addresses of clients and for domains. Pure.

    await check(subjects, zones, names) -> ["x-dnslist=listed policy.zone=... policy.code=..."]

A zone answers with addresses in 127.0.0.0/8 for what it lists; their meaning is learnt, so a list
of wanted senders serves as well as one of unwanted ones. Other addresses are no answer: those of a
resolver that answers for every name, and 127.255.255.0/24, by which lists refuse a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final, Literal, NamedTuple

from spamnb.auth.names import Ask, NameFault

MOST_CODES: Final = 4
"""of one answer"""
Role = Literal["client", "author", "sender", "link"]


class Zones(NamedTuple):
    """The zones that are asked."""

    client: Sequence[str] = ()
    """by the client's address"""
    domain: Sequence[str] = ()
    """by the domains of the author, of the envelope's sender and of links"""


class Subject(NamedTuple):
    """What is looked up, and what it is in the message."""

    role: Role
    name: str
    """an address, its labels in the order of names; or a domain"""


def client_subject(client: str) -> Subject | None:
    """The client of a message; None if it has no address."""
    try:
        found = ip_address(client.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    return Subject("client", found.reverse_pointer.removesuffix(".arpa").rpartition(".")[0])


def expect(subjects: Iterable[Subject], zones: Zones, names: Ask) -> None:
    """Ask already now for what `check` needs."""
    for subject in subjects:
        for zone in _zones_of(subject, zones):
            names.expect(f"{subject.name}.{zone}", "A")


async def check(subjects: Sequence[Subject], zones: Zones, names: Ask) -> list[str]:
    """A result for each zone and role: its codes, `none` or `temperror`."""
    found: dict[tuple[str, Role], list[str]] = {}
    for subject in subjects:
        for zone in _zones_of(subject, zones):
            codes = found.setdefault((zone, subject.role), [])
            try:
                answer = await names.ask(f"{subject.name}.{zone}", "A")
            except NameFault:
                codes.append("temperror")
            else:
                codes += filter(_is_code, answer)
    return [_text(zone, role, codes) for (zone, role), codes in found.items()]


def _zones_of(subject: Subject, zones: Zones) -> Sequence[str]:
    return zones.client if subject.role == "client" else zones.domain


def _is_code(text: str) -> bool:
    return text.startswith("127.") and not text.startswith("127.255.255.")


def _text(zone: str, role: Role, codes: Sequence[str]) -> str:
    listed = sorted(set(codes) - {"temperror"})[:MOST_CODES]
    result = "listed" if listed else "temperror" if codes else "none"
    code = f" policy.code={'+'.join(listed)}" if listed else ""
    return f"x-dnslist={result} policy.zone={zone} policy.of={role}{code}"
