"""Is SQLite a better place for the history of verdicts, and what does a table of ids save?

The entries of messages of the corpus (see `scripts/bench/store`), with typical notes, are added to
a history that has COPIES times 2,000 entries already: without a table of frequent ids, with one,
and to a table of SQLite (write-ahead log, synchronous=NORMAL, checkpoints beside) with the same
bytes, with indexes by signature, digest and Message-ID and without them. Prints the processor time
of an entry in us (encoding, adding, and moving or checkpoints) for transactions of 1, 4 and 8
entries, and the bytes of an entry on the disk.

    python scripts/experiments/0088-history-on-sqlite.py [COPIES]

Two shared cores, 9 copies, three runs (448 ids an entry): see docs/decisions/0088.
"""

import os
import random
import resource
import secrets
import sqlite3
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "scripts" / "bench")]

import numpy as np
from labelled_mail import files

from spamnb.engine.filter import Filter
from spamnb.records import verdicts
from spamnb.records.verdicts import NamedTable, encode_entry
from spamnb.store.codec import FrequentIds

EACH = 2_000
BATCHES = (1, 4, 8)


class Caught:
    """Takes the place of a history and keeps what is added."""

    def __init__(self):
        self.entries = []

    def add(self, entries):
        self.entries += entries

    def close(self):
        pass


def verdicts_on(mail):
    """Score messages, after some others were taught."""
    caught, taught = Caught(), len(mail) // 5
    with tempfile.TemporaryDirectory() as home, Filter.open(home, create=True) as model:
        for path, label in mail[:taught]:
            model.learn(path.read_bytes(), label)
        model.history.close()
        model.history = caught
        for path, _ in mail[taught : taught + EACH]:
            model.score(path.read_bytes())
    return [noted(entry) for entry in caught.entries]


def noted(entry):
    """Add the notes that the daemon writes."""
    notes = {
        "to": f"user{random.randrange(50)}@example.org",
        "client": f"192.0.2.{random.randrange(255)}",
        "queue": secrets.token_hex(6),
        "from": f"{secrets.token_hex(4)}@example.com",
        "header_from": f"Some Sender <{secrets.token_hex(4)}@example.com>",
        "subject": "A subject of some forty-five characters, here",
        "size": "5120",
        "listener": "smtp",
        "known": "67",
        "actions": "mark mark mark",
        "auth": "spf=pass example.com, dkim=pass example.com, dmarc=pass example.com",
    }
    return replace(entry, notes=notes)


def copied(entries):
    """The same entries under other names, now."""
    return [
        replace(
            entry,
            signature=secrets.token_bytes(16),
            digest=secrets.token_bytes(len(entry.digest)),
            message_id=secrets.token_hex(10) + entry.message_id[:30],
        )
        for entry in entries
    ]


def processor_time():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class OnLmdb:
    def __init__(self, folder, *, with_table):
        if not with_table:
            verdicts._FREQUENT_FROM = 1 << 40
        self.history = verdicts.History.open(folder)

    def add(self, entries):
        self.history.add(entries)

    def settle(self):
        self.history.flush()

    def size(self):
        return self.history._bytes()


class OnSqlite:
    def __init__(self, folder, table, *, indexes):
        folder.mkdir()
        self.table = table
        self.path = folder / "verdicts.db"
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        run = self.connection.execute
        for pragma in ("journal_mode=wal", "synchronous=normal", "wal_autocheckpoint=0"):
            run(f"pragma {pragma}")
        run(
            "create table verdicts (seq integer primary key, signature blob, digest blob,"
            " message_id blob, entry blob)"
        )
        for column in ("signature", "digest", "message_id") if indexes else ():
            run(f"create index by_{column} on verdicts ({column})")

    def add(self, entries):
        rows = [
            (
                entry.signature,
                entry.digest,
                entry.message_id.encode("utf-8", "replace"),
                encode_entry(entry, self.table),
            )
            for entry in entries
        ]
        self.connection.execute("begin immediate")
        self.connection.executemany(
            "insert into verdicts (signature, digest, message_id, entry) values (?, ?, ?, ?)", rows
        )
        self.connection.execute("commit")

    def settle(self):
        self.connection.execute("pragma wal_checkpoint(truncate)")

    def size(self):
        return self.path.stat().st_size


def measure(name, place, entries, copies):
    """Fill one place, and print what the next entries take."""
    for _ in range(copies):
        place.add(copied(entries))
        place.settle()
    took = []
    for size in BATCHES:
        some = copied(entries)
        before = processor_time()
        for at in range(0, len(some), size):
            place.add(some[at : at + size])
            if at % 400 == 0:
                place.settle()
        place.settle()
        took.append((processor_time() - before) / len(some) * 1e6)
    size = place.size() / len(entries) / (copies + len(BATCHES))
    print(f"{name:28}", *(f"{us:6.0f}" for us in took), f"us {size:8.0f} bytes", flush=True)


def main():
    copies = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    mail = sorted(files(), key=lambda one: str(one[0]))
    random.seed(1)
    random.shuffle(mail)
    entries = verdicts_on(mail)
    count = sum(len(one) for entry in entries for one in entry.ids) / len(entries)
    print(f"{len(entries)} entries with {count:.0f} ids; a transaction of {BATCHES} entries")
    half = [ids for entry in entries[: len(entries) // 2] for ids in entry.ids]
    table = NamedTable(b"name", FrequentIds.of(np.concatenate(half)))
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        made = {
            "LMDB, with a table": lambda: OnLmdb(folder / "a", with_table=True),
            "LMDB, without a table": lambda: OnLmdb(folder / "b", with_table=False),
            "SQLite, three indexes": lambda: OnSqlite(folder / "c", table, indexes=True),
            "SQLite, no index": lambda: OnSqlite(folder / "d", table, indexes=False),
        }
        for name, make in made.items():
            measure(name, make(), entries, copies)


if __name__ == "__main__":
    main()
