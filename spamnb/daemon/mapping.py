"""From settings to what doors, benches and scanners are told. Values only."""

from __future__ import annotations

import socket
from dataclasses import replace
from math import ceil
from pathlib import Path

from spamnb.core.handling import Treatment
from spamnb.errors import BugError
from spamnb.faces.smtp.address import Address
from spamnb.faces.smtp.door import Door, Limits, Times
from spamnb.faces.smtp.nets import Nets
from spamnb.service.bench import BenchPlan
from spamnb.service.scanning import ScanPolicy
from spamnb.settings import Settings
from spamnb.settings.tree import ListenerSettings


def fitting(door: Door, descriptors: int, doors: int) -> Door:
    """A worker's door with no more connections than it has descriptors for.

    Each takes two, and those that are turned away one for a moment; the rest is for everything
    else. Who runs out can neither turn away nor reach the next hop.
    """
    most = max(1, min(door.limits.connections, descriptors // 3 // doors))
    return replace(door, limits=replace(door.limits, connections=most))


def door_of(settings: Settings, listener: ListenerSettings, post: str, workers: int) -> Door:
    """One listener's door; `post` is where the post office listens."""
    if not (listener.upstream or post):
        raise BugError("a listener needs the post office, and there is none")
    address = Address.parse(listener.address)
    return Door(
        address=address,
        upstream=Address.parse(listener.upstream or post),
        queue=listener.queue,
        speaks=address.speaks,
        peers=Nets(listener.peers),
        proxies=Nets(listener.proxies),
        recipient_domains=frozenset(listener.recipient_domains),
        hostname=settings.serve.hostname or socket.gethostname(),
        scan_limit_bytes=listener.scan_limit_bytes,
        header_limit_bytes=listener.header_limit_bytes,
        size_limit_bytes=listener.size_limit_bytes,
        bare_newlines=listener.bare_newlines,
        oversize=listener.oversize,
        on_fault=listener.on_fault,
        times=_times(settings),
        limits=_limits(settings, workers),
    )


def _times(settings: Settings) -> Times:
    given = settings.timeouts
    return Times(
        connect_s=given.connect_s,
        first_mail_s=given.first_mail_s,
        crowded_s=given.crowded_s,
        command_s=given.command_s,
        data_s=given.data_s,
        reply_s=given.reply_s,
        final_s=given.final_s,
        scan_s=given.scan_s,
    )


def _limits(settings: Settings, workers: int) -> Limits:
    """Each worker's share. Not so for one address: its connections may all meet one worker."""
    given = settings.limits
    return Limits(
        connections=ceil(given.connections / workers),
        connections_an_address=given.connections_an_address,
        errors=given.errors,
    )


def plan_of(settings: Settings, home: Path) -> BenchPlan:
    """What is judged with."""
    return BenchPlan(
        home=home,
        house=settings.house,
        costs=settings.costs,
        history_keep_days=settings.history.keep_days,
        history_limit_bytes=settings.history.limit_bytes,
        clues=settings.scan.clues,
    )


def policy_of(settings: Settings, listener: ListenerSettings) -> ScanPolicy:
    """How one listener's letters are treated."""
    scan, post = settings.scan, settings.post
    # Reports hold spam, and must reach the post office.
    reports = tuple(f"{local}@" for local in (post.spam, post.ham) if local)
    exempt = settings.rules.exempt + reports
    return ScanPolicy(
        treatment=Treatment(settings.handling, settings.domain, exempt),
        tag=scan.tag,
        redirect=scan.redirect,
        observe=listener.observe,
        own_clients=scan.own_clients,
        local=scan.local,
        on_fault=listener.on_fault,
        oversize=listener.oversize,
        large_bytes=scan.large_bytes,
    )


def spool_of(settings: Settings, home: str) -> Path:
    """Where our own processes leave what is to be learnt."""
    return Path(settings.teach.spool or Path(home) / "spool")
