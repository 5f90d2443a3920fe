"""The rules of a fleet's log, for each keeper."""

import secrets
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.valkey_server import ValkeyServer, needs_valkey

from spamnb.errors import FleetError, LogAwayError
from spamnb.store.fleet.fleet_log import START, Draft, Head, LogEntry, Outcome
from spamnb.store.fleet.memory_log import MemoryLog
from spamnb.store.fleet.position import next_chain

MANUAL = (Path(__file__).resolve().parents[2] / "docs" / "fleet.md").read_text("utf-8")


@pytest.fixture(scope="module")
def server():
    with tempfile.TemporaryDirectory(prefix="v") as folder:
        running = ValkeyServer(folder).start()
        yield running
        running.kill()


@pytest.fixture(scope="module", params=["memory", pytest.param("valkey", marks=needs_valkey)])
def make_log(request):
    """A function that makes an empty log; logs of a server differ by name."""
    if request.param == "memory":
        return MemoryLog
    running = request.getfixturevalue("server")
    return lambda **options: running.log(name=secrets.token_hex(8), **options)


class Model:
    """What a log must do, as a list."""

    def __init__(self, head):
        self.head = head
        self.entries = []
        self.said = {}
        self.pen = ""

    def append(self, draft):
        checks = {
            Outcome.EPOCH: draft.epoch != self.head.epoch,
            Outcome.PEN: self.pen not in ("", draft.host),
            Outcome.BEHIND: draft.base > self.head.seq,
            Outcome.SAID: draft.start < self.said.get(draft.host, 0),
            Outcome.STALE: draft.base < self.head.seq,
        }
        for outcome, holds in checks.items():
            if holds:
                return outcome
        chain = next_chain(self.head.chain, draft.body)
        self.head = self.head._replace(seq=draft.last, chain=chain)
        self.said[draft.host] = draft.upto
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


@settings(deadline=None)
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
            base, start = max(model.head.seq + moved, 0), model.said.get(host, 0) + counted
            start = max(start, 0)
            draft = Draft(epoch, host, base, base + events, start, start + events, body)
            assert log.append(draft) is model.append(draft)
        elif what == "take":
            assert log.take_pen(host, 60_000) is (model.pen in ("", host))
            model.pen = model.pen or host
        elif what == "give":
            log.give_pen(host)
            model.pen = "" if model.pen == host else model.pen
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


def test_an_expired_pen_is_free(make_log):
    """A host that took the pen and died does not hold up the others."""
    log = make_log()
    log.make(Head("e", 0, START))
    assert log.take_pen("dead", 1)
    while not log.take_pen("b", 60_000):
        pass
    assert not log.take_pen("dead", 1)
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
def test_the_user_of_the_manual_suffices(tmp_path):
    """The access rights in docs/fleet.md allow all that a host does."""
    (line,) = (one.strip() for one in MANUAL.splitlines() if one.strip().startswith("user "))
    running = ValkeyServer(tmp_path).start(user=line.removeprefix("user ").replace("PASSWORD", "x"))
    try:
        log = running.log(password="x", url=f"unix://spamnb@{running.path}")
        log.make(Head("e", 0, START))
        assert log.take_pen("a", 60_000)
        appended(log, 1)
        log.give_pen("a")
        assert [entry.last for entry in log.entries(0, 1)] == [1]
        assert log.head().seq == 1
        log.put_snapshot([b"one", b"two"])
        assert list(log.snapshot()) == [b"one", b"two"]
        log.close()
        with pytest.raises(LogAwayError):
            running.log(password="y", url=f"unix://spamnb@{running.path}").head()
    finally:
        running.kill()


@needs_valkey
def test_an_encrypted_log_proves_its_name(tmp_path):
    """With TLS a server needs a certificate of a known authority for the name in the url."""
    network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(200)}"
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={network}.1"
    names = ["-addext", f"subjectAltName=IP:{network}.1", "-keyout", key, "-out", certificate]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
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


@needs_valkey
def test_a_killed_server_has_all_entries_when_it_is_back(tmp_path):
    """What was appended before a kill is there after it; meanwhile the log is away."""
    running = ValkeyServer(tmp_path).start()
    log = running.log()
    try:
        log.make(Head("e", 0, START))
        for seq in range(1, 20):
            appended(log, seq)
        head = log.head()
        running.kill()
        with pytest.raises(LogAwayError):
            log.append(Draft("e", "a", 19, 20, 19, 20, b"body"))
        running.start()
        assert log.head() == head
        assert [entry.last for entry in log.entries(0)] == list(range(1, 20))
        appended(log, 20)
    finally:
        log.close()
        running.kill()
