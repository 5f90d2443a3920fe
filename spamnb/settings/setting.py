"""Description of one setting, and values as TOML. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from spamnb.settings.types import SettingType

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
