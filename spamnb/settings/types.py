"""A setting, and the types of settings: the allowed values, check and parser; recipients' costs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from spamnb.model.costs import DECISIONS, Costs, Pair
from spamnb.net.address import Address, NetworkSet
from spamnb.policy.actions import ActionMap


class SettingType(NamedTuple):
    """A type of settings."""

    allowed: str
    """the allowed values, for error messages"""
    take: Callable[[Any], Any]
    """returns the checked value; ValueError if it is not allowed"""
    parse: Callable[[str], Any]
    """reads a value from an environment variable"""


def _require(good: bool, value: Any) -> Any:  # noqa: FBT001 - a condition and its value
    if not good:
        raise ValueError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_require(isinstance(value, list | tuple), value) and (_text(one) for one in value))


def _text(value: Any) -> str:
    return str(_require(isinstance(value, str), value))


def _whole(value: Any, least: int, most: int) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return int(_require(good, value))


def _pair(value: Any) -> tuple[float, float]:
    numbers = _require(isinstance(value, list | tuple) and len(value) == 2, value)
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise ValueError
    return float(numbers[0]), float(numbers[1])


def _flag(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.strip().lower()]


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _labels(value: Any) -> tuple[str, ...]:
    names = _texts(value)
    good = len(names) > 1 and len(set(names)) == len(names)
    return tuple(_require(good and all(_LABEL.fullmatch(name) for name in names), names))


def _number(value: Any, least: float, most: float) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(_require(good and least <= value <= most, value))


def _address(value: Any) -> str:
    return str(Address.parse(_text(value))) if value else ""


def _nets(value: Any) -> tuple[str, ...]:
    return NetworkSet(_texts(value)).texts


def _domains(value: Any) -> tuple[str, ...]:
    names = tuple(name.rstrip(".").lower() for name in _texts(value))
    return tuple(_require(all(_DOMAIN.fullmatch(name) for name in names), names))


_DOMAIN = re.compile(r"[^\s@,<>\x00-\x1f\x7f]+")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

TEXT = SettingType("a string in quotes", _text, str)
TEXTS = SettingType('a list of strings, such as ["a", "b"]', _texts, _split_list)
LABELS = SettingType("two or more different names of letters, digits and -._", _labels, _split_list)
FLAG = SettingType("true or false", lambda value: _require(isinstance(value, bool), value), _flag)
PAIR = SettingType(
    "two numbers of 0 or more, [if the message is ham, if it is spam]",
    _pair,
    lambda text: [float(part) for part in text.split(",")],
)
OWN_PAIR = SettingType(
    f"{PAIR.allowed}, or [] for none",
    lambda value: () if value in ([], ()) else _pair(value),
    PAIR.parse,
)

ADDRESS = SettingType(
    "host:port, [IPv6]:port or unix:/path, with the prefix lmtp: for LMTP",
    _address,
    str,
)
NETS = SettingType(
    'a list of networks, such as ["192.0.2.0/24", "::1", "unix"]', _nets, _split_list
)
DOMAINS = SettingType('a list of domains, such as ["example.org"]', _domains, _split_list)


def number(least: float, most: float) -> SettingType:
    """Make the type of numbers from `least` to `most`."""
    return SettingType(
        f"a number from {least:g} to {most:g}", lambda value: _number(value, least, most), float
    )


def whole(least: int, most: int = (1 << 63) - 1) -> SettingType:
    """Make the type of whole numbers from `least` to `most`."""
    limits = f"from {least} to {most}" if most < (1 << 63) - 1 else f"of {least} or more"
    return SettingType(f"a whole number {limits}", lambda value: _whole(value, least, most), int)


DAYS = whole(1, 36_500)


def some_of(*names: str) -> SettingType:
    """Make the type of lists of these strings."""
    return SettingType(
        f"a list of any of {', '.join(names)}",
        lambda value: _require(set(_texts(value)) <= set(names), _texts(value)),
        _split_list,
    )


def choice(*names: str) -> SettingType:
    """Make the type of one of these strings."""
    return SettingType(
        f"one of {', '.join(names)}", lambda value: _require(value in names, value), str
    )


PREFIX = "SPAMNB_"
MASKED = "********"


class Setting(NamedTuple):
    """Name, type and help text of one setting."""

    name: str
    """`section.key`; in named sections `family.*.key`"""
    type: SettingType
    reason: str
    """help text: what it does, and the reason for the default"""
    secret: bool = False
    restart: bool = False
    """a running daemon ignores changes until it is restarted"""

    @property
    def section(self) -> str:
        """Its TOML table; empty at the top level."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Its name in the section."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.replace(".", "_").upper()


class NamedSections(NamedTuple):
    """A family of sections, all with the same keys; the administrator chooses their names."""

    name: str
    sample: str
    """the name of the section in the example file"""
    reason: str
    settings: tuple[Setting, ...]


def toml_of(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_of(one) for one in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 1_000_000:
        return f"{value:_}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """The costs for some recipients; all four are empty if these recipients have none."""

    deliver_costs: Pair | tuple[()] = ()
    unsure_costs: Pair | tuple[()] = ()
    junk_costs: Pair | tuple[()] = ()
    reject_costs: Pair | tuple[()] = ()

    @property
    def costs(self) -> Costs | None:
        """The costs; None if there are none. SettingsError if they are inconsistent."""
        found = {name: getattr(self, f"{name}_costs") for name in DECISIONS}
        return Costs(**found) if all(found.values()) else None

    def completed(self, others: Costs) -> Self:
        """Return the section with the missing costs taken from `others`, if it has any.

        SettingsError if both together are inconsistent.
        """
        keys = {f"{name}_costs": getattr(others, name) for name in DECISIONS}
        given = {name: pair for name in keys if (pair := getattr(self, name))}
        if not given:
            return self
        whole = replace(self, **(keys | given))
        Costs(*(getattr(whole, name) for name in keys))
        return whole


@dataclass(frozen=True)
class DomainSettings(ActionMap, CostSettings):
    """Actions and costs for the recipients of one domain."""
