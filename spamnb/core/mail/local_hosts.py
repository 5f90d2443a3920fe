"""Our own names, by which headers that our own delivery wrote are known. A value."""

from __future__ import annotations

from typing import NamedTuple


class LocalHosts(NamedTuple):
    """Who we are, so that what our own delivery adds is not part of a message."""

    hosts: tuple[str, ...] = ()
    """Received "by" these hosts is dropped"""
    authserv_ids: tuple[str, ...] = ()
    """Authentication-Results only from these are kept"""
    domains: tuple[str, ...] = ()
    """domains whose mailboxes are here"""
