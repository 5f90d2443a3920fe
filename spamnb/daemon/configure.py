"""From settings to what doors, benches and scanners are told. Values only."""

from __future__ import annotations

import socket
from dataclasses import fields, replace
from math import ceil
from pathlib import Path
from typing import Any

from spamnb.core.policy.actions import ActionPolicy
from spamnb.daemon.local_domains import served_of
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.networks import NetworkSet
from spamnb.endpoints.smtp.relay.params import Limits, ListenerParams, RelayPolicy
from spamnb.errors import BugError
from spamnb.service.scanning.model_session import SessionConfig
from spamnb.service.scanning.options import ScanOptions
from spamnb.service.scanning.scanner import ScanPolicy
from spamnb.service.scanning.types import Fallbacks
from spamnb.settings import Settings
from spamnb.settings.schema import ListenerSettings


def fitting(door: ListenerParams, descriptors: int, doors: int) -> ListenerParams:
    """A worker's door with no more connections than it has descriptors for.

    Each takes two, and those that are turned away one for a moment; the rest is for everything
    else. Who runs out can neither turn away nor reach the next hop.
    """
    most = max(1, min(door.limits.connections, descriptors // 3 // doors))
    return replace(door, limits=door.limits._replace(connections=most))


def listener_params_of(
    settings: Settings, listener: ListenerSettings, post: str, workers: int
) -> ListenerParams:
    """One listener's door; `post` is where the post office listens."""
    if not (listener.upstream or post):
        raise BugError("a listener needs the post office, and there is none")
    address = Address.parse(listener.address)
    return ListenerParams(
        address=address,
        upstream=Address.parse(listener.upstream or post),
        speaks=address.speaks,
        peers=NetworkSet(listener.peers),
        proxies=NetworkSet(listener.proxies),
        recipient_domains=frozenset(listener.recipient_domains),
        hostname=settings.serve.hostname or socket.gethostname(),
        times=settings.timeouts,
        limits=_share(settings.limits, workers),
        **_of(RelayPolicy, listener),
    )


def _share(limits: Limits, workers: int) -> Limits:
    """Each worker's share. Not so for one address: its connections may all meet one worker."""
    return limits._replace(connections=ceil(limits.connections / workers))


def plan_of(settings: Settings, home: Path) -> SessionConfig:
    """What is judged with."""
    return SessionConfig(
        home=home,
        local=settings.local,
        costs=settings.costs,
        history=settings.history,
        clues=settings.scan.clues,
    )


def policy_of(settings: Settings, listener: ListenerSettings) -> ScanPolicy:
    """How one listener's letters are treated."""
    delivery = settings.delivery
    # Reports hold spam, and must reach the post office.
    reports = tuple(f"{local}@" for local in (delivery.spam, delivery.ham) if local)
    exempt = settings.rules.exempt + reports
    return ScanPolicy(
        action_policy=ActionPolicy(settings.actions, settings.domain, exempt),
        observe=listener.observe,
        served=served_of(settings, listener),
        wait_s=settings.timeouts.scan_start_s,
        **_of(Fallbacks, listener),
        **_of(ScanOptions, settings.scan),
    )


def _of(common: type, whole: object) -> dict[str, Any]:
    """The part of a value that it has in common with another, by names."""
    return {field.name: getattr(whole, field.name) for field in fields(common)}
