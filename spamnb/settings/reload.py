"""Merge reloaded settings; report which keys need a restart. Pure.

Processes are created at the start, so the settings that they depend on keep their old values.
Failure: SettingsError if the new values contradict the old values that stay.
"""

from __future__ import annotations

from dataclasses import replace

from spamnb.settings import Settings, restored
from spamnb.settings.render import need_restart, plain

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
