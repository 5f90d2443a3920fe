"""Merge reloaded settings; report which keys need a restart. Pure.

Sockets and processes are created at the start, so the settings they depend on keep their old
values: a restarted process must find the listeners of the sockets that it inherits.
Failure: SettingsError if the new values contradict the old ones that stay.
"""

from __future__ import annotations

from dataclasses import replace

from spamnb.settings import Settings, restored
from spamnb.settings.render import need_restart, plain


def merge_reloadable(before: Settings, after: Settings) -> tuple[Settings, list[str]]:
    """Return the new settings with unchangeable keys at their old values, and the changed ones."""
    old, new = plain(before), plain(after)
    later = need_restart(before, after) + _next_hops(before, after)
    removed = _of_listeners(old, before.listener.keys() - after.listener.keys())
    added = _of_listeners(new, after.listener.keys() - before.listener.keys())
    unchanged = {name: old[name] for name in [*later, *removed] if name in old}
    values = {name: value for name, value in new.items() if name not in added} | unchanged
    return replace(restored(values), file=after.file), later


def _next_hops(before: Settings, after: Settings) -> list[str]:
    """Return the listeners with a delivery agent as next hop that was not started."""
    hops = [one.upstream for one in before.listener.values() if one.protocol == "smtp"]
    if not hops or not all(hops) or before.delivery.address:
        return []
    return [
        f"listener.{name}.upstream"
        for name, listener in after.listener.items()
        if name in before.listener and listener.protocol == "smtp" and not listener.upstream
    ]


def _of_listeners(values: dict[str, object], listeners: set[str]) -> list[str]:
    prefixes = tuple(f"listener.{name}." for name in listeners)
    return [name for name in values if name.startswith(prefixes)]
