"""Compare with a filter that runs beside.

`count_ways` counts the mail that was stopped before the filters, `judge` scores mail in folders in
the order of its arrival, `recorded` takes the pairs of verdicts from a daemon's history,
`strata_of` draws messages on which the filters differ, and `report_of` says which filter was right.
Must not know the daemon. Failure: UserError.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from math import comb
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast

from spamnb.engine.filter import Filter
from spamnb.engine.lookup import in_force
from spamnb.engine.mailboxes import MessageSpan, SourceMessage, read_unit
from spamnb.errors import UserError
from spamnb.lab.runs import LABELS, Named, Options, Trial, read_samples, units_by_time
from spamnb.mail.envelope import domain_of
from spamnb.mail.other_filters import OTHER_VERDICTS, FilterMark, OtherVerdict, mark_of_text
from spamnb.model.costs import DECISIONS, Costs, Decision, roles_of
from spamnb.model.events import NO_LABEL
from spamnb.model.scoring import CONFIDENCE, most_lost, probabilities, spam_log_odds
from spamnb.model.smoothing import Floats
from spamnb.model.verdict import decide, signature_text
from spamnb.policy.actions import limit_while_untrained
from spamnb.records.verdicts import HistoryEntry
from spamnb.scan.shadow import AskedVerdict, read_asked
from spamnb.store.files import durable_write, open_named
from spamnb.store.table_views import ReadView
from spamnb.telemetry import iso

Share = tuple[float, float]


def exact_interval(count: int, of: int, confidence: float = CONFIDENCE) -> Share:
    """Clopper and Pearson's two-sided interval of a share; 0 to 1 if `of` is 0."""
    if not of:
        return 0.0, 1.0
    side = 1 - (1 - confidence) / 2
    return 1 - most_lost(of - count, of, side), most_lost(count, of, side)


def exact_p(first: int, second: int) -> float:
    """McNemar's exact two-sided p.

    Of the messages that one filter alone judged right, `first` are those of one filter and `second`
    those of the other.
    """
    both = first + second
    tail = sum(comb(both, k) for k in range(min(first, second) + 1))
    return min(1.0, tail / 2 ** (both - 1)) if both else 1.0


MOST_LINE: Final = 2000

WAYS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            "greylisted",
            r": (?:NOQUEUE|[0-9A-Za-z]+): (?:milter-)?reject: .*\b4[57][01]\b.*grey ?list",
        ),
        ("greylisted", r"temporarily rejected RCPT .*grey ?list"),
        ("list of addresses", r": NOQUEUE: reject: .*\b[45]\d\d\b.*blocked using "),
        ("list of addresses", r": DNSBL rank \d+ for "),
        ("put off by a milter", r": milter-reject: .*: 4\.\d\.\d "),
        ("rejected by a milter", r": milter-reject: "),
        ("rejected before DATA", r": NOQUEUE: reject: (?:CONNECT|HELO|EHLO|MAIL|RCPT) "),
        ("rejected before DATA", r"\brejected (?:connection|EHLO|HELO|MAIL|RCPT) "),
        ("rejected after DATA", r": (?:NOQUEUE|[0-9A-Za-z]+): reject: (?:DATA|END-OF-MESSAGE) "),
        ("rejected after DATA", r"\brejected (?:after DATA|by local_scan)"),
        ("blocked by amavis", r"amavis\[\d+\]: .*\bBlocked (?:SPAM|INFECTED|BANNED)"),
    )
)
"""(what happened, what its line contains): the first row that matches counts"""


def count_ways(lines: Iterable[str]) -> dict[str, int]:
    """How often a log shows each way to stop mail.

    Mail that the server refuses at the connection, or that a greylist delays, never reaches a
    filter that only observes, so there are no verdicts on it to compare. The table has the lines of
    Postfix with its policy servers and milters, Exim, and amavis. Pure: lines in, counts out; other
    lines are skipped.
    """
    found: Counter[str] = Counter()
    for line in lines:
        part = line[:MOST_LINE]
        way = next((name for name, pattern in WAYS if pattern.search(part)), None)
        if way is not None:
            found[way] += 1
    return dict(sorted(found.items()))


Truth = Literal["ham", "spam"]

VERDICT_OF: Final[Mapping[Decision, OtherVerdict]] = {
    "deliver": "ham", "unsure": "unsure", "junk": "spam", "reject": "spam",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedVerdict:
    """One message."""

    ident: str
    """unique: the hexadecimal digest"""
    name: str
    """a path or the Message-ID, by which a user finds the message"""
    decision: Decision
    """of this filter"""
    probability: float
    other: OtherVerdict
    truth: Truth | None = None
    """the label that a user gave; None if no user gave one"""
    tests: tuple[str, ...] = ()
    """of the other filter"""
    domains: tuple[str, ...] = ()
    """of the recipients"""
    facts: tuple[tuple[str, str], ...] = ()
    """names and values by which a user recognises the message"""
    own_ms: float | None = None
    other_ms: float | None = None

    @property
    def own(self) -> OtherVerdict:
        """The verdict of this filter in the words of the other one."""
        return VERDICT_OF[self.decision]

    @property
    def own_files(self) -> bool:
        """Whether this filter files the message as junk."""
        return self.own == "spam"

    @property
    def other_files(self) -> bool:
        """Whether the other filter files the message as junk."""
        return self.other == "spam"

    @property
    def moves(self) -> bool:
        """Whether this filter would put the message into another folder."""
        return self.own_files != self.other_files


NAME = "trial-answers"
"""of the file in the home"""
_TRUTHS: dict[str, Truth] = {"ham": "ham", "spam": "spam"}


class AnswerFile:
    """The answers in a file; of several answers on one message, the last counts.

    Each change writes the whole file, so that it is on disk before the next message is shown.
    Comments and the order of lines stay. Failure: UserError for a line that is no answer, and for a
    file that cannot be read or written.
    """

    def __init__(self, path: str | Path, *, may_be_missing: bool = True) -> None:
        self.path = Path(path)
        self._lines: list[str] = []
        try:
            with open(open_named(str(path)), encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123
                self._lines = [line.rstrip("\n") for line in lines]
        except FileNotFoundError as error:
            if not may_be_missing:
                raise UserError(f"{path} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        self.answers  # noqa: B018 - an invalid line is an error before the first question

    @property
    def answers(self) -> Mapping[str, Truth]:
        """The label of each message, by `ident`."""
        found: dict[str, Truth] = {}
        for number, line in enumerate(self._lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            label = _TRUTHS.get(words[0])
            if label is None or len(words) < 2:
                raise UserError(
                    f"line {number} of {self.path} is {line.strip()[:60]!r}",
                    hint="each line must be `ham ID` or `spam ID`",
                )
            found[words[1]] = label
        return found

    def add(self, label: Truth, ident: str) -> None:
        """Add an answer; on return it is on disk."""
        self._lines.append(f"{label} {ident}")
        self._write()

    def remove_last(self) -> None:
        """Remove the newest answer."""
        self._lines.pop()
        self._write()

    def _write(self) -> None:
        try:
            text = "".join(f"{line}\n" for line in self._lines)
            durable_write(self.path, text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}",
                hint="name another file with --answers",
            ) from error


UNLABELLED = ""


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
    """Score each message, then learn it; of equal messages only the first counts.

    Each message is scored before its label is learnt, by a new model in memory: this gives the
    verdict that the filter would have given when the message arrived.
    """
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


_BATCH = 500
_SHOWN = ("from", "author", "to", "subject")


def recorded(model: Filter, home: Path, since_us: int) -> tuple[list[PairedVerdict], int]:
    """The pairs since a time, and the number of messages without a verdict of the other filter.

    Of several verdicts on one message the first counts: later ones may follow from its label.

    The other verdict is in the note `other` of an entry, or in the file of verdicts that the daemon
    asked for (`scan/other_filters.py`). The label is the one that users have taught since then.
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


@dataclass(frozen=True, slots=True)
class Stratum:
    """The messages with one pair of verdicts, and its part of the sample."""

    own: OtherVerdict
    other: OtherVerdict
    size: int
    drawn: tuple[PairedVerdict, ...]

    @property
    def weight(self) -> float:
        """The number of messages that a drawn one stands for."""
        return self.size / len(self.drawn)


@dataclass(frozen=True, slots=True)
class SampleEstimate:
    """The number of messages in all strata on which only this filter is right."""

    messages: int
    answered: int
    own_right: float
    low: float
    high: float
    """95 % bounds of `own_right`: the sum of exact bounds of the strata (Bonferroni)"""

    def as_dict(self) -> dict[str, object]:
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def strata_of(pairs: Sequence[PairedVerdict], most: int, seed: int = 1) -> tuple[Stratum, ...]:
    """Draw at most `most` messages, but at least one of each stratum.

    The messages without a label of a user are divided into strata by both verdicts. Each stratum
    gets its part of the sample; within it the order of a keyed hash decides, so the sample is the
    same on each run and does not depend on the order of the messages. Weights are sizes: a drawn
    message stands for `size / drawn` messages. Pure.
    """
    cells: dict[tuple[OtherVerdict, OtherVerdict], list[PairedVerdict]] = {}
    for pair in pairs:
        if pair.moves and pair.truth is None:
            cells.setdefault((pair.own, pair.other), []).append(pair)
    ordered = sorted(cells.items())
    counts = _shares([len(cell) for _, cell in ordered], most)
    return tuple(
        Stratum(*key, len(cell), tuple(sorted(cell, key=lambda one: _rank(one, seed))[:count]))
        for (key, cell), count in zip(ordered, counts, strict=True)
    )


def _rank(pair: PairedVerdict, seed: int) -> bytes:
    return blake2b(pair.ident.encode(), key=b"%d" % seed, digest_size=16).digest()


def _shares(sizes: list[int], most: int) -> list[int]:
    """Parts of the sample: for each stratum up to a tenth of `most`, then the rest by size."""
    least = max(1, most // 10)
    counts = [min(size, least) for size in sizes]
    for _ in range(most - sum(counts)):
        open_ones = [k for k, size in enumerate(sizes) if counts[k] < size]
        if not open_ones:
            break
        counts[max(open_ones, key=lambda k: (sizes[k] / (counts[k] + 1), -k))] += 1
    return counts


def estimate(strata: Sequence[Stratum], answers: Mapping[str, Truth]) -> SampleEstimate:
    """Estimate all messages of the strata from the answers on drawn messages, by `ident`."""
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(strata))
    answered, middle, low, high = 0, 0.0, 0.0, 0.0
    for stratum in strata:
        found = [answers[one.ident] for one in stratum.drawn if one.ident in answers]
        right = sum((truth == "spam") == (stratum.own == "spam") for truth in found)
        lowest, highest = exact_interval(right, len(found), confidence)
        if found and len(found) == stratum.size:
            lowest = highest = right / len(found)
        answered += len(found)
        middle += stratum.size * (right / len(found) if found else 0.5)
        low += stratum.size * lowest
        high += stratum.size * highest
    return SampleEstimate(sum(one.size for one in strata), answered, middle, low, high)


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
    """how often the log of the mail server shows each way to stop mail"""


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

    The same pairs in any order give the same report.

    A filter is right if it files spam as junk, and nothing else. Users label mistakes and no other
    messages, so labelled messages are not a fair sample of all: the report never adds their numbers
    to those of the drawn sample. Pure; must not know where the pairs come from.
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
