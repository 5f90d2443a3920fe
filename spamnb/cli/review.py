"""`spamnb review`: what waits for an admin's word, and the word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.correct import show
from spamnb.cli.daemon_client import checked, served
from spamnb.cli.help import CommandGroup, taught
from spamnb.cli.history_journal import iso, shown_time
from spamnb.cli.printing import safe, say, say_json, table
from spamnb.cli.session import CliSession, pass_session

if TYPE_CHECKING:
    from spamnb.service.feedback.types import Answer

LIST_EXAMPLES = """
spamnb review list                       oldest first
spamnb review show NAME                  the message, and why it waits
spamnb review accept NAME...             learn it as it was said
spamnb review refuse NAME...             do not
"""
_PLACES = {
    "list": "spamnb.cli.review:list_",
    "show": "spamnb.cli.review:show_",
    "accept": "spamnb.cli.review:accept",
    "refuse": "spamnb.cli.review:refuse",
}
_SHOWN = 60
JSON = click.option("--json", "as_json", is_flag=True, help="JSON, one object a line.")


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=LIST_EXAMPLES,
    short_help="Decide what waits for your word.",
)
def review() -> None:
    """Decide what waits for your word.

    Reports that nothing proves, and labels that contradict a very sure verdict on a channel that
    nobody vouches for, wait here instead of being learnt.
    """


class _List:
    """The list, here or over there."""

    def __init__(self, session: CliSession) -> None:
        self._session = session
        self._daemon = served(session)

    def entries(self) -> list[dict[str, Any]]:
        """All that wait, oldest first."""
        if self._daemon is None:
            return [entry.as_dict() for entry in self._reviews().entries()]
        return [json.loads(line) for line in self._ask("list")[1].splitlines()]

    def get(self, name: str) -> tuple[dict[str, Any], bytes]:
        """One entry and its message."""
        if self._daemon is None:
            entry, raw = self._reviews().get(name)
            return entry.as_dict(), raw
        header, raw = self._ask("show", name)
        return header["entry"], raw

    @contextmanager
    def decided(self, do: str) -> Iterator[Any]:
        """A function that takes names and gives answers."""
        from spamnb.endpoints.control.protocol import answer_of

        if self._daemon is not None:
            yield lambda name: answer_of(self._ask(do, name)[0])
            return
        from spamnb.service.feedback.service import FeedbackService

        with self._session.open(history=True) as model:
            desk = FeedbackService(model, self._reviews(), self._session.settings.feedback)
            yield desk.accept if do == "accept" else desk.refuse

    def _ask(self, do: str, name: str = "") -> tuple[dict[str, Any], bytes]:
        from spamnb.endpoints.control.protocol import ControlClient

        assert self._daemon is not None
        with ControlClient(self._daemon.control) as caller:
            return caller.ask("review", do=do, name=name)

    def _reviews(self) -> Any:
        from spamnb.service.feedback.review_queue import ReviewQueue

        return ReviewQueue(self._session.home / "review", self._session.settings.review)


@taught("List what waits.", LIST_EXAMPLES, name="list")
@JSON
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List what waits, oldest first: name, time, who says what, our verdict, why it waits."""
    entries = _List(session).entries()
    if as_json:
        for entry in entries:
            say_json(entry | {"time": iso(entry["time_us"])})
        return
    table(map(_row, entries))


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    verdict = entry["verdict"]
    ours = f"{verdict['label']} {verdict['probability']:.4f}" if verdict else ""
    return (
        entry["name"], shown_time(entry["time_us"]), entry["label"] or "forget",
        f"{entry['who']}/{entry['channel']}"[:_SHOWN], ours, entry["reason"],
    )  # fmt: skip


@taught("Show one message that waits.", "spamnb review show 0063f1a2b3c4d-0123456789abcdef01234567",
        name="show")  # fmt: skip
@click.argument("name")
@JSON
@pass_session
def show_(session: CliSession, name: str, as_json: bool) -> None:
    """Show who says what of a message and why it waits, then the message itself."""
    entry, raw = _List(session).get(name)
    if as_json:
        say_json(entry | {"time": iso(entry["time_us"]), "raw": raw.decode("latin-1")})
        return
    rows = [(key, str(value)) for key, value in entry.items() if value not in ("", [], (), {})]
    table(rows)
    say()
    for line in raw.decode("utf-8", "replace").splitlines():
        say(safe(line))


def _decide(session: CliSession, do: str, names: tuple[str, ...], *, as_json: bool) -> None:
    with _List(session).decided(do) as decided:
        for name in names:
            answer: Answer = checked(decided(name))
            if answer.receipt is not None:
                show(name, answer, as_json=as_json)
            elif as_json:
                say_json({"path": name, "changed": False, "reason": answer.reason})
            else:
                say(f"{answer.reason}: {safe(name)}")


@taught("Learn what waits.", "spamnb review accept 0063f1a2b3c4d-0123456789abcdef01234567")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@JSON
@pass_session
def accept(session: CliSession, names: tuple[str, ...], as_json: bool) -> None:
    """Learn what waits as it was said, in the name of who said it, so that it can be undone."""
    _decide(session, "accept", names, as_json=as_json)


@taught("Let go of what waits.", "spamnb review refuse 0063f1a2b3c4d-0123456789abcdef01234567")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@JSON
@pass_session
def refuse(session: CliSession, names: tuple[str, ...], as_json: bool) -> None:
    """Let go of what waits; nothing is learnt."""
    _decide(session, "refuse", names, as_json=as_json)
