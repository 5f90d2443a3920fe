"""Lists of senders that a person, a domain or the whole site wants or does not want. Pure.

    news@example.org    this address
    example.org         the addresses of this domain and of its subdomains

A list has at most `MOST_SENDERS` entries, each with one word: `wanted` or `unwanted`. `rulings`
has the precedence of lists. Within a list the most specific entry for an address decides. If one
address of a message is wanted and another one is not, the message is wanted. `wanted` needs an
authentic sender (`sender_evidence`), `unwanted` does not.

Entries are ASCII in lower case, domains in their ASCII form, so that `exаmple.org` with a Cyrillic
letter is another domain, and is shown as such (`xn--exmple-4nf.org`). A domain needs two labels at
least; there are no wildcards. Failure: UserError for a text that is no sender, LimitError for a
list with too many entries, StoreDamagedError for a list that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, get_args

from spamnb.core.mail.domains import domain_of
from spamnb.core.policy.rulings import WORDS, Ruling, Rulings, Word
from spamnb.core.policy.sender_evidence import SenderEvidence, sender_form
from spamnb.errors import LimitError, StoreDamagedError, UserError

OwnerKind = Literal["person", "domain", "site"]

_WORDS: Final[Mapping[str, Word]] = {word: word for word in WORDS}
OWNERS: Final[tuple[OwnerKind, ...]] = get_args(OwnerKind)
"""the owners of lists, in the order in which their lists are asked"""
MOST_SENDERS: Final = 1000
"""Entries of one list: 44 KB of usual length, 280 KB at most."""
_MOST_CHARS: Final = 254
"""of an address (RFC 5321 4.5.3.1.3)"""
_MOST_ADDRESSES: Final = 8
"""claimed by one message: a From field may have thousands, and each is looked up"""
_MOST_PARENTS: Final = 8
"""domains above one address"""
_SEARCHED: Final = 512
"""Bytes that are searched from the start; a longer range is halved first."""
_LOCAL = re.compile(r"[!#-'+\-./-9=^-~]{1,64}")
_DOMAIN = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]")


class ListedSender(NamedTuple):
    """One entry of a list."""

    sender: str
    word: Word
    time_us: int
    """when it was added"""


class ListOwner(NamedTuple):
    """The owner of a list."""

    kind: OwnerKind
    name: str = ""
    """of the person or the domain"""
    id: int = 0
    """the keyed hash of the name; 0 for the site"""

    @property
    def key(self) -> bytes:
        """The key of the list in a store."""
        return self.kind[:1].encode() + self.id.to_bytes(8)

    @property
    def shown(self) -> str:
        """The owner in words."""
        return f"{self.kind} {self.name}" if self.name else "all recipients"


def owner_id(key: bytes) -> int:
    """The id in a `ListOwner.key`."""
    return int.from_bytes(key[1:])


@dataclass(frozen=True, slots=True)
class SenderList:
    """The list of one owner."""

    kind: OwnerKind
    name: str = ""
    lines: bytes = b""
    r"""for each entry `\nSENDER WORD TIME`, sorted; one is found without reading the others"""

    def __len__(self) -> int:
        return self.lines.count(b"\n")

    def __iter__(self) -> Iterator[ListedSender]:
        for line in self.lines.decode("ascii").split("\n")[1:]:
            try:
                sender, word, time_us = line.split(" ")
                listed = ListedSender(sender, _WORDS[word], int(time_us))
            except (ValueError, KeyError) as error:
                raise StoreDamagedError(
                    f"the list of senders of {self.kind} {self.name} is damaged",
                    hint="run spamnb check",
                ) from error
            yield listed

    @property
    def last_us(self) -> int:
        """When the newest entry was added; 0 without entries."""
        return max((one.time_us for one in self), default=0)

    def word_of(self, sender: str) -> Word | None:
        """The word of an entry; None if there is no such entry."""
        wanted = f"\n{sender} ".encode("ascii", "replace")
        # A blank comes before all characters of a sender, so the lines are in order of their bytes.
        low, high = 0, len(self.lines)
        while high - low > _SEARCHED:
            middle = self.lines.find(b"\n", (low + high) // 2, high)
            if middle < 0:
                break
            if self.lines[middle : middle + len(wanted)] <= wanted:
                low = middle
            else:
                high = middle
        at = self.lines.find(wanted, low, high)
        if at < 0:
            return None
        return "unwanted" if self.lines.startswith(b"unwanted ", at + len(wanted)) else "wanted"

    def naming(self, address: str) -> tuple[str, Word] | None:
        """The most specific entry for an address, with its word; None if there is none."""
        words = ((entry, self.word_of(entry)) for entry in entries_of(address))
        return next(((entry, word) for entry, word in words if word), None)

    def put(self, sender: str, word: Word | None, time_us: int) -> SenderList:
        """The list with this word for a sender; None removes the sender."""
        entries = {one.sender: one for one in self}
        if word is None:
            entries.pop(sender, None)
        else:
            entries[sender] = ListedSender(sender, word, time_us)
        if len(entries) > max(MOST_SENDERS, len(self)):
            raise LimitError(
                f"a list has at most {MOST_SENDERS} senders", hint="remove some, or list a domain"
            )
        lines = "".join(f"\n{one.sender} {one.word} {one.time_us}" for _, one in
                        sorted(entries.items()))  # fmt: skip
        return replace(self, lines=lines.encode("ascii"))


class RecipientLists(NamedTuple):
    """The lists of senders that hold for the recipients of a message."""

    site: tuple[SenderList, ...] = ()
    """for all recipients"""
    own: Mapping[str, tuple[SenderList, ...]] = {}
    """by recipient, for those with a list of the person or the domain, in the order of `OWNERS`"""

    def rulings(self, message: SenderEvidence) -> Rulings:
        """The decisions of the lists about a message."""
        lists = {id(mine): mine for mine in self.own.values()}
        found = {key: ruling_of(mine, message) for key, mine in lists.items()}
        own = {name: one for name, mine in self.own.items() if (one := found[id(mine)])}
        return Rulings(ruling_of(self.site, message), own)


def sender_of(text: str) -> str:
    """Return the entry for an address or a domain that a user gives; UserError for other text."""
    given = text.strip() if len(text) <= _MOST_CHARS else ""
    entry = sender_form(given)
    local, at, domain = entry.rpartition("@")
    is_right = (not at or _LOCAL.fullmatch(local)) and _DOMAIN.fullmatch(domain)
    if not is_right or len(entry) > _MOST_CHARS or given.count("@") > 1:
        shown = text[:80].encode("ascii", "backslashreplace").decode()
        raise UserError(
            f"{shown!r} is not a sender",
            hint="give an address such as news@example.org, or a domain such as example.org",
        )
    return entry


def owner_domain(text: str) -> str:
    """Return the domain of recipients that an administrator names; UserError for other text."""
    domain = sender_form(text.strip()[: _MOST_CHARS + 1].removeprefix("@"))
    if "@" in domain or not _DOMAIN.fullmatch(domain) or len(domain) > _MOST_CHARS:
        raise UserError(f"{text[:80]!a} is not a domain", hint="give one such as example.org")
    return domain


def ruling_of(lists: Iterable[SenderList], message: SenderEvidence) -> Ruling | None:
    """Return the decision of the first of these lists that names the sender of a message."""
    asked = [one for one in lists if _may_name(one, message)]
    for one in asked:
        found = [
            (word, entry)
            for address in message.claimed[:_MOST_ADDRESSES]
            if (listed := _listed(one, address, message))
            for word, entry in [listed]
        ]
        if found:
            word, entry = next((pair for pair in found if pair[0] == "wanted"), found[0])
            return Ruling(word, f"by-{one.kind}", entry)
    return None


def _may_name(senders: SenderList, message: SenderEvidence) -> bool:
    addresses = message.may_claim[:_MOST_ADDRESSES]
    return any(senders.word_of(entry) for one in addresses for entry in entries_of(one))


def _listed(
    senders: SenderList, address: str, message: SenderEvidence
) -> tuple[Word, str] | None:  # fmt: skip
    """The most specific entry that counts for an address."""
    for entry in entries_of(address):
        word = senders.word_of(entry)
        is_forged = word == "wanted" and not (
            address in message.single and message.is_authentic(address)
        )
        if word and not is_forged:
            return word, entry
    return None


def entries_of(address: str) -> Iterator[str]:
    """Yield the entries that can match an address, the most specific first."""
    if len(address) > 2 * _MOST_CHARS:
        return
    yield sender_form(address)
    labels = domain_of(address).split(".")
    for start in range(max(0, len(labels) - _MOST_PARENTS), len(labels) - 1):
        yield ".".join(labels[start:])
