"""Click commands with examples in `--help`, and groups that import commands on demand.

A group has the import paths of its commands, so that `--version` and `--help` import nothing
heavy.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

_LIKE = 0.6
"""ratio of `difflib` from which a name is suggested"""


class Command(click.Command):
    """A command with examples."""

    def __init__(self, *args: Any, examples: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.examples = inspect.cleandoc(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(formatter, self.examples)


def command(
    short: str, examples: str = "", *, name: str | None = None
) -> Callable[[Callable[..., Any]], Command]:
    """Decorate a function as a command with a short help line and examples."""
    return click.command(name, cls=Command, short_help=short, examples=examples)


class CommandGroup(click.Group):
    """A group with examples; its commands are imported when they are needed."""

    def __init__(
        self,
        *args: Any,
        examples: str = "",
        places: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.examples = inspect.cleandoc(examples)
        self.places = dict(places or {})
        """command name -> "module:attribute" """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order of their table, most used first."""
        return list(self.places) or super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.places[cmd_name].partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error for an unknown command suggests the most similar one.

        If several are equally near, it is the first in the table: `trian` means train, not trial.
        """
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            near = max(known, key=lambda name: _likeness(name, args[0]))
            meant = f"; did you mean {near}?" if _likeness(near, args[0]) >= _LIKE else ""
            ctx.fail(f"there is no command {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(formatter, self.examples)


def _likeness(name: str, given: str) -> float:
    return difflib.SequenceMatcher(None, name, given).ratio()


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    """Write the examples without wrapping."""
    if examples:
        formatter.write("\nExamples:\n")
        formatter.write("".join(f"  {line}".rstrip() + "\n" for line in examples.splitlines()))
