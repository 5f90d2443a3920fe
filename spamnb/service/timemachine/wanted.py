"""Which model an administrator wants instead of the present one. A value of JSON."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["rewind", "relearn", "kept"]


class Wanted(NamedTuple):
    """A model of an earlier time, one without some training, or one that was kept."""

    kind: Kind
    to_us: int = 0
    """rewind: later events are removed"""
    without: tuple[str, ...] = ()
    """relearn: without the events of these users"""
    without_channel: tuple[str, ...] = ()
    """relearn: without the events of these channels"""
    constants: tuple[tuple[str, float], ...] = ()
    """relearn: with other constants"""
    kept: str = ""
    """kept: name of the file"""
