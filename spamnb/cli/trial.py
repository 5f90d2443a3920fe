"""`spamnb trial`: compare this filter with another one on the same mail; ask for labels; report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spamnb.cli.correct import show
from spamnb.cli.labels import label_finder
from spamnb.cli.main import CommandGroup, command
from spamnb.cli.options import Count
from spamnb.cli.printing import QUIT, progress_bar, safe, say, say_json, table, typed_keys
from spamnb.cli.session import CliSession, checked, pass_session, teacher
from spamnb.errors import CorpusError, UserError

if TYPE_CHECKING:
    from spamnb.engine.mailboxes import MessageSpan
    from spamnb.engine.receipt import Receipt
    from spamnb.lab.side_by_side import (
        AnswerFile,
        Errors,
        PairedVerdict,
        Stratum,
        TrialContext,
        TrialReport,
        Truth,
    )
    from spamnb.mail.other_filters import FilterMark

_KEYS = "[h]am, [s]pam, [n]ext, [u]ndo, [q]uit? "
_TRUTHS: dict[str, Truth] = {"h": "ham", "s": "spam"}
_LINES = 12
"""of the text of a message"""
_WIDTH = 100

Look = Callable[["PairedVerdict"], Iterable[tuple[str, str]]]
"""returns names and values by which a user recognises a message"""


def drawn_strata(
    pairs: Sequence[PairedVerdict], answers: AnswerFile, sample: int
) -> tuple[Stratum, ...]:
    """Return the sample that the report draws."""
    from spamnb.lab.side_by_side import TrialContext, report_of

    return report_of(pairs, TrialContext(answers=answers.answers, sample=sample)).strata


def look_into(spans: dict[str, MessageSpan]) -> Look:
    """Return a function that reads a message by its name: some fields, and how its text begins."""
    from spamnb.engine.mailboxes import SourceMessage, read_unit
    from spamnb.mail.message import read

    def look(one: PairedVerdict) -> list[tuple[str, str]]:
        found = read_unit(spans[one.name])
        if not isinstance(found, SourceMessage):
            return [("message", f"{one.name} cannot be read")]
        message = read(found.raw)
        rows = [
            (name.decode(), _text(value))
            for name, value in message.headers
            if name in (b"date", b"from", b"to", b"subject")
        ]
        texts = [_text(part.text) for part in message.parts]
        lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
        return [*rows, *(("", line) for line in lines[:_LINES])]

    return look


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def list_drawn(strata: Sequence[Stratum], answers: AnswerFile) -> None:
    known = answers.answers
    for stratum in strata:
        for one in stratum.drawn:
            say_json({
                "id": one.ident, "name": one.name, "weight": round(stratum.weight, 3),
                "own": stratum.own, "other": stratum.other, "answer": known.get(one.ident),
                **dict(one.facts),
            })  # fmt: skip


def require_terminal(*, as_json: bool) -> None:
    """Raise UserError without a terminal, where no user can be asked for labels."""
    if as_json:
        raise UserError("--judge prints no JSON", hint="judge first, then run it with --json alone")
    if not sys.stdin.isatty():
        raise UserError(
            "labels can only be asked for on a terminal", hint="list the messages with --json"
        )


def ask_all(
    strata: Sequence[Stratum], answers: AnswerFile, look: Look, taught: CliSession | None = None
) -> None:
    """Ask for the label of each drawn message that has none, in the order of their ids."""
    drawn = sorted((one for row in strata for one in row.drawn), key=lambda one: one.ident)
    known = answers.answers
    waiting = [one for one in drawn if one.ident not in known]
    at = 0
    given: list[tuple[int, Receipt | None]] = []
    with typed_keys() as next_key:
        while at < len(waiting):
            one = waiting[at]
            say(f"{at + 1} of {len(waiting)}: {safe(one.name)}")
            table([(f"  {name}", safe(value)[:_WIDTH]) for name, value in look(one)])
            key = next_key(_KEYS)
            if key == QUIT:
                break
            if key == "u":
                at = _take_back(answers, given, taught, at)
                continue
            if key in _TRUTHS:
                # The label is learnt first: if that fails, the user is asked again.
                receipt = _teach(taught, one, _TRUTHS[key])
                answers.add(_TRUTHS[key], one.ident)
                given.append((at, receipt))
            at += 1
    answered = sum(one.ident in answers.answers for one in drawn)
    say(f"{answered} of {len(drawn)} drawn messages have a label, in {safe(str(answers.path))}")


def _teach(session: CliSession | None, one: PairedVerdict, label: Truth) -> Receipt | None:
    """Train with the label if the user wants it; return the receipt."""
    if session is None:
        return None
    with teacher(session) as (target, me):
        answer = checked(target.teach(replace(me, label=label, refs=(one.ident,))))
    show(one.name, answer, as_json=False)
    return answer.receipt


def _take_back(
    answers: AnswerFile,
    given: list[tuple[int, Receipt | None]],
    session: CliSession | None,
    at: int,
) -> int:
    """Remove the last answer of this session, and undo its event; return the message's place."""
    if not given:
        say("there is no label of this session to undo")
        return at
    at, receipt = given.pop()
    answers.remove_last()
    if session is not None and receipt is not None and (receipt.event or receipt.waiting):
        with teacher(session) as (target, me):
            number = receipt.waiting or receipt.event
            checked(target.undo(number, me, waiting=bool(receipt.waiting)))
    return at


def show_report(report: TrialReport, *, as_json: bool, shown: int) -> None:
    """Print it; as text, with at most `shown` drawn messages."""
    if as_json:
        say_json(report.as_dict())
        return
    say(f"{report.messages} messages with both verdicts, {report.unmarked} without the other one")
    _agreement(report)
    _labelled(report)
    _sample(report, shown)
    _other_means(report)


def _agreement(report: TrialReport) -> None:
    say(f"{report.moved} would lie in another folder")
    say()
    verdicts = list(dict.fromkeys(own for own, _ in report.agreement))
    head = ("spamnb \\ other", *verdicts)
    rows = [(own, *(str(report.agreement[own, other]) for other in verdicts)) for own in verdicts]
    table([head, *rows], right=(1, 2, 3))
    say()
    counts = ", ".join(f"{name} {count}" for name, count in report.decisions.items())
    say(f"spamnb by today's costs: {counts}")
    new = report.newly_filed
    say(f"newly filed as junk: {new.messages}, of these ham by users' labels {new.known_ham}, "
        f"by the probabilities {new.expected_ham:.1f}")  # fmt: skip


def _labelled(report: TrialReport) -> None:
    found, facts = report.labelled, report.labelled.as_dict()
    say()
    say("where users labelled mail (most of it mistakes of the filter that files it):")
    for what, (own, other) in (
        ("ham filed as junk", found.ham_lost),
        ("spam not filed", found.spam_missed),
    ):
        say(f"  {what}: spamnb {_share(own)}; the other {_share(other)}")
    say(f"  right alone: spamnb {found.own_right}, the other {found.other_right} "
        f"(exact p = {facts['p']})")  # fmt: skip


def _share(errors: Errors) -> str:
    facts = errors.as_dict()
    bounds = f"{100 * float(str(facts['low'])):.2f} to {100 * float(str(facts['high'])):.2f} %"
    return f"{errors.wrong} of {errors.of} ({bounds})"


def _sample(report: TrialReport, shown: int) -> None:
    found = report.sample
    say()
    if not found.messages:
        say("every message that would lie in another folder has a label")
        return
    say(f"{found.messages} messages without a label would lie in another folder; drawn:")
    rows = [
        (one.ident, f"{stratum.weight:.2f}", stratum.own, stratum.other, one.name)
        for stratum in report.strata
        for one in stratum.drawn
    ]
    table([("id", "weight", "spamnb", "other", "name"), *islice(rows, shown)], right=(1,))
    if len(rows) > shown:
        say(f"... and {len(rows) - shown} more: --show all")
    if found.answered:
        say(f"by {found.answered} answers spamnb is right on {found.own_right:.0f} of "
            f"{found.messages} ({found.low:.0f} to {found.high:.0f})")  # fmt: skip
    else:
        say("write `ham ID` or `spam ID` of each into a file, and give it with --answers")


def _other_means(report: TrialReport) -> None:
    if report.tests:
        say()
        say("tests of the other filter on mail that it alone files as junk:")
        head = ("test", "messages", "spam by users' labels")
        rows = [(name, str(count), str(spam)) for name, count, spam in report.tests]
        table([head, *rows], right=(1, 2))
    if report.other_means:
        say()
        say("mail that no filter saw, by the log of the mail server:")
        table([(safe(name), str(count)) for name, count in report.other_means.items()], right=(1,))
    if report.domains:
        say()
        head4 = ("domain", "messages", "newly filed", "newly delivered")
        rows4 = [(name, *map(str, counts)) for name, *counts in report.domains]
        table([head4, *rows4], right=(1, 2, 3))
    own, other = report.milliseconds
    if own is not None and other is not None:
        say()
        say(f"median time for a message: spamnb {own} ms, the other {other} ms")


EXAMPLES = """
spamnb trial maildir --host mx.example.org ~/Maildir     marks that this host added
spamnb trial maildir --other rspamd ~/Maildir            marks that rspamd, in front, appended
spamnb trial maildir --ask bogofilter ~/Maildir          ask bogofilter about each message
spamnb trial report --days 7                             what the daemon has recorded
spamnb trial report --log /var/log/mail.log --json
spamnb trial judge                                       label drawn messages, with keys
"""
_PLACES = {
    "maildir": "spamnb.cli.trial:maildir",
    "report": "spamnb.cli.trial:report",
    "judge": "spamnb.cli.trial:judge",
}
_DAY_US = 86_400_000_000

Decorated = TypeVar("Decorated", bound=Callable[..., None])


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=EXAMPLES,
    short_help="Compare with another spam filter.",
)
def trial() -> None:
    """Compare the verdicts of spamnb with those of another filter on the same mail."""


DAYS = click.option("--days", type=click.IntRange(1, 3650), default=7, show_default=True,
                    metavar="N", help="Verdicts of the last days.")  # fmt: skip
SAMPLE = click.option("--sample", type=click.IntRange(1), default=60, show_default=True,
                      metavar="N", help="Number of messages to draw, of those without a "
                      "label.")  # fmt: skip
_REPORT_OPTIONS = (
    click.option("--answers", metavar="FILE", help="Labels of drawn messages, one a line: `ham ID` "
                 "or `spam ID`. The report estimates from them how often spamnb is right. Default: "
                 "trial-answers in the home."),
    click.option("--log", "mail_log", metavar="FILE", help="Log of the mail server: the report "
                 "counts the mail that was refused or deferred before any filter saw it."),
    SAMPLE,
    click.option("--show", type=Count(), default=10, show_default=True, metavar="N",
                 help="Number of drawn messages to print."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)  # fmt: skip


def reporting(decorated: Decorated) -> Decorated:
    """Add the options of the report to a command."""
    for option in reversed(_REPORT_OPTIONS):
        decorated = option(decorated)
    return decorated


@command("Judge mail that lies in folders.", EXAMPLES)
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A mail host of this site: "
              "marks above its Received field count. Default: `local.hosts`.")  # fmt: skip
@click.option("--other", metavar="FILTER", help="Also believe marks of this filter elsewhere in "
              "the header; the filter must remove the marks that mail arrives with. `any` stands "
              "for all filters.")  # fmt: skip
@click.option("--ask", "asked", metavar="FILTER", help="Ask the filter instead of reading marks: "
              "rspamd:HOST:PORT, spamd:HOST:PORT, bogofilter, bogofilter:DIR.")  # fmt: skip
@click.option("--labels", "labels_by", default="folders", show_default=True,
              metavar="folders|flags|sa:FILE", help="How users labelled mail, as in "
              "`spamnb train --labels`.")  # fmt: skip
@click.option("--judge", is_flag=True, help="Before the report, label the drawn messages, as "
              "`spamnb trial judge` does. The model does not learn these labels.")  # fmt: skip
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the newest messages.")
@reporting
@pass_session
def maildir(session: CliSession, /, folders: tuple[str, ...], **given: Any) -> None:
    """Compare both filters on mail that lies in folders.

    Each message is judged before its label is learnt, in the order of arrival, by a model of its
    own in memory. The model of the home and the mail are not changed.
    """
    from spamnb.engine.mailboxes import units
    from spamnb.lab.runs import Options
    from spamnb.lab.side_by_side import UNLABELLED, TrialMail, in_order, judge

    if given["judge"]:
        require_terminal(as_json=given["as_json"])
    label_of = label_finder(given["labels_by"])
    mark_of = _marks(session, given)
    named = [
        (Path(span.name).name, (span, label_of(span, root) or UNLABELLED))
        for root in folders
        for span in units(root)
    ]
    settings = session.settings
    by_other = not given["asked"] and given["labels_by"] == "folders"
    mail = TrialMail(in_order(named, given["last"] or 0), mark_of, filed_by_other=by_other)
    with progress_bar("judging") as bar:
        progress = (lambda done, total: bar(done, total, "")) if bar else None
        options = Options(local=settings.site, costs=settings.costs, progress=progress)
        judged = judge(mail, options)
    if not judged.pairs:
        raise CorpusError(
            f"none of {judged.unmarked} messages has a verdict of another filter",
            hint="check --host and --other, or ask the filter with --ask",
        )
    if given["judge"]:
        answers = answer_file(session, given["answers"], may_be_missing=True)
        strata = drawn_strata(judged.pairs, answers, given["sample"])
        ask_all(strata, answers, look_into({span.name: span for _, (span, _) in named}))
    _print(judged.pairs, _context(session, given, judged.unmarked), given)


@command("Show what the daemon has recorded.", EXAMPLES)
@DAYS
@reporting
@pass_session
def report(session: CliSession, /, days: int, **given: Any) -> None:
    """Compare the recorded verdicts of both filters.

    The daemon records the verdict of the other filter if a listener has `other`, or if `trial.ask`
    is set.
    """
    pairs, unmarked = recorded_pairs(session, days)
    _print(pairs, _context(session, given, unmarked), given)


def recorded_pairs(session: CliSession, days: int) -> tuple[list[PairedVerdict], int]:
    """Return what the daemon recorded, and how many messages have no verdict of the other filter.

    UserError if no message has one.
    """
    from spamnb.lab.side_by_side import recorded
    from spamnb.telemetry import now_us

    with session.open(readonly=True, history=True) as model:
        since_us = now_us() - days * _DAY_US
        pairs, unmarked = recorded(model, session.home, since_us) if model.history else ([], 0)
    if not pairs:
        raise UserError(
            f"no verdict of another filter in the last {days} days, on {unmarked} messages",
            hint="set `other` for a listener that observes, or trial.ask; see docs/trial.md",
        )
    return pairs, unmarked


@command("Label drawn messages, one key for each.", EXAMPLES)
@DAYS
@SAMPLE
@click.option("--answers", metavar="FILE", help="Keep the labels in this file. Default: "
              "trial-answers in the home.")  # fmt: skip
@click.option("--teach", is_flag=True, help="Also train the model with each label.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each drawn "
              "message, and ask nothing.")  # fmt: skip
@pass_session
def judge(session: CliSession, /, days: int, sample: int, **given: Any) -> None:
    """Label the messages of `trial report` that have no label and would move to another folder.

    Keys: h is ham, s is spam, n is the next message, u undoes the last label, q ends. The verdicts
    are not shown, so that they do not influence you. Each label is on disk before the next message
    is shown. From these labels, `trial report` estimates on how many of all such messages spamnb is
    right, with bounds. The model learns nothing without --teach.
    """
    pairs, _ = recorded_pairs(session, days)
    answers = answer_file(session, given["answers"], may_be_missing=True)
    strata = drawn_strata(pairs, answers, sample)
    if given["as_json"]:
        list_drawn(strata, answers)
        return
    require_terminal(as_json=False)
    ask_all(strata, answers, lambda one: one.facts, session if given["teach"] else None)


def _marks(session: CliSession, given: dict[str, Any]) -> Callable[[bytes], FilterMark | None]:
    from functools import partial

    from spamnb.mail.other_filters import ANY, FILTERS, read_mark
    from spamnb.scan.other_filters import asker_of

    if given["asked"]:
        return asker_of(given["asked"])
    other, hosts = given["other"] or "", given["hosts"] or session.settings.site.hosts
    if other and other not in (ANY, *FILTERS):
        raise UserError(
            f"--other {other} is unknown", hint=f"give {ANY} or one of {', '.join(FILTERS)}"
        )
    if not other and not hosts:
        raise UserError(
            "any sender can write marks, so spamnb believes none",
            hint="give --host with the mail host that adds them, or --other with the filter",
        )
    return partial(read_mark, hosts=hosts, other=other)


def _context(session: CliSession, given: dict[str, Any], unmarked: int) -> TrialContext:
    from spamnb.lab.side_by_side import TrialContext, count_ways

    log = given["mail_log"]
    return TrialContext(
        unmarked=unmarked,
        answers=answer_file(session, given["answers"]).answers,
        sample=given["sample"],
        other_means=count_ways(_lines(log)) if log else {},
    )


def answer_file(
    session: CliSession, path: str | None, *, may_be_missing: bool = False
) -> AnswerFile:
    """Return the labels of drawn messages, from a file or from the one in the home if it exists."""
    from spamnb.lab.side_by_side import NAME, AnswerFile

    if path is None:
        return AnswerFile(session.home / NAME)
    return AnswerFile(path, may_be_missing=may_be_missing)


def _lines(path: str) -> list[str]:
    from spamnb.store.files import open_named

    try:
        with open(open_named(path), encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
            return list(lines)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _print(pairs: list[Any], context: TrialContext, given: dict[str, Any]) -> None:
    from spamnb.lab.side_by_side import report_of

    show_report(report_of(pairs, context), as_json=given["as_json"], shown=given["show"])
    sys.stdout.flush()
