"""Journal events and verdicts as values of JSON, newest first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from spamnb.core.model.costs import DECISIONS
from spamnb.core.model.events import NO_LABEL, Event, EventKind
from spamnb.core.model.labels import owner_kind
from spamnb.core.model.verdict import signature_text
from spamnb.service.engine.clock import iso
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.message_labels import in_force, labels_of, trainings
from spamnb.service.maintenance.event_filter import EventFilter
from spamnb.store.contract import ReadView
from spamnb.store.history.entry import HistoryEntry


@dataclass(frozen=True, slots=True)
class VerdictFilter:
    """Matches verdicts that meet all given conditions."""

    label: str | None = None
    decision: str | None = None
    since_us: int = 0

    def __call__(self, entry: HistoryEntry) -> bool:
        """Return whether the verdict matches."""
        return (
            entry.time_us >= self.since_us
            and self.label in (None, entry.label)
            and self.decision in (None, entry.decision)
        )


def journal(
    model: Filter, wanted: EventFilter, limit: int = 0, below: int | None = None
) -> list[dict[str, Any]]:
    """Return the events that match, at most `limit` if it is not 0, of those before `below`."""
    start = wanted.since_us or 0
    with model.store.read() as view:
        events = view.events(1, below, newest_first=True)
        later = takewhile(lambda event: event.time_us >= start, events)
        return [
            event_facts(view, one, model.labels)
            for one in islice(filter(wanted, later), limit or None)
        ]


def history(model: Filter, wanted: VerdictFilter, limit: int = 0) -> list[dict[str, Any]]:
    """Return the verdicts that match, at most `limit` if it is not 0."""
    if wanted.label is not None:
        model.label(wanted.label)
    entries = model.history.newest() if model.history else iter(())
    return [verdict_facts(entry) for entry in islice(filter(wanted, entries), limit or None)]


def trainings_of(model: Filter, digest: bytes, limit: int = 0) -> list[dict[str, Any]]:
    """Return the events of one message, newest first, at most `limit` if it is not 0."""
    with model.store.read() as view:
        return [
            event_facts(view, event, model.labels)
            for event in islice(trainings(view, digest), limit or None)
        ]


def event_facts(view: ReadView, event: Event, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return an event of the journal without the ids of its features."""

    def name(label: int) -> str | None:
        return labels[label] if label >= 0 else None

    decided = in_force(view, event.digest)
    return {
        "event": event.seq,
        "time": iso(event.time_us),
        "kind": event.kind.name.lower(),
        "user": event.user,
        "channel": event.channel,
        "before": name(event.before),
        "after": name(event.after),
        "digest": event.digest.hex(),
        "message_id": event.message_id,
        "undoes": event.undoes or None,
        "features": len(event.bulk.ids) if event.bulk else None,
        "owner": owner_kind(event.owner, event.person),
        "in_force": name(decided.label),
        "why": str(decided.reason),
    }


def label_facts(
    view: ReadView, digest: bytes, labels: tuple[str, ...], *, named: bool = True
) -> dict[str, Any]:
    """Return the label in force for a message and why; if `named`, also each label and its user."""
    decided = in_force(view, digest)
    given = [
        {
            "label": labels[one.label],
            "owner": owner_kind(one.owner),
            "user": one.event.user if one.event else "",
            "event": one.event.seq if one.event else None,
        }
        for one in labels_of(view, digest)
    ]
    return {
        "in_force": None if decided.label == NO_LABEL else labels[decided.label],
        "why": str(decided.reason),
        "given": given if named else [],
    }


def verdict_facts(entry: HistoryEntry) -> dict[str, Any]:
    """Return a verdict without the ids of its features."""
    return {
        "time": iso(entry.time_us),
        "id": entry.digest.hex(),
        "message_id": entry.message_id,
        "signature": signature_text(entry.signature),
        "label": entry.label,
        "probability": entry.probability,
        "log_odds": entry.log_odds,
        "decision": entry.decision,
        "notes": entry.notes,
        "done": action_of(entry),
    }


def action_of(entry: HistoryEntry) -> str:
    """Return what was done: an action, the setting that left the message unmarked, or nothing.

    Empty for entries of commands, of clients that act themselves, and of recipients with verdicts
    of their own.
    """
    if setting := entry.notes.get("observed"):
        return f"not marked: {setting}"
    actions = entry.notes.get("actions", "").split()
    known = len(actions) == len(DECISIONS)
    return actions[DECISIONS.index(entry.decision)] if known else ""


def timeline(model: Filter, most: int) -> dict[str, Any]:
    """Return what the newest events of the journal were: by day, user and channel."""
    days: dict[str, Counter[str]] = {}
    by: dict[str, Counter[str]] = {"users": Counter(), "channels": Counter()}
    with model.store.read() as view:
        last_event = view.totals().last_seq
        for event in islice(view.events(newest_first=True), most):
            day = days.setdefault(iso(event.time_us)[:10], Counter())
            day.update(["events", *(["imports"] if event.kind == EventKind.IMPORT else [])])
            by["users"][event.user] += 1
            by["channels"][event.channel] += 1
    return {
        "last_event": last_event,
        "days": [
            {"day": day, "events": count["events"], "imports": count["imports"]}
            for day, count in days.items()
        ],
        **{
            name: [{"name": one, "events": count} for one, count in counts.most_common()]
            for name, counts in by.items()
        },
    }
