"""Show settings as text, and merge reloaded ones. Pure.

Processes are created at the start, so the settings that they depend on keep their old values, and
the names of changed ones are reported. Failure: SettingsError if the new values contradict the old
values that stay.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spamnb.settings import Settings, restored
from spamnb.settings.schema import MEMBERS
from spamnb.settings.table import FAMILIES, SETTINGS, setting_of
from spamnb.settings.types import MASKED, NamedSections, Setting, toml_of


def value_of(settings: Settings, name: str) -> Any:
    """Return the value of one setting, by its full name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def example() -> str:
    """Return a settings file with every setting at its default, and its help text.

    Named sections do not exist by default, so a sample of each is written as a comment.
    """
    defaults = Settings()
    lines = [
        "# Settings of spamnb with their defaults. Delete the lines that you do not change.",
        "# Environment variables override this file: SPAMNB_STORE_LIMIT_BYTES sets",
        "# store.limit_bytes.",
    ]
    section = ""
    for setting in SETTINGS:
        lines += _section_header(setting.section, section)
        section = setting.section
        lines += ["", *_entry(setting, value_of(defaults, setting.name))]
    for family in FAMILIES.values():
        lines += _sample_section(family)
    return "\n".join(lines) + "\n"


def _sample_section(family: NamedSections) -> list[str]:
    lines = ["", "", *_comment(family.reason), f"# [{family.name}.{_key(family.sample)}]"]
    defaults = MEMBERS[family.name]()
    for setting in family.settings:
        *reason, line = _entry(setting, getattr(defaults, setting.key))
        lines += ["#", *reason, f"# {line}"]
    return lines


def _entry(setting: Setting, value: Any) -> list[str]:
    return [*_comment(setting.reason), f"{setting.key} = {toml_of(value)}"]


def shown(settings: Settings) -> str:
    """Return the settings in force as a file that says where each was found, secrets masked."""
    lines: list[str] = []
    section = ""
    for setting, chosen, value in _all(settings):
        where = _full_name(setting, _key(chosen)).rpartition(".")[0]
        lines += _section_header(where, section)
        section = where
        position = settings.positions.get(_full_name(setting, chosen), "")
        comment = f"  # {position}" if position.isprintable() and position else ""
        lines.append(f"{setting.key} = {toml_of(_masked(setting, value))}{comment}")
    return "\n".join(lines) + "\n"


def listed(settings: Settings) -> list[dict[str, Any]]:
    """Return each setting in force with its help text, values as TOML, secrets masked."""
    defaults = Settings()
    found = []
    for setting, chosen, value in _all(settings):
        default = (
            getattr(MEMBERS[setting.section.partition(".")[0]](), setting.key)
            if chosen
            else value_of(defaults, setting.name)
        )
        found.append(
            {
                "name": _full_name(setting, _key(chosen)),
                "value": toml_of(_masked(setting, value)),
                "default": toml_of(default),
                "changed": value != default,
                "position": settings.positions.get(_full_name(setting, chosen), ""),
                "restart": setting.restart,
                "reason": setting.reason,
            }
        )
    return found


def as_dict(settings: Settings) -> dict[str, Any]:
    """Return the settings in force by name, secrets masked."""
    return {
        _full_name(setting, chosen): _masked(setting, value)
        for setting, chosen, value in _all(settings)
    }


def plain(settings: Settings) -> dict[str, Any]:
    """Return the settings in force by name, secrets included: input of `restored`."""
    return {_full_name(setting, chosen): value for setting, chosen, value in _all(settings)}


def need_restart(before: Settings, after: Settings) -> list[str]:
    """Name the settings that changed and need a restart of the daemon."""
    old, new = plain(before), plain(after)
    changed = [name for name in old | new if old.get(name) != new.get(name)]
    return [name for name in changed if (found := setting_of(name)) and found.restart]


def _all(settings: Settings) -> Iterator[tuple[Setting, str, Any]]:
    """Yield each setting, the chosen name of its section (in a family) and its value."""
    for setting in SETTINGS:
        yield setting, "", value_of(settings, setting.name)
    for family in FAMILIES.values():
        for chosen, member in getattr(settings, family.name).items():
            for setting in family.settings:
                yield setting, chosen, getattr(member, setting.key)


def _full_name(setting: Setting, chosen: str) -> str:
    return setting.name.replace("*", chosen, 1)


def _masked(setting: Setting, value: Any) -> Any:
    return MASKED if setting.secret and value else value


def _key(name: str) -> str:
    """Write a TOML key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]*", name) else toml_of(name)


def _section_header(section: str, before: str) -> list[str]:
    return ["", f"[{section}]"] if section != before else []


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, 90, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


_MAILBOXES = "imap."
"""prefix of the settings of a process that is created at the start"""


def merge_reloadable(
    before: Settings, after: Settings, *, has_agent: bool
) -> tuple[Settings, list[str]]:
    """Return the new settings with unchangeable keys at their old values, and the changed ones.

    Without a delivery agent (`has_agent`), a listener that needs it stays as it was.
    """
    old, new = plain(before), plain(after)
    agentless = [] if has_agent else _without_next_hop(after)
    later = need_restart(before, after) + [f"{name}.upstream" for name in agentless]
    stays = (_MAILBOXES, *(f"{name}." for name in agentless))
    if not (has_agent or after.listener):
        later, stays = [*later, "listener"], (_MAILBOXES, "listener.")
    values = {name: value for name, value in new.items() if not name.startswith(stays)}
    values |= {name: old[name] for name in old if name in later or name.startswith(stays)}
    return replace(restored(values, after.positions), file=after.file), later


def _without_next_hop(settings: Settings) -> list[str]:
    """Return the listeners with the delivery agent as next hop."""
    return [
        f"listener.{name}"
        for name, one in settings.listener.items()
        if one.protocol == "smtp" and not one.upstream
    ]
