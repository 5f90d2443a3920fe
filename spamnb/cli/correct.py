"""`spamnb correct`, `forget` and `undo`: a person's word, taken at once and taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spamnb.cli.messages import named
from spamnb.cli.printing import safe, say, say_json
from spamnb.cli.session import Session, pass_session
from spamnb.cli.teaching_help import taught

if TYPE_CHECKING:
    from spamnb.service.receipt import Receipt

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
"""


@taught("Tell what a message really is.", CORRECT_EXAMPLES)
@click.argument("label")
@click.argument("refs", nargs=-1, metavar="REF...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each message.")
@pass_session
def correct(session: Session, label: str, refs: tuple[str, ...], as_json: bool) -> None:
    """Tell what a message really is. It is judged so from now on, and so are others like it.

    REF is a file, folder or mbox, - for standard input, or the message id, digest or signature of a
    message that was scored or taught. Durable when the command returns.
    """
    with session.open(history=True) as model:
        model.label(label)
        for name, what in named(refs):
            receipt = model.correct(what, label, origin=session.origin())
            _show(name, receipt, as_json=as_json)


@taught("Take back what a message taught.", FORGET_EXAMPLES)
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each message.")
@pass_session
def forget(session: Session, refs: tuple[str, ...], as_json: bool) -> None:
    """Take back what a message taught, as if it had never been given.

    Every number of the model returns to what it would be from the other trainings alone, exactly.
    """
    with session.open(history=True) as model:
        for name, what in named(refs):
            receipt = model.forget(what, origin=session.origin())
            _show(name, receipt, as_json=as_json)


@taught("Take back one event of the journal.", UNDO_EXAMPLES)
@click.argument("receipts", nargs=-1, required=True, type=click.IntRange(1), metavar="RECEIPT...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each event.")
@pass_session
def undo(session: Session, receipts: tuple[int, ...], as_json: bool) -> None:
    """Take back one training, correction, import or expiry, by the number of its event."""
    with session.open() as model:
        for event in receipts:
            receipt = model.undo(event, origin=session.origin())
            _show(f"event {event}", receipt, as_json=as_json)


def _show(name: str, receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        say_json({"path": name} | receipt.as_dict())
        return
    if not receipt.changed:
        say(f"unchanged: {receipt.reason}, event {receipt.event}: {safe(name)}")
        return
    was, now = receipt.before or "not known", receipt.after or "not known"
    moved = ""
    if receipt.probability_before is not None and receipt.probability_after is not None:
        moved = f", {receipt.probability_before:.4f} -> {receipt.probability_after:.4f}"
    say(f"{was} -> {now}{moved}, event {receipt.event}: {safe(name)}")
