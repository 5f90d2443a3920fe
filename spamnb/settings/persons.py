"""The names of persons, from the settings and their alias file."""

from __future__ import annotations

from pathlib import Path

from spamnb.core.mail.domains import domains_of
from spamnb.core.persons.names import PersonNames, aliases_of
from spamnb.errors import SettingsError
from spamnb.settings.local_domains import served_domains
from spamnb.settings.schema import Settings


def person_names(settings: Settings) -> PersonNames | None:
    """Return the rules for names; None if persons are not enabled."""
    return all_names(settings) if settings.persons.enabled else None


def all_names(settings: Settings) -> PersonNames:
    """Return the rules for names, whether persons are enabled or not.

    If one domain alone is served, its addresses are logins. Among several domains only those of
    `feedback.domains` are, since ann@ in two of them may be two persons. SettingsError for an alias
    file that cannot be read, or with an invalid line.
    """
    served, delimiter = served_domains(settings), settings.delivery.delimiter
    logins = domains_of(settings.feedback.domains) or (served if len(served) == 1 else frozenset())
    aliases = _aliases(settings.persons.aliases, delimiter)
    return PersonNames(delimiter, logins, served, aliases)


def _aliases(path: str, delimiter: str) -> dict[str, str]:
    if not path:
        return {}
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the alias file {path} cannot be read: {error}") from error
    return aliases_of(text, path, delimiter)
