"""The tree that the settings become: frozen values, one class for each section. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from spamnb.core.decision import Costs
from spamnb.core.handling import Handlings
from spamnb.core.headers import House
from spamnb.errors import SettingsError


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model is made; one that is there keeps what it was made with."""

    kind: str = "corrected"
    vocabulary: bool = True


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The model's file."""

    limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """The events that can be undone."""

    keep_days: int = 400


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """The verdicts that can be corrected without the message."""

    keep_days: int = 30
    limit_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class PromiseSettings:
    """What is asked of the filter; whether it can be kept, evaluation tells."""

    ham_lost_one_in: int = 1000


@dataclass(frozen=True, slots=True)
class ExpireSettings:
    """Which features are let go."""

    after_days: int = 400
    most_holders: int = 1


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is told on the way."""

    level: str = "info"
    format: str = "text"
    file: str = ""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The daemon's processes."""

    user: str = ""
    group: str = ""
    workers: int = 0
    uvloop: bool = True
    hostname: str = ""
    control: str = ""
    delegates: tuple[str, ...] = ()
    drain_s: float = 30.0
    stuck_s: float = 30.0


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What those who connect may use up."""

    connections: int = 4000
    connections_an_address: int = 50
    memory_bytes: int = 256 << 20
    errors: int = 100


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """How long each step may take."""

    connect_s: float = 5.0
    first_mail_s: float = 30.0
    crowded_s: float = 5.0
    command_s: float = 300.0
    data_s: float = 180.0
    reply_s: float = 60.0
    final_s: float = 95.0
    scan_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """One place where mail comes in."""

    address: str = "127.0.0.1:10025"
    upstream: str = ""
    queue: Literal["before", "after"] = "before"
    peers: tuple[str, ...] = ("127.0.0.0/8", "::1/128", "unix")
    proxies: tuple[str, ...] = ()
    recipient_domains: tuple[str, ...] = ()
    scan_limit_bytes: int = 1 << 20
    oversize: Literal["unscanned", "head"] = "unscanned"
    header_limit_bytes: int = 256 << 10
    size_limit_bytes: int = 0
    bare_newlines: Literal["normalise", "refuse"] = "normalise"
    on_fault: Literal["deliver", "defer"] = "deliver"
    observe: bool = False

    def __post_init__(self) -> None:
        as_shipped = self.peers == ListenerSettings.__dataclass_fields__["peers"].default
        if not _is_local(self.address) and as_shipped and not self.recipient_domains:
            raise SettingsError(
                f"{self.address} can be reached from outside",
                hint="set peers (who may send anywhere) or recipient_domains (where all may send)",
            )
        if self.upstream == self.address and self.upstream.rpartition(":")[2] != "0":
            raise SettingsError(f"{self.address} is its own upstream: mail would go in a ring")


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """How messages are judged in the mail path, and what is written of it."""

    clues: int = 0
    tag: str = "[SPAM] "
    redirect: str = "junk"
    own_clients: tuple[str, ...] = ()
    local: Literal["observe", "judge"] = "observe"
    large_bytes: int = 65_536

    def __post_init__(self) -> None:
        for name, text in (("tag", self.tag), ("redirect", self.redirect)):
            if not (text.isascii() and text.isprintable()):
                raise SettingsError(f"the {name} is {text!r}", hint="give plain ASCII characters")


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Who is judged by an admin's word."""

    allow: str = ""
    block: str = ""
    exempt: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuarantineSettings:
    """How much is kept, and how long."""

    keep_days: int = 30
    limit_bytes: int = 1 << 30


POST_ADDRESS = "127.0.0.1:10026"
"""where the post office listens if somebody needs it and nobody says where"""


@dataclass(frozen=True, slots=True)
class PostSettings:
    """The built-in next hop."""

    address: str = ""
    domains: tuple[str, ...] = ()
    root: str = ""
    users: str = ""
    delimiter: str = "+"
    spam: str = "spam"
    ham: str = "ham"
    passwords: str = ""
    certificate: str = ""
    key: str = ""
    plain_login: bool = False
    peers: tuple[str, ...] = ("127.0.0.0/8", "::1/128", "unix")
    trusted: tuple[str, ...] = ()
    trust_local: bool = False
    received: bool = False
    receipts: bool = True
    size_limit_bytes: int = 50 << 20

    def __post_init__(self) -> None:
        if self.address and not _is_local(self.address) and not self.domains:
            raise SettingsError(
                f"{self.address} can be reached from outside",
                hint="set domains: for whom mail is taken here",
            )


@dataclass(frozen=True, slots=True)
class TeachSettings:
    """How much is learnt from whom."""

    limit_bytes: int = 32 << 20
    user_per_day: int = 5000
    stranger_per_day: int = 20
    strangers_per_day: int = 200
    sure: float = 0.999
    unproven: Literal["review", "refuse", "learn"] = "review"
    domains: tuple[str, ...] = ()
    traps: tuple[str, ...] = ()
    spool: str = ""


def _is_local(address: str) -> bool:
    from spamnb.faces.smtp.address import Address  # noqa: PLC0415 - most commands need none

    return Address.parse(address).is_local


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole tree."""

    home: str = ""
    labels: tuple[str, ...] = ("ham", "spam")
    model: ModelSettings = field(default_factory=ModelSettings)
    house: House = field(default_factory=House)
    costs: Costs = field(default_factory=Costs)
    store: StoreSettings = field(default_factory=StoreSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    promise: PromiseSettings = field(default_factory=PromiseSettings)
    expire: ExpireSettings = field(default_factory=ExpireSettings)
    log: LogSettings = field(default_factory=LogSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    scan: ScanSettings = field(default_factory=ScanSettings)
    rules: RuleSettings = field(default_factory=RuleSettings)
    quarantine: QuarantineSettings = field(default_factory=QuarantineSettings)
    handling: Handlings = field(default_factory=Handlings)
    post: PostSettings = field(default_factory=PostSettings)
    teach: TeachSettings = field(default_factory=TeachSettings)
    listener: Mapping[str, ListenerSettings] = field(default_factory=dict)
    domain: Mapping[str, Handlings] = field(default_factory=dict)
    file: str = ""
    """where they were read from; empty if from nowhere"""


SECTIONS: dict[str, Callable[..., Any]] = {
    "model": ModelSettings,
    "house": House,
    "costs": Costs,
    "store": StoreSettings,
    "journal": JournalSettings,
    "history": HistorySettings,
    "promise": PromiseSettings,
    "expire": ExpireSettings,
    "log": LogSettings,
    "serve": ServeSettings,
    "limits": LimitSettings,
    "timeouts": TimeoutSettings,
    "scan": ScanSettings,
    "rules": RuleSettings,
    "quarantine": QuarantineSettings,
    "handling": Handlings,
    "post": PostSettings,
    "teach": TeachSettings,
}
MEMBERS: dict[str, Callable[..., Any]] = {"listener": ListenerSettings, "domain": Handlings}
"""family -> what one of its sections becomes"""
