"""Whether a login that teaches and the addresses of its mail are one person. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spamnb.core.persons.names import PersonNames


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
