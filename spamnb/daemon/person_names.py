"""The names of persons for a running process, which keeps the old names if new ones are invalid."""

from __future__ import annotations

from spamnb.core.persons.names import PersonNames
from spamnb.errors import SettingsError
from spamnb.service.telemetry.log import Log
from spamnb.settings import Settings
from spamnb.settings.persons import person_names


def load_names(
    settings: Settings, log: Log, before: PersonNames | None = None
) -> PersonNames | None:
    """Return the names by the settings; `before` if the alias file cannot be used."""
    try:
        return person_names(settings)
    except SettingsError as error:
        record: dict[str, object] = {"event": "aliases of persons not loaded", "level": "error"}
        log(record | {"error": str(error), "hint": error.hint})
        return before
