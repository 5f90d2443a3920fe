"""What one setting is, and how values look in TOML. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from spamnb.settings.types import SettingType

PREFIX = "SPAMNB_"
MASKED = "********"


class Setting(NamedTuple):
    """One line of the settings file."""

    name: str
    """`section.key`; in a family `family.*.key`"""
    sort: SettingType
    reason: str
    """what it does and why it is as it is, in a sentence or two"""
    secret: bool = False
    restart: bool = False
    """a daemon takes it at its start alone"""

    @property
    def section(self) -> str:
        """The table it stands in; empty at the top."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Its name within the section."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.replace(".", "_").upper()


class NamedSections(NamedTuple):
    """Sections with a name that the user chooses, all with the same keys."""

    name: str
    sample: str
    """a name for the example"""
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
