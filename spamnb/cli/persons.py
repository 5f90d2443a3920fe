"""`spamnb persons`: list the persons of a model, show and erase one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spamnb.cli.main import CommandGroup, command
from spamnb.cli.options import agreed
from spamnb.cli.printing import safe, say, say_json, shown_time, table
from spamnb.cli.session import CliSession, pass_session, refuse_while_served

if TYPE_CHECKING:
    from spamnb.maintenance.persons import PersonFacts
    from spamnb.policy.actions import PersonNames

EXAMPLES = """
spamnb persons list                      who has corrections, the newest label first
spamnb persons show ann@example.org      one person, by address or login
spamnb persons erase ann                 remove everything that names this person
"""
_PLACES = {
    "list": "spamnb.cli.persons:list_",
    "show": "spamnb.cli.persons:show_",
    "erase": "spamnb.cli.persons:erase",
}
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per person.")


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=EXAMPLES,
    short_help="List and erase what persons taught.",
)
def persons() -> None:
    """List and erase the corrections of persons.

    With persons.enabled, the label of a user changes the verdicts on mail to that user until the
    verdicts agree with the label; for all other users the label is evidence.
    """


def _names(session: CliSession) -> PersonNames:
    from spamnb.settings.persons import all_names

    return all_names(session.settings)


def _facts(session: CliSession) -> list[PersonFacts]:
    from spamnb.maintenance.persons import persons_of

    with session.open(readonly=True) as model, model.store.read() as view:
        return persons_of(view, model.labels)


def _show(facts: list[PersonFacts], *, as_json: bool) -> None:
    if as_json:
        for one in facts:
            say_json(one.as_dict())
        return
    table(map(_row, facts), right=(3, 4))


def _row(one: PersonFacts) -> tuple[str, ...]:
    labels = ", ".join(f"{count} {label}" for label, count in one.labels.items())
    last = shown_time(one.last_us) if one.last_us else "in the checkpoint"
    name, senders = one.name or f"{one.person:016x}", f"{one.senders} senders"
    return name, labels or "no label in force", last, f"{one.bytes} B", senders


@command("List persons.", EXAMPLES, name="list")
@JSON
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List persons: name, labels, time of the newest change, size of the corrections, senders.

    The labels are those in force. The name is that of the newest label, or of the person's list of
    senders. A person with neither has only a number: all labels are in the checkpoint.
    """
    _show(_facts(session), as_json=as_json)


@command("Show one person.", "spamnb persons show ann@example.org", name="show")
@click.argument("name")
@JSON
@pass_session
def show_(session: CliSession, name: str, as_json: bool) -> None:
    """Show what the model holds of one person; `spamnb journal --user` lists the labels."""
    from spamnb.policy.actions import named_person

    found = named_person(_names(session), name)
    with session.open(readonly=True) as model:
        person = model.person(found)
    mine = [one for one in _facts(session) if one.person == person]
    if not mine and not as_json:
        say(f"{safe(found)} has no labels and no corrections")
    _show(mine, as_json=as_json)


@command("Erase one person.", "spamnb persons erase ann@example.org")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_session
def erase(session: CliSession, name: str, yes: bool, as_json: bool) -> None:
    """Remove all labels, corrections and listed senders of a person, and the name.

    This cannot be undone. The labels are also removed from the shared model, except the labels in
    the checkpoint: these stay in its sums, without a name. Stop the daemon first. Backups, logs,
    quarantine and mailboxes are not changed: the command lists the files of the home that still
    contain an address of the person.
    """
    from spamnb.maintenance.persons import Erasing
    from spamnb.policy.actions import named_person

    names = _names(session)
    found = named_person(names, name)
    refuse_while_served(session, "erase")
    session.open(readonly=True).close()  # a missing or damaged model is an error of the command
    what = f"All labels, corrections and listed senders of {safe(found)}"
    agreed(f"{what} will be removed. Erase?", yes=yes)
    config = session.model_config()
    erasing = Erasing(session.home, names, found, config.history, config.review_queue)
    with session.whole_model():
        done = erasing.run()
    left = [str(path) for path in erasing.still_named()]
    if as_json:
        say_json(done._asdict() | {"still_named": left})
        return
    counted = done._asdict().items()
    say(", ".join(f"{count} {name}" for name, count in counted) + " erased")
    for path in left:
        say(f"still contains the address: {safe(path)}")
