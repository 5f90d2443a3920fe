"""The tree that the settings become: frozen values, one class for each section. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
    queue: str = "before"
    peers: tuple[str, ...] = ("127.0.0.0/8", "::1/128", "unix")
    proxies: tuple[str, ...] = ()
    recipient_domains: tuple[str, ...] = ()
    scan_limit_bytes: int = 1 << 20
    oversize: str = "unscanned"
    header_limit_bytes: int = 256 << 10
    size_limit_bytes: int = 0
    bare_newlines: str = "normalise"
    on_fault: str = "deliver"

    def __post_init__(self) -> None:
        from spamnb.faces.smtp.address import Address  # noqa: PLC0415 - most commands need none

        open_to_all = not Address.parse(self.address).is_local
        as_shipped = self.peers == ListenerSettings.__dataclass_fields__["peers"].default
        if open_to_all and as_shipped and not self.recipient_domains:
            raise SettingsError(
                f"{self.address} can be reached from outside",
                hint="set peers (who may send anywhere) or recipient_domains (where all may send)",
            )
        if self.upstream == self.address and self.upstream.rpartition(":")[2] != "0":
            raise SettingsError(f"{self.address} is its own upstream: mail would go in a ring")


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
    handling: Handlings = field(default_factory=Handlings)
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
    "handling": Handlings,
}
MEMBERS: dict[str, Callable[..., Any]] = {"listener": ListenerSettings, "domain": Handlings}
"""family -> what one of its sections becomes"""
