"""`spamnb correct`, `forget` and `undo`: change or remove the training of messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.main import command
from spamnb.cli.messages import named
from spamnb.cli.options import choosing
from spamnb.cli.printing import MOST, safe, say, say_json
from spamnb.cli.rewind import undo_chosen
from spamnb.cli.session import CliSession, checked, pass_session, teacher
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.feedback.values import Answer

CORRECT_EXAMPLES = """
spamnb correct ham new.eml                    a file
spamnb correct spam < new.eml                 a pipe from a mail program: same as `correct spam -`
spamnb correct spam '<1234@example.org>'      a scored or trained message, by its message id
spamnb correct ham sabcdefghij...             ... by the signature in its header
"""
FORGET_EXAMPLES = """
spamnb forget new.eml                         a file
spamnb forget '<1234@example.org>'            a message id, digest or signature
"""
UNDO_EXAMPLES = """
spamnb undo 1042                              by number, as shown by `correct` and `journal`
spamnb undo --user mallory --since 7d         all training by mallory in the last 7 days
"""


_PERSON = click.option("--person", default="", metavar="NAME",
                       help="For this person: an address or a login.")  # fmt: skip


@command("Correct the label of messages.", CORRECT_EXAMPLES)
@click.argument("label")
@click.argument("refs", nargs=-1, metavar="REF...")
@_PERSON
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@pass_session
def correct(
    session: CliSession, label: str, refs: tuple[str, ...], person: str, as_json: bool
) -> None:
    """Correct the label of one or more messages.

    The model is updated, and the change is on disk, before the command returns. REF is a file,
    folder or mbox, - for standard input, or the message id, digest or signature of a message that
    was scored or trained.
    """
    if not label:
        raise UserError(
            "no label is given",
            hint="give ham or spam; `spamnb forget` removes a message's training",
        )
    _teach(session, (label, person), refs, as_json=as_json)


@command("Remove the training of messages.", FORGET_EXAMPLES)
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@_PERSON
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@pass_session
def forget(session: CliSession, refs: tuple[str, ...], person: str, as_json: bool) -> None:
    """Remove the training of one or more messages from the model.

    The model is then exactly the same as if these messages had never been trained.
    """
    _teach(session, ("", person), refs, as_json=as_json)


def _numbers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[int, bool], ...]:
    """Return the numbers of receipts; with True those of corrections that wait, such as w7."""
    convert: Callable[..., int] = click.IntRange(1, MOST).convert
    waits = [value.startswith("w") for value in values]
    found = zip(values, waits, strict=True)
    return tuple((convert(value[waiting:], param, ctx), waiting) for value, waiting in found)


@command("Undo events of the journal.", UNDO_EXAMPLES)
@click.argument("receipts", nargs=-1, callback=_numbers, metavar="[RECEIPT]...")
@choosing
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event.")
@pass_session
def undo(
    session: CliSession,
    /,
    receipts: tuple[tuple[int, bool], ...],
    yes: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Undo a training, correction, import or expiry by the number of its event.

    With options instead of numbers: undo all events of a user, a channel or a period. The command
    then shows their number and asks for confirmation.

    A correction that waits for the log of a fleet has a number with a w, such as w7.
    """
    if not receipts:
        undo_chosen(session, filters, yes=yes, as_json=as_json)
        return
    if any(filters.values()):
        raise UserError("undo takes event numbers or filter options, not both")
    with teacher(session) as (client, me):
        for number, waits in receipts:
            name = f"w{number}" if waits else f"event {number}"
            show(name, checked(client.undo(number, me, waiting=waits)), as_json=as_json)


def _teach(
    session: CliSession, label_for: tuple[str, str], refs: tuple[str, ...], *, as_json: bool
) -> None:
    """Set the label of all named messages, for a person; an empty label removes their training."""
    label, person = label_for
    with teacher(session) as (client, me):
        for name, what in named(refs, documents=client.documents):
            message = {"raw": what} if isinstance(what, bytes) else {"refs": (what,)}
            answer = client.teach(replace(me, label=label, person=person, **message))
            show(name, checked(answer), as_json=as_json)


def show(name: str, answer: Answer, *, as_json: bool) -> None:
    """Print the result of feedback on one message."""
    receipt = answer.receipt
    if as_json:
        facts = receipt.as_dict() if receipt else {"changed": False, "reason": answer.reason}
        say_json({"path": name} | facts | {"state": answer.state, "review": answer.review or None})
        return
    if receipt is None:
        say(safe(f"queued for review as {answer.review}: {answer.reason}: {name}"))
        return
    if receipt.waiting:
        wanted = receipt.after or "untrained"
        say(safe(f"waits as w{receipt.waiting} ({wanted}): {receipt.reason}: {name}"))
        return
    if not receipt.changed:
        say(safe(f"unchanged: {receipt.reason}, nothing to undo: {name}"))
        return
    before, after = receipt.before or "untrained", receipt.after or "untrained"
    change = ""
    if receipt.probability_before is not None and receipt.probability_after is not None:
        change = f", {receipt.probability_before:.4f} -> {receipt.probability_after:.4f}"
    lacks = f" ({receipt.reason})" if receipt.reason else ""
    say(safe(f"{before} -> {after}{change}, event {receipt.event}{lacks}: {name}"))
    if receipt.in_force not in (None, receipt.after):
        say(safe(f"    in force for this message: {receipt.in_force} ({receipt.why})"))
