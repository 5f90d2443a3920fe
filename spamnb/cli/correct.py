"""`spamnb correct`, `forget` and `undo`: a person's word, taken at once and taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.daemon_client import checked, teacher
from spamnb.cli.event_options import choosing
from spamnb.cli.help import taught
from spamnb.cli.messages import named
from spamnb.cli.printing import MOST, safe, say, say_json
from spamnb.cli.rewind import undo_chosen
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.service.feedback.types import Answer

CORRECT_EXAMPLES = """
spamnb correct ham new.eml                    a file
spamnb correct spam < new.eml                 the mail program's pipe: the same as `correct spam -`
spamnb correct spam '<1234@example.org>'      a message that was scored or taught, by its id
spamnb correct ham sabcdefghij...             ... by the signature in its header
"""
FORGET_EXAMPLES = """
spamnb forget new.eml                         a file
spamnb forget '<1234@example.org>'            a message id, digest or signature
"""
UNDO_EXAMPLES = """
spamnb undo 1042                              the event's number, as `correct` and `journal` show it
spamnb undo --who mallory --since 7d          all that somebody taught this week
"""


@taught("Tell what a message really is.", CORRECT_EXAMPLES)
@click.argument("label")
@click.argument("refs", nargs=-1, metavar="REF...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each message.")
@pass_session
def correct(session: CliSession, label: str, refs: tuple[str, ...], as_json: bool) -> None:
    """Tell what a message really is. It is judged so from now on, and so are others like it.

    REF is a file, folder or mbox, - for standard input, or the message id, digest or signature of a
    message that was scored or taught. Durable when the command returns.
    """
    if not label:
        raise UserError("no label is given", hint="ham or spam; `spamnb forget` takes one back")
    _teach(session, label, refs, as_json=as_json)


@taught("Take back what a message taught.", FORGET_EXAMPLES)
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each message.")
@pass_session
def forget(session: CliSession, refs: tuple[str, ...], as_json: bool) -> None:
    """Take back what a message taught, as if it had never been given.

    Every number of the model returns to what it would be from the other trainings alone, exactly.
    """
    _teach(session, "", refs, as_json=as_json)


@taught("Take back one event of the journal.", UNDO_EXAMPLES)
@click.argument("receipts", nargs=-1, type=click.IntRange(1, MOST), metavar="[RECEIPT]...")
@choosing
@click.option("--yes", is_flag=True, help="Undo what the options choose without asking.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each event.")
@pass_session
def undo(
    session: CliSession, /, receipts: tuple[int, ...], yes: bool, as_json: bool, **filters: Any
) -> None:
    """Take back one training, correction, import or expiry, by the number of its event.

    Or all that a person taught, or that came one way, or in a span of time; what will be done is
    shown, and asked for.
    """
    if not receipts:
        undo_chosen(session, filters, yes=yes, as_json=as_json)
        return
    if any(filters.values()):
        raise UserError("undo takes numbers of events, or options that choose them, not both")
    with teacher(session) as (desk, me):
        for event in receipts:
            show(f"event {event}", checked(desk.undo(event, me)), as_json=as_json)


def _teach(session: CliSession, label: str, refs: tuple[str, ...], *, as_json: bool) -> None:
    """Say the same of all that is named; an empty label takes back what was said."""
    with teacher(session) as (desk, me):
        for name, what in named(refs, documents=desk.documents):
            said = replace(me, label=label)
            if isinstance(what, bytes):
                said = replace(said, raw=what)
            else:
                said = replace(said, refs=(what,))
            show(name, checked(desk.teach(said)), as_json=as_json)


def show(name: str, answer: Answer, *, as_json: bool) -> None:
    """Tell what became of one word."""
    receipt = answer.receipt
    if as_json:
        told = receipt.as_dict() if receipt else {"changed": False, "reason": answer.reason}
        say_json({"path": name} | told | {"state": answer.state, "review": answer.review or None})
        return
    if receipt is None:
        say(f"waits for review as {answer.review}: {answer.reason}: {safe(name)}")
        return
    if not receipt.changed:
        say(f"unchanged: {receipt.reason}, nothing to undo: {safe(name)}")
        return
    was, now = receipt.before or "not known", receipt.after or "not known"
    moved = ""
    if receipt.probability_before is not None and receipt.probability_after is not None:
        moved = f", {receipt.probability_before:.4f} -> {receipt.probability_after:.4f}"
    say(f"{was} -> {now}{moved}, event {receipt.event}: {safe(name)}")
