"""Lists of the administrator: allow and block lists, which override the model, and spamtraps.

    # one entry a line; a comment begins with #
    client 192.0.2.0/24        the host that submitted the message, as trusted peers name it
    sender ann@example.org     the envelope's sender, or the author in From
    domain example.org         the same by domain, with its subdomains
    sender me@example.org 192.0.2.0/24      ... if the client is in this network
    domain example.org unauthenticated      ... from any client
    recipient bob@example.net  all of a message's recipients must be listed; @example.net: a domain

A sender or domain is allowed only if it is authentic (`policy.senders`). Where no
server authenticates senders, an entry may name the client's network as its proof, or say that it
needs none: then any client that uses the address is allowed. Entries of the block list need no
proof, and must not have such a word. Allow overrides block, so one sender at a blocked domain can
be allowed.

The list that decided is named as the verdict's reason, and nothing is learnt from it.

A spamtrap is an unused address, so all mail to it is spam. Such a message is written to a private
spool, which only the daemon's processes can write; the learner reads it from there, so mail does
not wait. `rights` limits its effect: half a step, and it never contradicts a high-confidence
verdict, since a sender that knows a trap can send any message to it.

Must not know models or sockets. Failure: SettingsError with file and line when lists are loaded,
StoreError of the spool; checking a message never fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

from spamnb.errors import SettingsError
from spamnb.feedback.spool import leave
from spamnb.mail.envelope import Envelope, LocalHosts, domain_of
from spamnb.policy.rulings import Ruling, Side
from spamnb.policy.senders import SenderEvidence, sender_form, warning_of
from spamnb.scan.values import ScanRequest

Network = IPv4Network | IPv6Network

UNIX: Final = "unix"
UNAUTHENTICATED: Final = "unauthenticated"
_ADDRESS = re.compile(r"[^\s@<>]*@[^\s@<>]+")
_DOMAIN = re.compile(r"[^\s@<>/]+")


@dataclass(frozen=True, slots=True)
class RuleFiles:
    """Paths of the lists; empty for none."""

    allow: str = ""
    block: str = ""


# --- networks ----------------------------------------------------------------------------------


class NetworkTable:
    """A set of networks, and `unix` for clients on a unix socket; lookups are cached."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        named = tuple(texts)
        self._unix = UNIX if UNIX in named else ""
        self._networks = [ip_network(text, strict=False) for text in named if text != UNIX]
        self.find: Callable[[str], str] = lru_cache(4096)(self._find)

    def __bool__(self) -> bool:
        return bool(self._networks or self._unix)

    def _find(self, address: str) -> str:
        """The network that contains an address; empty if none does, or if it is no address."""
        if address == UNIX:
            return self._unix
        try:
            ip = ip_address(address.lower().removeprefix("ipv6:").partition("%")[0])
        except ValueError:
            return ""
        if isinstance(ip, IPv6Address):
            ip = ip.ipv4_mapped or ip
        return next((str(network) for network in self._networks if ip in network), "")


# --- one list ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RuleList:
    """The entries of one file."""

    client: NetworkTable = field(default_factory=NetworkTable)
    sender: frozenset[str] = frozenset()
    domain: frozenset[str] = frozenset()
    recipient: frozenset[str] = frozenset()
    unproven: Mapping[tuple[str, str], NetworkTable | None] = field(default_factory=dict)
    """senders and domains that need no authentication: the clients' networks, None for all"""

    def listed(self, address: str) -> tuple[str, str] | None:
        """The kind and entry that list a sender, provided that it is authenticated."""
        sides = {"sender": self.sender, "domain": self.domain}
        return next((entry for entry in _entries(address) if entry[1] in sides[entry[0]]), None)

    def listed_from(self, address: str, client: str) -> tuple[str, str] | None:
        """The kind and entry that list a sender for this client, authenticated or not."""
        for kind, value in _entries(address):
            if (kind, value) in self.unproven:
                networks = self.unproven[kind, value]
                if networks is None:
                    return kind, f"{value} {UNAUTHENTICATED}"
                if network := networks.find(client):
                    return kind, f"{value} {network}"
        return None

    def takes(self, recipients: tuple[str, ...]) -> str:
        """The entry of the first recipient, if all are listed."""
        if not self.recipient or not recipients:
            return ""
        found = [self._recipient(sender_form(recipient)) for recipient in recipients]
        return found[0] if all(found) else ""

    def _recipient(self, address: str) -> str:
        domain = f"@{domain_of(address)}"
        return next((name for name in (address, domain) if name in self.recipient), "")


def _entries(address: str) -> Iterator[tuple[str, str]]:
    """The entries that can match an address, the most specific first."""
    yield "sender", sender_form(address)
    parent = domain_of(address)
    while parent:
        yield "domain", parent
        parent = parent.partition(".")[2]


def _network(text: str) -> str:
    ip_network(text, strict=False)
    return text


def _reader_of(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def take(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError
        return sender_form(text)

    return take


_Kind = tuple[Callable[[str], str], str]
KINDS: Final[dict[str, _Kind]] = {
    "client": (_network, "an address or network, such as 192.0.2.0/24"),
    "sender": (_reader_of(_ADDRESS), "an address, such as ann@example.org"),
    "domain": (_reader_of(_DOMAIN), "a domain, such as example.org"),
    "recipient": (_reader_of(_ADDRESS), "an address, such as bob@example.net, or @example.net"),
}
"""kind of entry -> its parser, and a description"""
_PROVEN: Final = ("sender", "domain")
_PROOF: Final[_Kind] = (
    lambda text: text if text in {UNAUTHENTICATED, UNIX} else _network(text),
    f"a network of clients, such as 192.0.2.0/24, or the word {UNAUTHENTICATED}",
)


def parse(text: str, source: str) -> RuleList:
    """Parse a list."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    proofs: dict[tuple[str, str], list[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{source}, line {number}"
        most = 3 if words[0] in _PROVEN else 2
        if words[0] not in KINDS or not 2 <= len(words) <= most:
            raise SettingsError(
                f"{where}: {line.strip()[:80]!r} is not an entry",
                hint=f"write one of {', '.join(KINDS)}, a blank, and its value",
            )
        value = _value_of(KINDS[words[0]], words[1], where)
        if len(words) == 2:
            found[words[0]].append(value)
        else:
            proofs.setdefault((words[0], value), []).append(_value_of(_PROOF, words[2], where))
    return RuleList(
        NetworkTable(found["client"]),
        frozenset(found["sender"]),
        frozenset(found["domain"]),
        frozenset(found["recipient"]),
        {
            entry: None if UNAUTHENTICATED in of else NetworkTable(of)
            for entry, of in proofs.items()
        },
    )


def _value_of(kind: _Kind, text: str, where: str) -> str:
    take, allowed = kind
    try:
        return take(text)
    except ValueError as error:
        raise SettingsError(f"{where}: {text[:80]!r} is not {allowed}") from error


def _read(path: str) -> RuleList:
    if not path:
        return RuleList()
    try:
        return parse(Path(path).read_text("utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the list {path} cannot be read: {error}") from error


# --- both lists --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AccessLists:
    """The lists in force."""

    allow: RuleList = field(default_factory=RuleList)
    block: RuleList = field(default_factory=RuleList)

    @classmethod
    def load(cls, files: RuleFiles) -> AccessLists:
        """Read the files; SettingsError if one is invalid."""
        block = _read(files.block)
        if block.unproven:
            raise SettingsError(
                f"{files.block}: {' '.join(next(iter(block.unproven)))} has a third word",
                hint="blocking a sender needs no proof; remove the word",
            )
        return cls(_read(files.allow), block)

    def warning(self, local: LocalHosts) -> str:
        """Why entries have no effect; empty if all have."""
        names = len(self.allow.sender) + len(self.allow.domain)
        what = f"{names} senders and domains of the allow list"
        found = warning_of(local, what) if names else ""
        more = f", or add to each entry a network of clients or the word {UNAUTHENTICATED}"
        return found and found + more

    def on(self, envelope: Envelope, message: SenderEvidence) -> Ruling | None:
        """The lists' decision for a message; None if no entry matches."""
        return _allowed(self.allow, envelope, message) or _blocked(self.block, envelope, message)


def _by_client_or_recipient(side: Side, rules: RuleList, envelope: Envelope) -> Ruling | None:
    """The decision by client or recipient, which cannot be forged."""
    if network := rules.client.find(envelope.client.address):
        return Ruling(side, "client", network)
    if entry := rules.takes(envelope.recipients):
        return Ruling(side, "recipient", entry)
    return None


def _allowed(rules: RuleList, envelope: Envelope, message: SenderEvidence) -> Ruling | None:
    if found := _by_client_or_recipient("allow", rules, envelope):
        return found
    if not (rules.sender or rules.domain or rules.unproven):
        return None
    for address in message.single:
        if vouched := rules.listed_from(address, envelope.client.address):
            return Ruling("allow", *vouched)
        if (listed := rules.listed(address)) and message.is_authentic(address):
            return Ruling("allow", *listed)
    return None


def _blocked(rules: RuleList, envelope: Envelope, message: SenderEvidence) -> Ruling | None:
    if found := _by_client_or_recipient("block", rules, envelope):
        return found
    if rules.sender or rules.domain:
        for address in message.claimed:
            if listed := rules.listed(address):
                return Ruling("block", *listed)
    return None


TRAPS_FOLDER = "traps"
"""the private spool in the home"""


class Traps:
    """The trap addresses of a site."""

    def __init__(self, addresses: Iterable[str] = (), spool: Path | None = None) -> None:
        self._addresses = frozenset(address.casefold() for address in addresses)
        self._spool = spool

    def caught(self, request: ScanRequest) -> str:
        """The trap address of a message; empty if it has none or is not whole."""
        if not (self._addresses and request.whole):
            return ""
        named = (recipient.casefold() for recipient in request.envelope.recipients)
        return next((address for address in named if address in self._addresses), "")

    def keep(self, request: ScanRequest, trap: str) -> None:
        """Write the message to the spool, durably."""
        assert self._spool is not None, "traps need a spool"
        head = {"channel": "trap", "for": trap, "trust": "admin"}
        leave(self._spool, "spam", request.raw, head)
