"""Journal events and verdicts as values of JSON, newest first, and the search of verdicts.

    index = LookupIndex.open(folder, mark_of(rules))
    follow(history, index, rules)                  adds new entries, removes deleted ones
    search(model, index, rules, query)             returns the matching verdicts, newest first

The index finds entries by terms; each found entry is then compared with the query itself. A query
of one user finds what was delivered to the user (`rights.own_notes`). Must not know connections.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parseaddr
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Any, NamedTuple

from spamnb.engine.event_filter import EventFilter
from spamnb.engine.filter import Filter
from spamnb.engine.lookup import in_force, labels_of, trainings
from spamnb.engine.planner import owner_kind
from spamnb.feedback.rights import own_notes
from spamnb.mail.envelope import address_of, domain_of
from spamnb.model.costs import DECISIONS, roles_of
from spamnb.model.events import NO_LABEL, Event, EventKind
from spamnb.model.tokens import registered
from spamnb.model.verdict import signature_text
from spamnb.policy.senders import aligned
from spamnb.records.verdicts import History, HistoryEntry, LookupIndex
from spamnb.settings.values import TeachingRules
from spamnb.store.table_views import ReadView
from spamnb.telemetry import iso


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
    entries = model.history.newest(with_ids=False) if model.history else iter(())
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


MOST_COUNTED = 20_000
"""verdicts that are counted by sender, the newest: 50 us each"""


@dataclass(slots=True)
class SeenSender:
    """What came under the domain of an author."""

    domain: str
    first_us: int
    last_us: int
    messages: int = 0
    filed: int = 0
    """junk or rejected"""
    checked: int = 0
    """messages with results of authentication"""
    authentic: int = 0
    """of these, messages with a pass for the domain"""

    def as_dict(self) -> dict[str, Any]:
        """The counts for programs."""
        return {
            "domain": self.domain,
            "messages": self.messages,
            "filed": self.filed,
            "checked": self.checked,
            "authentic": self.authentic,
            "first": iso(self.first_us),
            "last": iso(self.last_us),
        }


def seen_senders(history: History, since_us: int, most: int) -> list[dict[str, Any]]:
    """The domains of authors in the newest verdicts, those with most messages first.

    Mail that is only observed, such as that of the site's own users, is not counted.
    """
    found: dict[str, SeenSender] = {}
    for entry in islice(history.newest(with_ids=False), MOST_COUNTED):
        if entry.time_us < since_us:
            break
        if "observed" not in entry.notes:
            _count_sender(found, entry)
    ordered = sorted(found.values(), key=lambda one: (-one.messages, one.domain))
    return [one.as_dict() for one in ordered[:most]]


def _count_sender(found: dict[str, SeenSender], entry: HistoryEntry) -> None:
    notes = entry.notes
    author = parseaddr(notes.get("header_from", ""))[1] or notes.get("from", "")
    domain = registered(domain_of(author).encode("ascii", "replace")).decode()
    if not domain:
        return
    one = found.setdefault(domain, SeenSender(domain, entry.time_us, entry.time_us))
    one.first_us, one.last_us = min(one.first_us, entry.time_us), max(one.last_us, entry.time_us)
    one.messages += 1
    one.filed += entry.decision in ("junk", "reject")
    results = notes.get("auth", "")
    one.checked += bool(results)
    passes = (part.rpartition(" ")[2] for part in results.split(", ") if "=pass " in part)
    one.authentic += any(aligned(domain_of(author), name) for name in passes)


_OBSERVED_LOOKED = 2_000
_OBSERVED_FIRST = 50
"""If no listener observed one of so many newest messages, none observes: the rest is not read."""


def observation(model: Filter) -> dict[str, Any] | None:
    """What would have been done with the newest messages that a listener only observed.

    `agreed` are messages that would have been filed and that a user called spam, `kept` those that
    a user wanted, `missed` those that a user called spam and that would not have been filed. None
    if no listener observes.
    """
    if model.history is None:
        return None
    counts = dict.fromkeys(("messages", "filed", "agreed", "kept", "missed"), 0)
    roles, since = roles_of(model.labels), 0
    with model.store.read() as view:
        newest = islice(model.history.newest(with_ids=False), _OBSERVED_LOOKED)
        for number, entry in enumerate(newest):
            if not entry.notes.get("observed", "").startswith("listener."):
                if number >= _OBSERVED_FIRST and not counts["messages"]:
                    break
                continue
            since = entry.time_us
            filed = entry.decision in ("junk", "reject")
            label = in_force(view, entry.digest).label
            said = roles[label] if label != NO_LABEL else ""
            counts["messages"] += 1
            counts["filed"] += filed
            counts["agreed"] += filed and said == "spam"
            counts["kept"] += filed and said == "ham"
            counts["missed"] += not filed and said == "spam"
    return {**counts, "since_us": since} if counts["messages"] else None


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


_FORMAT = 2
"""increased when `terms_of` changes"""
_BATCH = 500
_MOST_WORDS = 24
_WORD_CHARS = 32
_WORD = re.compile(r"\w+")
_MOST_SEQ = (1 << 63) - 1
_PAGES = 20
"""pages of the index that are read for one page of results: at most 150 ms"""


@dataclass(frozen=True, slots=True)
class VerdictQuery:
    """Conditions that a verdict meets; an empty one is met by all."""

    to: str = ""
    """address of a recipient"""
    sender: str = ""
    """an address or a domain"""
    words: str = ""
    """words of the subject"""
    decision: str = ""
    label: str = ""
    client: str = ""
    listener: str = ""
    corrected: bool | None = None
    """whether the message was taught under another label than that of the verdict"""
    since_us: int = 0
    until_us: int = 0
    """exclusive; 0 for none"""
    below: int = 0
    """where a search goes on: see `VerdictPage`"""
    user: str = ""
    """delivered to this user: an address or a login"""


class VerdictPage(NamedTuple):
    """Some verdicts, newest first."""

    verdicts: list[dict[str, Any]]
    below: int
    """where the search goes on; 0 at the end"""


def mark_of(rules: TeachingRules) -> str:
    """Return a mark of how terms are made: an index with another mark is built again."""
    exact = blake2b(" ".join(sorted(rules.exact)).encode()).hexdigest()[:16] if rules.exact else ""
    return f"{_FORMAT} {rules.delimiter}{exact}"


def follow(history: History, index: LookupIndex, rules: TeachingRules) -> bool:
    """Index a batch of new entries and forget a batch of deleted ones; True if more remain."""
    index.renew_if_deleted()
    first, last = history.seq_span()
    if index.position > last:
        index.clear()  # another history is in its place
    found = history.facts_after(index.position, _BATCH) if last > index.position else []
    index.add([(seq, terms_of(entry, rules) if entry else ()) for seq, entry in found])
    forgotten = index.forget_before(first) if first else 0
    return len(found) == _BATCH or forgotten > 0


def terms_of(entry: HistoryEntry, rules: TeachingRules) -> Iterator[str]:
    """The terms by which an entry is found."""
    notes = entry.notes
    yield f"decision {entry.decision}"
    yield f"label {entry.label}"
    for name in ("client", "listener"):
        if name in notes:
            yield f"{name} {notes[name]}"
    for recipient in notes.get("to", "").split():
        address = rules.mailbox(recipient)
        yield f"to {address}"
        yield f"login {address.rpartition('@')[0]}"
    header_from = parseaddr(notes.get("header_from", ""))[1]
    for sender in dict.fromkeys(filter(None, (notes.get("from"), header_from))):
        yield f"from {address_of(sender, '')}"
        yield f"domain {domain_of(sender)}"
    for word in _words(notes.get("subject", "")):
        yield f"word {word}"


def _words(subject: str) -> list[str]:
    return [word[:_WORD_CHARS] for word in _WORD.findall(subject.casefold())[:_MOST_WORDS]]


def _terms_of_query(query: VerdictQuery, rules: TeachingRules) -> Iterator[str]:
    for name in ("decision", "label", "client", "listener"):
        if value := getattr(query, name):
            yield f"{name} {value}"
    if query.to:
        yield f"to {rules.mailbox(query.to)}"
    if query.sender:
        sender = query.sender
        is_address = sender.rpartition("@")[0]
        domain = domain_of(f"@{sender.lstrip('@')}")
        yield f"from {address_of(sender, '')}" if is_address else f"domain {domain}"
    for word in _words(query.words):
        yield f"word {word}"
    if query.user:
        user = rules.mailbox(query.user)
        yield f"to {user}" if "@" in user else f"login {user}"


def search(
    model: Filter, index: LookupIndex, rules: TeachingRules, query: VerdictQuery, limit: int = 50
) -> VerdictPage:
    """Return at most `limit` verdicts that match, newest first."""
    assert model.history is not None, "the caller opens the history"
    until = min(query.until_us or _MOST_SEQ, query.below or _MOST_SEQ)
    terms, found = list(_terms_of_query(query, rules)), list[dict[str, Any]]()
    for _ in range(_PAGES):
        seqs, until = index.page(terms, until, query.since_us, limit - len(found))
        entries = model.history.facts_at(seqs)
        found += _matching(model, rules, query, entries)
        if not until or len(found) >= limit:
            break
    return VerdictPage(found, until)


def _matching(
    model: Filter, rules: TeachingRules, query: VerdictQuery, entries: list[HistoryEntry]
) -> Iterator[dict[str, Any]]:
    with model.store.read() as view:
        for entry in entries:
            notes = entry.notes
            if query.user:
                notes = own_notes(notes, query.user, rules)
                if not _is_asked(notes["to"].split(), query.to, rules):
                    continue
            said = in_force(view, entry.digest).label
            trained = None if said == NO_LABEL else model.labels[said]
            corrected = trained is not None and trained != entry.label
            if query.corrected in (None, corrected):
                yield verdict_facts(entry) | {"notes": notes, "trained": trained}


def _is_asked(own: list[str], to: str, rules: TeachingRules) -> bool:
    """Whether a query names no recipient, or one of the user's own addresses in the message.

    A user finds nothing by the address of another recipient.
    """
    asked = address_of(to, rules.delimiter)
    return any(not to or address_of(one, rules.delimiter) == asked for one in own)
