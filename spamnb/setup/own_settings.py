"""The settings of spamnb itself: the tables that setup adds to `spamnb.toml`.

A key that the administrator has set stays; an empty list, an empty text and `false`, which the
example has, are replaced. A new table goes into a block at the end, a new key into a block below
the header of its table.
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
        missing = {key: value for key, value in keys.items() if not (there or {}).get(key)}
        notes += [
            f"{path}: {name}.{key} stays {there[key]!r}; setup would set {value!r}"
            for key, value in keys.items()
            if there and there.get(key) and there[key] != value
        ]
        lines = [f"{key} = {json.dumps(value)}" for key, value in missing.items()]
        if lines and there is None:
            at_end += [f"[{name}]", *lines]
            continue
        for key, line in zip(missing, lines, strict=True):
            changed = _with_key(text, name, key, line)
            if changed is None:
                notes.append(f"{path}: add to {name}: {line}")
            else:
                text = changed
    if at_end:
        text = with_block(text, "settings", at_end)
    is_same = text == (before or "")
    return Wanted(None if is_same else FileEdit(path, before, text), tuple(notes))


def _with_key(text: str, name: str, key: str, line: str) -> str | None:
    """The text with this line in a table, in the place of an empty value; None without a header."""
    header = re.search(rf"(?m)^[ \t]*\[[ \t]*{re.escape(name)}[ \t]*\][ \t]*(#.*)?$", text)
    if header is None:
        return None
    end = re.compile(r"(?m)^[ \t]*\[").search(text, header.end())
    inside = text[header.end() : end.start() if end else len(text)]
    old = re.search(rf"(?m)^[ \t]*{re.escape(key)}[ \t]*=.*$", inside)
    at = header.end() + old.start() if old else header.end() + 1
    number = text.count("\n", 0, at) + (at > len(text))
    return with_block(text, f"{name}.{key}", [line], range(number, number + bool(old)))


def _table(found: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The table of a dotted name; None if there is none."""
    here: Any = found
    for part in name.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) else None
