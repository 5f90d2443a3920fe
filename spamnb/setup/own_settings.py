"""The settings of spamnb itself: the tables that setup adds to `spamnb.toml`.

A key that the administrator has set stays. A new table goes into a block at the end, a new key into
a block below the header of its table.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.errors import SettingsError
from spamnb.setup.edits import with_block, without_blocks
from spamnb.setup.plan import FileEdit, read

Tables = Mapping[str, Mapping[str, Any]]
"""by the name of a table: keys and values, which are texts, flags and lists of texts"""


class Wanted(NamedTuple):
    """What one run of setup does to the file."""

    edit: FileEdit | None
    notes: tuple[str, ...]


def given(path: Path) -> dict[str, Any]:
    """What the file says without the blocks of an earlier run."""
    try:
        return tomllib.loads(without_blocks(read(path) or ""))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}", hint="correct the file first") from error


def wanted(path: Path, tables: Tables) -> Wanted:
    """The edit that adds these tables, and what was left as the administrator has set it."""
    before = read(path)
    text = without_blocks(before or "")
    notes: list[str] = []
    at_end: list[str] = []
    found = given(path)
    for name, keys in tables.items():
        there = _table(found, name)
        missing = {key: value for key, value in keys.items() if key not in (there or {})}
        notes += [
            f"{path}: {name}.{key} stays {there[key]!r}; setup would set {value!r}"
            for key, value in keys.items()
            if there and key in there and there[key] != value
        ]
        lines = [f"{key} = {json.dumps(value)}" for key, value in missing.items()]
        if not lines:
            continue
        header = re.search(rf"(?m)^[ \t]*\[[ \t]*{re.escape(name)}[ \t]*\][ \t]*(#.*)?$", text)
        if there is None:
            at_end += [f"[{name}]", *lines]
        elif header is None:
            notes.append(f"{path}: add to {name}: {', '.join(lines)}")
        else:
            line = text.count("\n", 0, header.end()) + 1
            text = with_block(text, name, lines, line)
    if at_end:
        text = with_block(text, "settings", at_end)
    changed = text != (before or "")
    return Wanted(FileEdit(path, before, text) if changed else None, tuple(notes))


def _table(found: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The table of a dotted name; None if there is none."""
    here: Any = found
    for part in name.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) else None
