"""Judge mail in folders, in the order of its arrival, and compare with another filter's verdicts.

Each message is scored before its label is learnt, by a new model in memory: this gives the verdict
that the filter would have given when the message arrived. Must not know where labels and the other
verdicts come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

from spamnb.core.mail.filter_marks import FilterMark
from spamnb.core.model.costs import Costs, Decision, roles_of
from spamnb.core.model.decision import decide, spam_log_odds
from spamnb.core.model.scoring import Floats, probabilities
from spamnb.core.policy.actions import limit_while_untrained
from spamnb.lab.side_by_side.records import PairedVerdict, Truth
from spamnb.lab.sources import Named, units_by_time
from spamnb.lab.trial import LABELS, Options, Trial, read_samples
from spamnb.service.training.sources import MessageSpan, SourceMessage, read_unit

NO_LABEL = ""


class TrialMail(NamedTuple):
    """The messages, and how to read the other filter's verdict from each."""

    spans: Sequence[tuple[MessageSpan, str]]
    """messages with their labels, in the order of arrival; without a label: `NO_LABEL`"""
    mark_of: Callable[[bytes], FilterMark | None]
    filed_by_other: bool = False
    """whether the other filter filed the messages: then the label of spam that it filed as junk
    comes from that filter, and not from a user"""


class JudgedMail(NamedTuple):
    """The result."""

    pairs: list[PairedVerdict]
    unmarked: int
    """messages without a verdict of the other filter; they are learnt as well"""
    unreadable: int


def in_order(named: Sequence[Named[MessageSpan]], last: int = 0) -> list[tuple[MessageSpan, str]]:
    """The messages in the order of arrival; only the newest `last`, if it is not 0."""
    return units_by_time(named)[-last if last else None :]


def judge(mail: TrialMail, options: Options) -> JudgedMail:
    """Score each message, then learn it; of equal messages only the first counts."""
    names: list[str] = []
    labels: list[str] = []
    marks: list[FilterMark | None] = []

    def readable() -> Iterator[tuple[bytes, str]]:
        for number, (span, label) in enumerate(mail.spans, 1):
            read = read_unit(span)
            if options.progress:
                options.progress(number, len(mail.spans))
            if isinstance(read, SourceMessage):
                names.append(read.name)
                labels.append(label)
                marks.append(mail.mark_of(read.raw))
                yield read.raw, label or LABELS[0]

    samples = read_samples(readable(), options)
    model = _InOrder(Trial(samples, samples.truth, options), options.costs or Costs())
    pairs: dict[str, PairedVerdict] = {}
    seen: set[bytes] = set()
    for index, (name, label, mark) in enumerate(zip(names, labels, marks, strict=True)):
        digest = samples.items[index].example.digest
        if digest in seen:
            continue
        seen.add(digest)
        decided = model.judge(index, label)
        if mark is None:
            continue
        by_other = mail.filed_by_other and label == mark.verdict == "spam"
        pairs[digest.hex()] = PairedVerdict(
            ident=digest.hex(),
            name=name,
            decision=decided.decision,
            probability=decided.probability,
            other=mark.verdict,
            truth=cast("Truth", label) if label and not by_other else None,
            tests=mark.tests,
        )
    return JudgedMail(list(pairs.values()), len(seen) - len(pairs), len(mail.spans) - len(names))


class Judgement(NamedTuple):
    """The filter's result for one message."""

    decision: Decision
    probability: float


class _InOrder:
    """A model that learns what it has judged."""

    def __init__(self, trial: Trial, costs: Costs) -> None:
        self._trial, self._costs = trial, costs
        self._learnt = dict.fromkeys(LABELS, 0)

    def judge(self, index: int, label: str) -> Judgement:
        def choose(_: Floats) -> Sequence[int]:
            return [index] if label else []

        z = self._trial.score_then_train(index, choose)
        decision = decide(spam_log_odds(z.tolist(), roles_of(LABELS)), self._costs)
        decision = limit_while_untrained(decision, min(self._learnt.values()))
        if label:
            self._learnt[label] += 1
        return Judgement(decision, float(probabilities(z)[1]))
