"""`spamnb review`: list, accept and refuse queued feedback."""

from __future__ import annotations

import json
from typing import Any

import click

from spamnb.cli.correct import show
from spamnb.cli.main import CommandGroup, command
from spamnb.cli.printing import safe, say, say_json, shown_time, table
from spamnb.cli.session import CliSession, asking, checked, pass_session
from spamnb.telemetry import iso

LIST_EXAMPLES = """
spamnb review list                       oldest first
spamnb review show NAME                  the message, and why it is queued
spamnb review accept NAME...             train with it
spamnb review refuse NAME...             delete it
"""
_PLACES = {
    "list": "spamnb.cli.review:list_",
    "show": "spamnb.cli.review:show_",
    "accept": "spamnb.cli.review:accept",
    "refuse": "spamnb.cli.review:refuse",
}
_SHOWN = 60
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=LIST_EXAMPLES,
    short_help="Accept or refuse queued feedback.",
)
def review() -> None:
    """Accept or refuse queued feedback.

    Feedback is queued when the sender cannot be verified, or when it contradicts a very sure
    verdict on an untrusted channel. The model does not change until an administrator accepts the
    feedback.
    """


@command("List queued feedback.", LIST_EXAMPLES, name="list")
@JSON
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List queued feedback, oldest first: name, time, label, user, verdict, reason."""
    with asking(session) as client:
        entries = [json.loads(line) for line in client.ask("review", do="list").body.splitlines()]
    if as_json:
        for entry in entries:
            say_json(entry | {"time": iso(entry["time_us"])})
        return
    table(map(_row, entries))


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    verdict = entry["verdict"]
    shown = f"{verdict['label']} {verdict['probability']:.4f}" if verdict else ""
    return (
        entry["name"], shown_time(entry["time_us"]), entry["label"] or "forget",
        f"{entry['user']}/{entry['channel']}"[:_SHOWN], shown, entry["reason"],
    )  # fmt: skip


@command("Show one queued message.", "spamnb review show 0063f1a2b3c4d-0123456789abcdef01234567",
        name="show")  # fmt: skip
@click.argument("name")
@JSON
@pass_session
def show_(session: CliSession, name: str, as_json: bool) -> None:
    """Show the label, the user and the reason of one entry, then its message."""
    with asking(session) as client:
        header, raw = client.ask("review", do="show", name=name)
    entry = header["entry"]
    if as_json:
        say_json(entry | {"time": iso(entry["time_us"]), "raw": raw.decode("latin-1")})
        return
    rows = [(key, str(value)) for key, value in entry.items() if value not in ("", [], (), {})]
    table(rows)
    say()
    for line in raw.decode("utf-8", "replace").splitlines():
        say(safe(line))


def _decide(session: CliSession, do: str, names: tuple[str, ...], *, as_json: bool) -> None:
    from spamnb.operations.request import answer_of

    with asking(session) as client:
        for name in names:
            answer = checked(answer_of(client.ask("review", do=do, name=name).header))
            if answer.receipt is not None:
                show(name, answer, as_json=as_json)
            elif as_json:
                say_json({"path": name, "changed": False, "reason": answer.reason})
            else:
                say(safe(f"{answer.reason}: {name}"))


@command(
    "Train with queued feedback.", "spamnb review accept 0063f1a2b3c4d-0123456789abcdef01234567"
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@JSON
@pass_session
def accept(session: CliSession, names: tuple[str, ...], as_json: bool) -> None:
    """Train with queued feedback, in the name of its user, so that it can be undone."""
    _decide(session, "accept", names, as_json=as_json)


@command("Delete queued feedback.", "spamnb review refuse 0063f1a2b3c4d-0123456789abcdef01234567")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@JSON
@pass_session
def refuse(session: CliSession, names: tuple[str, ...], as_json: bool) -> None:
    """Delete queued feedback; the model does not change."""
    _decide(session, "refuse", names, as_json=as_json)
