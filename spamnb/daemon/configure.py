"""Convert settings to the parameters of listeners, model sessions and scanners. Pure."""

from __future__ import annotations

import socket
from dataclasses import fields, replace
from math import ceil
from pathlib import Path
from typing import Any

from spamnb.core.policy.actions import ActionPolicy, Fallbacks
from spamnb.daemon.local_domains import served_of
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.networks import NetworkSet
from spamnb.endpoints.smtp.relay.params import Limits, ListenerParams, RelayPolicy
from spamnb.errors import BugError
from spamnb.service.scanning.model_session import SessionConfig
from spamnb.service.scanning.scanner import ScanPolicy
from spamnb.service.scanning.types import ScanOptions
from spamnb.settings import Settings
from spamnb.settings.schema import ListenerSettings


def fitting(params: ListenerParams, descriptors: int, listeners: int) -> ListenerParams:
    """Return the parameters with at most as many connections as there are file descriptors for.

    Each connection needs two, a refused one needs one briefly, and the rest is for everything else.
    Without free descriptors a worker can neither refuse clients nor connect to the next hop.
    """
    most = max(1, min(params.limits.connections, descriptors // 3 // listeners))
    return replace(params, limits=params.limits._replace(connections=most))


def listener_params_of(
    settings: Settings, listener: ListenerSettings, delivery: str, workers: int
) -> ListenerParams:
    """Return the parameters of one listener; `delivery` is the address of the delivery agent."""
    if not (listener.upstream or delivery):
        raise BugError("a listener needs the delivery agent, which was not started")
    address = Address.parse(listener.address)
    return ListenerParams(
        address=address,
        upstream=Address.parse(listener.upstream or delivery),
        protocol=address.protocol,
        peers=NetworkSet(listener.peers),
        proxies=NetworkSet(listener.proxies),
        recipient_domains=frozenset(listener.recipient_domains),
        hostname=settings.serve.hostname or socket.gethostname(),
        times=settings.timeouts,
        limits=_share(settings.limits, workers),
        **_of(RelayPolicy, listener),
    )


def _share(limits: Limits, workers: int) -> Limits:
    """Divide the connections by the workers; limits per address stay, as one worker may get all."""
    return limits._replace(connections=ceil(limits.connections / workers))


def plan_of(settings: Settings, home: Path) -> SessionConfig:
    """Return the configuration of a model session."""
    return SessionConfig(
        home=home,
        local=settings.local,
        costs=settings.costs,
        history=settings.history,
        clues=settings.scan.clues,
    )


def policy_of(settings: Settings, listener: ListenerSettings) -> ScanPolicy:
    """Return the scan policy of one listener."""
    delivery = settings.delivery
    # Reports contain spam, and must reach the delivery agent.
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
    """Return the fields of a value that another class has too."""
    return {field.name: getattr(whole, field.name) for field in fields(common)}
