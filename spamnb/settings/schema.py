"""Settings as frozen values, one class per section. Pure.

All defaults are defined here, or in the component that uses a section's class unchanged.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from spamnb.errors import SettingsError, UserError
from spamnb.mail.envelope import LocalHosts
from spamnb.model.costs import Costs
from spamnb.net.address import LOOPBACK, Address, address_of_server
from spamnb.policy.actions import ActionMap, Fallbacks
from spamnb.scan.values import ScanOptions, UsersRelease
from spamnb.settings.types import CostSettings, DomainSettings
from spamnb.settings.values import (
    DeliveryParams,
    DigestPlan,
    FleetParams,
    HistoryLimits,
    ImapParams,
    Limits,
    QuarantineLimits,
    RelayPolicy,
    ReviewLimits,
    SpoolLimits,
    TeachingRules,
    Timeouts,
    WebhookParams,
    digest_plan,
)

VERSION = 1
"""The version of the settings. A release that changes the meaning of a setting raises it."""


class ModelSettings(NamedTuple):
    """How a new model is created; an existing model keeps its own values."""

    kind: str = "corrected"
    vocabulary: bool = True
    prior: bool = True


class StoreSettings(NamedTuple):
    """Limit of the model file."""

    limit_bytes: int = 0


class JournalSettings(NamedTuple):
    """How long events can be undone."""

    keep_days: int = 400


class HamLossSettings(NamedTuple):
    """Target for lost ham, and whether the site's own mail sets the threshold of junk for it."""

    one_in: int = 1000
    site_threshold: bool = True
    junk_from: float = 0.0

    @property
    def aimed_at(self) -> int:
        """The target of the threshold that the site's mail sets; 0 if it sets none."""
        return self.one_in if self.site_threshold else 0


class ExpireSettings(NamedTuple):
    """Which features `spamnb expire` deletes."""

    after_days: int = 400
    max_messages: int = 1


class LogSettings(NamedTuple):
    """What is logged, how and where."""

    level: str = "info"
    format: str = "text"
    file: str = ""


class ServeSettings(NamedTuple):
    """The daemon's processes."""

    user: str = ""
    group: str = ""
    workers: int = 0
    uvloop: bool = True
    hostname: str = ""
    control: str = ""
    delegates: tuple[str, ...] = ()
    drain_s: float = 30.0
    watchdog_s: float = 30.0
    unscanned_percent: float = 1.0


ListenerProtocol = Literal["smtp", "milter", "scanner"]


@dataclass(frozen=True, slots=True)
class ListenerSettings(RelayPolicy, Fallbacks):
    """One listener: its addresses, its clients and its relay policy."""

    protocol: ListenerProtocol = "smtp"
    address: str = "127.0.0.1:10025"
    upstream: str = ""
    peers: tuple[str, ...] = LOOPBACK.texts
    proxies: tuple[str, ...] = ()
    recipient_domains: tuple[str, ...] = ()
    teachers: tuple[str, ...] = ()
    observe: bool = False
    border: bool = False

    def __post_init__(self) -> None:
        as_shipped = self.peers == LOOPBACK.texts
        if not _is_local(self.address) and as_shipped and not self.recipient_domains:
            raise SettingsError(
                f"{self.address} can be reached from outside",
                hint="set peers (clients that may send to any domain) or recipient_domains "
                "(domains that all clients may send to)"
                if self.protocol == "smtp"
                else "set peers: the clients that may connect",
            )
        if self.protocol != "smtp" and (self.proxies or self.recipient_domains):
            raise SettingsError(
                f"a {self.protocol} listener has neither proxies nor recipient_domains",
                hint="set peers: the addresses of the mail servers",
            )
        if self.border and self.protocol != "milter":
            raise SettingsError(
                f"a {self.protocol} listener cannot be the border",
                hint="set border for a listener with the protocol milter, which comes first",
            )
        if self.protocol == "scanner" and self.upstream:
            raise SettingsError(
                "a scanner listener has no upstream: it passes no mail on",
                hint="remove upstream",
            )
        if self.protocol != "scanner" and self.teachers:
            raise SettingsError(
                f"a {self.protocol} listener has no teachers",
                hint="set teachers for a listener with the protocol scanner",
            )
        if self.other and (self.protocol == "scanner" or not self.observe):
            raise SettingsError(
                f"a listener behind {self.other} can only observe, and cannot be a scanner",
                hint="set observe = true, or remove other: only one filter may mark the mail",
            )
        if self.upstream == self.address and self.upstream.rpartition(":")[2] != "0":
            raise SettingsError(f"{self.address} is its own upstream: mail would loop")


@dataclass(frozen=True, slots=True)
class ScanSettings(ScanOptions):
    """How messages are scanned in the mail path, and which headers are written."""

    clues: int = 0


class RuleSettings(NamedTuple):
    """The administrator's allow and block lists."""

    allow: str = ""
    block: str = ""
    exempt: tuple[str, ...] = ()


DELIVERY_ADDRESS = "127.0.0.1:10026"
"""address of the delivery agent if it is a listener's next hop and no address is set"""


@dataclass(frozen=True, slots=True)
class DeliverySettings(DeliveryParams):
    """The built-in delivery agent and its address."""

    address: str = ""

    def __post_init__(self) -> None:
        if self.address and not _is_local(self.address) and not self.domains:
            raise SettingsError(
                f"{self.address} can be reached from outside",
                hint="set delivery.domains: the domains that mail is accepted for",
            )


@dataclass(frozen=True, slots=True)
class FeedbackSettings(TeachingRules):
    """Quotas and trust of feedback, spam traps and the spool."""

    traps: tuple[str, ...] = ()
    spool: str = ""


class PersonSettings(NamedTuple):
    """Corrections of single persons."""

    enabled: bool = False
    aliases: str = ""


class AuthSettings(NamedTuple):
    """How the sender of a message is checked."""

    verify: bool = True
    resolvers: tuple[str, ...] = ()
    wait_s: float = 2.0
    client_lists: tuple[str, ...] = ()
    domain_lists: tuple[str, ...] = ()
    correspondents: bool = True
    add_results: bool = True

    @property
    def is_possible(self) -> bool:
        """Whether senders are to be checked, and the packages of the extra `auth` are here."""
        return self.verify and _has_packages()


@cache
def _has_packages() -> bool:
    packages = ("dns", "cryptography", "publicsuffixlist")
    return all(find_spec(one) is not None for one in packages)


def auth_settings(**given: Any) -> AuthSettings:
    """Return the section; raise for a resolver that is no address."""
    made = AuthSettings(**given)
    try:
        for one in made.resolvers:
            address_of_server(one)
    except ValueError as error:
        raise SettingsError(f"auth.resolvers: {error}") from error
    return made


class TrialSettings(NamedTuple):
    """Another filter that is asked about a share of the mail."""

    ask: str = ""
    share: float = 0.05


_FIELD = re.compile(r"[A-Za-z0-9-]{1,64}")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


class ConsoleSettings(NamedTuple):
    """The HTTP API and the pages."""

    address: str = ""
    url: str = ""
    certificate: str = ""
    key: str = ""
    proxies: tuple[str, ...] = ()
    proxy_header: str = ""
    passwords: str = ""
    admins: tuple[str, ...] = ()
    auditors: tuple[str, ...] = ()
    users: bool = True
    users_release: UsersRelease = "junk"


def console_settings(**given: Any) -> ConsoleSettings:
    """Return the section; raise if passwords could cross a network without encryption."""
    made, url = ConsoleSettings(**given), given.get("url", "")
    outside = made.address and not _is_local(made.address)
    if outside and not (made.certificate or made.proxies):
        raise SettingsError(
            f"{made.address} can be reached from outside",
            hint="set console.certificate, or console.proxies: the web servers with TLS in front; "
            "or choose an address of this machine",
        )
    if outside and not url:
        raise SettingsError(
            f"{made.address} can be reached from outside, and url is not set",
            hint="console.url is the address that browsers show",
        )
    if made.proxy_header and not (made.proxies and _FIELD.fullmatch(made.proxy_header)):
        raise SettingsError(
            f"proxy_header {made.proxy_header!r} must name a header field, and needs proxies",
            hint="set console.proxies: the web servers that may set this field",
        )
    if url and not (url.startswith(("https://", "http://")) and urlsplit(url).hostname):
        raise SettingsError(f"{url!r} is not a valid url", hint="https://console.example.org")
    return made


def trial_settings(ask: str = "", share: float = 0.05) -> TrialSettings:
    """Return the section; raise if no filter has this name."""
    if ask:
        from spamnb.scan.other_filters import asker_of  # noqa: PLC0415 - rarely

        try:
            asker_of(ask)
        except UserError as error:
            raise SettingsError(f"trial.ask: {error}", hint=error.hint) from error
    return TrialSettings(ask, share)


def _is_local(address: str) -> bool:
    return Address.parse(address).is_local


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings."""

    settings_version: int = VERSION
    home: str = ""
    labels: tuple[str, ...] = ("ham", "spam")
    model: ModelSettings = field(default_factory=ModelSettings)
    local: LocalHosts = field(default_factory=LocalHosts)
    costs: Costs = field(default_factory=Costs)
    store: StoreSettings = field(default_factory=StoreSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    history: HistoryLimits = field(default_factory=HistoryLimits)
    ham_loss: HamLossSettings = field(default_factory=HamLossSettings)
    expire: ExpireSettings = field(default_factory=ExpireSettings)
    log: LogSettings = field(default_factory=LogSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    scan: ScanSettings = field(default_factory=ScanSettings)
    rules: RuleSettings = field(default_factory=RuleSettings)
    quarantine: QuarantineLimits = field(default_factory=QuarantineLimits)
    review: ReviewLimits = field(default_factory=ReviewLimits)
    spool: SpoolLimits = field(default_factory=SpoolLimits)
    actions: ActionMap = field(default_factory=ActionMap)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    feedback: FeedbackSettings = field(default_factory=FeedbackSettings)
    persons: PersonSettings = field(default_factory=PersonSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    trial: TrialSettings = field(default_factory=TrialSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    fleet: FleetParams = field(default_factory=FleetParams)
    digest: DigestPlan = field(default_factory=DigestPlan)
    listener: Mapping[str, ListenerSettings] = field(default_factory=dict)
    domain: Mapping[str, DomainSettings] = field(default_factory=dict)
    person: Mapping[str, CostSettings] = field(default_factory=dict)
    imap: Mapping[str, ImapParams] = field(default_factory=dict)
    webhook: Mapping[str, WebhookParams] = field(default_factory=dict)
    file: str = ""
    """the file they were read from; empty if none"""
    positions: Mapping[str, str] = field(default_factory=dict, compare=False)
    """where each value that is not a default was found: file and line, variable or flag"""

    @property
    def site(self) -> LocalHosts:
        """The names of the site; with one for results, if this program writes them itself.

        No other program uses that name, so all fields under it that strangers send are forged.
        """
        if self.local.authserv_ids or not self.auth.is_possible:
            return self.local
        name = self.serve.hostname or socket.gethostname()
        own = f"spamnb.{name}" if _HOST.fullmatch(name) else "spamnb.localhost"
        return self.local._replace(authserv_ids=(own,))


SECTIONS: dict[str, Callable[..., Any]] = {
    "model": ModelSettings,
    "local": LocalHosts,
    "costs": Costs,
    "store": StoreSettings,
    "journal": JournalSettings,
    "history": HistoryLimits,
    "ham_loss": HamLossSettings,
    "expire": ExpireSettings,
    "log": LogSettings,
    "serve": ServeSettings,
    "limits": Limits,
    "timeouts": Timeouts,
    "scan": ScanSettings,
    "rules": RuleSettings,
    "quarantine": QuarantineLimits,
    "review": ReviewLimits,
    "spool": SpoolLimits,
    "actions": ActionMap,
    "delivery": DeliverySettings,
    "feedback": FeedbackSettings,
    "persons": PersonSettings,
    "auth": auth_settings,
    "trial": trial_settings,
    "console": console_settings,
    "fleet": FleetParams,
    "digest": digest_plan,
}
MEMBERS: dict[str, Callable[..., Any]] = {
    "listener": ListenerSettings,
    "domain": DomainSettings,
    "person": CostSettings,
    "imap": ImapParams,
    "webhook": WebhookParams,
}
"""family of named sections -> class of one section"""
