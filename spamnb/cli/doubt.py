"""`spamnb doubt`: find trained messages with labels that are probably wrong; correct them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.correct import show
from spamnb.cli.main import command
from spamnb.cli.options import Count, choosing, chosen
from spamnb.cli.printing import progress_bar, safe, say, say_json, shown_time, table, typed_keys
from spamnb.cli.session import CliSession, checked, pass_session, teacher
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.maintenance.attribution import Doubt

EXAMPLES = """
spamnb doubt                            the twenty most doubtful labels
spamnb doubt --user mallory --limit 0   all doubtful labels of one user
spamnb doubt --ask                      keep or change each label with one key
spamnb undo 1042                        undo a change, by the number that it printed
"""
_CLUES = 5
_KEYS = "[k]eep, [c]hange, [q]uit? "


@command("Find labels that are probably wrong.", EXAMPLES)
@choosing
@click.option("--limit", type=Count(), default=20, metavar="N",
              help="Maximum number; 0 shows all.")  # fmt: skip
@click.option("--ask", is_flag=True, help="Show the clues of each message, and ask for a key: keep "
              "the label, or change it to the more probable one.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@pass_session
def doubt(session: CliSession, /, limit: int, ask: bool, as_json: bool, **filters: Any) -> None:
    """List trained messages with a label that the rest of the model contradicts, worst first.

    Each message is scored as if it had not been trained. Columns: event, nats of evidence against
    the label, the label and the more probable one, time, user and channel, message. Messages in the
    checkpoint are not listed. Without --ask nothing changes; `spamnb correct` also changes a label.
    """
    if ask and (as_json or not sys.stdin.isatty()):
        raise UserError("--ask needs a terminal", hint="list the labels without --ask")
    found = _doubts(session, filters, limit)
    if ask:
        _ask(session, found)
    elif as_json:
        for one in found:
            say_json(one.as_dict())
    else:
        table(map(_row, found), right=(0, 1))


def _doubts(session: CliSession, filters: dict[str, Any], limit: int) -> list[Doubt]:
    from spamnb.maintenance.attribution import doubts

    with session.open(readonly=True) as model, progress_bar("testing") as bar:
        wanted = chosen(model, **filters)
        with model.store.read() as view:
            return doubts(view, model.recipe, wanted, limit or None, bar)


def _row(one: Doubt) -> tuple[str, ...]:
    return (
        str(one.event), f"{one.nats:.1f}", f"{one.label}, likely {one.likely}",
        shown_time(one.time_us), f"{one.user}/{one.channel}", one.message_id or one.digest.hex(),
    )  # fmt: skip


def _ask(session: CliSession, found: list[Doubt]) -> None:
    """Ask for each label whether it stays."""
    with typed_keys() as next_key:
        for number, one in enumerate(found, 1):
            say(f"{number} of {len(found)}: " + "  ".join(map(safe, _row(one))))
            table(_clues(session, one))
            key = next_key(_KEYS)
            if key == "q":
                return
            if key == "c":
                _change(session, one)


def _change(session: CliSession, one: Doubt) -> None:
    """Give the message the more probable label."""
    with teacher(session) as (target, me):
        answer = target.teach(replace(me, label=one.likely, refs=(one.digest.hex(),)))
    show(one.message_id or one.digest.hex(), checked(answer), as_json=False)


def _clues(session: CliSession, one: Doubt) -> list[tuple[str, ...]]:
    """Return the strongest clues of the present verdict."""
    with session.open(readonly=True) as model:
        clues = model.explain(one.digest.hex()).clues(_CLUES)
    return [(f"  {clue.nats:+.2f}", clue.location, clue.token) for clue in clues]
