"""A host of a fleet with an outbox, in this process: it can be cut off, and killed at any step."""

from __future__ import annotations

import random
from functools import partial

from spamnb.engine.filter import Filter
from spamnb.errors import LogAwayError
from spamnb.fleet.entries import SEALERS
from spamnb.fleet.log import START, Head, Tail
from spamnb.fleet.outbox import Outbox
from spamnb.fleet.store import FleetStore, Member
from spamnb.fleet.waiting import FleetCommitter
from spamnb.settings.values import OUTBOX_BYTES
from spamnb.store.model_store import open_store
from spamnb.store.values import FleetPosition
from support.fleet import KEY


class Killed(BaseException):
    """The host was killed."""


class FaultyLog:
    """The log as a host behind a bad network sees it."""

    def __init__(self, log, seed=0):
        self._log = log
        self.away = False
        self.rough = 0.0
        """how often an append fails"""
        self.faults = []
        """what happens to the next appends: lost, dropped, late, killed"""
        self._chance = random.Random(seed)
        self._late = []

    def __getattr__(self, name):
        return partial(self._call, getattr(self._log, name))

    def _call(self, run, *arguments):
        self._refuse()
        return run(*arguments)

    def _refuse(self):
        if self.away:
            raise LogAwayError("the log is away")
        while self._late:
            self._log.append(self._late.pop())

    def entries(self, after, wait_s=0.0):
        self._refuse()
        yield from self._log.entries(after, wait_s)

    def append(self, draft):
        self._refuse()
        fault = self.faults.pop(0) if self.faults else ""
        if not fault and self._chance.random() < self.rough:
            fault = self._chance.choice(["lost", "dropped", "late", "killed"])
        if fault == "late":
            self._late.append(draft)
        if fault in {"late", "dropped"}:
            raise LogAwayError("no answer")
        outcome = self._log.append(draft)
        if fault == "lost":
            self.away = True
            raise LogAwayError("no answer")
        if fault == "killed":
            raise Killed
        return outcome

    def close(self):
        """Keep the log open for the other hosts."""


class OutboxHost:
    """One host; `restart` opens its files again, as after a kill."""

    def __init__(self, home, log, recipe, name, limit_bytes=OUTBOX_BYTES):
        self.home, self.name, self._recipe, self._limit = home, name, recipe, limit_bytes
        self.log = FaultyLog(log, name)
        head = log.head() or Head("epoch", 0, START)
        log.make(head)
        self.model = self.opened()
        with self.model.store.write() as view:
            view.put_position(FleetPosition(head.epoch, head.seq, head.chain, {}))

    def opened(self):
        member = Member(self.name, self.log, SEALERS["hmac"](KEY), tail=Tail(self.home))
        store = FleetStore(open_store(self.home, create=self._recipe), member)
        outbox = Outbox(self.home, self._limit)
        model = Filter(store, committer=lambda _, learner: FleetCommitter(store, learner, outbox))
        model.pins = outbox
        return model

    @property
    def committer(self):
        return self.model.committer

    @property
    def waiting(self):
        return self.committer.outbox.state().waiting

    def restart(self):
        self.model.close()
        self.model = self.opened()

    def heal(self):
        """Reach the log again, and learn what waits."""
        self.log.away, self.log.rough, self.log.faults = False, 0.0, []
        self.model.store.follow()
        return self.committer.learn_waiting()
