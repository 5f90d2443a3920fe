"""`spamnb trial`: compare this filter with another one on the same mail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spamnb.cli.help import CommandGroup, command
from spamnb.cli.labels import label_finder
from spamnb.cli.options import Count
from spamnb.cli.printing import progress_bar
from spamnb.cli.session import CliSession, pass_session
from spamnb.cli.trial_text import show_report
from spamnb.errors import CorpusError, UserError

if TYPE_CHECKING:
    from spamnb.core.mail.filter_marks import FilterMark
    from spamnb.lab.side_by_side.answers import AnswerFile
    from spamnb.lab.side_by_side.records import PairedVerdict
    from spamnb.lab.side_by_side.report import TrialContext

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
    from spamnb.lab.side_by_side.judging import NO_LABEL, TrialMail, in_order, judge
    from spamnb.lab.trial import Options
    from spamnb.service.training.sources import units

    if given["judge"]:
        from spamnb.cli.trial_judge import require_terminal

        require_terminal(as_json=given["as_json"])
    label_of = label_finder(given["labels_by"])
    mark_of = _marks(session, given)
    named = [
        (Path(span.name).name, (span, label_of(span, root) or NO_LABEL))
        for root in folders
        for span in units(root)
    ]
    settings = session.settings
    by_other = not given["asked"] and given["labels_by"] == "folders"
    mail = TrialMail(in_order(named, given["last"] or 0), mark_of, filed_by_other=by_other)
    with progress_bar("judging") as bar:
        progress = (lambda done, total: bar(done, total, "")) if bar else None
        options = Options(local=settings.local, costs=settings.costs, progress=progress)
        judged = judge(mail, options)
    if not judged.pairs:
        raise CorpusError(
            f"none of {judged.unmarked} messages has a verdict of another filter",
            hint="check --host and --other, or ask the filter with --ask",
        )
    if given["judge"]:
        from spamnb.cli.trial_judge import ask_all, drawn_strata, look_into

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
    from spamnb.lab.side_by_side.recorded import recorded
    from spamnb.service.engine.clock import now_us

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
    from spamnb.cli.trial_judge import ask_all, drawn_strata, list_drawn, require_terminal

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

    from spamnb.core.mail.filter_marks import ANY, FILTERS, read_mark
    from spamnb.endpoints.other_filters.ask import asker_of

    if given["asked"]:
        return asker_of(given["asked"])
    other, hosts = given["other"] or "", given["hosts"] or session.settings.local.hosts
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
    from spamnb.lab.side_by_side.mail_log import count_ways
    from spamnb.lab.side_by_side.report import TrialContext

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
    from spamnb.lab.side_by_side.answers import NAME, AnswerFile

    if path is None:
        return AnswerFile(session.home / NAME)
    return AnswerFile(path, may_be_missing=may_be_missing)


def _lines(path: str) -> list[str]:
    from spamnb.store.paths import open_named

    try:
        with open(open_named(path), encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
            return list(lines)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _print(pairs: list[Any], context: TrialContext, given: dict[str, Any]) -> None:
    from spamnb.lab.side_by_side.report import report_of

    show_report(report_of(pairs, context), as_json=given["as_json"], shown=given["show"])
    sys.stdout.flush()
