"""The rules of a fleet's log when its keeper is restarted, for each keeper; and its beats."""

import math
import shutil
from itertools import pairwise

import pytest
from support.postgres_server import PostgresServer, needs_postgres
from support.valkey_server import ValkeyServer, needs_valkey

from spamnb.errors import FleetError
from spamnb.fleet.log import START, Beat, Draft, Head, MemoryLog, Outcome


class MemoryKeeper:
    """A log in memory that is restarted."""

    def __init__(self):
        self.log = MemoryLog()

    def save(self):
        self._kept = len(list(self.log.entries(0)))

    def restart(self):
        self.log.restart(len(list(self.log.entries(0))) - self._kept)

    def close(self):
        self.log.close()


class ValkeyKeeper:
    """A server that is killed, and gets the files back that it had before."""

    def __init__(self, folder):
        self.server = ValkeyServer(folder).start()
        self.log = self.server.log()
        self._files, self._saved = folder / "appendonlydir", folder / "saved"

    def save(self):
        shutil.copytree(self._files, self._saved)

    def restart(self):
        self.server.kill()
        shutil.rmtree(self._files)
        shutil.copytree(self._saved, self._files)
        self.server.start()
        self.log.close()
        self.log = self.server.log()

    def close(self):
        self.log.close()
        self.server.kill()


class PostgresKeeper:
    """A server that is killed, and gets the files back that it had before."""

    def __init__(self, server):
        self._server = server
        self.log = server.log()

    def save(self):
        self.log.close()
        self._server.save()
        assert self.log.settle("a", 0, 0)

    def restart(self):
        self.log.close()
        self._server.put_back()

    def close(self):
        self.log.close()


@pytest.fixture(scope="module")
def postgres():
    running = PostgresServer()
    try:
        yield running.start()
    finally:
        running.close()


KEEPERS = {
    "memory": lambda _: MemoryKeeper(),
    "valkey": lambda request: ValkeyKeeper(request.getfixturevalue("tmp_path")),
    "postgres": lambda request: PostgresKeeper(request.getfixturevalue("postgres")),
}
SERVERS = [
    pytest.param("valkey", marks=needs_valkey),
    pytest.param("postgres", marks=needs_postgres),
]


@pytest.fixture(params=["memory", *SERVERS])
def keeper(request):
    found = KEEPERS[request.param](request)
    found.log.make(Head("e", 0, START))
    yield found
    found.close()


def draft(seq, host="a", body=b"body"):
    return Draft("e", host, seq - 1, seq, seq - 1, seq, body)


def beat(host, seq, ident="i"):
    return Beat(host, ident, seq, "chain", "f", 1, "0.1", 1_700_000_000_000_000, epoch="e")


def test_a_restarted_log_waits_for_the_hosts(keeper):
    """After a restart appends are refused until all living hosts have reported, or in time."""
    log = keeper.log
    for seq in (1, 2):
        assert log.append(draft(seq)) is Outcome.APPENDED
    for host in "ab":
        log.beat(beat(host, 2))
    keeper.save()
    keeper.restart()
    log = keeper.log
    assert log.head()[1:2] == (2,)
    assert not log.head().settled
    assert log.append(draft(3)) is Outcome.UNSETTLED
    assert not log.settle("a", 2, 1000)
    assert log.append(draft(3)) is Outcome.UNSETTLED
    assert log.settle("b", 1, 1000)
    assert log.head().settled
    assert log.append(draft(3)) is Outcome.APPENDED
    keeper.restart()
    assert keeper.log.settle("a", 2, 0)


def test_lost_entries_are_given_back(keeper):
    """Until it has the entries that a host reports, a log is unsettled; each one fits one place."""
    log = keeper.log
    assert log.append(draft(1)) is Outcome.APPENDED
    keeper.save()
    for seq in (2, 3):
        assert log.append(draft(seq, "b", bytes([seq]))) is Outcome.APPENDED
    entries, head = list(log.entries(0)), log.head()
    keeper.restart()
    log = keeper.log
    assert log.recorded("b") == 0
    assert log.head().seq == 1
    assert not log.settle("b", 3, 0)
    assert not log.restore("e", entries[1].chain, entries[2])
    assert not log.restore("other", entries[0].chain, entries[1])
    for before, entry in pairwise(entries):
        assert log.restore("e", before.chain, entry)
        assert not log.restore("e", before.chain, entry)
    assert log.settle("b", 3, 0)
    assert list(log.entries(0)) == entries
    assert log.head() == head
    assert (log.recorded("a"), log.recorded("b")) == (1, 3)
    assert log.append(draft(4)) is Outcome.APPENDED


def test_a_cleared_log_is_made_anew(keeper):
    """A log can be replaced by one that begins elsewhere."""
    log = keeper.log
    assert log.append(draft(1)) is Outcome.APPENDED
    log.clear()
    assert log.head() is None
    assert log.append(draft(2)) is Outcome.EPOCH
    assert log.make(Head("e", 7, "c"))
    assert list(log.entries(0)) == []
    assert log.append(draft(8)) is Outcome.APPENDED
    log.clear()
    assert log.make(Head("e", 7, "c", settled=False))
    assert log.append(draft(8)) is Outcome.UNSETTLED
    assert log.settle("a", 7, 0)
    assert log.append(draft(8)) is Outcome.APPENDED


def test_a_renewed_log_is_closed_to_hosts_of_the_old_history(keeper):
    """A log gets another epoch only from a host that has all of it, and may get it back."""
    log = keeper.log
    assert log.append(draft(1)) is Outcome.APPENDED
    assert not log.renew("e", 0, "new")
    assert not log.renew("other", 1, "new")
    assert log.renew("e", 1, "new")
    assert log.append(draft(2)) is Outcome.EPOCH
    assert log.renew("new", 1, "e")
    assert log.append(draft(2)) is Outcome.APPENDED


def test_hosts_tell_of_themselves(keeper):
    """A beat replaces that of its host; another machine with the same name is refused."""
    log = keeper.log
    assert log.beats() == []
    log.beat(beat("a", 1))
    keeper_us = log.beat(beat("a", 2))
    log.beat(beat("b", 3))
    assert keeper_us > 1_700_000_000_000_000
    found = sorted(log.beats())
    assert [one._replace(age_s=0.0) for one in found] == [beat("a", 2), beat("b", 3)]
    assert all(0 <= one.age_s < 1000 for one in found)
    with pytest.raises(FleetError, match="name b"):
        log.beat(beat("b", 4, "another"))
    assert sorted(log.beats())[1].seq == 3


def test_entries_that_all_hosts_have_are_dropped(keeper):
    """A beat drops what the snapshot and all living hosts have, and nothing before a snapshot."""
    log = keeper.log
    for seq in range(1, 401):
        assert log.append(draft(seq)) is Outcome.APPENDED
    log.beat(beat("a", 400))
    log.beat(beat("b", 300))
    assert next(log.entries(0)).last == 1
    assert log.snapshot_age_s() == math.inf
    log.put_snapshot([b"copy"], 350)
    assert 0 <= log.snapshot_age_s() < 1000
    log.beat(beat("a", 400))
    first = next(log.entries(0)).last
    assert 1 < first <= 301
    assert [entry.last for entry in log.entries(300)] == list(range(301, 401))


def test_one_host_does_what_is_for_all(keeper):
    """A lease is given to one host at a time."""
    assert keeper.log.lease("copy", "a", 1000)
    assert not keeper.log.lease("copy", "b", 1000)
    assert keeper.log.lease("other", "b", 1000)
