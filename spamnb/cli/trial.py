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
    from spamnb.lab.side_by_side.records import Truth
    from spamnb.lab.side_by_side.report import TrialContext

EXAMPLES = """
spamnb trial maildir --host mx.example.org ~/Maildir     marks that this host added
spamnb trial maildir --other rspamd ~/Maildir            marks that rspamd, in front, appended
spamnb trial maildir --ask bogofilter ~/Maildir          ask bogofilter about each message
spamnb trial report --days 7                             what the daemon has recorded
spamnb trial report --log /var/log/mail.log --json
"""
_PLACES = {"maildir": "spamnb.cli.trial:maildir", "report": "spamnb.cli.trial:report"}
_TRUTHS: dict[str, Truth] = {"ham": "ham", "spam": "spam"}
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


_REPORT_OPTIONS = (
    click.option("--answers", metavar="FILE", help="Labels of drawn messages, one a line: `ham ID` "
                 "or `spam ID`. They bound the number of all."),
    click.option("--log", "mail_log", metavar="FILE", help="Log of the mail server: counts mail "
                 "that was refused or put off before any filter saw it."),
    click.option("--sample", type=click.IntRange(1), default=60, show_default=True, metavar="N",
                 help="Number of messages to draw, of those without a label."),
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
              "the header: it must remove the marks that mail arrives with. Or: any.")  # fmt: skip
@click.option("--ask", "asked", metavar="FILTER", help="Ask the filter instead of reading marks: "
              "rspamd:HOST:PORT, spamd:HOST:PORT, bogofilter, bogofilter:DIR.")  # fmt: skip
@click.option("--labels", "labels_by", default="folders", show_default=True,
              metavar="folders|flags|sa:FILE", help="How users labelled mail, as in "
              "`spamnb train --labels`.")  # fmt: skip
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
    _print(judged.pairs, _context(given, judged.unmarked), given)


@command("Show what the daemon has recorded.", EXAMPLES)
@click.option("--days", type=click.IntRange(1, 3650), default=7, show_default=True, metavar="N",
              help="Verdicts of the last days.")  # fmt: skip
@reporting
@pass_session
def report(session: CliSession, /, days: int, **given: Any) -> None:
    """Compare the recorded verdicts of both filters.

    The daemon records the other verdict if a listener has `other`, or if `trial.ask` is set.
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
    _print(pairs, _context(given, unmarked), given)


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
            "any sender can write marks, so none is believed",
            hint="name the mail host that adds them with --host, or the filter with --other",
        )
    return partial(read_mark, hosts=hosts, other=other)


def _context(given: dict[str, Any], unmarked: int) -> TrialContext:
    from spamnb.lab.side_by_side.mail_log import count_ways
    from spamnb.lab.side_by_side.report import TrialContext

    log, answers = given["mail_log"], given["answers"]
    return TrialContext(
        unmarked=unmarked,
        answers=_answers(answers) if answers else {},
        sample=given["sample"],
        other_means=count_ways(_lines(log)) if log else {},
    )


def _answers(path: str) -> dict[str, Truth]:
    found: dict[str, Truth] = {}
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        label = _TRUTHS.get(words[0])
        if label is None or len(words) < 2:
            raise UserError(
                f"line {number} of {path} is {line.strip()[:60]!r}",
                hint="each line must be `ham ID` or `spam ID`",
            )
        found[words[1]] = label
    return found


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
