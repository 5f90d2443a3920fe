"""The domains of the site, the names of persons, and costs of recipients, from the settings."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from spamnb.errors import SettingsError, UserError
from spamnb.mail.envelope import LocalDomains, domain_of, domains_of
from spamnb.model.costs import OwnCosts
from spamnb.net.address import Address
from spamnb.policy.actions import PersonNames, RecipientCosts, aliases_of, named_person
from spamnb.settings.schema import ListenerSettings, Settings


def served_of(settings: Settings, listener: ListenerSettings) -> LocalDomains:
    """Return the local domains for one listener."""
    named = settings.site.domains
    own = domains_of(named or listener.recipient_domains)
    if listener.protocol != "smtp":
        return LocalDomains(own | served_domains(settings), complete=bool(own))
    final = not listener.upstream or Address.parse(listener.upstream).protocol == "lmtp"
    return LocalDomains(own | served_domains(settings), complete=bool(own), final=final)


def served_domains(settings: Settings) -> frozenset[str]:
    """Return all local domains that the settings name."""
    listed = [one.recipient_domains for one in settings.listener.values()]
    listed += [settings.delivery.domains, settings.feedback.domains]
    return domains_of(settings.site.domains or chain.from_iterable(listed))


def person_names(settings: Settings) -> PersonNames | None:
    """Return the rules for names; None if persons are not enabled.

    SettingsError if a section [person.*] names no person, and for the errors of `all_names`.
    """
    names = all_names(settings) if settings.persons.enabled else None
    _check_sections(settings, names)
    return names


def _check_sections(settings: Settings, names: PersonNames | None) -> None:
    """SettingsError if a section names no person, or two name the same one."""
    sections: dict[str, str] = {}
    for given in settings.person:
        try:
            name = named_person(names, given)
        except UserError as error:
            raise SettingsError(f"[person.{given}]: {error}", hint=error.hint) from error
        if name in sections:
            raise SettingsError(
                f"[person.{given}] and [person.{sections[name]}] are one person",
                hint="remove one of them",
            )
        sections[name] = given


def recipient_costs(settings: Settings, names: PersonNames | None) -> RecipientCosts:
    """Return the costs of domains and, with names, of persons."""
    logins = names.logins if names else frozenset()
    return RecipientCosts(
        persons={
            names.of(given): OwnCosts(f"person.{given}", costs)
            for given, section in settings.person.items()
            if names and (costs := section.costs)
        },
        domains={
            domain_of(f"@{name}"): OwnCosts(f"domain.{name}", costs)
            for name, section in settings.domain.items()
            if (costs := section.costs)
        },
        login_domain=next(iter(logins)) if len(logins) == 1 else "",
    )


def all_names(settings: Settings) -> PersonNames:
    """Return the rules for names, whether persons are enabled or not.

    If only one domain is served, its addresses are logins. If several domains are served, only
    addresses in `feedback.domains` are logins, because ann@ in two domains may be two persons.
    SettingsError for an alias file that cannot be read, or with an invalid line.
    """
    served, delimiter = served_domains(settings), settings.delivery.delimiter
    logins = domains_of(settings.feedback.domains) or (served if len(served) == 1 else frozenset())
    return PersonNames(delimiter, logins, served, _aliases(settings.persons.aliases))


def _aliases(path: str) -> dict[str, str]:
    if not path:
        return {}
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the alias file {path} cannot be read: {error}") from error
    return aliases_of(text, path)
