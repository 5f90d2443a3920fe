"""`spamnb journal` and `spamnb history`: list training events and recent verdicts."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.event_options import choosing, chosen, since_us
from spamnb.cli.help import command
from spamnb.cli.printing import MOST, say_json, table
from spamnb.cli.score import ANSWERS
from spamnb.cli.session import CliSession, pass_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spamnb.core.model.events import Event
    from spamnb.store.history.entry import HistoryEntry

JOURNAL_EXAMPLES = """
spamnb journal                          the last fifty events, newest first
spamnb journal --label spam --since 7d  spam labels of the last 7 days
spamnb journal --who alice --limit 0    all training by alice
spamnb journal --message new.eml        all training of this message
spamnb undo 1042                        undo an event by its number
"""
HISTORY_EXAMPLES = """
spamnb history                          the last fifty verdicts, newest first
spamnb history --label spam --since 1d  spam verdicts of the last day
spamnb correct ham '<1234@example.org>' correct a verdict by message id
"""


def shown_time(time_us: int) -> str:
    """Format a time in the local time zone."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def iso(time_us: int) -> str:
    """Format a time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="microseconds")


@command("List training events.", JOURNAL_EXAMPLES)
@choosing
@click.option("--message", metavar="REF", help="Only events of this message: a file, message id, "
              "digest or signature.")  # fmt: skip
@click.option("--limit", type=click.IntRange(0, MOST), default=50, metavar="N",
              help="How many at most; 0 shows all.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@pass_session
def journal(session: CliSession, /, limit: int, as_json: bool, **filters: Any) -> None:
    """List training events, newest first: number, time, kind, labels, user and channel, message."""
    with session.open(readonly=True) as model:
        wanted = chosen(session, model, **filters)
        with model.store.read() as view:
            start = wanted.since_us or 0
            events = (e for e in _newest(view.events(newest_first=True), start) if wanted(e))
            lines = [_event(e, model.labels) for e in islice(events, limit or None)]
    if as_json:
        for line in lines:
            say_json(line)
        return
    table(map(_event_row, lines), right=(0,))


def _newest(events: Iterator[Event], start_us: int) -> Iterator[Event]:
    for event in events:
        if event.time_us < start_us:
            return
        yield event


def _event(event: Event, labels: tuple[str, ...]) -> dict[str, Any]:
    def name(label: int) -> str | None:
        return labels[label] if label >= 0 else None

    return {
        "event": event.seq,
        "time": iso(event.time_us),
        "kind": event.kind.name.lower(),
        "who": event.who,
        "channel": event.channel,
        "before": name(event.before),
        "after": name(event.after),
        "digest": event.digest.hex(),
        "message_id": event.message_id,
        "undoes": event.undoes or None,
        "features": len(event.bulk.ids) if event.bulk else None,
    }


def _event_row(line: dict[str, Any]) -> tuple[str, ...]:
    time_us = int(datetime.fromisoformat(line["time"]).timestamp() * 1_000_000)
    labels = f"{line['before'] or '-'} -> {line['after'] or '-'}"
    # An import or expiry has no message.
    bulk = "" if line["features"] is None else f"{line['features']} features"
    what = bulk or line["message_id"] or line["digest"]
    if line["undoes"]:
        what = f"event {line['undoes']}: {what}"
    return (
        str(line["event"]), shown_time(time_us), line["kind"], labels,
        f"{line['who']}/{line['channel']}", what,
    )  # fmt: skip


@command("List recent verdicts.", HISTORY_EXAMPLES)
@click.option("--label", help="Only verdicts with this label.")
@click.option("--decision", type=click.Choice([*ANSWERS]),
              help="Only verdicts with this decision.")  # fmt: skip
@click.option("--since", metavar="TIME", help="Only later verdicts: 12h, 7d, 2w, or a date.")
@click.option("--limit", type=click.IntRange(0, MOST), default=50, metavar="N",
              help="How many at most; 0 shows all.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
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

    Columns: time, decision, label, probability of spam, signature, message id or digest. A listed
    message can be corrected by its message id or signature, without the message itself.
    """
    start = since_us(since) or 0
    with session.open(readonly=True) as model:
        if label is not None:
            model.label(label)
    if not (session.home / "history").is_dir():
        return

    def wanted(entry: HistoryEntry) -> bool:
        return (
            entry.time_us >= start
            and (label is None or entry.label == label)
            and (decision is None or entry.decision == decision)
        )

    kept = session.open_history()
    try:
        lines = [_entry(entry) for entry in islice(filter(wanted, kept.newest()), limit or None)]
    finally:
        kept.close()
    if as_json:
        for line in lines:
            say_json(line)
        return
    table(map(_entry_row, lines), right=(3,))


def _entry(entry: HistoryEntry) -> dict[str, Any]:
    from spamnb.service.engine.lookup import signature_text

    return {
        "time": iso(entry.time_us),
        "id": entry.digest.hex(),
        "message_id": entry.message_id,
        "signature": signature_text(entry.signature),
        "label": entry.label,
        "probability": entry.probability,
        "log_odds": entry.log_odds,
        "decision": entry.decision,
        "notes": entry.notes,
    }


def _entry_row(line: dict[str, Any]) -> tuple[str, ...]:
    time_us = int(datetime.fromisoformat(line["time"]).timestamp() * 1_000_000)
    return (
        shown_time(time_us), line["decision"], line["label"], f"{line['probability']:.4f}",
        line["signature"], line["message_id"] or line["id"],
    )  # fmt: skip
