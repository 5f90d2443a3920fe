"""Recipients: their names, pairs and costs. Pure.

All addresses and logins of one person get one name (`PersonNames`); `RecipientCosts` has the costs
of single persons, and of the domains of addresses. Must not know models, mail or settings. Failure:
SettingsError for a line of an alias file without a target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spamnb.errors import SettingsError, UserError
from spamnb.mail.envelope import address_of, domain_of
from spamnb.model.costs import Costs, OwnCosts

_MOST_STEPS = 10
"""aliases of aliases; a longer chain is taken for a loop"""


@dataclass(frozen=True, slots=True)
class PersonNames:
    """The rules by which addresses and logins become names.

        alias and domain -> login      an address of a login domain is named by its local part
        any other served address       is a person under its own name
        an address of another domain   is no person

    The name is the same for a recipient in the envelope and for the user that teaches; otherwise a
    label would never meet the mail of its person. Case, quotes and the part behind the delimiter do
    not count (`mail.envelope`), except where an alias names the whole address: as in Postfix,
    the entry of `john+smith@` comes before that of `john@`.
    """

    delimiter: str = "+"
    logins: frozenset[str] = frozenset()
    """domains with addresses that are logins: `login@domain` is `login`"""
    served: frozenset[str] = frozenset()
    """domains with mailboxes here; empty: not known, so that each address is a person"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """address or `@domain` -> address, login or `@domain`; an empty target is no person"""

    def of(self, text: str) -> str:
        """The name of the person with this address or login; empty if it is no person."""
        if self.aliases:
            name = self._resolved(address_of(text, ""))
        else:
            name = address_of(text, self.delimiter)
        local, at, domain = name.rpartition("@")
        if not at:
            return name
        if not local or (self.served and domain not in self.served | self.logins):
            return ""
        return local if domain in self.logins else name

    def _resolved(self, name: str) -> str:
        """The address or login behind all aliases; empty for a list, and for a loop."""
        for _ in range(_MOST_STEPS):
            target = self._target(name)
            if target is None:
                return address_of(name, self.delimiter)
            if target == name:
                # Only an alias of the name itself keeps the delimiter, not one of its mailbox or
                # its domain.
                return name if name in self.aliases else address_of(name, self.delimiter)
            name = target
        return ""

    @property
    def exact(self) -> frozenset[str]:
        """Addresses with a delimiter that belong to another person than the mailbox before it."""
        mark = self.delimiter
        return frozenset(
            one
            for one in self.aliases
            if mark and mark in one.rpartition("@")[0]
            if self.of(one) != self.of(address_of(one, mark))
        )

    def _target(self, name: str) -> str | None:
        for key in (name, address_of(name, self.delimiter)):
            if key in self.aliases:
                return self.aliases[key]
        local, at, domain = name.rpartition("@")
        target = self.aliases.get(f"@{domain}") if at else None
        return local + target if target and target.startswith("@") else target


def named_person(names: PersonNames | None, text: str) -> str:
    """The name of the person that an admin names; UserError if there is none."""
    if names is None:
        raise UserError("persons are not enabled", hint="set persons.enabled in the settings")
    if not (name := names.of(text)):
        raise UserError(
            f"{text!r} is not the address of a person here", hint="give a login or a local address"
        )
    return name


def aliases_of(text: str, source: str) -> dict[str, str]:
    """Read lines `ALIAS TARGET`, as in Postfix's virtual(5), from the text of a file.

    `#` begins a comment line; a line that starts with a blank continues the one before. A target of
    several addresses names no person.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        alias, *targets = line.replace(",", " ").split()
        if not targets:
            raise SettingsError(
                f"{source}:{number}: the alias {alias} has no target",
                hint="write `alias@example.org login`",
            )
        target = targets[0] if len(targets) == 1 else ""
        found[address_of(alias, "")] = address_of(target, "")
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0].isspace() and lines:
            lines[-1] = lines[-1][0], f"{lines[-1][1]} {line}"
        else:
            lines.append((number, line))
    return lines


def pairing_fault(names: PersonNames, login: str, addresses: Sequence[str] = ()) -> str:
    """Why labels of a login change no verdict on its mail; empty if they do.

    Without `addresses`, any address here may be the login's.
    """
    person = names.of(login)
    if not person:
        return f"{login} is not a person, but a list or an address of another domain"
    for address in addresses:
        if (recipient := names.of(address)) != person:
            return (
                f"{login} labels for {person}, mail to {address} is for {recipient or 'no person'}"
            )
    domains = names.served | names.logins
    known = (*addresses, *(f"{person}@{domain}" for domain in domains), *names.aliases)
    if "@" in person or person in map(names.of, known):
        return ""
    return f"{login} labels for {person}, but no address here belongs to this person"


@dataclass(frozen=True, slots=True)
class RecipientCosts:
    """The costs of all recipients that have their own.

    A person's costs come before those of the domain.
    """

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
