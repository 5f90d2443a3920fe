"""What the operations of the API work with: model, history, index, quarantine and learner.

The model is opened for reading; only the learner writes it. Must not know HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypedDict

from spamnb.core.model.costs import OwnCosts
from spamnb.endpoints.console.callers import ApiCaller
from spamnb.endpoints.console.digest.opt_outs import DigestOptOuts
from spamnb.endpoints.console.digest.signed_links import SignedLinks
from spamnb.endpoints.console.event_stream import EventHub
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.smtp_client import deliver
from spamnb.errors import PeerError
from spamnb.service.admin.model_config import ModelConfig, open_model
from spamnb.service.admin.request import AdminResponse
from spamnb.service.admin.tokens import TokenFile
from spamnb.service.engine.filter import Filter
from spamnb.service.scanning.quarantine import Quarantine
from spamnb.service.scanning.quarantined import ReleasedMessage, ReleaseReply, UsersRelease
from spamnb.store.history.verdict_history import History
from spamnb.store.lookup import LookupIndex
from spamnb.store.series import SeriesStore


class AskAdministration(Protocol):
    """Asks the learner for an administrative operation, as an admin; for use in threads."""

    def __call__(self, op: str, body: bytes = b"", /, **fields: Any) -> AdminResponse: ...


class LoginDirectory(Protocol):
    """The people who may log in, and their sessions."""

    def people(self) -> list[dict[str, Any]]:
        """Return name, role, addresses, second factor and sessions of each."""

    def end_sessions(self, login: str) -> int:
        """End all sessions of a login; return how many."""


class Judging(TypedDict):
    """Arguments of `Filter.score` and `explain`: the person that the verdict is for."""

    person: int
    own_costs: OwnCosts | None


class SettingsInForce(NamedTuple):
    """The settings of the daemon."""

    file: str = ""
    """empty if there is none"""
    settings: Sequence[Mapping[str, Any]] = ()
    """name, value, default and help text of each; secrets are masked"""


@dataclass(frozen=True, slots=True)
class ConsoleSite:
    """The served home."""

    config: ModelConfig
    history: History
    index: LookupIndex
    series: SeriesStore
    quarantine: Quarantine
    ask: AskAdministration
    events: EventHub
    tokens: TokenFile
    links: SignedLinks
    opt_outs: DigestOptOuts
    logins: LoginDirectory
    settings: SettingsInForce = SettingsInForce()  # noqa: RUF009 - it is frozen
    users_release: UsersRelease = "junk"
    """what a caller of one user may release"""

    @contextmanager
    def reading(self) -> Iterator[Filter]:
        """Open the model for one request, so that a model that was replaced is noticed."""
        model = open_model(self.config, readonly=True)
        try:
            model.history = self.history
            yield model
        finally:
            model.history = None  # the history stays open
            model.close()

    def judging(self, model: Filter, recipient: str) -> Judging:
        """Return the person that a message is judged for, from a recipient, address or login."""
        names = self.config.persons
        name = names.of(recipient) if names and recipient else ""
        own_costs = self.config.recipient_costs.of(recipient, name) if recipient else None
        return {"person": model.person(name), "own_costs": own_costs}

    def send(self, released: ReleasedMessage) -> Sequence[ReleaseReply]:
        """Deliver a released message to its original next hop."""
        try:
            address = Address.parse(released.upstream)
        except ValueError as error:
            raise PeerError(
                f"the next hop {released.upstream!r} is not valid: {error}",
                hint="release it with `spamnb quarantine release --upstream`",
            ) from error
        return deliver(address, released)


class ApiRequest(NamedTuple):
    """A request whose caller, parameters and size are checked."""

    caller: ApiCaller
    values: dict[str, Any]
    message: bytes = b""
    last_event: str = ""
    """of the header Last-Event-ID"""


class ApiReply(NamedTuple):
    """The reply to a request: a value of JSON, or bytes of another type."""

    value: Any = None
    status: int = 200
    data: bytes = b""
    media_type: str = "application/json"
    stream: AsyncIterator[bytes] | None = None
    """instead of a value or bytes: parts that are sent as they arrive"""
    headers: Mapping[str, str] = MappingProxyType({})
    """those that differ from the headers of all replies"""


Run = Callable[[ConsoleSite, ApiRequest], ApiReply]
