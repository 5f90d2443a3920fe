"""`Doctor`: send a test message, check each step from delivery to learning, and remove it again.

Must not know protocols, files or terminals; the caller passes mailbox, transport and records.
Invariant: after any failure, `clean` deletes the message from all folders and lets the model forget
it, so that the model's sums are as before. It reports what it could not remove, and what to do.

Failure: none; SpamnbErrors become results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from spamnb.errors import SpamnbError
from spamnb.service.diagnostics.checks import CHECKS, Check, CheckRun
from spamnb.service.diagnostics.ports import DoctorPorts
from spamnb.service.diagnostics.records import ModelRecords, Snapshot

State = Literal["ok", "broken", "skipped"]

CLEANING: Final = "cleaning up"
_SETTLE_S: Final = 2.0
"""how long to wait for feedback that is not learnt yet, before the message is forgotten"""


class CheckResult(NamedTuple):
    """The result of one check."""

    check: str
    state: State
    what: str
    todo: str = ""


class Doctor:
    """One run of all checks: call `walk`, and then `clean` in any case."""

    def __init__(self, ports: DoctorPorts) -> None:
        self._run = CheckRun(ports)
        self._states: dict[str, State] = {}

    @property
    def message_id(self) -> str:
        """Return the Message-ID of the test message."""
        return self._run.message_id

    def walk(self) -> Iterator[CheckResult]:
        """Run the checks in order and yield their results."""
        for check in CHECKS:
            if check.of_persons and self._run.ports.names is None:
                continue
            result = self._result(check)
            self._states[check.name] = result.state
            yield result

    def _result(self, check: Check) -> CheckResult:
        for need in check.needs:
            if self._states[need] != "ok":
                return CheckResult(check.name, "skipped", f"{need} is {self._states[need]}")
        lack = check.lacks(self._run.ports)
        if lack:
            return CheckResult(check.name, "skipped", lack)
        try:
            return CheckResult(check.name, "ok", check.run(self._run))
        except SpamnbError as error:
            return CheckResult(check.name, "broken", str(error), error.hint or check.todo)

    def clean(self) -> CheckResult:
        """Delete and forget the test message; call it once, at the end."""
        run = self._run
        try:
            if run.snapshot is None or run.records is None:
                return CheckResult(CLEANING, "skipped", "nothing was sent")
            return self._cleaned(run, run.records, run.snapshot)
        finally:
            for resource in (run.mailbox, run.records):
                if resource is not None:
                    resource.close()

    def _cleaned(self, run: CheckRun, records: ModelRecords, snapshot: Snapshot) -> CheckResult:
        faults = _delete(run, records, snapshot)
        with suppress(SpamnbError):
            if run.moves > len(run.events):
                run.until(run.new_events, _SETTLE_S)
        faults += _forget(run, records, snapshot)
        try:
            events = records.events_since(run.message_id, snapshot)
            faults += filter(None, [records.difference(run.message_id, snapshot)])
            # Forgetting makes events too; they have no label.
            late = run.moves > sum(event.label is not None for event in events)
        except SpamnbError as error:
            faults, late = [*faults, str(error)], False
        if faults:
            todo = f"delete the message, then: spamnb forget '{run.message_id}'"
            return CheckResult(CLEANING, "broken", "; ".join(faults), todo)
        what = "the message is deleted and its training removed"
        todo = f"if it is learnt later: spamnb forget '{run.message_id}'" if late else ""
        return CheckResult(CLEANING, "ok", what, todo)


def _delete(run: CheckRun, records: ModelRecords, snapshot: Snapshot) -> list[str]:
    """Delete the message from the mailbox; return what failed."""
    try:
        try:
            count = _purged(run)
        except SpamnbError:
            # The connection may have failed: try again with a new one.
            assert run.ports.open_mailbox is not None
            run.mailbox = run.ports.open_mailbox()
            count = _purged(run)
        kept = count or run.found or records.quarantined(run.message_id, snapshot)
    except SpamnbError as error:
        return [f"the message was not deleted: {error}"]
    is_marked_away = run.marked_ident and not run.marked_found
    if run.sent and (not kept or is_marked_away):
        return ["the message was sent and did not arrive; it may still arrive"]
    return []


def _purged(run: CheckRun) -> int:
    """Delete both messages from the mailbox; return the number of copies of the first."""
    if run.mailbox is None:
        return 0
    if run.marked_ident:
        run.marked_found |= bool(run.mailbox.purge(run.marked_ident))
    return run.mailbox.purge(run.ident)


def _forget(run: CheckRun, records: ModelRecords, snapshot: Snapshot) -> list[str]:
    """Remove the message's training; return what failed. Waits for a daemon that restarts."""
    faults: list[str] = []

    def done() -> bool:
        faults[:] = records.take_back(run.message_id, snapshot)
        if run.marked_ident:
            faults.extend(records.take_back(run.marked_ident[1:-1], snapshot))
        return not faults

    run.until(done, _SETTLE_S)
    return faults
