"""SPF: may this client send for this domain? RFC 7208, without explanations. Pure.

    await check(client, sender, helo, names) -> (result, domain)

`include`, `a`, `mx`, `ptr`, `exists` and `redirect` ask name servers, at most ten of them in one
check, and two may find nothing. A record is read whole before its first term is evaluated, so an
error anywhere in it is a `permerror`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from spamnb.auth.names import Ask, Kind, NameFault

SpfResult = Literal["pass", "fail", "softfail", "neutral", "none", "permerror", "temperror"]
Client = IPv4Address | IPv6Address

MOST_TERMS: Final = 10
"""terms that ask (RFC 7208 4.6.4)"""
MOST_VOID: Final = 2
MOST_HOSTS: Final = 10
"""of one `mx`; of one `ptr`, those beyond it are ignored"""
MOST_NAME: Final = 253
MOST_SENDER: Final = 512
"""characters of the sender and of HELO that macros stand for"""
MOST_RECORD: Final = 4_096
"""characters of a record; with more, a name server would have to split its answer"""

_QUALIFIERS: Final[dict[str, SpfResult]] = {
    "+": "pass",
    "-": "fail",
    "~": "softfail",
    "?": "neutral",
}
_MODIFIER = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)=(.*)")
_MACRO = re.compile(r"%(?:\{([slodiphcrtvSLODIPHCRTV])(\d*)(r?)([-.+,/_=]*)\}|([%_-]))")
_MACRO_STRING = re.compile(
    r"(?:%\{[slodiphvSLODIPHV](?:[1-9]\d{0,3})?[rR]?[-.+,/_=]*\}|%[%_-]|[!-$&-~])*"
)
_TOP_LABEL = re.compile(r"(?!\d+\Z)[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LAST_MACRO = re.compile(r"%\{[^{}]*\}\Z")
_DIRECTIVE = re.compile(
    r"([-+?~]?)(all|include|a|mx|ptr|ip4|ip6|exists)(?::(.*?))?"
    r"(?:/(0|[1-9]\d{0,2}))?(?://(0|[1-9]\d{0,2}))?",
    re.IGNORECASE,
)
_WITH_DOMAIN: Final = frozenset(("include", "exists"))
_WITH_LENGTHS: Final = frozenset(("a", "mx"))


class _Ended(Exception):  # noqa: N818 - the end of a check, not an error of the program
    """The check ends with this result."""

    def __init__(self, result: SpfResult) -> None:
        self.result = result


Network = IPv4Network | IPv6Network


class _Term(NamedTuple):
    result: SpfResult
    kind: str
    domain: str = ""
    """with macros"""
    v4: int = 32
    v6: int = 128
    network: Network | None = None
    """of ip4 and ip6"""


class _Record(NamedTuple):
    terms: Sequence[_Term]
    redirect: str = ""


async def check(client: str, sender: str, helo: str, names: Ask) -> tuple[SpfResult, str]:
    """The result for the sender of an envelope, or for HELO if it has none, and the domain."""
    address = ip_address(client.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    helo, sender = helo[:MOST_SENDER], sender[-MOST_SENDER:]
    local, _, domain = sender.rpartition("@") if "@" in sender else ("", "", helo)
    checked = _Check(address, local or "postmaster", domain.rstrip("."), helo, names)
    try:
        return await checked.of(checked.sender_domain), checked.sender_domain
    except NameFault:
        return "temperror", checked.sender_domain
    except _Ended as end:
        return end.result, checked.sender_domain


@dataclass(slots=True)
class _Check:
    """One check, which ends with its result or by `_Ended`."""

    client: Client
    local: str
    sender_domain: str
    helo: str
    names: Ask
    terms: int = 0
    void: int = 0
    validated: str | None = None
    """what the macro `p` stands for, once it was asked"""

    async def of(self, domain: str, *, included: bool = False) -> SpfResult:
        """The result for a domain, by its record."""
        if not _is_domain(domain):
            return "none"
        text = await self._record_of(domain)
        if text is None:
            return "none"
        record = _read(text)
        if record is None:
            raise _Ended("permerror")
        if included and not record.terms and not record.redirect:
            return "neutral"
        for term in record.terms:
            if await self._matches(term, domain):
                return term.result
        if not record.redirect:
            return "neutral"
        self._count()
        target = await self._expanded(record.redirect, domain)
        found = await self.of(target)
        return "permerror" if found == "none" else found

    async def _record_of(self, domain: str) -> str | None:
        found = [
            one
            for one in await self.names.ask(domain, "TXT")
            if one.lower() == "v=spf1" or one.lower().startswith("v=spf1 ")
        ]
        if len(found) > 1:
            raise _Ended("permerror")
        return found[0] if found else None

    async def _matches(self, term: _Term, domain: str) -> bool:
        if term.kind == "all":
            return True
        if term.network is not None:
            return self.client in term.network
        self._count()
        target = await self._expanded(term.domain, domain) if term.domain else domain
        if term.kind == "include":
            found = await self.of(target, included=True)
            if found in ("none", "permerror"):
                raise _Ended("permerror")
            if found == "temperror":
                raise _Ended("temperror")
            return found == "pass"
        if term.kind == "exists":
            return bool(await self._ask(target, "A"))
        if term.kind == "ptr":
            return any(_within(one, target) for one in await self._validated_names())
        hosts = [target]
        if term.kind == "mx":
            exchanges = await self._ask(target, "MX")
            if len(exchanges) > MOST_HOSTS:
                raise _Ended("permerror")
            hosts = [one.partition(" ")[2] for one in exchanges]
            for host in hosts:
                self.names.expect(host, self._addresses)
        return await self._is_one_of(hosts, term, asked=term.kind == "mx")

    async def _is_one_of(self, hosts: Sequence[str], term: _Term, *, asked: bool) -> bool:
        """Whether one of these hosts is in the network of the client."""
        length = term.v4 if self.client.version == 4 else term.v6
        network = ip_network((self.client, length), strict=False)
        for host in hosts:
            ask = self.names.ask if asked else self._ask
            for text in await ask(host, self._addresses):
                if _is_in(text, network):
                    return True
        return False

    @property
    def _addresses(self) -> Kind:
        return "A" if self.client.version == 4 else "AAAA"

    async def _validated_names(self) -> list[str]:
        """The names of the client that lead back to it (RFC 7208 5.5)."""
        found = []
        try:
            hosts = await self._ask(self.client.reverse_pointer, "PTR")
            for host in hosts[:MOST_HOSTS]:
                self.names.expect(host, self._addresses)
        except NameFault:
            return []
        for host in hosts[:MOST_HOSTS]:
            try:
                texts = await self.names.ask(host, self._addresses)
            except NameFault:
                continue
            if any(_is_in(one, ip_network(self.client)) for one in texts):
                found.append(host.lower().rstrip("."))
        return found

    def _count(self) -> None:
        self.terms += 1
        if self.terms > MOST_TERMS:
            raise _Ended("permerror")

    async def _ask(self, name: str, kind: Kind) -> tuple[str, ...]:
        found = await self.names.ask(name, kind)
        if not found:
            self.void += 1
            if self.void > MOST_VOID:
                raise _Ended("permerror")
        return found

    # -- macros -----------------------------------------------------------------------------------

    async def _expanded(self, text: str, domain: str) -> str:
        """A domain with its macros replaced, within the length of a name."""
        if "%" in text:
            if re.search(r"%\{p", text, re.IGNORECASE) and self.validated is None:
                self.validated = self._named(await self._validated_names(), domain)
            text = _MACRO.sub(lambda found: self._macro(found, domain), text)
        text = text.rstrip(".")
        if len(text) <= MOST_NAME:
            return text
        end = text[-MOST_NAME:]
        return end if text[-MOST_NAME - 1] == "." else end.partition(".")[2]

    @staticmethod
    def _named(hosts: Sequence[str], domain: str) -> str:
        domain = domain.lower()
        same = [one for one in hosts if one == domain]
        return (same or [one for one in hosts if _within(one, domain)] or [*hosts, "unknown"])[0]

    def _macro(self, found: re.Match[str], domain: str) -> str:
        letter, digits, reverse, delimiters, sign = found.groups()
        if sign:
            return {"%": "%", "_": " ", "-": "%20"}[sign]
        value = {
            "s": f"{self.local}@{self.sender_domain}",
            "l": self.local,
            "o": self.sender_domain,
            "d": domain,
            "i": self._dotted(),
            "p": self.validated or "unknown",
            "v": "in-addr" if self.client.version == 4 else "ip6",
            "h": self.helo,
        }[letter.lower()]
        parts = re.split(f"[{re.escape(delimiters or '.')}]", value)
        if reverse:
            parts.reverse()
        kept = ".".join(parts[-int(digits) :] if digits else parts)
        return quote(kept, safe="-._~") if letter.isupper() else kept

    def _dotted(self) -> str:
        if self.client.version == 4:
            return str(self.client)
        return ".".join(self.client.exploded.replace(":", ""))


@lru_cache(maxsize=4_096)
def _read(text: str) -> _Record | None:
    """A record; None for anything that is not in the grammar."""
    try:
        return _record_in(text)
    except _Ended:
        return None


def _record_in(text: str) -> _Record:
    if len(text) > MOST_RECORD or not text.isascii() or not text.isprintable():
        raise _Ended("permerror")
    terms: list[_Term] = []
    modifiers: dict[str, str] = {}
    for word in text.split(" ")[1:]:
        if not word:
            continue
        modifier = _MODIFIER.fullmatch(word)
        if modifier is None:
            terms.append(_directive(word))
            continue
        name, value = modifier[1].lower(), modifier[2]
        if name in ("redirect", "exp"):
            if name in modifiers or not _is_domain_text(value):
                raise _Ended("permerror")
            modifiers[name] = value
        elif _MACRO_STRING.fullmatch(value) is None:
            raise _Ended("permerror")
    return _Record(terms, modifiers.get("redirect", ""))


def _directive(word: str) -> _Term:
    found = _DIRECTIVE.fullmatch(word)
    if found is None:
        raise _Ended("permerror")
    sign, kind, domain, v4, v6 = found.groups()
    result, kind = _QUALIFIERS[sign or "+"], kind.lower()
    if kind in ("ip4", "ip6"):
        if v6 is not None:
            raise _Ended("permerror")
        return _Term(result, kind, network=_network(kind, domain or "", v4))
    is_wrong = (
        ((v4 is not None or v6 is not None) and kind not in _WITH_LENGTHS)
        or (domain is None and kind in _WITH_DOMAIN)
        or (domain is not None and (kind == "all" or not _is_domain_text(domain)))
        or int(v4 or 0) > 32
        or int(v6 or 0) > 128
    )
    if is_wrong:
        raise _Ended("permerror")
    return _Term(result, kind, domain or "", _length(v4, 32), _length(v6, 128))


def _length(text: str | None, default: int) -> int:
    return default if text is None else int(text)


def _network(kind: str, text: str, length: str | None) -> Network:
    """The network of a term ip4 or ip6."""
    try:
        network = ip_network(text if length is None else f"{text}/{length}", strict=False)
    except ValueError as error:
        raise _Ended("permerror") from error
    if network.version != int(kind[2]) or "%" in text or "/" in text:
        raise _Ended("permerror")
    return network


def _is_domain_text(text: str) -> bool:
    """Whether a text of a record is a domain, with macros; it ends with one, or with a label."""
    before, _, last = text.removesuffix(".").rpartition(".")
    has_end = _LAST_MACRO.search(text) or (before and _TOP_LABEL.fullmatch(last))
    return bool(has_end) and _MACRO_STRING.fullmatch(text) is not None


def _is_domain(name: str) -> bool:
    """Whether a name may have a record: several labels, each of a size that a server can have."""
    labels = name.split(".")
    return len(labels) > 1 and len(name) <= MOST_NAME and all(0 < len(one) < 64 for one in labels)


def _within(host: str, domain: str) -> bool:
    host, domain = host.lower(), domain.lower().rstrip(".")
    return host == domain or host.endswith(f".{domain}")


def _is_in(text: str, network: object) -> bool:
    try:
        return ip_address(text) in network  # type: ignore[operator]
    except ValueError:
        return False
