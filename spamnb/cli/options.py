"""Options of the command line, as several commands have them."""

from __future__ import annotations

import sys
from math import isnan
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click import Context, Parameter


class Number(click.FloatRange):
    """A number within bounds. Click takes `nan` for one, which is within all bounds."""

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> float:
        """The number."""
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


class Count(click.IntRange):
    """How many: a number, or the word `all`."""

    name = "count"

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> int:
        """The number."""
        number: int = sys.maxsize if value == "all" else super().convert(value, param, ctx)
        return number


def spelt(name: str) -> str:
    """An option of the running command as people write it."""
    params = click.get_current_context().command.params
    return next(param.opts[0] for param in params if param.name == name)
