"""What two states of a model say of the newest messages of the history; writes nothing.

Both judge each message now, by the ids that the history has of it. Labels count as known if a
person gave them and they are not of the training that the new model omits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import exp
from typing import Any, Final, NamedTuple

from spamnb.core.model.costs import DECISIONS, Role, roles_of
from spamnb.core.model.verdict import Verdict, signature_text
from spamnb.service.engine.clock import iso
from spamnb.service.engine.filter import Filter
from spamnb.service.engine.lookup import entry_example
from spamnb.service.engine.scoring import score_examples
from spamnb.service.figures.judged_mail import said_of
from spamnb.service.maintenance.event_filter import Takes
from spamnb.store.history.entry import HistoryEntry

_BATCH: Final = 200
_JUNK: Final = DECISIONS.index("junk")
_LISTED: Final = 100


class JudgedTwice(NamedTuple):
    """A message, the verdict of each model, and the role of the label that a person gave it."""

    entry: HistoryEntry
    old: Verdict
    new: Verdict
    said: Role | None

    @property
    def moved(self) -> int:
        """1 if it would go into the junk folder, -1 if out of it, else 0."""
        filed = [DECISIONS.index(one.decision) >= _JUNK for one in (self.old, self.new)]
        return filed[1] - filed[0]


def judged_twice(
    models: tuple[Filter, Filter], entries: Iterable[HistoryEntry], ignored: Takes
) -> Iterator[JudgedTwice]:
    """Yield the messages as the old and the new model judge them now."""
    old, new = models
    roles = roles_of(old.labels)
    for batch in _batches(entries):
        examples = [entry_example(entry) for entry in batch]
        with old.store.read() as view:
            before = score_examples(
                old.recipe, old.costs, view, examples, threshold=old.threshold(view)
            )
            said = [said_of(view, roles, entry.digest, ignored)[0] for entry in batch]
        with new.store.read() as view:
            after = score_examples(
                new.recipe, new.costs, view, examples, threshold=new.threshold(view)
            )
        yield from map(JudgedTwice, batch, before, after, said)


def comparison_facts(judged: Sequence[JudgedTwice]) -> dict[str, Any]:
    """Return which verdicts change, and what becomes of the mail that people labelled."""
    pairs = Counter((one.old.decision, one.new.decision) for one in judged)
    moved = Counter((one.said, one.moved) for one in judged)
    changed = [one for one in judged if one.old.decision != one.new.decision]
    changed.sort(key=lambda one: not (one.said == "ham" and one.moved > 0))
    return {
        "messages": len(judged),
        "changed": len(changed),
        "counts": [
            {"old": old, "new": new, "messages": count}
            for (old, new), count in sorted(pairs.items())
        ],
        "known_ham": sum(one.said == "ham" for one in judged),
        "known_spam": sum(one.said == "spam" for one in judged),
        "ham_lost": moved["ham", 1],
        "ham_won": moved["ham", -1],
        "spam_lost": moved["spam", -1],
        "spam_won": moved["spam", 1],
        "verdicts": [_row(one) for one in changed[:_LISTED]],
    }


def _row(one: JudgedTwice) -> dict[str, Any]:
    return {
        "signature": signature_text(one.entry.signature),
        "time": iso(one.entry.time_us),
        "subject": one.entry.notes.get("subject", ""),
        "from": one.entry.notes.get("from", ""),
        "old": one.old.decision,
        "new": one.new.decision,
        "old_probability": _probability(one.old),
        "new_probability": _probability(one.new),
        "said": one.said,
    }


def _probability(verdict: Verdict) -> float:
    """Return the probability of spam."""
    return 1 / (1 + exp(-max(-700.0, min(700.0, verdict.spam_log_odds))))


def _batches(entries: Iterable[HistoryEntry]) -> Iterator[list[HistoryEntry]]:
    rest = iter(entries)
    while batch := list(islice(rest, _BATCH)):
        yield batch
