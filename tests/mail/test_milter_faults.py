"""Faults of a real daemon while a real Postfix asks its milter: no message is lost or refused."""

import os
import re
import shutil
import signal
import smtplib
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.daemon import hanging, serve_slowly, settings_in, unhang
from support.daemon_children import HANG
from support.docs_snippets import changed, snippet
from support.postfix import PROJECT, Daemon, Rig, needs_rig
from support.waiting import LIMIT_S, until

pytestmark = needs_rig

SAMPLE = PROJECT / "corpora" / "sample"
WORDS = "words of some length " * 4000
PATIENT = "[timeouts]\nscan_s = 250\nscan_wait_s = 300\nfinal_s = 1000\n"
FAILING = {"mx": "tempfail", "back": "accept"}
"""port of Postfix -> what it does without a milter"""
TEMPFAIL, ACCEPT = FAILING


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    """Postfix with two listeners, in front of a daemon that is not started."""
    site = Rig()
    milter = f"inet:127.0.0.1:{site.port['filter']}"
    recipe = snippet("milter.md", "Postfix", "main.cf")
    site.main += changed(recipe, {"inet:127.0.0.1:10025": milter})
    site.main += "milter_connect_timeout = 5s\n"
    site.master = (
        f"127.0.0.1:{site.port['mx']} inet n - n - - smtpd\n"
        f"127.0.0.1:{site.port['back']} inet n - n - - smtpd\n"
        f"    -o {{ smtpd_milters = {{ {milter}, default_action=accept }} }}\n"
    )
    site.model = tmp_path_factory.mktemp("model") / "home"
    Daemon(site.model.parent, "").spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
    try:
        site.start()
        yield site
    finally:
        print(site.log()[-8000:])
        site.stop()


@pytest.fixture
def started(rig, tmp_path):
    """Start daemons with slow scan processes; their pool of clients ends with them."""
    shutil.copytree(rig.model, tmp_path / "home", ignore=shutil.ignore_patterns("*.sock"))
    running = []

    def start(more=""):
        config = settings_in(
            tmp_path,
            address=f"127.0.0.1:{rig.port['filter']}",
            listener='protocol = "milter"\nknown_crasher = "defer"',
            delivery="",
            more=PATIENT + more,
        )
        running.append(serve_slowly(tmp_path, config))
        return running[-1].ready()

    yield start
    for daemon in running:
        daemon.__exit__()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads


class Sender:
    """An SMTP client that sends one message after the other; replies are (code, text)."""

    def __init__(self, rig, name=TEMPFAIL):
        self.smtp = smtplib.SMTP("127.0.0.1", rig.port[name], timeout=LIMIT_S)
        self.smtp.ehlo()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.smtp.close()

    def envelope(self):
        """The code of the first refusal, else 250."""
        for code, _ in (self.smtp.mail("ann@example.net"), self.smtp.rcpt("bob@example.org")):
            if code != 250:
                return code
        return 250

    def data(self, ident, text=WORDS):
        message = f"Subject: plums\r\nMessage-ID: <{ident}@x>\r\n\r\n{text}\r\n"
        return self.smtp.data(message)[0]

    def send(self, ident, text=WORDS):
        code = self.envelope()
        return self.data(ident, text) if code == 250 else code


def sent(rig, name, ident, text=WORDS):
    """Send one message; the code of the reply."""
    with Sender(rig, name) as sender:
        return sender.send(ident, text)


def is_marked(rig, ident):
    """Wait until a message is delivered; whether it has a verdict."""
    (raw,) = until(lambda: rig.delivered("bob", f"<{ident}@x>"), ident)
    return re.search(rb"^X-Spamnb-Verdict: .*p=", raw, re.MULTILINE) is not None


@pytest.mark.parametrize(("name", "code"), [(TEMPFAIL, 451), (ACCEPT, 250)])
def test_a_worker_is_killed_in_a_scan(rig, started, tmp_path, pool, name, code):
    """Postfix defers the rest of the session, or delivers it unmarked; the next one is scanned."""
    daemon, ident = started(), f"killed-{name}"
    with Sender(rig, name) as sender:
        reply = pool.submit(sender.send, ident, WORDS + HANG.decode())
        hanging(tmp_path)
        os.kill(daemon.children("worker")[0], signal.SIGKILL)
        assert reply.result() == code
        daemon.wait_for("process died", role="worker")
        assert sender.send(f"further-{ident}") == code
    assert sent(rig, name, f"after-{ident}") == 250
    assert is_marked(rig, f"after-{ident}")
    for one in (ident, f"further-{ident}"):
        if code == 250:
            assert not is_marked(rig, one)
        else:
            assert rig.delivered("bob", f"<{one}@x>") == []


def test_a_message_that_kills_two_scan_processes_is_deferred(rig, started, tmp_path, pool):
    """The first death only delays the reply; the worker lives on."""
    daemon = started()
    reply = pool.submit(sent, rig, ACCEPT, "crash", WORDS + HANG.decode())
    first = hanging(tmp_path)
    os.kill(first, signal.SIGKILL)
    os.kill(hanging(tmp_path, [first]), signal.SIGKILL)
    assert reply.result() == 451
    assert daemon.wait_for("message")["reason"] == "known_crasher"
    assert sent(rig, ACCEPT, "beside") == 250
    assert is_marked(rig, "beside")


@pytest.mark.parametrize(("name", "code"), [(TEMPFAIL, 451), (ACCEPT, 250)])
def test_a_daemon_stops_within_a_scan(rig, started, tmp_path, pool, name, code):
    """The scan ends and Postfix gets its result; the next message of the session has no milter."""
    daemon, ident = started(), f"stopped-{name}"
    with Sender(rig, name) as sender:
        reply = pool.submit(sender.send, ident, WORDS + HANG.decode())
        pid = hanging(tmp_path)
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("stopping")
        unhang(tmp_path, pid)
        assert reply.result() == 250
        assert daemon.process.wait(LIMIT_S) == 0
        assert sender.send(f"after-{ident}") == code
    assert is_marked(rig, ident)


def test_a_daemon_reloads_within_a_scan(rig, started, tmp_path, pool):
    """The message gets its verdict; the next one of the session has the new settings."""
    daemon = started()
    with Sender(rig) as sender:
        reply = pool.submit(sender.send, "reloaded", WORDS + HANG.decode())
        pid = hanging(tmp_path)
        config = tmp_path / "spamnb.toml"
        text = config.read_text().replace("[listener.mx]", "[listener.mx]\nobserve = true")
        config.write_text(text)
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("settings reloaded")
        unhang(tmp_path, pid)
        assert reply.result() == 250

        def observed():
            assert sender.send("again", "plums") == 250
            return daemon.logged("message", observed=True)

        until(observed)
    assert is_marked(rig, "reloaded")
    assert daemon.logged("process died") == []


def test_memory_is_short(rig, started, pool):
    """Messages that do not fit into memory together wait for each other; each is scanned."""
    started("[limits]\nmemory_bytes = 1048576\n")
    text = "words of some length " * 30_000
    codes = list(pool.map(lambda number: sent(rig, ACCEPT, f"big-{number}", text), range(6)))
    assert codes == [250] * 6
    assert all(is_marked(rig, f"big-{number}") for number in range(6))


@pytest.mark.parametrize(("name", "code"), [(TEMPFAIL, 451), (ACCEPT, 250)])
def test_connections_beyond_the_limit(rig, started, name, code):
    """To Postfix the milter is away; a session that ends makes room."""
    daemon = started("[limits]\nconnections = 1\n")
    ident = f"beyond-{name}"
    with Sender(rig, name) as sender:
        assert sender.envelope() == 250
        assert sent(rig, name, ident) == code
        assert daemon.wait_for("turned-away")["error"] == "too many connections"
        assert sender.data(f"in-{ident}") == 250
    assert is_marked(rig, f"in-{ident}")
    until(lambda: sent(rig, name, f"after-{ident}") == 250)
    if code == 250:
        assert not is_marked(rig, ident)
