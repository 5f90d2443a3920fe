"""Hosts of a fleet in this process, and what must be equal on all of them."""

from __future__ import annotations

import secrets

from spamnb.engine.filter import Filter
from spamnb.fleet.entries import SEALERS, VERSION
from spamnb.fleet.log import START, Head
from spamnb.fleet.store import FleetStore, Member
from spamnb.store import maintenance as audit
from spamnb.store.values import FleetPosition
from support.stores import picture

KEY = bytes(range(32))


def joined(store, log, host, *, seal="hmac", level=VERSION):
    """A host of a fleet on this store, which has the model that the log goes on from."""
    head = log.head() or Head(secrets.token_hex(8), 0, START)
    log.make(head)
    with store.write() as view:
        if view.position() is None:
            view.put_position(FleetPosition(head.epoch, head.seq, head.chain, {}))
    return Filter(FleetStore(store, Member(host, log, SEALERS[seal](KEY), level=level)))


def everything(store):
    """All numbers, texts and events of a store, and its position; the store is consistent."""
    with store.read() as view:
        assert audit.check(view) == []
        assert view.sums().same(view.scanned_sums())
        return picture(view), view.position().encode()
