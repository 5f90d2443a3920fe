"""Which recipients have costs of their own: single persons, and the domains of addresses. Pure.

A person's costs come before those of the domain. Must not know models, mail or settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spamnb.core.mail.domains import domain_of
from spamnb.core.model.costs import Costs, OwnCosts
from spamnb.core.persons.names import PersonNames


@dataclass(frozen=True, slots=True)
class RecipientCosts:
    """The costs of all recipients that have their own."""

    persons: Mapping[str, OwnCosts] = field(default_factory=dict)
    """by the name of the person, as `PersonNames.of` returns it"""
    domains: Mapping[str, OwnCosts] = field(default_factory=dict)
    """by the domain of the address, as `domain_of` returns it"""
    login_domain: str = ""
    """the domain of a recipient that is a login; empty if there is no single one"""

    def __bool__(self) -> bool:
        return bool(self.persons or self.domains)

    def of(self, recipient: str, name: str) -> OwnCosts | None:
        """The costs for an address or login and the person's name, which is empty for none."""
        found = self.persons.get(name) if name else None
        if found or not self.domains:
            return found
        return self.domains.get(domain_of(recipient) or self.login_domain)

    def of_label(self, user: str, names: PersonNames | None) -> Costs | None:
        """The costs that apply to a user's label on their own mail; None for those of all users."""
        own = self.of(user, names.of(user)) if names else None
        return own.costs if own else None
