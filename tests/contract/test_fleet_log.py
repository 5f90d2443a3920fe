"""The rules of a fleet's log, for each keeper."""

import math
import os
import secrets
import signal
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.postfix import free_ports
from support.postgres_server import PostgresServer, needs_postgres
from support.valkey_server import ValkeyServer, needs_valkey
from support.waiting import LIMIT_S, until

from spamnb.errors import FleetError, LogAwayError
from spamnb.fleet.log import START, Asked, Beat, Draft, Head, LogEntry, Outcome
from spamnb.fleet.membership import open_log
from spamnb.settings.values import FleetParams
from spamnb.store.values import next_chain

DONE = Outcome.APPENDED
MANUAL = (Path(__file__).resolve().parents[2] / "docs" / "fleet.md").read_text("utf-8")


class Model:
    """What a log must do, as a list."""

    def __init__(self, head):
        self.head = head
        self.entries = []
        self.recorded = {}
        self.writer = ""

    def append(self, draft):
        checks = {
            Outcome.EPOCH: draft.epoch != self.head.epoch,
            Outcome.LEASED: self.writer not in ("", draft.host),
            Outcome.BEHIND: draft.base > self.head.seq,
            Outcome.RECORDED: draft.start < self.recorded.get(draft.host, 0),
            Outcome.STALE: draft.base < self.head.seq,
        }
        for outcome, holds in checks.items():
            if holds:
                return outcome
        chain = next_chain(self.head.chain, draft.body)
        self.head = self.head._replace(seq=draft.last, chain=chain)
        self.recorded[draft.host] = draft.upto
        entry = LogEntry(draft.host, draft.upto, draft.base + 1, draft.last, chain, draft.body)
        self.entries.append(entry)
        return Outcome.APPENDED


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.sampled_from("abc"),
            st.integers(-2, 2),
            st.integers(-1, 1),
            st.integers(1, 5),
            st.binary(max_size=20),
            st.sampled_from(["e", "e", "e", "other"]),
        ),
        st.tuples(st.sampled_from(["take", "give", "read"]), st.sampled_from("abc")),
    ),
    max_size=40,
)


@given(steps, st.integers(0, 3))
def test_a_log_does_what_the_model_does(make_log, steps, first):
    """Any series of appends, pens and reads has the outcomes that the rules give."""
    log = make_log()
    assert log.head() is None
    model = Model(Head("e", first, START))
    assert log.append(Draft("e", "a", first, first + 1, 0, 1, b"")) is Outcome.EPOCH
    assert log.make(model.head)
    assert not log.make(Head("other", 0, START))
    for what, host, *rest in steps:
        if what == "append":
            moved, counted, events, body, epoch = rest
            base, start = max(model.head.seq + moved, 0), model.recorded.get(host, 0) + counted
            start = max(start, 0)
            draft = Draft(epoch, host, base, base + events, start, start + events, body)
            assert log.append(draft) is model.append(draft)
        elif what == "take":
            assert log.take_write_lease(host, 60_000) is (model.writer in ("", host))
            model.writer = model.writer or host
        elif what == "give":
            log.give_write_lease(host)
            model.writer = "" if model.writer == host else model.writer
        else:
            assert list(log.entries(first)) == model.entries
        assert log.head() == model.head
    after = max(model.head.seq - 3, 0)
    assert list(log.entries(after)) == [entry for entry in model.entries if entry.last > after]
    log.close()


def appended(log, seq, body=b"body"):
    assert log.append(Draft("e", "a", seq - 1, seq, seq - 1, seq, body)) is Outcome.APPENDED


def test_many_entries_are_read_in_order(make_log):
    """A reader gets all entries, also more than one page, each once."""
    log = make_log()
    log.make(Head("e", 0, START))
    for seq in range(1, 101):
        appended(log, seq)
    assert [entry.last for entry in log.entries(0)] == list(range(1, 101))
    assert [entry.first for entry in log.entries(90)] == list(range(91, 101))
    log.close()


def test_a_large_entry_is_kept_whole(make_log):
    """The body of an entry may have several megabytes of any bytes."""
    log, body = make_log(), bytes(range(256)) * (8 << 12)
    log.make(Head("e", 0, START))
    appended(log, 1, body)
    assert next(log.entries(0)).body == body
    log.close()


def test_old_entries_are_dropped(make_log):
    """A log keeps about as many events as it is told to, and always the newest."""
    log = make_log(keep_events=10)
    log.make(Head("e", 0, START))
    for seq in range(1, 401):
        appended(log, seq)
    kept = [entry.last for entry in log.entries(0)]
    assert kept == list(range(kept[0], 401))
    assert 10 <= len(kept) < 200
    log.close()


def test_a_reader_that_waits_gets_nothing_from_a_silent_log(make_log):
    """A wait without a new entry ends."""
    log = make_log()
    log.make(Head("e", 0, START))
    assert list(log.entries(0, 0.01)) == []
    log.close()


def test_a_snapshot_is_replaced_whole(make_log):
    """A snapshot has all of its parts in order; one that is not finished leaves the old one."""
    log = make_log()
    assert list(log.snapshot()) == []
    for parts in ([b"one", b"", b"three"], [b"four"]):
        log.put_snapshot(iter(parts))
        assert list(log.snapshot()) == parts

    def broken():
        yield b"five"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        log.put_snapshot(broken())
    assert list(log.snapshot()) == [b"four"]
    log.close()


def test_the_level_of_a_log_is_kept(make_log):
    """The level of the head is that of its start, or one that was set; without a log none is."""
    log = make_log()
    log.put_level(3)
    assert log.head() is None
    log.make(Head("e", 0, START, level=2))
    assert log.head().level == 2
    log.put_level(3)
    appended(log, 1)
    assert log.renew("e", 1, "f")
    assert log.head()[::2] == ("f", next(log.entries(0)).chain, 3)
    log.close()


def test_a_snapshot_that_is_replaced_during_a_read_is_not_mixed(make_log):
    """A reader gets the rest of the old snapshot, or an error; no part of the new one."""
    log = make_log()
    log.put_snapshot([b"old one", b"old two", b"old three"])
    reader = log.snapshot()
    read = [next(reader)]
    log.put_snapshot([b"new one", b"new two", b"new three", b"new four"])
    with suppress(LogAwayError):
        read.extend(reader)
    assert all(part.startswith(b"old") for part in read)
    assert list(log.snapshot()) == [b"new one", b"new two", b"new three", b"new four"]
    log.close()


def test_an_expired_pen_is_free(make_log):
    """A host that took the write lease and died does not hold up the others."""
    log = make_log()
    log.make(Head("e", 0, START))
    assert log.take_write_lease("dead", 1)
    while not log.take_write_lease("b", 60_000):
        pass
    assert not log.take_write_lease("dead", 1)
    log.close()


@needs_valkey
@pytest.mark.parametrize(
    ("setting", "value"),
    [("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru"), ("appendonly", "no")],
)
def test_a_server_that_may_lose_entries_is_refused(tmp_path, setting, value):
    """A server that answers before an entry is on its disk is not used, unless trusted."""
    running = ValkeyServer(tmp_path).start(**{setting: value})
    try:
        with pytest.raises(LogAwayError, match=setting):
            running.log().head()
        assert running.log(durable="trust").head() is None
    finally:
        running.kill()


@needs_valkey
def test_an_entry_is_confirmed_by_a_replica(tmp_path):
    """With `durable = replica` an append tells whether a replica has it, and it has it then."""
    (port,) = free_ports(1)
    primary, replica = (ValkeyServer(tmp_path / name) for name in "pr")
    try:
        for running in (primary, replica):
            running.folder.mkdir()
        log = primary.start(port=port).log(durable="replica", append_s=4)
        assert log.make(Head("e", 0, START))
        assert log.append(Draft("e", "a", 0, 1, 0, 1, b"body")) is Outcome.UNCOPIED
        assert [entry.last for entry in log.entries(0)] == [1]
        replica.start(replicaof=f"127.0.0.1 {port}")
        last = 1
        while log.append(Draft("e", "a", last, last + 1, last, last + 1, b"body")) is not DONE:
            last += 1
        assert log.append(Draft("e", "a", 0, 1, 0, 1, b"body")) is Outcome.RECORDED
        primary.kill()
        kept = replica.log(durable="trust")
        assert kept.head().seq == last + 1
        kept.close()
        log.close()
    finally:
        primary.kill()
        replica.kill()


@needs_postgres
def test_an_entry_of_postgresql_is_confirmed_by_a_standby():
    """With `durable = replica` a server without standbys is refused; the standby has the entry."""
    with ExitStack() as running:
        primary = PostgresServer()
        running.callback(primary.close)
        primary.start()
        with pytest.raises(LogAwayError, match="synchronous_standby_names"):
            primary.log(durable="replica").head()
        standby = PostgresServer(primary)
        running.callback(standby.close)
        standby.start()
        primary.kill()
        primary.start(synchronous_standby_names="*")
        log = running.enter_context(closing(primary.log(name="f", durable="replica")))
        assert log.make(Head("e", 0, START))
        appended(log, 1)
        primary.kill()
        kept = running.enter_context(closing(standby.log(name="f", durable="trust")))
        # The standby has the entry on its disk, and applies it afterwards.
        until(lambda: [entry.last for entry in kept.entries(0)] == [1], "the standby")


@needs_valkey
def test_the_user_of_the_manual_suffices(tmp_path):
    """The access rights in docs/fleet.md allow all that a host does."""
    (line,) = (one.strip() for one in MANUAL.splitlines() if one.strip().startswith("user spamnb "))
    running = ValkeyServer(tmp_path).start(user=line.removeprefix("user ").replace("PASSWORD", "x"))
    try:
        log = running.log(password="x", url=f"unix://spamnb@{running.path}")
        log.make(Head("e", 0, START))
        assert log.take_write_lease("a", 60_000)
        appended(log, 1)
        log.give_write_lease("a")
        assert [entry.last for entry in log.entries(0, 1)] == [1]
        assert log.head().seq == 1
        assert log.settle("a", 1, 0)
        assert not log.restore("e", START, next(log.entries(0)))
        assert log.beat(Beat("a", "i", 1, "c", "f", 1, "0.1", 0))
        assert [beat.host for beat in log.beats()] == ["a"]
        assert log.lease("copy", "a", 9)
        assert log.skipped(1) is None
        log.skip(1, b"permit")
        assert log.skipped(1) == b"permit"
        assert (log.recorded("a"), log.snapshot_age_s()) == (1, math.inf)
        log.put_snapshot([b"one", b"two"])
        assert list(log.snapshot()) == [b"one", b"two"]
        assert log.snapshot_age_s() < 1000
        assert log.ask(["a"], Asked("x", b"what"), 0.001) == {}
        assert log.next_question("a", 1) == Asked("x", b"what")
        log.answer("a", Asked("x", b"that"))
        log.clear()
        log.close()
        with pytest.raises(LogAwayError):
            running.log(password="y", url=f"unix://spamnb@{running.path}").head()
    finally:
        running.kill()


def self_signed(folder, network):
    """Make a key, and a certificate for the first address of a network."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={network}.1"
    names = ["-addext", f"subjectAltName=IP:{network}.1", "-keyout", key, "-out", certificate]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return certificate


@needs_valkey
def test_an_encrypted_log_proves_its_name(tmp_path):
    """With TLS a server needs a certificate of a known authority for the name in the url."""
    network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(200)}"
    key, certificate = tmp_path / "key.pem", self_signed(tmp_path, network)
    files = {"tls-cert-file": certificate, "tls-key-file": key, "tls-ca-cert-file": certificate}
    listening = {"bind": f"{network}.1 {network}.2", "tls-port": 6379, "tls-auth-clients": "no"}
    running = ValkeyServer(tmp_path).start(**listening, **files)
    own = str(certificate)
    try:
        for scheme in ("valkeys", "rediss"):
            assert running.log(url=f"{scheme}://{network}.1", ca_file=own).head() is None
        for host, ca_file in ((1, ""), (2, own)):
            with pytest.raises(LogAwayError, match=r"(?i)certificate"):
                running.log(url=f"valkeys://{network}.{host}", ca_file=ca_file).head()
    finally:
        running.kill()


@needs_valkey
def test_keys_of_another_program_are_not_a_log(server):
    """Keys that hold something else raise an error that names them, and nothing else."""
    log = server.log(name="foreign")
    log._client.hset("{foreign}:state", mapping={"epoch": "e", "seq": "x", "chain": ""})
    log._client.xadd("{foreign}:log", {"a": "b"})
    for read in (log.head, lambda: list(log.entries(0))):
        with pytest.raises(FleetError, match="foreign"):
            read()
    log.close()


def keeps_entries_over_a_kill(running, log):
    log.make(Head("e", 0, START))
    for seq in range(1, 20):
        appended(log, seq)
    head = log.head()
    running.kill()
    with pytest.raises(LogAwayError):
        log.append(Draft("e", "a", 19, 20, 19, 20, b"body"))
    running.start()
    assert log.head() == head._replace(settled=False)
    assert [entry.last for entry in log.entries(0)] == list(range(1, 20))
    assert log.settle("a", 19, 0)
    appended(log, 20)


@needs_valkey
def test_a_killed_server_has_all_entries_when_it_is_back(tmp_path):
    """What was appended before a kill is there after it; meanwhile the log is away."""
    running = ValkeyServer(tmp_path).start()
    log = running.log()
    try:
        keeps_entries_over_a_kill(running, log)
    finally:
        log.close()
        running.kill()


@needs_postgres
@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_postgresql_server_that_may_lose_entries_is_refused(setting):
    """A server that answers before an entry is on its disk is not used, unless trusted."""
    running = PostgresServer()
    try:
        running.start(**{setting: "off"})
        with pytest.raises(LogAwayError, match=setting):
            running.log().head()
        with closing(running.log(durable="trust")) as log:
            assert log.head() is None
    finally:
        running.close()


@needs_postgres
def test_a_killed_postgresql_server_has_all_entries_when_it_is_back():
    """What was appended before a kill is there after it; meanwhile the log is away."""
    running = PostgresServer()
    try:
        log = running.start().log()
        keeps_entries_over_a_kill(running, log)
        log.close()
    finally:
        running.close()


@needs_postgres
def test_a_stopped_postgresql_server_is_away(postgres):
    """A server that takes a statement and does not answer holds up a host for a limited time."""
    log = postgres.log(append_s=0.1)
    log.make(Head("e", 0, START))
    postgres.process.send_signal(signal.SIGSTOP)
    children = Path(f"/proc/{postgres.process.pid}/task/{postgres.process.pid}/children")
    stopped = [int(child) for child in children.read_text().split()]
    for child in stopped:
        os.kill(child, signal.SIGSTOP)
    try:
        with pytest.raises(LogAwayError):
            log.head()
    finally:
        for process in (*stopped, postgres.process.pid):
            os.kill(process, signal.SIGCONT)
    log.close()


@needs_postgres
def test_a_reader_of_postgresql_is_woken(postgres):
    """A reader that waits gets an entry when it is appended."""
    log = postgres.log()
    log.make(Head("e", 0, START))
    found = []
    reader = threading.Thread(target=lambda: found.extend(read_first(log)))
    reader.start()
    appended(log, 1)
    reader.join()
    assert [entry.last for entry in found] == [1]
    log.close()


def read_first(log):
    """Wait for the first entry, longer than one wait of a reader."""
    while not (found := list(log.entries(0, LIMIT_S))):
        pass
    return found


@needs_postgres
def test_hosts_append_to_postgresql_one_at_a_time(postgres):
    """Of appends that were computed at the same head one is taken; the others are stale."""
    first = postgres.log(name="race")
    first.make(Head("e", 0, START))

    def append_all(host):
        with closing(postgres.log(name="race")) as log:
            appended = 0
            while appended < 50:
                base = log.head().seq
                draft = Draft("e", host, base, base + 1, appended, appended + 1, host.encode())
                appended += log.append(draft) is Outcome.APPENDED

    with ThreadPoolExecutor() as threads:
        list(threads.map(append_all, "abc"))
    entries = list(first.entries(0))
    assert [entry.last for entry in entries] == list(range(1, 151))
    assert Counter(entry.host for entry in entries) == {"a": 50, "b": 50, "c": 50}
    chain = START
    for entry in entries:
        chain = next_chain(chain, entry.body)
        assert entry.chain == chain
    assert first.head() == Head("e", 150, chain)
    first.close()


@needs_postgres
def test_the_url_of_postgresql_has_no_password_and_is_complete():
    """A url that shows a password, or that the library cannot read, is refused."""
    for query in ("password=x", "nothing=x"):
        with pytest.raises(FleetError):
            open_log(FleetParams(url=f"postgresql://ann@localhost/mail?{query}"))


@needs_postgres
def test_a_log_on_postgresql_proves_its_name(tmp_path):
    """A server on the network needs a certificate of a known authority for the name in the url."""
    network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(200)}"
    certificate = self_signed(tmp_path, network)
    running = PostgresServer()
    try:
        running.encrypt(tmp_path / "key.pem", certificate)
        running.start(listen_addresses=f"{network}.1,{network}.2", ssl="on")
        url = f"postgresql://spamnb@{network}"
        with closing(running.log(url=f"{url}.1/postgres", ca_file=str(certificate))) as log:
            assert log.head() is None
        for host, ca_file in ((1, ""), (2, str(certificate))):
            with pytest.raises(LogAwayError, match=r"(?i)certificate"):
                running.log(url=f"{url}.{host}/postgres", ca_file=ca_file).head()
        with closing(running.log(url=f"{url}.2/postgres?sslmode=disable")) as log:
            assert log.head() is None
    finally:
        running.close()
