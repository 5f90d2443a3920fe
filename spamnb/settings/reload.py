"""What of new settings a running daemon can take, and what must wait for its next start.

Sockets and processes are those of the start, so what they rest on stays as it was, whatever the
file says meanwhile: a process that is replaced must find the listeners that it has sockets of.
Pure. Failure: SettingsError if the new values do not go with the old ones that stay.
"""

from __future__ import annotations

from dataclasses import replace

from spamnb.settings import Settings, restored
from spamnb.settings.render import need_restart, plain


def merge_reloadable(before: Settings, after: Settings) -> tuple[Settings, list[str]]:
    """The new settings with what cannot change left as it is, and the names of that."""
    old, new = plain(before), plain(after)
    later = need_restart(before, after) + _next_hops(before, after)
    gone = _of_listeners(old, before.listener.keys() - after.listener.keys())
    come = _of_listeners(new, after.listener.keys() - before.listener.keys())
    stay = {name: old[name] for name in [*later, *gone] if name in old}
    values = {name: value for name, value in new.items() if name not in come} | stay
    return replace(restored(values), file=after.file), later


def _next_hops(before: Settings, after: Settings) -> list[str]:
    """Listeners whose next hop would be the post office, where none was started."""
    hops = [listener.upstream for listener in before.listener.values()]
    if not hops or not all(hops) or before.delivery.address:
        return []
    return [
        f"listener.{name}.upstream"
        for name, listener in after.listener.items()
        if name in before.listener and not listener.upstream
    ]


def _of_listeners(values: dict[str, object], listeners: set[str]) -> list[str]:
    heads = tuple(f"listener.{name}." for name in listeners)
    return [name for name in values if name.startswith(heads)]
