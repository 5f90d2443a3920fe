"""Search the verdicts of the history by sender, recipient, subject and other facts.

    index = LookupIndex.open(folder, mark_of(rules))
    follow(history, index, rules)                  adds new entries, removes deleted ones
    search(model, index, rules, query)             returns the matching verdicts, newest first

The index finds entries by terms; each found entry is then compared with the query itself. A query
of one user finds what was delivered to the user (`ownership.own_notes`). Must not know
connections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from spamnb.core.mail.domains import address_of, domain_of
from spamnb.core.model.events import NO_LABEL
from spamnb.service.admin.listings import verdict_facts
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.message_labels import in_force
from spamnb.service.feedback.ownership import own_notes
from spamnb.service.limits import TeachingRules
from spamnb.store.history.entry import HistoryEntry
from spamnb.store.history.verdict_history import History
from spamnb.store.lookup import LookupIndex

_FORMAT = 1
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
    if "from" in notes:
        yield f"from {address_of(notes['from'], '')}"
        yield f"domain {domain_of(notes['from'])}"
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
