"""Domains with mailboxes at this site, from the settings. Pure."""

from __future__ import annotations

from itertools import chain

from spamnb.core.mail.domains import LocalDomains, domains_of
from spamnb.endpoints.net.address import Address
from spamnb.settings.schema import ListenerSettings, Settings


def served_of(settings: Settings, listener: ListenerSettings) -> LocalDomains:
    """Return the local domains for one listener."""
    named = settings.local.domains
    own = domains_of(named or listener.recipient_domains)
    if listener.protocol != "smtp":
        return LocalDomains(own | served_domains(settings), complete=bool(own))
    final = not listener.upstream or Address.parse(listener.upstream).protocol == "lmtp"
    return LocalDomains(own | served_domains(settings), complete=bool(own), final=final)


def served_domains(settings: Settings) -> frozenset[str]:
    """Return all local domains that the settings name."""
    listed = [one.recipient_domains for one in settings.listener.values()]
    listed += [settings.delivery.domains, settings.feedback.domains]
    return domains_of(settings.local.domains or chain.from_iterable(listed))
