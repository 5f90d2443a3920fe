"""The sender of a message on its page: the lists that name it, and buttons that change them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from spamnb.core.mail.domains import domain_of
from spamnb.core.policy.rulings import WORDS
from spamnb.core.policy.senders import entries_of, sender_of
from spamnb.endpoints.console.callers import ApiCaller
from spamnb.endpoints.console.pages.page import Act, Notice, PageRequest, ask, owned
from spamnb.endpoints.console.pages.texts import text, word
from spamnb.endpoints.console.parameters import TEXT, Parameter, choice
from spamnb.endpoints.console.site import ConsoleSite
from spamnb.errors import UserError

_MOST_RECIPIENTS: Final = 5
"""recipients with lists that the page offers to an administrator"""


class SenderChoice(NamedTuple):
    """A list that the visitor may change."""

    value: str
    """KIND:NAME, as the form sends it; empty for the own list"""
    kind: str
    name: str


class SenderView(NamedTuple):
    """The sender of a message, and the lists that name it."""

    names: tuple[str, ...]
    """the addresses and their domains, as far as they can be listed"""
    entries: list[Mapping[str, Any]]
    choices: list[SenderChoice]


def sender_view(
    site: ConsoleSite, request: PageRequest, caller: ApiCaller, notes: Mapping[str, str]
) -> SenderView | None:
    """Return what the page shows of the sender; None if no name of it can be listed."""
    names = names_of(notes)
    choices = _choices(site, request, notes)
    if not names or not choices:
        return None
    try:
        every = ask(site, caller, "senders")["senders"]
    except UserError:  # the user is not a person and has no list
        return None
    matching = dict.fromkeys(entry for one in _addresses(notes) for entry in entries_of(one))
    entries = [one for name in matching for one in every if one["sender"] == name]
    return SenderView(names, entries, choices)


def names_of(notes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the author of a message and the sender of its envelope, each with its domain."""
    found: dict[str, None] = {}
    for address in _addresses(notes):
        for name in (address, domain_of(address)):
            with suppress(UserError):
                found[sender_of(name)] = None
    return tuple(found)


def _addresses(notes: Mapping[str, str]) -> list[str]:
    return [one for name in ("author", "from") if (one := notes.get(name))]


def _choices(
    site: ConsoleSite, request: PageRequest, notes: Mapping[str, str]
) -> list[SenderChoice]:
    has_persons = site.config.persons is not None
    if request.visitor.role == "user":
        return [SenderChoice("", "own", "")] if has_persons else []
    to = notes.get("to", "").split()[:_MOST_RECIPIENTS]
    domains = dict.fromkeys(filter(None, map(domain_of, to)))
    named = [("person", one) for one in to if has_persons]
    named += [("domain", one) for one in domains]
    found = [SenderChoice(f"{kind}:{name}", kind, name) for kind, name in named]
    return [*found, SenderChoice("site:", "site", "")]


def _list(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Change a list; the answer has a form that undoes the change."""
    values = request.values
    caller, _ = owned(site, request.visitor, values["signature"])
    kind, _, name = values["of"].partition(":")
    target = {kind: name} if kind in ("person", "domain") else {}
    answer = ask(
        site, caller, "list_sender", word=values["word"], sender=values["sender"], **target
    )
    facts = answer["facts"]
    if answer["state"] == "unchanged":
        return [Notice("done", text("receipt.unchanged"), answer["reason"])]
    now = word("listed", facts["word"] or "none")
    said = text("receipt.listed", sender=facts["sender"], word=now)
    more = facts.get("warning") or ""
    back = {"do": "list", "word": facts["before"] or "none", "sender": facts["sender"]}
    back |= {"of": values["of"]} if values["of"] else {}
    return [Notice("done", said, more, back=tuple(back.items()))]


LIST: Final = Act(
    _list,
    (
        Parameter("signature", TEXT, "The signature.", required=True),
        Parameter("word", choice(*WORDS, "none"), "What the sender is.", required=True),
        Parameter("sender", TEXT, "The sender.", required=True),
        Parameter("of", TEXT, "The list, as KIND:NAME.", ""),
    ),
)
