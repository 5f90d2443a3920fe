"""Make the parts of the daemon from the settings: listeners, model sessions, scanners, persons."""

from __future__ import annotations

import os
import socket
from dataclasses import fields
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.errors import BugError, SettingsError
from spamnb.fleet.log import host_mark
from spamnb.fleet.outbox import OutboxReader
from spamnb.net.address import Address, NetworkSet
from spamnb.operations.logins import TokenFile
from spamnb.operations.request import user_id
from spamnb.operations.socket import Roles
from spamnb.policy.actions import ActionPolicy, Fallbacks, PersonNames
from spamnb.scan.judge import SessionConfig
from spamnb.scan.scanner import ScanPolicy
from spamnb.scan.values import ScanOptions
from spamnb.scanner.request import ScannerParams
from spamnb.settings import Settings
from spamnb.settings.persons import person_names, recipient_costs, served_of
from spamnb.settings.schema import ListenerSettings
from spamnb.settings.values import Limits, ListenerParams, MilterParams, RelayPolicy
from spamnb.telemetry import Log, now_us


class WorkerShare(NamedTuple):
    """What one worker has for each of its listeners."""

    delivery: str
    """address of the delivery agent"""
    workers: int
    listeners: int
    descriptors: int
    """file descriptors that the process may have"""
    home: Path

    def limits(self, limits: Limits) -> Limits:
        """Return the limits, with at most as many connections as there are file descriptors for.

        The limit of connections is divided among the workers. Limits per address are not, because
        one worker may get all connections of an address. Each connection needs two descriptors, a
        refused one needs one briefly, and the rest is for everything else. Without free descriptors
        a worker can neither refuse clients nor connect to the next hop.
        """
        fair = ceil(limits.connections / self.workers)
        most = max(1, min(fair, self.descriptors // 3 // self.listeners))
        return limits._replace(connections=most)


def next_hop_of(listener: ListenerSettings, delivery: str) -> str:
    """Return the address that the messages of a listener are sent to; only a relay needs one."""
    return listener.upstream or (delivery if listener.protocol == "smtp" else "")


def relay_params_of(
    settings: Settings, listener: ListenerSettings, share: WorkerShare
) -> ListenerParams:
    """Return the parameters of a relay."""
    next_hop = next_hop_of(listener, share.delivery)
    if not next_hop:
        raise BugError("a listener needs the delivery agent, which was not started")
    address = Address.parse(listener.address)
    return ListenerParams(
        address=address,
        upstream=Address.parse(next_hop),
        protocol=address.protocol,
        proxies=NetworkSet(listener.proxies),
        recipient_domains=frozenset(listener.recipient_domains),
        hostname=settings.serve.hostname or socket.gethostname(),
        local=settings.site,
        **_rules(settings, listener, share),
    )


def _rules(settings: Settings, listener: ListenerSettings, share: WorkerShare) -> dict[str, Any]:
    """Return what the parameters of every kind of listener have."""
    return _of(RelayPolicy, listener) | {
        "peers": NetworkSet(listener.peers),
        "times": settings.timeouts,
        "limits": share.limits(settings.limits),
    }


def milter_params_of(
    settings: Settings, listener: ListenerSettings, share: WorkerShare
) -> MilterParams:
    """Return the parameters of a milter."""
    return MilterParams(
        keeps=bool(listener.upstream),
        border=listener.border,
        authserv_ids=settings.site.authserv_ids,
        **_rules(settings, listener, share),
    )


def scanner_params_of(
    settings: Settings, listener: ListenerSettings, share: WorkerShare
) -> ScannerParams:
    """Return the parameters of a scanner."""
    found = map(user_id, settings.serve.delegates)
    delegates = frozenset(uid for uid in found if uid is not None)
    tokens = TokenFile(share.home)
    return ScannerParams(
        teachers=NetworkSet(listener.teachers),
        caller_of=Roles(os.geteuid(), delegates).caller,
        token_of=lambda text: tokens.find(text, now_us()),
        **_rules(settings, listener, share),
    )


def plan_of(settings: Settings, home: Path, persons: PersonNames | None) -> SessionConfig:
    """Return the configuration of a model session."""
    fleet = settings.fleet
    return SessionConfig(
        home=home,
        local=settings.site,
        costs=settings.costs,
        one_in=settings.ham_loss.aimed_at,
        history=settings.history,
        clues=settings.scan.clues,
        persons=persons,
        recipient_costs=recipient_costs(settings, persons),
        correspondents=settings.auth.correspondents and settings.auth.is_possible,
        host_mark=host_mark(fleet.effective_host) if fleet.url else b"",
        pins=OutboxReader if fleet.url else None,
    )


def policy_of(settings: Settings, listener: ListenerSettings, name: str = "") -> ScanPolicy:
    """Return the scan policy of one listener."""
    delivery = settings.delivery
    # Reports contain spam, and must reach the delivery agent.
    reports = tuple(f"{local}@" for local in delivery.reports)
    exempt = settings.rules.exempt + reports
    return ScanPolicy(
        action_policy=ActionPolicy(settings.actions, settings.domain, exempt),
        observe=listener.observe,
        served=served_of(settings, listener),
        wait_s=settings.timeouts.scan_start_s,
        listener=name,
        other=listener.other,
        before_mailboxes=settings.persons.enabled
        and listener.upstream != delivery.address
        and _is_lmtp(listener.upstream),
        **_of(Fallbacks, listener),
        **_of(ScanOptions, settings.scan),
    )


def _is_lmtp(address: str) -> bool:
    return bool(address) and Address.parse(address).protocol == "lmtp"


def _of(common: type, whole: object) -> dict[str, Any]:
    """Return those fields of `whole` that the class `common` has too."""
    return {field.name: getattr(whole, field.name) for field in fields(common)}


def load_names(
    settings: Settings, log: Log, before: PersonNames | None = None
) -> PersonNames | None:
    """Return the names by the settings; `before` if the alias file cannot be used."""
    try:
        return person_names(settings)
    except SettingsError as error:
        record: dict[str, object] = {"event": "aliases of persons not loaded", "level": "error"}
        log(record | {"error": str(error), "hint": error.hint})
        return before
