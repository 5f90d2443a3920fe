"""Options that several commands share: their types, and those that select events of the journal."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable
from datetime import datetime
from math import isnan
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spamnb.cli.messages import named
from spamnb.cli.printing import say
from spamnb.errors import UserError

if TYPE_CHECKING:
    from click import Context, Parameter

    from spamnb.engine.event_filter import EventFilter
    from spamnb.engine.filter import Filter


def command_words(text: str) -> list[str]:
    """Split the command of an option into words, as a shell does."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} cannot be split into words: {error}.") from error
    if not words:
        raise click.BadParameter("no program is given.")
    return words


class Number(click.FloatRange):
    """A number within bounds. Unlike `click.FloatRange` it rejects `nan`."""

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class Count(click.IntRange):
    """A count: a number, or the word `all`."""

    name = "count"

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> int:
        if value == "all":
            return sys.maxsize
        return min(super().convert(value, param, ctx), sys.maxsize)


def spelt(name: str) -> str:
    """Return the command-line form of an option of the running command, such as `--json`."""
    params = click.get_current_context().command.params
    return next(param.opts[0] for param in params if param.name == name)


_SPAN = re.compile(r"(\d{1,9})\s*([mhdw])")
_UNIT_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Command = TypeVar("Command", bound=Callable[..., None])

_OPTIONS = (
    click.option("--user", multiple=True, help="Only events of this user; repeatable."),
    click.option("--channel", multiple=True, help="Only events of this channel: cli, api, ..."),
    click.option("--label", help="Only events that set or removed this label."),
    click.option("--since", metavar="TIME", help="Only later events: 12h, 7d, 2w, or a date."),
    click.option("--until", metavar="TIME", help="Only earlier events."),
)


def choosing(command: Command) -> Command:
    """Add the options that select events to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen(
    model: Filter,
    *,
    user: tuple[str, ...] = (),
    channel: tuple[str, ...] = (),
    label: str | None = None,
    since: str | None = None,
    until: str | None = None,
    message: str | None = None,
) -> EventFilter:
    """Return the filter that the options describe."""
    from spamnb.engine.event_filter import EventFilter

    return EventFilter(
        user=user,
        channel=channel,
        label=None if label is None else model.label(label),
        since_us=since_us(since),
        until_us=since_us(until, "--until"),
        digest=None if message is None else _digest(model, message),
    )


def _digest(model: Filter, ref: str) -> bytes:
    """Return the digest of one message, given by a file or a reference."""
    found = [what for _, what in named((ref,), documents=model.recipe.documents)]
    if len(found) != 1:
        raise UserError(f"{ref} contains {len(found)} messages", hint="give one message")
    return model.digest(found[0])


def since_us(text: str | None, name: str = "--since") -> int | None:
    """Convert an age (30m, 12h, 7d, 2w) or a date to microseconds since 1970."""
    if text is None:
        return None
    span = _SPAN.fullmatch(text.strip().lower())
    if span:
        return int((time.time() - int(span[1]) * _UNIT_S[span[2]]) * 1_000_000)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1_000_000)
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"{name} {text!r} is not a time", hint="write 30m, 12h, 7d, 2w, or a date: 2026-05-01"
        ) from error


def agreed(question: str, *, yes: bool) -> None:
    """Ask for confirmation; exit with code 1 if the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"confirmation needed, but there is no terminal: {question}", hint="add --yes"
        )
    if not click.confirm(question, err=True):
        say("nothing was changed")
        raise click.exceptions.Exit(1)
