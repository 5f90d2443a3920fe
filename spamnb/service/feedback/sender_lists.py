"""Change and read the lists of senders, by the rights of the user that asks.

    admin       the list of any person or domain, and that of the site
    user        the own list, if persons are enabled; the name is that of the person
    stranger    none

The sender is an address, a domain, or the author of a message. A change is on disk when `change`
returns, and is undone by its opposite: the answer names the earlier word. Setting the same word
again changes nothing. Failure: UserError for what is refused; a StoreError is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spamnb.core.mail.local_hosts import LocalHosts
from spamnb.core.persons.names import PersonNames, named_person
from spamnb.core.policy.rulings import WORDS, Ruling, Word
from spamnb.core.policy.sender_evidence import evidence_of
from spamnb.core.policy.senders import ListOwner, SenderList, owner_domain, ruling_of, sender_of
from spamnb.errors import RefError, RefusedError, UserError
from spamnb.service.engine.clock import iso, now_us
from spamnb.service.engine.filter import Filter
from spamnb.service.feedback.ownership import OwnershipCheck
from spamnb.service.feedback.types import Answer, ListTarget, SenderChange
from spamnb.service.limits import TeachingRules
from spamnb.store.contract import WriteView
from spamnb.store.history.entry import HistoryEntry


@dataclass(frozen=True, slots=True)
class SenderLists:
    """The lists of one model."""

    model: Filter
    names: PersonNames | None
    rules: TeachingRules

    def owner(self, target: ListTarget) -> ListOwner:
        """Return the owner of the list that is meant; UserError without the right to it."""
        if target.trust == "stranger":
            raise RefusedError("a report of an unknown sender changes no list of senders")
        if target.trust == "admin":
            return self._named(target)
        if target.person or target.domain:
            raise RefusedError("a user may change only that user's list of senders")
        return self._person(target.user)

    def _named(self, target: ListTarget) -> ListOwner:
        if target.person and target.domain:
            raise UserError("give a person or a domain, and not both")
        if target.person:
            return self._person(target.person)
        if not target.domain:
            return ListOwner("site")
        domain = owner_domain(target.domain)
        if self.rules.served and domain not in self.rules.served:
            served = ", ".join(sorted(self.rules.served))
            raise UserError(f"{domain} has no mailboxes here", hint=f"these have: {served}")
        return ListOwner("domain", domain, self.model.person(domain))

    def _person(self, text: str) -> ListOwner:
        name = named_person(self.names, text)
        if not name.isprintable() or len(name) > 320:
            raise UserError(f"{name[:80]!a} is not the name of a person")
        return ListOwner("person", name, self.model.person(name))

    def change(self, asked: SenderChange) -> Answer:
        """Set or remove the word of a sender."""
        owner, sender = self.owner(asked.target), self._sender(asked)
        now = now_us()

        def run(view: WriteView) -> Word | None:
            old = view.senders(owner.key) or SenderList(owner.kind, owner.name)
            before = old.word_of(sender)
            if before != asked.word:
                view.put_senders(owner.key, old.put(sender, asked.word, now))
            return before

        before = self.model.store.transact(run)
        facts: dict[str, object] = {"sender": sender, "word": asked.word, "before": before}
        facts |= {"list": owner.kind, "owner": owner.name}
        if before == asked.word:
            return Answer("unchanged", reason=_said(sender, before), facts=facts)
        return Answer("listed", reason=_said(sender, asked.word), facts=facts)

    def _sender(self, asked: SenderChange) -> str:
        if sum(map(bool, (asked.sender, asked.raw, asked.refs))) != 1:
            raise UserError(
                "give exactly one of these: a sender, a message, or references to a message"
            )
        if asked.sender:
            return sender_of(asked.sender)
        author = (
            evidence_of(asked.raw, LocalHosts()).author if asked.raw else self._author_of(asked)
        )
        if not author:
            raise UserError(
                "the message does not name exactly one sender",
                hint="give the address of the sender",
            )
        return sender_of(author)

    def _author_of(self, asked: SenderChange) -> str:
        """The author of the message that a reference names; for a user, one delivered to them."""
        check = OwnershipCheck(self.model, self.rules)
        for ref in asked.refs:
            admin = asked.target.trust == "admin"
            entry = check.entry_of(ref) if admin else check.owned(asked.target.user, ref)
            if entry is not None:
                return author_in(entry)
        raise RefError("no message has this reference", hint="give the address of the sender")

    def ruling_on(self, raw: bytes, person: str, domain: str) -> Ruling | None:
        """Return what the lists decide about a message to a person, or to all without a name.

        `domain` is that of the person's address. The envelope is that of the delivered message.
        """
        lists = self._lists(person, domain)
        return ruling_of(lists, evidence_of(raw, self.model.reader.local)) if lists else None

    def naming(self, entry: HistoryEntry, person: str, domain: str) -> list[Ruling]:
        """Return what each list says of the sender of a message in the history.

        The results are in the order in which the lists are asked. A list that wants a sender
        decides only if the sender is authentic, which the history does not know.
        """
        senders = [entry.notes[name] for name in ("author", "from") if entry.notes.get(name)]
        rulings = []
        for one in self._lists(person, domain):
            named = dict(filter(None, map(one.naming, senders)))
            first = sorted(named.items(), key=lambda pair: WORDS.index(pair[1]))[:1]
            rulings += [Ruling(word, f"by-{one.kind}", sender) for sender, word in first]
        return rulings

    def _lists(self, person: str, domain: str) -> list[SenderList]:
        owners = [ListOwner("site")]
        if domain:
            owners.insert(0, ListOwner("domain", domain, self.model.person(domain)))
        if person:
            owners.insert(0, self._person(person))
        with self.model.store.read() as view:
            return [one for owner in owners if (one := view.senders(owner.key))]

    def shown(self, target: ListTarget) -> Iterator[dict[str, Any]]:
        """Yield the entries of a list as values of JSON; of all lists if an admin names none."""
        all_lists = target.trust == "admin" and not (target.person or target.domain)
        owner = None if all_lists else self.owner(target)
        with self.model.store.read() as view:
            lists = dict(view.sender_lists()) if owner is None else {}
            if owner is not None and (mine := view.senders(owner.key)):
                lists = {owner.key: mine}
        for one in lists.values():
            for entry in one:
                yield {"list": one.kind, "owner": one.name, "sender": entry.sender} | {
                    "word": entry.word,
                    "time": iso(entry.time_us),
                }


def author_in(entry: HistoryEntry) -> str:
    """Return the author of a message of the history, or its envelope's sender; empty if unknown."""
    return entry.notes.get("author") or entry.notes.get("from", "")


def _said(sender: str, word: Word | None) -> str:
    return f"{sender} is {word}" if word else f"{sender} is not listed"
