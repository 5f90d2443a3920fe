"""An index of the history by terms: which entries have all of some terms, newest first.

    terms     hash of a term, 8 bytes | seq u64 (big-endian)   nothing
    entries   seq                                              the hashes of the entry's terms
    meta      "mark", "key", "position"

The folder can always be built again from the history. It is deleted and started anew when it is
damaged, after a power cut, and when its terms were made in another way (`mark`). Terms are hashed
with a random key. Must not know what a term means. Failure: StoreError.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from spamnb.errors import StoreDamagedError, StoreError, StoreMissingError, StoreVersionError
from spamnb.store.files import make_folder, refused
from spamnb.store.history.boot_marker import BootMarker
from spamnb.store.lmdb.environment import Environment, environments, release, share
from spamnb.store.lmdb.sharing import EnvironmentConfig, inode_of
from spamnb.store.lmdb.table import LmdbTable

_NAMES = ("terms", "entries", "meta")
_SEQ = struct.Struct(">Q")
_HASH_BYTES = 8
_MOST_STEPS = 2_000
"""look-ups in one page: some 7 ms"""
_FORGET_BATCH = 500

Tables = dict[str, LmdbTable]
Result = TypeVar("Result")


class SeqPage(NamedTuple):
    """A part of the result of a search."""

    seqs: list[int]
    """newest first"""
    below: int
    """where the search goes on; 0 at the end"""


class LookupIndex:
    """The index in one folder. Made by `open`; for one process."""

    def __init__(self, folder: Path, mark: str) -> None:
        self._folder = folder
        self._mark = mark.encode()
        self._lost: Environment | None = None
        """of a deleted folder: closed later, since a search may still use it"""
        self._begin()

    def _begin(self) -> None:
        self._boot = BootMarker()
        make_folder(self._folder)
        if self._boot.begin(self._folder):
            self._delete()
        try:
            self._environment = self._share()
        except (StoreDamagedError, StoreMissingError, StoreVersionError):
            self._delete()
            self._environment = self._share()
        if self._read(lambda tables: bytes(tables["meta"].get(b"mark") or b"")) != self._mark:
            self.clear()
        self._key = self._read(lambda tables: bytes(tables["meta"].get(b"key") or b""))

    def renew_if_deleted(self) -> None:
        """Start anew if the folder was deleted while it was open."""
        lost, self._lost = self._lost, None
        if lost is not None:
            release(lost)
        if inode_of(self._folder) == 0:
            self._lost = self._environment
            environments.evict(self._environment)
            self._begin()

    @classmethod
    def open(cls, folder: Path, mark: str) -> Self:
        """The index in a folder; an empty one if its terms were not made in the way of `mark`."""
        return cls(folder, mark)

    def _share(self) -> Environment:
        plan = EnvironmentConfig(self._folder, _NAMES, sync=False)
        with suppress(StoreMissingError):
            return share(plan, create=False)
        return share(plan, create=True)

    def _delete(self) -> None:
        """Delete the folder's files; nothing is open in it yet."""
        try:
            shutil.rmtree(self._folder)
        except OSError as error:
            raise refused(error, self._folder) from error
        make_folder(self._folder)
        self._boot.begin(self._folder)

    def clear(self) -> None:
        """Forget all entries, and start with a new key."""
        while self.forget_before(1 << 64):
            pass

        def run(tables: Tables) -> None:
            tables["meta"].put(b"mark", self._mark)
            tables["meta"].put(b"key", secrets.token_bytes(32))
            tables["meta"].put(b"position", _SEQ.pack(0))

        self._environment.transact(run)
        self._key = self._read(lambda tables: bytes(tables["meta"].get(b"key") or b""))

    def close(self) -> None:
        """Write to the disk and close."""
        with suppress(StoreError):
            self._environment.sync()
        for environment in (self._lost, self._environment):
            if environment is not None:
                release(environment)
        self._boot.end()

    def _read(self, run: Callable[[Tables], Result]) -> Result:
        with self._environment.read() as tables:
            return run(tables)

    # --- writing ---

    @property
    def position(self) -> int:
        """The seq up to which the history is indexed."""
        return self._read(
            lambda tables: int(_SEQ.unpack(tables["meta"].get(b"position") or b"")[0])
        )

    def add(self, entries: Sequence[tuple[int, Iterable[str]]]) -> None:
        """Add entries with their terms, in ascending order of their seqs."""
        hashed = [(_SEQ.pack(seq), sorted(set(map(self._hash, terms)))) for seq, terms in entries]
        keys = sorted(term + seq for seq, terms in hashed for term in terms)

        def run(tables: Tables) -> None:
            for key in keys:
                tables["terms"].put(key, b"")
            for seq, terms in hashed:
                tables["entries"].put(seq, b"".join(terms))
            tables["meta"].put(b"position", hashed[-1][0])

        if hashed:
            self._environment.transact(run)

    def forget_before(self, seq: int) -> int:
        """Delete some entries from before a seq; return how many."""

        def run(tables: Tables) -> int:
            oldest = list(islice(tables["entries"].scan(), _FORGET_BATCH))
            gone = [(key, bytes(terms)) for key, terms in oldest if _SEQ.unpack(key)[0] < seq]
            for key, terms in gone:
                for at in range(0, len(terms), _HASH_BYTES):
                    tables["terms"].delete(terms[at : at + _HASH_BYTES] + key)
                tables["entries"].delete(key)
            return len(gone)

        oldest = self._read(lambda tables: next(tables["entries"].scan(), (b"",))[0])
        if not oldest or _SEQ.unpack(oldest)[0] >= seq:
            return 0
        return self._environment.transact(run)

    # --- reading ---

    def page(self, terms: Iterable[str], below: int, since: int, most: int) -> SeqPage:
        """Entries with all these terms, since <= seq < below, at most so many.

        Each list of seqs in turn gives its greatest seq that is not above the candidate, so the
        rarest term determines the work. A page may be short: see `below`.
        """
        heads = [self._hash(term) for term in terms]
        at, steps = below - 1, 0
        found: list[int] = []
        with self._environment.read() as tables:
            lists = [_SeqList(tables["terms"], head) for head in heads]
            lists = lists or [_SeqList(tables["entries"], b"")]
            while len(found) < most and steps < _MOST_STEPS:
                low = at
                for one in lists:
                    low = one.at_most(low)
                    steps += 1
                    if low < max(since, 1):
                        return SeqPage(found, 0)
                if low == at:
                    found.append(at)
                    at -= 1
                else:
                    at = low
        return SeqPage(found, at + 1)

    def count(self) -> int:
        """How many entries there are."""
        return self._environment.stat()["entries"]["entries"]

    def _hash(self, term: str) -> bytes:
        raw = term.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(raw, digest_size=_HASH_BYTES, key=self._key).digest()


class _SeqList(NamedTuple):
    """The seqs behind one head of keys."""

    table: LmdbTable
    head: bytes

    def at_most(self, seq: int) -> int:
        """The greatest seq up to this one; -1 if there is none."""
        for key, _ in self.table.scan(self.head + _SEQ.pack(seq), down=True):
            if key[:-8] == self.head:
                return int(_SEQ.unpack(key[-8:])[0])
            break
        return -1
