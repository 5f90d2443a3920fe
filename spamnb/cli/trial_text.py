"""Print the report of a trial, as text or JSON."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from spamnb.cli.printing import safe, say, say_json, table

if TYPE_CHECKING:
    from spamnb.lab.side_by_side.report import Errors, TrialReport


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
