"""Sorts of values that a setting may have: what is allowed, in words and as a check. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.networks import NetworkSet


class SettingType(NamedTuple):
    """A sort of values: what is allowed in words, how to check one, how to read one from text."""

    allowed: str
    take: Callable[[Any], Any]
    """the value as the tree holds it; ValueError if it is none"""
    parse: Callable[[str], Any]
    """from an environment variable"""


def _is(good: bool, value: Any) -> Any:  # noqa: FBT001 - read as a sentence: is good, value
    if not good:
        raise ValueError
    return value


def _words(value: Any) -> tuple[str, ...]:
    return tuple(_is(isinstance(value, list | tuple), value) and (_text(one) for one in value))


def _text(value: Any) -> str:
    return str(_is(isinstance(value, str), value))


def _whole(value: Any, least: int, most: int) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return int(_is(good, value))


def _pair(value: Any) -> tuple[float, float]:
    numbers = _is(isinstance(value, list | tuple) and len(value) == 2, value)
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise ValueError
    return float(numbers[0]), float(numbers[1])


def _flag(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.strip().lower()]


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _labels(value: Any) -> tuple[str, ...]:
    names = _words(value)
    good = len(names) > 1 and len(set(names)) == len(names)
    return tuple(_is(good and all(_LABEL.fullmatch(name) for name in names), names))


def _number(value: Any, least: float, most: float) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(_is(good and least <= value <= most, value))


def _address(value: Any) -> str:
    return str(Address.parse(_text(value))) if value else ""


def _nets(value: Any) -> tuple[str, ...]:
    return NetworkSet(_words(value)).texts


def _domains(value: Any) -> tuple[str, ...]:
    names = tuple(name.rstrip(".").lower() for name in _words(value))
    return tuple(_is(all(_DOMAIN.fullmatch(name) for name in names), names))


_DOMAIN = re.compile(r"[^\s@,<>\x00-\x1f\x7f]+")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

TEXT = SettingType("a text in quotes", _text, str)
TEXTS = SettingType('a list of texts, such as ["a", "b"]', _words, _listed)
LABELS = SettingType(
    "two names or more, all different, of letters, digits and -._", _labels, _listed
)
FLAG = SettingType("true or false", lambda value: _is(isinstance(value, bool), value), _flag)
PAIR = SettingType(
    "two numbers that are not negative, [if it is ham, if it is spam]",
    _pair,
    lambda text: [float(part) for part in text.split(",")],
)

ADDRESS = SettingType(
    "host:port, [IPv6]:port or unix:/path, with lmtp: in front where LMTP is spoken",
    _address,
    str,
)
ADDRESSES = SettingType(
    "a list of addresses: host:port, [IPv6]:port or unix:/path",
    lambda value: tuple(map(_address, _words(value))),
    _listed,
)
NETS = SettingType('a list of networks, such as ["192.0.2.0/24", "::1", "unix"]', _nets, _listed)
DOMAINS = SettingType('a list of domains, such as ["example.org"]', _domains, _listed)


def number(least: float, most: float) -> SettingType:
    """Numbers in a range."""
    return SettingType(
        f"a number from {least:g} to {most:g}", lambda value: _number(value, least, most), float
    )


def whole(least: int, most: int = (1 << 63) - 1) -> SettingType:
    """Whole numbers in a range."""
    upto = f"from {least} to {most}" if most < (1 << 63) - 1 else f"from {least} on"
    return SettingType(f"a whole number {upto}", lambda value: _whole(value, least, most), int)


DAYS = whole(1, 36_500)


def choice(*names: str) -> SettingType:
    """One of these."""
    return SettingType(f"one of {', '.join(names)}", lambda value: _is(value in names, value), str)
