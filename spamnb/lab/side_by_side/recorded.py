"""Pairs of verdicts that a daemon recorded in its history.

The other verdict is in the note `other` of an entry, or in the file of verdicts that the daemon
asked for (`service/scanning/shadow.py`). The label is the one that users have taught since then.
Must not know the daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from spamnb.core.mail.domains import domain_of
from spamnb.core.mail.filter_marks import mark_of_text
from spamnb.core.model.costs import Decision, roles_of
from spamnb.core.model.events import NO_LABEL
from spamnb.core.model.verdict import signature_text
from spamnb.lab.side_by_side.records import PairedVerdict
from spamnb.service.engine.clock import iso
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.message_labels import in_force
from spamnb.service.scanning.shadow import AskedVerdict, read_asked
from spamnb.store.contract import ReadView
from spamnb.store.history.entry import HistoryEntry

_BATCH = 500
_SHOWN = ("from", "author", "to", "subject")


def recorded(model: Filter, home: Path, since_us: int) -> tuple[list[PairedVerdict], int]:
    """The pairs since a time, and the number of messages without a verdict of the other filter.

    Of several verdicts on one message the first counts: later ones may follow from its label.
    """
    asked = read_asked(home)
    pairs: dict[str, PairedVerdict] = {}
    unmarked: set[bytes] = set()
    with model.store.read() as view:
        for entry in _entries(model, since_us):
            if entry.digest.hex() in pairs or entry.digest in unmarked:
                continue
            pair = _pair(model, view, entry, asked.get(signature_text(entry.signature)))
            if pair is None:
                unmarked.add(entry.digest)
            else:
                pairs[pair.ident] = pair
    return list(pairs.values()), len(unmarked)


def _entries(model: Filter, since_us: int) -> Iterator[HistoryEntry]:
    assert model.history is not None, "the caller opens the history"
    seq = since_us
    while found := model.history.facts_after(seq, _BATCH):
        yield from (entry for _, entry in found if entry is not None)
        seq = found[-1][0]


def _pair(
    model: Filter, view: ReadView, entry: HistoryEntry, asked: AskedVerdict | None
) -> PairedVerdict | None:
    mark = mark_of_text(entry.notes.get("other", "")) or (asked.mark if asked else None)
    if mark is None:
        return None
    said = in_force(view, entry.digest).label
    truth = None if said == NO_LABEL else roles_of(model.labels)[said]
    facts = [("time", iso(entry.time_us))]
    facts += [(name, entry.notes[name]) for name in _SHOWN if name in entry.notes]
    recipients = entry.notes.get("to", "").split()
    return PairedVerdict(
        ident=entry.digest.hex(),
        name=entry.message_id or entry.digest.hex(),
        decision=cast("Decision", entry.decision),
        probability=entry.probability,
        other=mark.verdict,
        truth=truth,
        tests=mark.tests,
        domains=tuple(sorted({domain_of(one) for one in recipients} - {""})),
        facts=tuple(facts),
        own_ms=asked.own_ms if asked else None,
        other_ms=asked.other_ms if asked else None,
    )
