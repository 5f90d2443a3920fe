"""Whom the people of a site write to, as keyed hashes.

    known = Correspondents(home, secret)      the key of the model
    known.note("ann", ["bob@shop.example"], "1@site.example", now_us)   mail that ann sent
    known.relation("ann", "bob@shop.example", ["1@site.example"], now_us) -> "reply"
    known.note_name("ann", "ann lee", "ann@site.example", now_us)           the name in From
    known.has_name_of_user("ann lee", "al@mail.example", now_us) -> True    another address

    people   owner, address              when the owner wrote there last
             all, name                   when, from which address, and which owner
    sent     owner, Message-ID, domain   when the message was sent to that domain
    owners   owner                       how many rows of each table

An owner is a person, or the whole site if persons are not enabled. Each part of a key is a hash by
the key of the model, so the file names no address; a program with the home and an address can still
ask for it. An answer counts only from a domain that the message was sent to, because the
Message-IDs of letters to mailing lists are public. Rows count for `KEPT_US`; an owner has at most
`MOST` of each table, of which the oldest end first. A damaged file is replaced by an empty one:
then people are known again as they write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal, NamedTuple

from spamnb.mail.envelope import domain_of
from spamnb.store.model_store import LmdbTable, release, share_or_renew

FOLDER: Final = "correspondents"
KEPT_US: Final = 400 * 86_400 * 1_000_000
MOST: Final = 4_000
"""rows of one owner in each table"""
MOST_OWNERS: Final = 100_000
_HASH_BYTES: Final = 8
_PURPOSE: Final = b"correspondents"
_TIME_BYTES: Final = 8
_PEOPLE, _SENT, _OWNERS = "people", "sent", "owners"
Relation = Literal["none", "correspondent", "reply"]
RELATIONS: Final[tuple[Relation, ...]] = ("none", "correspondent", "reply")
"""the weakest first"""
Tables = dict[str, LmdbTable]
_ALL: Final = "\0"
"""in place of an owner: the names of all"""


class _Row(NamedTuple):
    table: str
    name: bytes
    time_us: int
    about: bytes = b""


class Correspondents:
    """The correspondents of one home; several processes may have it open."""

    def __init__(self, home: Path, secret: bytes) -> None:
        self._key = secret[:64]
        self._environment = share_or_renew(home / FOLDER, (_PEOPLE, _SENT, _OWNERS))

    def close(self) -> None:
        """Close the files."""
        release(self._environment)

    def note(self, owner: str, addresses: Sequence[str], message_id: str, now_us: int) -> None:
        """Note a message that an owner sent to these addresses."""
        self.note_all(owner, [(addresses, message_id, now_us)])

    def note_all(self, owner: str, letters: Iterable[tuple[Sequence[str], str, int]]) -> None:
        """Note many messages at once: addresses, Message-ID and time of each."""
        rows: list[_Row] = []
        for addresses, message_id, time_us in letters:
            rows += [_Row(_PEOPLE, self._hash(one), time_us) for one in addresses]
            domains = dict.fromkeys(map(domain_of, addresses)) if message_id else ()
            rows += [_Row(_SENT, self._sent(message_id, one), time_us) for one in domains]
        self._put(self._hash(owner), rows)

    def note_name(self, owner: str, name: str, address: str, now_us: int) -> None:
        """Note the name under which an owner writes; see `letters.person_name`."""
        about = self._hash(address) + self._hash(owner)
        self._put(self._hash(_ALL), [_Row(_PEOPLE, self._hash(name), now_us, about)])

    def has_name_of_user(self, name: str, address: str, now_us: int) -> bool:
        """Whether a name is that of an owner who writes from another address."""
        with self._environment.read() as tables:
            found = tables[_PEOPLE].get(self._hash(_ALL) + self._hash(name))
        if found is None or _time(found) <= now_us - KEPT_US:
            return False
        return bytes(found)[_TIME_BYTES:][:_HASH_BYTES] != self._hash(address)

    def _put(self, mine: bytes, rows: Sequence[_Row]) -> None:
        def run(tables: Tables) -> None:
            counts = _counts(tables, mine)
            if not any(counts.values()) and tables[_OWNERS].stat()["entries"] >= MOST_OWNERS:
                return
            for table, name, time_us, about in rows:
                before = tables[table].get(mine + name)
                if before is not None and _time(before) >= time_us:
                    continue
                counts[table] += before is None
                tables[table].put(mine + name, time_us.to_bytes(_TIME_BYTES) + about)
            for table in (_PEOPLE, _SENT):
                if counts[table] > MOST:
                    counts[table] = _make_room(tables[table], mine)
            tables[_OWNERS].put(mine, _row(counts))

        if rows:
            self._environment.transact(run)

    def relation(
        self, owner: str, author: str, answered: Iterable[str], now_us: int
    ) -> Relation | None:
        """How an owner knows the author of an answer to these; None if the owner has no rows."""
        mine, least = self._hash(owner), now_us - KEPT_US
        with self._environment.read() as tables:
            if tables[_OWNERS].get(mine) is None:
                return None
            for one in answered:
                found = tables[_SENT].get(mine + self._sent(one, domain_of(author)))
                if found is not None and _time(found) > least:
                    return "reply"
            found = tables[_PEOPLE].get(mine + self._hash(author))
            return "correspondent" if found is not None and _time(found) > least else "none"

    def erase(self, owner: str) -> int:
        """Delete all rows of an owner; return their number."""
        mine, named = self._hash(owner), self._hash(_ALL)

        def run(tables: Tables) -> int:
            gone = [
                (table, key) for table in (_PEOPLE, _SENT) for key, _ in _of(tables[table], mine)
            ]
            names = [key for key, value in _of(tables[_PEOPLE], named) if value.endswith(mine)]
            for table, key in (*gone, *((_PEOPLE, one) for one in names)):
                tables[table].delete(key)
            tables[_OWNERS].delete(mine)
            if names:
                counts = _counts(tables, named)
                counts[_PEOPLE] -= len(names)
                tables[_OWNERS].put(named, _row(counts))
            return len(gone) + len(names)

        return self._environment.transact(run)

    def _sent(self, message_id: str, domain: str) -> bytes:
        return self._hash(f"{message_id}\0{domain}")

    def _hash(self, text: str) -> bytes:
        data = text.lower().encode("utf-8", "replace")
        return blake2b(
            data, key=self._key, digest_size=_HASH_BYTES, person=b"correspondents"
        ).digest()


def has_correspondents(home: Path) -> bool:
    """Whether a home has a file of correspondents."""
    return (home / FOLDER).is_dir()


def _make_room(table: LmdbTable, mine: bytes) -> int:
    """Delete the oldest quarter of an owner's rows; return how many are left."""
    rows = sorted(_of(table, mine), key=lambda row: row[1])  # the time is first
    gone = len(rows) - 3 * MOST // 4
    for key, _ in rows[:gone]:
        table.delete(key)
    return len(rows) - gone


def _of(table: LmdbTable, mine: bytes) -> list[tuple[bytes, bytes]]:
    found = []
    for key, value in table.scan(mine):
        if not bytes(key).startswith(mine):
            break
        found.append((bytes(key), bytes(value)))
    return found


def _time(value: object) -> int:
    return int.from_bytes(bytes(value)[:_TIME_BYTES])  # type: ignore[call-overload]


def _counts(tables: Tables, mine: bytes) -> dict[str, int]:
    row = bytes(tables[_OWNERS].get(mine) or bytes(8))
    return {_PEOPLE: int.from_bytes(row[:4]), _SENT: int.from_bytes(row[4:])}


def _row(counts: dict[str, int]) -> bytes:
    return counts[_PEOPLE].to_bytes(4) + counts[_SENT].to_bytes(4)
