"""Option types that several commands use."""

from __future__ import annotations

import sys
from math import isnan
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click import Context, Parameter


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
