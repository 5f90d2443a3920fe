"""`spamnb journal` and `spamnb history`: list training events and recent verdicts."""

from __future__ import annotations

from typing import Any

import click

from spamnb.cli.main import command
from spamnb.cli.options import Count, choosing, chosen, since_us
from spamnb.cli.printing import say_json, shown_time, table
from spamnb.cli.score import ANSWERS, done_text
from spamnb.cli.session import CliSession, pass_session

JOURNAL_EXAMPLES = """
spamnb journal                          the last fifty events, newest first
spamnb journal --label spam --since 7d  spam labels of the last 7 days
spamnb journal --user alice --limit 0   all training by alice
spamnb journal --message new.eml        all training of this message
spamnb undo 1042                        undo an event by its number
"""
HISTORY_EXAMPLES = """
spamnb history                          the last fifty verdicts, newest first
spamnb history --label spam --since 1d  spam verdicts of the last day
spamnb correct ham '<1234@example.org>' correct a verdict by message id
"""


@command("List training events.", JOURNAL_EXAMPLES)
@choosing
@click.option("--message", metavar="REF", help="Only events of this message: a file, message id, "
              "digest or signature.")  # fmt: skip
@click.option("--limit", type=Count(), default=50, metavar="N",
              help="Maximum number; 0 shows all.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@pass_session
def journal(session: CliSession, /, limit: int, as_json: bool, **filters: Any) -> None:
    """List training events, newest first: number, time, kind, labels, user and channel, message."""
    from spamnb.operations.listings import journal as listed

    with session.open(readonly=True, history=filters["message"] is not None) as model:
        lines = listed(model, chosen(model, **filters), limit)
    if as_json:
        for line in lines:
            say_json(line)
        return
    table(map(_event_row, lines), right=(0,))


def _event_row(line: dict[str, Any]) -> tuple[str, ...]:
    labels = f"{line['before'] or '-'} -> {line['after'] or '-'}"
    # An import or expiry has no message.
    bulk = "" if line["features"] is None else f"{line['features']} features"
    what = bulk or line["message_id"] or line["digest"]
    if line["undoes"]:
        what = f"event {line['undoes']}: {what}"
    if line["in_force"] not in (None, line["after"]) and line["owner"] != "person":
        what += f"  (in force: {line['in_force']}, {line['why']})"
    return (
        str(line["event"]), shown_time(line["time"]), line["kind"], labels,
        f"{line['user']}/{line['channel']}", what,
    )  # fmt: skip


@command("List recent verdicts.", HISTORY_EXAMPLES)
@click.option("--label", help="Only verdicts with this label.")
@click.option("--decision", type=click.Choice([*ANSWERS]),
              help="Only verdicts with this decision.")  # fmt: skip
@click.option("--since", metavar="TIME", help="Only later verdicts: 12h, 7d, 2w, or a date.")
@click.option("--limit", type=Count(), default=50, metavar="N",
              help="Maximum number; 0 shows all.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@pass_session
def history(
    session: CliSession,
    label: str | None,
    decision: str | None,
    since: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List recent verdicts, newest first.

    Columns: time, decision, label, probability of spam, what was done, signature, message id or
    digest. A listed
    message can be corrected by its message id or signature, without the message itself.
    """
    from spamnb.operations.listings import VerdictFilter
    from spamnb.operations.listings import history as listed

    wanted = VerdictFilter(label, decision, since_us(since) or 0)
    with session.open(readonly=True, history=True) as model:
        lines = listed(model, wanted, limit)
    if as_json:
        for line in lines:
            say_json(line)
        return
    table(map(_entry_row, lines), right=(3,))


def _entry_row(line: dict[str, Any]) -> tuple[str, ...]:
    return (
        shown_time(line["time"]), line["decision"], line["label"], f"{line['probability']:.4f}",
        done_text(line["done"]) or "-", line["signature"], line["message_id"] or line["id"],
    )  # fmt: skip
