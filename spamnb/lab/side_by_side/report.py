"""The report of a trial: where two filters differ, which was right, and what would change.

    report_of(pairs) -> TrialReport      the same pairs in any order give the same report

A filter is right if it files spam as junk, and nothing else. Users label mistakes and no other
messages, so labelled messages are not a fair sample of all: the report never adds their numbers to
those of the drawn sample. Pure; must not know where the pairs come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from spamnb.core.mail.filter_marks import OTHER_VERDICTS
from spamnb.core.model.costs import DECISIONS
from spamnb.lab.side_by_side.intervals import exact_interval, exact_p
from spamnb.lab.side_by_side.records import PairedVerdict, Truth
from spamnb.lab.side_by_side.sampling import SampleEstimate, Stratum, estimate, strata_of

SAMPLE: Final = 60
MOST_ROWS: Final = 20
_DIGITS: Final = 6


class TrialContext(NamedTuple):
    """What is known in addition to the pairs."""

    unmarked: int = 0
    """messages without a verdict of the other filter"""
    answers: Mapping[str, Truth] = MappingProxyType({})
    """labels of drawn messages, by `ident`"""
    sample: int = SAMPLE
    other_means: Mapping[str, int] = MappingProxyType({})
    """see `mail_log`"""


PAIRS_ALONE: Final = TrialContext()


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of one filter on labelled messages of one label."""

    wrong: int
    of: int

    def as_dict(self) -> dict[str, object]:
        low, high = exact_interval(self.wrong, self.of)
        return {"wrong": self.wrong, "of": self.of, "low": _round(low), "high": _round(high)}


@dataclass(frozen=True, slots=True)
class LabelledMail:
    """Both filters on the messages that users labelled."""

    ham_lost: tuple[Errors, Errors]
    """ham filed as junk: this filter, the other one"""
    spam_missed: tuple[Errors, Errors]
    own_right: int
    """only this filter filed it right"""
    other_right: int

    def as_dict(self) -> dict[str, object]:
        low, high = exact_interval(self.own_right, self.own_right + self.other_right)
        return {
            "ham_lost": _both(self.ham_lost),
            "spam_missed": _both(self.spam_missed),
            "only_own_right": self.own_right,
            "only_other_right": self.other_right,
            "p": _round(exact_p(self.own_right, self.other_right)),
            "own_share_low": _round(low),
            "own_share_high": _round(high),
        }


@dataclass(frozen=True, slots=True)
class NewlyFiled:
    """The messages that this filter files as junk, and the other one does not."""

    messages: int
    known_ham: int
    """by labels of users"""
    expected_ham: float
    """by the probabilities, which may be wrong"""

    def as_dict(self) -> dict[str, object]:
        return {
            "messages": self.messages,
            "known_ham": self.known_ham,
            "expected_ham": round(self.expected_ham, 3),
        }


@dataclass(frozen=True, slots=True)
class TrialReport:
    """All results of a trial."""

    messages: int
    unmarked: int
    """further messages, without a verdict of the other filter"""
    agreement: Mapping[tuple[str, str], int]
    """number of messages for each pair of verdicts, that of this filter first"""
    decisions: Mapping[str, int]
    labelled: LabelledMail
    newly_filed: NewlyFiled
    strata: tuple[Stratum, ...]
    sample: SampleEstimate
    tests: tuple[tuple[str, int, int], ...]
    """tests of the other filter on messages that it alone files as junk: name, messages, and
    those that users labelled spam"""
    domains: tuple[tuple[str, int, int, int], ...]
    """domain, messages, newly filed, newly delivered"""
    milliseconds: tuple[float | None, float | None]
    """median time for a message: this filter, the other one"""
    other_means: Mapping[str, int] = field(default_factory=dict)
    """what happened to mail before both filters, by the log of the mail server"""

    @property
    def moved(self) -> int:
        """The number of messages that this filter would put into another folder."""
        return sum(n for (own, other), n in self.agreement.items()
                   if (own == "spam") != (other == "spam"))  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of the report."""
        return {
            "messages": self.messages,
            "unmarked": self.unmarked,
            "agreement": {
                own: {other: self.agreement[own, other] for other in OTHER_VERDICTS}
                for own in OTHER_VERDICTS
            },
            "moved": self.moved,
            "decisions": dict(self.decisions),
            "labelled": self.labelled.as_dict(),
            "newly_filed": self.newly_filed.as_dict(),
            "sample": self.sample.as_dict() | {"strata": [_stratum(one) for one in self.strata]},
            "other_tests": [
                {"test": name, "messages": count, "known_spam": spam}
                for name, count, spam in self.tests
            ],
            "domains": [
                dict(
                    zip(("domain", "messages", "newly_filed", "newly_delivered"), row, strict=True)
                )
                for row in self.domains
            ],
            "milliseconds": dict(zip(("own", "other"), self.milliseconds, strict=True)),
            "other_means": dict(self.other_means),
        }


def report_of(pairs: Iterable[PairedVerdict], context: TrialContext = PAIRS_ALONE) -> TrialReport:
    """Count the pairs; of several with one `ident` the last counts.

    A message with an answer stays in the sample, even if it was trained with that label.
    """
    by_ident = {
        pair.ident: replace(pair, truth=None) if pair.ident in context.answers else pair
        for pair in pairs
    }
    found = [by_ident[ident] for ident in sorted(by_ident)]
    both = Counter((pair.own, pair.other) for pair in found)
    decisions = Counter(pair.decision for pair in found)
    strata = strata_of(found, context.sample)
    return TrialReport(
        messages=len(found),
        unmarked=context.unmarked,
        agreement={(a, b): both[a, b] for a in OTHER_VERDICTS for b in OTHER_VERDICTS},
        decisions={decision: decisions[decision] for decision in DECISIONS},
        labelled=_labelled(found),
        newly_filed=_newly_filed(found),
        strata=strata,
        sample=estimate(strata, context.answers),
        tests=_tests(found),
        domains=_domains(found),
        milliseconds=(_median([one.own_ms for one in found]),
                      _median([one.other_ms for one in found])),
        other_means=dict(sorted(context.other_means.items())),
    )  # fmt: skip


def _labelled(pairs: Sequence[PairedVerdict]) -> LabelledMail:
    ham = [pair for pair in pairs if pair.truth == "ham"]
    spam = [pair for pair in pairs if pair.truth == "spam"]
    right = Counter(
        pair.own_files == (pair.truth == "spam") for pair in (*ham, *spam) if pair.moves
    )
    return LabelledMail(
        (Errors(sum(one.own_files for one in ham), len(ham)),
         Errors(sum(one.other_files for one in ham), len(ham))),
        (Errors(sum(not one.own_files for one in spam), len(spam)),
         Errors(sum(not one.other_files for one in spam), len(spam))),
        right[True],
        right[False],
    )  # fmt: skip


def _newly_filed(pairs: Sequence[PairedVerdict]) -> NewlyFiled:
    filed = [pair for pair in pairs if pair.moves and pair.own_files]
    known = sum(pair.truth == "ham" for pair in filed)
    return NewlyFiled(len(filed), known, sum(1 - pair.probability for pair in filed))


def _tests(pairs: Sequence[PairedVerdict]) -> tuple[tuple[str, int, int], ...]:
    alone = [pair for pair in pairs if pair.moves and pair.other_files]
    counts = Counter(name for pair in alone for name in pair.tests)
    spam = Counter(name for pair in alone if pair.truth == "spam" for name in pair.tests)
    rows = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_ROWS]
    return tuple((name, counts[name], spam[name]) for name in rows)


def _domains(pairs: Sequence[PairedVerdict]) -> tuple[tuple[str, int, int, int], ...]:
    counts: dict[str, Counter[str]] = {}
    for pair in pairs:
        for domain in sorted(set(pair.domains)):
            count = counts.setdefault(domain, Counter())
            count["messages"] += 1
            count["filed"] += pair.moves and pair.own_files
            count["delivered"] += pair.moves and pair.other_files
    rows = sorted(counts, key=lambda name: (-counts[name]["messages"], name))[:MOST_ROWS]
    return tuple(
        (name, counts[name]["messages"], counts[name]["filed"], counts[name]["delivered"])
        for name in rows
    )


def _median(times: Sequence[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return round(median(known), 3) if known else None


def _both(errors: tuple[Errors, Errors]) -> dict[str, object]:
    return {"own": errors[0].as_dict(), "other": errors[1].as_dict()}


def _stratum(one: Stratum) -> dict[str, object]:
    drawn = [{"id": pair.ident, "name": pair.name} for pair in one.drawn]
    weight = _round(one.weight)
    return {"own": one.own, "other": one.other, "size": one.size, "weight": weight, "drawn": drawn}


def _round(value: float) -> float:
    """The digits that do not depend on the machine's mathematical library."""
    return round(value, _DIGITS)
