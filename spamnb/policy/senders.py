"""Senders that a person, a domain or the whole site wants or does not want. Pure.

    news@example.org    this address
    example.org         the addresses of this domain and of its subdomains

`ruling_of` has the precedence of lists. Within a list the most specific entry for an address
decides. If one address of a message is wanted and another one is not, the message is wanted.
`wanted` needs an authentic sender (`SenderEvidence`), `unwanted` does not.

Failure: UserError for a text that is no sender, LimitError for a list with too many entries,
StoreDamagedError for a list that cannot be read. Reading a message never fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple, get_args

from spamnb.errors import LimitError, StoreDamagedError, UserError
from spamnb.mail import headers, limits, site_results
from spamnb.mail.envelope import LocalHosts, address_of, domain_of
from spamnb.mail.message import parted
from spamnb.mail.results import passed_domains
from spamnb.policy.headers import header_end
from spamnb.policy.rulings import WORDS, Ruling, Rulings, Word

_RETURN_PATH = re.compile(rb"(?i)return-path:[ \t]*<([^<>\s]+)>")
"""the first line of a delivered message (RFC 5321 4.4)"""
_SEPARATORS = re.compile(r"[\s<>(),:;]+")
_FROM = re.compile(rb"\nfrom[ \t]*+:((?:[^\n]*+\n[ \t])*+[^\n]*+)")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"|[()]|[^"()]+|"')


class SenderEvidence:
    """The sender addresses and authentication results of a message; parsed on demand.

    A sender address can be forged. An address is authentic only if a server of the site
    (`LocalHosts.authserv_ids`) found that DKIM or SPF passed for a domain that is aligned with it
    (the same, or one within the other), and if it is proven that this server wrote so
    (`mail.site_results`).

    `header` is that of `raw`, without which no list of results (X-Spamnb-Results) can be checked.
    """

    def __init__(self, header: bytes, local: LocalHosts, sender: str, raw: bytes = b"") -> None:
        self._header, self._raw = header, raw or header
        self._local = local
        self.sender = sender

    @cached_property
    def _parted(self) -> tuple[headers.Block, bytes]:
        return parted(self._raw, self._local, set())

    def _values(self, wanted: bytes) -> list[bytes]:
        return [value for name, value in self._parted[0].fields if name == wanted]

    @cached_property
    def claimed(self) -> list[str]:
        """The envelope's sender, if it is not the null one, and all addresses in From."""
        return [*self._of_envelope, *self._authors]

    @cached_property
    def may_claim(self) -> list[str]:
        """All of `claimed` in lower case, maybe more. Takes 10 us; reading all fields takes 40."""
        values = _FROM.findall(b"\n" + self._header.replace(b"\r\n", b"\n").lower())
        return [*self._of_envelope, *addresses_in(headers.unfold(one).strip() for one in values)]

    @cached_property
    def single(self) -> list[str]:
        """The envelope's sender, and a single author: only these can be authentic."""
        return [*self._of_envelope, *(self._authors if len(self._authors) == 1 else [])]

    @property
    def author(self) -> str:
        """The one address in From; empty if there is none, or several."""
        return self._authors[0] if len(self._authors) == 1 else ""

    def is_authentic(self, address: str) -> bool:
        """Whether an address of `single` is authenticated."""
        return any(aligned(domain_of(address), one) for one in self._passed)

    @property
    def _of_envelope(self) -> list[str]:
        return [self.sender] if self.sender else []

    @cached_property
    def _authors(self) -> list[str]:
        """All addresses in From, also those in the place of a display name."""
        return addresses_in(self._values(b"from"))

    @cached_property
    def _passed(self) -> list[str]:
        """Domains for which DKIM or SPF passed, as servers of the site found."""
        return passed_domains(self._parted[0].results)

    @property
    def parts(self) -> tuple[headers.Block, bytes]:
        """The header block, with the results that servers of the site found, and the body."""
        return self._parted

    @property
    def statement(self) -> str:
        """The value of X-Spamnb-Results for this message; empty if no result is proven."""
        return site_results.statement(*self._parted, self._local)


def evidence_of(raw: bytes, local: LocalHosts) -> SenderEvidence:
    """Return the senders of a delivered message; the envelope's sender is in Return-Path."""
    end = header_end(raw)
    head = raw if end < 0 else raw[:end]
    path = _RETURN_PATH.match(head)
    return SenderEvidence(head, local, path[1].decode("latin-1") if path else "", raw)


def addresses_in(values: Iterable[bytes]) -> list[str]:
    """All addresses in some fields, without comments and quoted names."""
    return [
        word
        for value in values
        for word in _SEPARATORS.split(_plain(value[: limits.VALUE_BYTES].decode("latin-1")) or "")
        if "@" in word
    ]


def warning_of(local: LocalHosts, what: str) -> str:
    """Why wanted senders have no effect; empty if they have one."""
    if local.authserv_ids:
        return ""
    return (
        f"{what} never match, because local.authserv_ids is empty: name the server that checks"
        " DKIM and SPF"
    )


def sender_form(text: str) -> str:
    """An address or a domain, in the one form that is compared."""
    return address_of(text, "") if "@" in text else domain_of(f"@{text}")


def _plain(value: str) -> str | None:
    """A value without comments and quoted texts; None if one does not end."""
    depth, kept = 0, []
    for match in _TOKENS.finditer(value):
        part = match[0]
        if part == '"':
            return None
        depth += {"(": 1, ")": -1}.get(part, 0)
        if depth < 0:
            return None
        if depth == 0 and part != ")":
            # A quoted text stays one word, but the sender chose its content: `;` and `=` in it are
            # no syntax, as in `"Ann" <ann@a.example>` and `smtp.mailfrom="a;b"@x`.
            kept.append("_" if part.startswith('"') else part)
    return None if depth else "".join(kept)


def aligned(sender: str, passed: str) -> bool:
    """Whether a pass for one domain authenticates a sender at another (RFC 7489 3.1, relaxed).

    Without a public suffix list two domains are aligned if one is within the other; a pass of a
    bare top-level domain does not count.
    """
    if "." not in passed or "." not in sender:
        return False
    return sender == passed or sender.endswith(f".{passed}") or passed.endswith(f".{sender}")


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
    """The list of one owner: at most `MOST_SENDERS` entries, each `wanted` or `unwanted`.

    Entries are ASCII in lower case, domains in their ASCII form, so that `exаmple.org` with a
    Cyrillic letter is another domain, and is shown as such (`xn--exmple-4nf.org`). A domain needs
    two labels at least; there are no wildcards.
    """

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
