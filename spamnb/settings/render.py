"""Settings as people read them: the example with its reasons, and what is in force. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

from spamnb.settings import Settings
from spamnb.settings.schema import MEMBERS
from spamnb.settings.setting import MASKED, NamedSections, Setting, toml_of
from spamnb.settings.table import FAMILIES, SETTINGS, setting_of


def value_of(settings: Settings, name: str) -> Any:
    """One value of the tree, by its name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def example() -> str:
    """Write a settings file with every setting at its default, and the reasons.

    Families have no sections by default, so theirs is written as a comment.
    """
    defaults = Settings()
    lines = [
        "# Settings of spamnb, all at their defaults. Delete what you do not change.",
        "# A variable in the environment wins over this file: SPAMNB_STORE_LIMIT_BYTES.",
    ]
    section = ""
    for setting in SETTINGS:
        lines += _headed(setting.section, section)
        section = setting.section
        lines += ["", *_entry(setting, value_of(defaults, setting.name))]
    for family in FAMILIES.values():
        lines += _sampled(family)
    return "\n".join(lines) + "\n"


def _sampled(family: NamedSections) -> list[str]:
    lines = ["", "", *_comment(family.reason), f"# [{family.name}.{_key(family.sample)}]"]
    defaults = MEMBERS[family.name]()
    for setting in family.settings:
        *reason, line = _entry(setting, getattr(defaults, setting.key))
        lines += ["#", *reason, f"# {line}"]
    return lines


def _entry(setting: Setting, value: Any) -> list[str]:
    return [*_comment(setting.reason), f"{setting.key} = {toml_of(value)}"]


def shown(settings: Settings) -> str:
    """Write the settings in force as a file, secrets masked."""
    lines: list[str] = []
    section = ""
    for setting, chosen, value in _all(settings):
        where = _placed(setting, _key(chosen)).rpartition(".")[0]
        lines += _headed(where, section)
        section = where
        lines.append(f"{setting.key} = {toml_of(_masked(setting, value))}")
    return "\n".join(lines) + "\n"


def as_dict(settings: Settings) -> dict[str, Any]:
    """Name the settings in force, secrets masked."""
    return {
        _placed(setting, chosen): _masked(setting, value)
        for setting, chosen, value in _all(settings)
    }


def plain(settings: Settings) -> dict[str, Any]:
    """Name the settings in force, secrets as they are: for `restored` in another process."""
    return {_placed(setting, chosen): value for setting, chosen, value in _all(settings)}


def need_restart(before: Settings, after: Settings) -> list[str]:
    """What changed, but is taken at a daemon's start alone."""
    old, new = plain(before), plain(after)
    changed = [name for name in old | new if old.get(name) != new.get(name)]
    return [name for name in changed if (found := setting_of(name)) and found.restart]


def _all(settings: Settings) -> Iterator[tuple[Setting, str, Any]]:
    """Every setting with the name of its section, if it is in a family, and its value."""
    for setting in SETTINGS:
        yield setting, "", value_of(settings, setting.name)
    for family in FAMILIES.values():
        for chosen, member in getattr(settings, family.name).items():
            for setting in family.settings:
                yield setting, chosen, getattr(member, setting.key)


def _placed(setting: Setting, chosen: str) -> str:
    return setting.name.replace("*", chosen, 1)


def _masked(setting: Setting, value: Any) -> Any:
    return MASKED if setting.secret and value else value


def _key(name: str) -> str:
    """Write a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]*", name) else toml_of(name)


def _headed(section: str, before: str) -> list[str]:
    return ["", f"[{section}]"] if section != before else []


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 90, initial_indent="# ", subsequent_indent="# ")
