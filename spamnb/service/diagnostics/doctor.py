"""The doctor: one message of its own goes the whole way of learning, hop by hop, and is taken back.

Must not know protocols, files or terminals: mailbox, carrier and records are given. Invariant:
whatever happens on the way, `clean` takes the message out of all folders and has it forgotten, so
that the sums of the model are what they were. What can not be taken back is told, with what to do.

Failure: none of its own; errors of the family are findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from spamnb.errors import SpamnbError
from spamnb.service.diagnostics.checks import HOPS, Check, CheckRun
from spamnb.service.diagnostics.ports import DoctorPorts
from spamnb.service.diagnostics.records import ModelRecords, Snapshot

State = Literal["ok", "broken", "skipped"]

CLEANING: Final = "cleaning up"
_SETTLE_S: Final = 2.0
"""so long a word that was given and not heard may still come in, before all is forgotten"""


class CheckResult(NamedTuple):
    """How a hop is."""

    hop: str
    state: State
    what: str
    todo: str = ""


class Doctor:
    """One walk; `walk`, and then `clean`, whatever became of it."""

    def __init__(self, means: DoctorPorts) -> None:
        self._walk = CheckRun(means)
        self._states: dict[str, State] = {}

    @property
    def message_id(self) -> str:
        """What names the message."""
        return self._walk.message_id

    def walk(self) -> Iterator[CheckResult]:
        """Look at each hop in turn."""
        for hop in HOPS:
            finding = self._looked(hop)
            self._states[hop.name] = finding.state
            yield finding

    def _looked(self, hop: Check) -> CheckResult:
        for need in hop.needs:
            if self._states[need] != "ok":
                return CheckResult(hop.name, "skipped", f"{need} is {self._states[need]}")
        lack = hop.lacks(self._walk.means)
        if lack:
            return CheckResult(hop.name, "skipped", lack)
        try:
            return CheckResult(hop.name, "ok", hop.run(self._walk))
        except SpamnbError as error:
            return CheckResult(hop.name, "broken", str(error), error.hint or hop.todo)

    def clean(self) -> CheckResult:
        """Leave nothing behind; to be called once, at the end."""
        walk = self._walk
        try:
            if walk.mark is None or walk.records is None:
                return CheckResult(CLEANING, "skipped", "nothing was sent")
            return self._cleaned(walk, walk.records, walk.mark)
        finally:
            for held in (walk.mailbox, walk.records):
                if held is not None:
                    held.close()

    def _cleaned(self, walk: CheckRun, records: ModelRecords, mark: Snapshot) -> CheckResult:
        faults = _purged(walk, records, mark)
        with suppress(SpamnbError):
            if walk.moves > len(walk.heard):
                walk.until(walk.news, _SETTLE_S)
        faults += _taken_back(walk, records, mark)
        try:
            heard = records.heard(walk.message_id, mark)
            faults += filter(None, [records.difference(walk.message_id, mark)])
            # What was forgotten is an event too.
            late = walk.moves > sum(one.label is not None for one in heard)
        except SpamnbError as error:
            faults, late = [*faults, str(error)], False
        if faults:
            todo = f"delete the message, then: spamnb forget '{walk.message_id}'"
            return CheckResult(CLEANING, "broken", "; ".join(faults), todo)
        what = "the message is gone, and all that it taught"
        todo = f"should it be learnt later: spamnb forget '{walk.message_id}'" if late else ""
        return CheckResult(CLEANING, "ok", what, todo)


def _purged(walk: CheckRun, records: ModelRecords, mark: Snapshot) -> list[str]:
    """Take the message out of the mailbox; what could not be done."""
    try:
        try:
            count = walk.mailbox.purge(walk.ident) if walk.mailbox else 0
        except SpamnbError:
            # The connection may have been what broke: once more, by a new one.
            assert walk.means.open_mailbox is not None
            walk.mailbox = walk.means.open_mailbox()
            count = walk.mailbox.purge(walk.ident)
        kept = count or walk.found or records.quarantined(walk.message_id, mark)
    except SpamnbError as error:
        return [f"the message was not deleted: {error}"]
    if walk.sent and not kept:
        return ["the message was sent and never came; it may still come"]
    return []


def _taken_back(walk: CheckRun, records: ModelRecords, mark: Snapshot) -> list[str]:
    """Have all forgotten; what could not be done. A daemon that restarts is waited for."""
    faults: list[str] = []

    def done() -> bool:
        faults[:] = records.take_back(walk.message_id, mark)
        return not faults

    walk.until(done, _SETTLE_S)
    return faults
