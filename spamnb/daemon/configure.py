"""From settings to what doors, benches and scanners are told. Values only."""

from __future__ import annotations

import socket
from dataclasses import fields, replace
from math import ceil
from pathlib import Path
from typing import Any

from spamnb.core.policy.actions import Treatment
from spamnb.daemon.local_domains import served_of
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.networks import Nets
from spamnb.endpoints.smtp.relay.params import Door, Limits, Terms
from spamnb.errors import BugError
from spamnb.service.scanning.model_session import BenchPlan
from spamnb.service.scanning.options import Manner
from spamnb.service.scanning.scanner import ScanPolicy
from spamnb.service.scanning.types import Fallbacks
from spamnb.settings import Settings
from spamnb.settings.schema import ListenerSettings


def fitting(door: Door, descriptors: int, doors: int) -> Door:
    """A worker's door with no more connections than it has descriptors for.

    Each takes two, and those that are turned away one for a moment; the rest is for everything
    else. Who runs out can neither turn away nor reach the next hop.
    """
    most = max(1, min(door.limits.connections, descriptors // 3 // doors))
    return replace(door, limits=door.limits._replace(connections=most))


def door_of(settings: Settings, listener: ListenerSettings, post: str, workers: int) -> Door:
    """One listener's door; `post` is where the post office listens."""
    if not (listener.upstream or post):
        raise BugError("a listener needs the post office, and there is none")
    address = Address.parse(listener.address)
    return Door(
        address=address,
        upstream=Address.parse(listener.upstream or post),
        speaks=address.speaks,
        peers=Nets(listener.peers),
        proxies=Nets(listener.proxies),
        recipient_domains=frozenset(listener.recipient_domains),
        hostname=settings.serve.hostname or socket.gethostname(),
        times=settings.timeouts,
        limits=_share(settings.limits, workers),
        **_of(Terms, listener),
    )


def _share(limits: Limits, workers: int) -> Limits:
    """Each worker's share. Not so for one address: its connections may all meet one worker."""
    return limits._replace(connections=ceil(limits.connections / workers))


def plan_of(settings: Settings, home: Path) -> BenchPlan:
    """What is judged with."""
    return BenchPlan(
        home=home,
        house=settings.house,
        costs=settings.costs,
        history=settings.history,
        clues=settings.scan.clues,
    )


def policy_of(settings: Settings, listener: ListenerSettings) -> ScanPolicy:
    """How one listener's letters are treated."""
    post = settings.post
    # Reports hold spam, and must reach the post office.
    reports = tuple(f"{local}@" for local in (post.spam, post.ham) if local)
    exempt = settings.rules.exempt + reports
    return ScanPolicy(
        treatment=Treatment(settings.handling, settings.domain, exempt),
        observe=listener.observe,
        served=served_of(settings, listener),
        wait_s=settings.timeouts.begin_s,
        **_of(Fallbacks, listener),
        **_of(Manner, settings.scan),
    )


def _of(common: type, whole: object) -> dict[str, Any]:
    """The part of a value that it has in common with another, by names."""
    return {field.name: getattr(whole, field.name) for field in fields(common)}
