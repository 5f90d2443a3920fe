"""Parameters of operations: their types, checks and defaults, for the control socket and HTTP.

A row of a table of operations declares them once: the checks, the schema of the OpenAPI document
and the reference follow from it. Failure: UserError names the parameter and what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any, Final, NamedTuple

from spamnb.errors import UserError

Schema = Mapping[str, Any]
_MOST_CHARS: Final = 1000
_MOST_ITEMS: Final = 1000
MOST_ID: Final = (1 << 63) - 1


class ParameterType(NamedTuple):
    """A JSON schema, and a function that returns the checked value or raises ValueError.

    A parameter of the path or the query arrives as text, one of a JSON body as a value of JSON.
    """

    schema: Schema
    take: Callable[[Any], Any]
    allowed: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operation."""

    name: str
    type: ParameterType
    text: str
    default: Any = None
    required: bool = False


def _require(good: bool, value: Any) -> Any:  # noqa: FBT001 - a condition and its value
    if not good:
        raise ValueError
    return value


def _text(value: Any) -> str:
    good = isinstance(value, str) and len(value) <= _MOST_CHARS and "\0" not in value
    return str(_require(good, value))


def _flag(value: Any) -> bool:
    value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    return bool(_require(isinstance(value, bool), value))


def _time_us(value: Any) -> int:
    at = datetime.fromisoformat(_text(value))
    _require(at.tzinfo is not None and at.year >= 1970, value)
    return int(at.timestamp() * 1_000_000)


TEXT = ParameterType(
    {"type": "string", "maxLength": _MOST_CHARS}, _text, f"text of at most {_MOST_CHARS} characters"
)
NAME = ParameterType(
    {"type": "string", "minLength": 1, "maxLength": _MOST_CHARS},
    lambda value: _require(_text(value) != "", value),
    f"text of 1 to {_MOST_CHARS} characters",
)
FLAG = ParameterType({"type": "boolean"}, _flag, "true or false")
TIME = ParameterType(
    {"type": "string", "format": "date-time"}, _time_us, "a time with its zone (RFC 3339)"
)


def whole(least: int, most: int) -> ParameterType:
    """Make the type of whole numbers from `least` to `most`."""

    def take(value: Any) -> int:
        if isinstance(value, str):
            value = int(_require(value.isascii() and value.isdecimal() and len(value) < 20, value))
        good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return int(_require(good, value))

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return ParameterType(schema, take, f"a whole number from {least} to {most}")


def choice(*names: str) -> ParameterType:
    """Make the type of one of these words."""
    return ParameterType(
        {"type": "string", "enum": list(names)},
        lambda value: _require(isinstance(value, str) and value in names, value),
        f"one of {', '.join(filter(None, names))}" + ", or empty" * ("" in names),
    )


def _number(value: Any) -> float:
    _require(isinstance(value, int | float | str) and not isinstance(value, bool), value)
    found = float(value)
    return float(_require(isfinite(found), found))


def between(least: float, most: float) -> ParameterType:
    """Make the type of numbers between two limits; the limits themselves are not allowed."""

    def take(value: Any) -> float:
        found = _number(value)
        return float(_require(least < found < most, found))

    schema = {"type": "number", "exclusiveMinimum": least, "exclusiveMaximum": most}
    return ParameterType(schema, take, f"a number above {least:g} and below {most:g}")


def lists(of: ParameterType, least: int, most: int) -> ParameterType:
    """Make the type of lists of `least` to `most` values of one type."""

    def take(value: Any) -> list[Any]:
        _require(isinstance(value, list) and least <= len(value) <= most, value)
        return list(map(of.take, value))

    schema = {"type": "array", "items": of.schema, "minItems": least, "maxItems": most}
    size = f"{most}" if least == most else f"at most {most}"
    return ParameterType(schema, take, f"a list of {size} values, each {of.allowed}")


TEXTS = lists(TEXT, 0, _MOST_ITEMS)


def _numbers(value: Any) -> dict[str, float]:
    _require(isinstance(value, dict), value)
    return {name: _number(one) for name, one in value.items()}


NUMBERS = ParameterType(
    {"type": "object", "additionalProperties": {"type": "number"}}, _numbers, "an object of numbers"
)


def pairs_by(*names: str) -> ParameterType:
    """Make the type of an object that has two numbers for each of some of these names."""

    def take(value: Any) -> dict[str, tuple[float, float]]:
        _require(isinstance(value, dict) and set(value) <= set(names), value)
        good = all(isinstance(pair, list) and len(pair) == 2 for pair in value.values())
        _require(good, value)
        return {name: (_number(pair[0]), _number(pair[1])) for name, pair in value.items()}

    pair = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    schema = {
        "type": "object",
        "properties": dict.fromkeys(names, pair),
        "additionalProperties": False,
    }
    return ParameterType(schema, take, f"an object with two numbers for any of {', '.join(names)}")


def read_parameters(
    parameters: Iterable[Parameter], values: Iterable[tuple[str, Any]]
) -> dict[str, Any]:
    """Return the checked values by name; missing parameters get their defaults."""
    known = {one.name: one for one in parameters}
    found: dict[str, Any] = {}
    for name, value in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
            raise UserError(f"there is no parameter {name[:80]!r}", hint=hint)
        if name in found:
            raise UserError(f"the parameter {name!r} is given twice")
        found[name] = _checked(known[name], value)
    missing = [name for name, one in known.items() if one.required and name not in found]
    if missing:
        raise UserError(
            f"the parameter {missing[0]!r} is missing",
            hint=f"it must be {known[missing[0]].type.allowed}",
        )
    return {name: found.get(name, one.default) for name, one in known.items()}


def read_known(parameters: Iterable[Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """Do the same for a request that may have other fields; null is a missing value."""
    every = list(parameters)
    given = [(one.name, values.get(one.name)) for one in every]
    return read_parameters(every, ((name, value) for name, value in given if value is not None))


def _checked(parameter: Parameter, value: Any) -> Any:
    try:
        return parameter.type.take(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(
            f"the parameter {parameter.name!r} is not valid",
            hint=f"it must be {parameter.type.allowed}",
        ) from error
