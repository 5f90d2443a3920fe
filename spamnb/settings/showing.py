"""Settings as people read them: the example with its reasons, and what is in force. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from spamnb.settings import Settings
from spamnb.settings.table import MASKED, SETTINGS, toml_of


def value_of(settings: Settings, name: str) -> Any:
    """One value of the tree, by its name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def example() -> str:
    """Write a settings file with every setting at its default, and the reasons."""
    head = [
        "# Settings of spamnb, all at their defaults. Delete what you do not change.",
        "# A variable in the environment wins over this file: SPAMNB_STORE_LIMIT_BYTES.",
    ]
    return "\n".join([*head, *_written({s.name: s.default for s in SETTINGS}, reasons=True)]) + "\n"


def shown(settings: Settings) -> str:
    """Write the settings in force as a file, secrets masked."""
    return "\n".join(_written(as_dict(settings), reasons=False)) + "\n"


def as_dict(settings: Settings) -> dict[str, Any]:
    """Name the settings in force, secrets masked."""
    return {
        s.name: MASKED if s.secret and value_of(settings, s.name) else value_of(settings, s.name)
        for s in SETTINGS
    }


def _written(values: Mapping[str, Any], *, reasons: bool) -> list[str]:
    lines: list[str] = []
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"]
        if reasons:
            lines += [
                "",
                *textwrap.wrap(setting.reason, 90, initial_indent="# ", subsequent_indent="# "),
            ]
        lines.append(f"{setting.key} = {toml_of(values[setting.name])}")
    return lines
