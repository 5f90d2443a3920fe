"""Find the events since the last look in the files of the home.

Each watch compares the present with its part of the state that the last look stored on disk. So it
also finds an event that happened while this process did not run. The first look only records the
present, except for warnings. If one watch fails, the others go on, and it looks again the next
time. The status reads all files of a large quarantine: the longer it takes, the less often it is
asked for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from spamnb.core.model.events import Event, EventKind
from spamnb.core.model.verdict import signature_text
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.endpoints.console.webhooks.outbox import State, WebhookEvent
from spamnb.errors import SpamnbError
from spamnb.service.engine.clock import iso
from spamnb.service.telemetry.log import Log

FULL: Final = 0.95
"""share of `quarantine.limit_bytes` from which the quarantine counts as full"""
_ROOM_AGAIN: Final = 0.9
_AT_ONCE: Final = 500
_MOST_BATCHES: Final = 20
_MOST_TRAININGS: Final = 5_000
_MOST_CHARS: Final = 1_000
_NUMBERS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")

_STATUS_SHARE: Final = 50
"""The pause between two reads of the status is so many times as long as a read."""
_LONGEST_S: Final = 60.0

Facts = Mapping[str, Any]
Found = tuple[Any, list[WebhookEvent]]
"""the new part of the state, and the events"""


class WebhookWatch:
    """Looks for events of one home."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._status_due = 0.0

    def look(
        self, site: ConsoleSite, before: State, now_us: int
    ) -> tuple[State, list[WebhookEvent]]:
        """Return the new state, and the events since the last look."""
        watches: dict[str, Callable[[Any, int], Found]] = {
            name: partial(watch, site) for name, watch in _OF_HOME.items()
        }
        after, found = dict(before), list[WebhookEvent]()
        try:
            facts = self._status(site)
            if facts is not None:
                watches |= {name: partial(watch, facts) for name, watch in _OF_STATUS.items()}
        except SpamnbError as error:
            self._failed(error)
        for name, watch in watches.items():
            try:
                after[name], events = watch(before.get(name), now_us)
            except SpamnbError as error:
                self._failed(error)
                continue
            found += events
        return after, found

    def _status(self, site: ConsoleSite) -> Facts | None:
        """Return the facts of the status; None if it is not time for them."""
        began = time.monotonic()
        if began < self._status_due:
            return None
        facts = dict(site.ask("status").header["status"])
        limit = site.quarantine.limits.limit_bytes
        facts["quarantine"] = {**facts["quarantine"], "limit_bytes": limit}
        now = time.monotonic()
        self._status_due = now + min(_STATUS_SHARE * (now - began), _LONGEST_S)
        return facts

    def _failed(self, error: SpamnbError) -> None:
        self._log({"event": "webhooks cannot look", "level": "debug", "error": str(error)})


def _rejected(site: ConsoleSite, before: int | None, _: int) -> Found:
    """Return an event for each verdict with the decision reject."""
    last = site.history.seq_span()[1]
    if before is None or before > last:
        return last, []
    events, at = list[WebhookEvent](), before
    for _ in range(_MOST_BATCHES):
        batch = site.history.facts_after(at, _AT_ONCE)
        at = batch[-1][0] if batch else at
        for _, entry in batch:
            if entry is not None and entry.decision == "reject":
                facts = {
                    "signature": signature_text(entry.signature),
                    "time": iso(entry.time_us),
                    "probability": entry.probability,
                    "listener": entry.notes.get("listener", ""),
                }
                events.append(WebhookEvent("verdict.reject", entry.time_us, facts))
        if len(batch) < _AT_ONCE:
            break
    return at, events


def _review(site: ConsoleSite, before: str | None, now_us: int) -> Found:
    """Return an event if feedback has come into the review queue."""
    names = site.config.review_queue.names()
    newest = max([before or "", *names[-1:]])
    new = [name for name in names if before is not None and name > before]
    facts = {"new": len(new), "waiting": len(names)}
    return newest, [WebhookEvent("review.waiting", now_us, facts)] if new else []


def _warnings(status: Facts, before: Mapping[str, str] | None, now_us: int) -> Found:
    """Return an event for each warning of the status that is new or gone.

    A warning whose numbers have changed is the same one.
    """
    texts = [text[:_MOST_CHARS] for text in status["warnings"]]
    now = {_NUMBERS.sub("N", text): text for text in texts}
    old = before or {}
    raised = [now[key] for key in now if key not in old]
    cleared = [old[key] for key in old if key not in now]
    return now, [
        *(WebhookEvent("warning.raised", now_us, {"text": text}) for text in raised),
        *(WebhookEvent("warning.cleared", now_us, {"text": text}) for text in cleared),
    ]


def _quarantine(status: Facts, before: bool | None, now_us: int) -> Found:  # noqa: FBT001 - a part of the state
    """Return an event if the quarantine has become full."""
    used, limit = status["quarantine"]["bytes"], status["quarantine"]["limit_bytes"]
    full = used >= limit * (_ROOM_AGAIN if before else FULL)
    facts = {"bytes": used, "limit_bytes": limit}
    return full, [WebhookEvent("quarantine.full", now_us, facts)] if full and not before else []


def _model(site: ConsoleSite, before: list[Any] | None, now_us: int) -> Found:
    """Return an event for each import, and an event if the model was replaced."""
    with site.reading() as model, model.store.read() as view:
        last = view.totals().last_seq
        if before is None:
            return [last, _mark(view.event(last))], []
        seq, mark = before
        if seq > last or mark not in ("", _mark(view.event(seq)) or mark):
            facts = {"how": "replaced", "event": last}
            event = WebhookEvent("model.changed", now_us, facts)
            return [last, _mark(view.event(last))], [event]
        new = list(islice(view.events(seq + 1), _MOST_TRAININGS))
    if not new:
        return before, []
    return [new[-1].seq, _mark(new[-1])], list(_imports(new))


def _imports(events: list[Event]) -> Iterator[WebhookEvent]:
    for event in events:
        if event.kind == EventKind.IMPORT:
            facts = {"how": "import", "event": event.seq, "user": event.user}
            yield WebhookEvent("model.changed", event.time_us, facts)


def _mark(event: Event | None) -> str:
    """What distinguishes an event from another one with the same number; empty if there is none."""
    if event is None:
        return ""
    named = repr((event.kind, event.time_us, event.user, event.digest)).encode("utf-8", "replace")
    return blake2b(named + event.delta.steps.tobytes(), digest_size=12).hexdigest()


_OF_HOME: Final[Mapping[str, Callable[[ConsoleSite, Any, int], Found]]] = {
    "rejected": _rejected,
    "review": _review,
    "model": _model,
}
_OF_STATUS: Final[Mapping[str, Callable[[Facts, Any, int], Found]]] = {
    "warnings": _warnings,
    "quarantine": _quarantine,
}
