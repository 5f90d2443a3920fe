"""DMARC: which authenticated domain speaks for the author of a message. RFC 7489. Pure.

    await check(author, spf_domain, dkim_domains, names) -> Finding(result, policy, ...)
    organization("mail.example.co.uk") -> "example.co.uk"

`spf_domain` and `dkim_domains` have passed. Domains of one organisation are found by the public
suffix list, which the package publicsuffixlist carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from spamnb.auth.dkim import SignatureFault, tags_in
from spamnb.auth.names import Ask, NameFault

_POLICIES: Final = ("none", "quarantine", "reject")


class Finding(NamedTuple):
    """What DMARC says of a message."""

    result: Literal["pass", "fail", "none", "permerror", "temperror"]
    author: str = ""
    policy: str = ""
    """what the author's domain asks for; empty without a record"""


@lru_cache(maxsize=1)
def _suffixes() -> Any:
    from publicsuffixlist import PublicSuffixList  # noqa: PLC0415 - an extra

    return PublicSuffixList()


@lru_cache(maxsize=8_192)
def organization(domain: str) -> str:
    """The domain of an organisation; a public suffix stands for itself."""
    name = domain.lower().rstrip(".")
    return _suffixes().privatesuffix(name) or name


def expect(author: str, names: Ask) -> None:
    """Ask already now for what `check` needs."""
    for domain in {author, organization(author)}:
        names.expect(f"_dmarc.{domain}", "TXT")


async def check(
    author: str, spf_domain: str, dkim_domains: Sequence[str], names: Ask
) -> Finding:  # fmt: skip
    """Whether a domain that passed is aligned with the author's."""
    try:
        own = await _record(author, names)
        whole = organization(author)
        record = own if own is not None or whole == author else await _record(whole, names)
    except NameFault:
        return Finding("temperror", author)
    if record is None:
        return Finding("none", author)
    policy = record.get("p", "none").lower()
    if own is None:
        policy = record.get("sp", policy).lower()
    if policy not in _POLICIES:
        policy = "none"
    aligned = (
        bool(spf_domain) and _is_aligned(author, spf_domain, record.get("aspf", "r"))
    ) or any(_is_aligned(author, one, record.get("adkim", "r")) for one in dkim_domains)
    return Finding("pass" if aligned else "fail", author, policy)


def _is_aligned(author: str, domain: str, mode: str) -> bool:
    if mode.lower() == "s":
        return author == domain.lower()
    return organization(author) == organization(domain)


async def _record(domain: str, names: Ask) -> Mapping[str, str] | None:
    """The record of a domain; None if it has none, or several."""
    values = await names.ask(f"_dmarc.{domain}", "TXT")
    found = [one for one in values if one.replace(" ", "").startswith("v=DMARC1;")]
    return _read(found[0]) if len(found) == 1 else None


@lru_cache(maxsize=4_096)
def _read(text: str) -> Mapping[str, str] | None:
    try:
        return tags_in(text)
    except SignatureFault:
        return None
