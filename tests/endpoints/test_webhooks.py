"""Webhooks: signature, attempts, bounds and kills of the outbox, and the events of a daemon."""

import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from contextlib import contextmanager
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.cli import spamnb
from support.console import KEEP_ALL, Api, console, token, trained_home
from support.daemon import environment, send
from support.delivery_agent import certificate
from support.receiver import SECRET, Receiver, write_secret
from support.sink import Sink
from support.waiting import until

from spamnb.console import webhooks as posting
from spamnb.console.webhooks import (
    _OF_HOME,
    _OF_STATUS,
    KEPT_US,
    MOST,
    WebhookEvent,
    WebhookOutbox,
    WebhookSender,
    WebhookSettings,
    post,
    signed,
)
from spamnb.engine.filter import Filter
from spamnb.errors import PeerError, SettingsError, UserError
from spamnb.records.verdicts import History, HistoryEntry
from spamnb.settings.values import EVENTS, WebhookParams, webhook_problems
from spamnb.telemetry import now_us

WARNING = WebhookEvent("warning.raised", 1_700_000_000_000_000, {"text": "x"})
REJECT = WebhookEvent("verdict.reject", 1_700_000_000_000_000, {})


class Clock:
    """A clock that a test turns on."""

    def __init__(self):
        self.now = WARNING.time_us

    def __call__(self):
        return self.now


class Rig:
    """An outbox, and a sender that is called without its thread."""

    def __init__(self, home, params, clock=None):
        self.clock, self.logged = clock or Clock(), []
        self.outbox = WebhookOutbox(home)
        settings = WebhookSettings("chat", params)
        self.sender = WebhookSender(settings, self.outbox, self.logged.append, self.clock)

    def put(self, *events, hooks=None):
        self.outbox.put(events, {}, hooks or {"chat": EVENTS}, self.clock())

    def turn(self):
        """Let the sender send what is due, and turn the clock on to the next attempt."""
        self.sender.send_due()
        due = self.outbox.due("chat", self.clock.now)
        self.clock.now = max(self.clock.now, due.next_us)
        return due


@pytest.fixture
def rigs(tmp_path):
    made = []

    def make(**more):
        rig = Rig(tmp_path, WebhookParams(secret_file=write_secret(tmp_path), **more))
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.outbox.close()


# --- the request ---------------------------------------------------------------------------------


def test_a_signature_is_that_of_standard_webhooks():
    """The fields and the signature are those of the specification's example."""
    key = WebhookParams(secret_command=("echo", SECRET)).key()
    found = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_an_event_arrives_once_signed(rigs):
    """The receiver can check it with the secret; after 2xx nothing waits."""
    with Receiver(status=204) as receiver:
        rig = rigs(url=receiver.url)
        rig.put(WARNING)
        rig.turn()
        rig.turn()
        (got,) = receiver.requests
    assert got.body == {"type": WARNING.type, "data": {"text": "x"},
                        "timestamp": "2023-11-14T22:13:20.000000+00:00"}  # fmt: skip
    content = f"{got.id}.{got.headers['webhook-timestamp']}.".encode() + got.raw
    mac = hmac.new(b64decode(SECRET[6:]), content, sha256).digest()
    assert got.headers["webhook-signature"] == f"v1,{b64encode(mac).decode()}"
    assert got.headers["Content-Type"] == "application/json"
    assert rig.outbox.numbers("chat") == (0, 0)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 410, 500, 0])
def test_only_2xx_is_success(rigs, status):
    """No redirect is followed, and the event waits for another attempt under the same ID."""
    with Receiver() as other, Receiver(status=status, Location=other.url) as receiver:
        rig = rigs(url=receiver.url)
        rig.put(WARNING)
        rig.turn()
        assert rig.outbox.numbers("chat") == (1, 0)
        receiver.status = 200
        rig.turn()
        assert [one.id for one in receiver.requests] == [receiver.requests[0].id] * 2
        assert other.requests == []
    assert rig.outbox.numbers("chat") == (0, 0)


def test_a_certificate_is_verified(tmp_path):
    """One of a stranger, and one for another name, end the attempt before anything is sent."""
    cert, key = certificate(tmp_path)
    with Receiver(tls=(cert, key)) as receiver:
        with pytest.raises(PeerError, match="certificate is not valid"):
            post(WebhookParams(url=receiver.url), {}, b"{}")
        params = WebhookParams(url=receiver.url, ca_file=cert)
        assert post(params, {}, b"{}") == 200
        other = WebhookParams(url=receiver.url.replace("127.0.0.1", "127.0.0.2"), ca_file=cert)
        with pytest.raises(PeerError, match=r"127\.0\.0\.2"):
            post(other, {}, b"{}")
        assert len(receiver.requests) == 1


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-x\r\n", b"x" * 9_000, b"HTTP/1.1 2", b"\0" * 10])
def test_no_http_is_a_failure(said):
    """What is no reply of HTTP, or too long, is one line of error."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk():
            connection, _ = server.accept()
            with connection:
                connection.recv(9_000)
                connection.sendall(said)

        threading.Thread(target=talk, daemon=True).start()
        with pytest.raises(PeerError):
            post(WebhookParams(url=f"http://127.0.0.1:{server.getsockname()[1]}/"), {}, b"{}")


def test_a_receiver_that_says_nothing_is_left(monkeypatch):
    """Also one that sends a byte now and then."""
    monkeypatch.setattr(posting, "TOTAL_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def talk():
            connection, _ = server.accept()
            with connection:
                while not done.wait(0.05):
                    connection.sendall(b"H")

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        with pytest.raises(PeerError, match="in time"):
            post(WebhookParams(url=f"http://127.0.0.1:{server.getsockname()[1]}/"), {}, b"{}")
        done.set()


@pytest.mark.parametrize(
    "url",
    ["chat", "ftp://x/", "https://", "https:///x", "https://a:b@x/", "https://x/#y", "http://x:0x1/",
     "https://x/ y", "https://x/\r\nY: z", "https://x:99999/", "file:///etc/passwd", "//x/y",
     "https://ü.example/", "https://:b@x/"],
)  # fmt: skip
def test_a_url_that_is_none_is_refused(url):
    """Only http and https to a host, without a login and without control characters."""
    with pytest.raises(SettingsError):
        WebhookParams(url=url)


@pytest.mark.parametrize(
    "secret", ["open sesame", "whsec_", "whsec_c2hvcnQ=", "whsec_!", "whsec_" + "A" * 96]
)
def test_a_secret_that_is_none_is_refused(tmp_path, secret):
    """`config check` says so; the secret is in no error."""
    path = tmp_path / "secret"
    path.write_text(secret)
    path.chmod(0o600)
    params = WebhookParams(url="https://x.example/", secret_file=str(path))
    (problem,) = webhook_problems(params)
    assert secret.removeprefix("whsec_") in ("", "!") or secret not in str(problem)
    with pytest.raises(UserError):
        params.key()


def test_problems_are_found_before_the_start(tmp_path):
    """A missing URL, a missing or open secret, an unreadable file of authorities."""
    secret = write_secret(tmp_path)
    assert len(list(webhook_problems(WebhookParams()))) == 2
    assert list(webhook_problems(WebhookParams(url="https://x/", secret_file=secret))) == []
    params = WebhookParams(url="https://x/", secret_file=secret, ca_file="/nothing")
    assert "ca_file" in next(webhook_problems(params)).hint
    Path(secret).chmod(0o644)
    assert "other users" in str(next(webhook_problems(params)))


# --- attempts and bounds -------------------------------------------------------------------------


def test_pauses_double_for_a_day(rigs):
    """Then the event is dropped, counted and logged; every attempt has the same ID."""
    with Receiver(status=500) as receiver:
        rig = rigs(url=receiver.url)
        rig.put(WARNING)
        times = [rig.clock.now]
        while rig.turn().next_us:
            times.append(rig.clock.now)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [5_000_000 << number for number in range(14)]
    assert times[-1] < WARNING.time_us + KEPT_US
    assert len({one.id for one in receiver.requests}) == 1
    assert len(receiver.requests) == 15
    assert rig.outbox.numbers("chat") == (0, 1)
    assert [one["event"] for one in rig.logged] == ["webhook", "webhook dropped"]


def test_an_old_event_has_one_attempt(rigs):
    """Events from before a long stop of the daemon are sent at its start."""
    with Receiver() as receiver:
        rig = rigs(url=receiver.url)
        rig.put(WARNING)
        rig.clock.now += 3 * KEPT_US
        rig.turn()
        assert len(receiver.requests) == 1


def test_a_receiver_that_is_back_gets_all(rigs):
    """The other events do not wait for their long pauses."""
    with Receiver(status=503) as receiver:
        rig = rigs(url=receiver.url)
        rig.put(WARNING, REJECT)
        for _ in range(12):
            rig.turn()
        assert receiver.requests
        receiver.status = 200
        known = len(receiver.requests)
        rig.turn()
        rig.turn()
        assert len(receiver.requests) == known + 2
    assert rig.outbox.numbers("chat") == (0, 0)


def test_a_flood_displaces_no_other_event(rigs):
    """Of each type and webhook so many wait; the others are dropped and counted."""
    rig = rigs(url="http://127.0.0.1:9/")
    rig.put(*[REJECT] * (MOST - 1))
    rig.put(*[REJECT] * 500, hooks={"chat": EVENTS, "other": ("verdict.reject",)})
    rig.put(WARNING)
    assert rig.outbox.numbers("chat") == (MOST + 1, 499)
    assert rig.outbox.numbers("other") == (500, 0)
    rig.outbox.keep(["other"])
    assert rig.outbox.numbers("chat") == (0, 0)
    assert rig.outbox.numbers("other") == (500, 0)


PUTS = """
import itertools, sys
from pathlib import Path
from types import SimpleNamespace
from spamnb.console.webhooks import WebhookEvent, WebhookOutbox
outbox = WebhookOutbox(Path(sys.argv[1]))
first = outbox.state().get("n", 0)
for n in itertools.count(first + 1):
    event = WebhookEvent("warning.raised", n, {"n": n})
    outbox.put([event], {"n": n}, {"chat": (event.type,)}, n)
    print(n, flush=True)
"""


def test_a_kill_neither_loses_nor_repeats_an_event(tmp_path):
    """Each event is on disk with the state that it was made from, or neither is."""
    said = 0
    for more in (3, 17, 40):
        child = subprocess.Popen(
            [sys.executable, "-c", PUTS, tmp_path], stdout=subprocess.PIPE, env=environment()
        )
        for line in child.stdout:
            if int(line) >= said + more:
                break
        child.kill()
        rest = child.communicate()[0].split()
        said = int((rest or [line])[-1])
    outbox, found = WebhookOutbox(tmp_path), []
    state = outbox.state()["n"]
    assert state >= said
    while event := outbox.due("chat", now_us()).event:
        found.append((json.loads(event.body)["data"]["n"], event.id))
        outbox.taken("chat", event, now_us())
    outbox.close()
    assert [n for n, _ in found] == list(range(1, state + 1))
    assert len({name for _, name in found}) == state


# --- what has happened ---------------------------------------------------------------------------


def types(found):
    return [event.type for event in found[1]]


def test_a_warning_whose_numbers_change_is_the_same():
    """It is raised once, and cleared when it is gone; what is raised at the first look, too."""
    watch = _OF_STATUS["warnings"]
    state, raised = watch({"warnings": ["3 reports wait", "bypass is on"]}, None, 1)
    assert [one.data["text"] for one in raised] == ["3 reports wait", "bypass is on"]
    state, events = watch({"warnings": ["12 reports wait", "bypass is on"]}, state, 2)
    assert events == []
    state, events = watch({"warnings": ["12 reports wait"]}, state, 3)
    assert [(one.type, one.data["text"]) for one in events] == [("warning.cleared", "bypass is on")]


def test_a_full_quarantine_is_told_once():
    """Again only after there was room; not at each message around the limit."""
    watch = _OF_STATUS["quarantine"]
    state, told = None, []
    for used in (10, 94, 95, 99, 94, 91, 95, 89, 95):
        status = {"quarantine": {"bytes": used, "limit_bytes": 100}}
        state, events = watch(status, state, 1)
        told += [used for _ in events]
    assert told == [95, 95]


def test_a_replaced_model_is_noticed(tmp_path):
    """An older one, and one with other events of the same numbers; learning alone is no change."""
    home = tmp_path / "home"

    @contextmanager
    def reading():
        model = Filter.open(home, readonly=True, history=False)
        try:
            yield model
        finally:
            model.close()

    def learn(word):
        with Filter.open(home, create=not home.exists(), history=False) as model:
            model.learn(f"Subject: {word}\r\n\r\n{word}\r\n".encode(), "spam")

    def look(before):
        return _OF_HOME["model"](SimpleNamespace(reading=reading), before, 1)

    learn("one")
    state, _ = look(None)
    old = (home / "data.mdb").read_bytes()
    learn("two")
    found = look(state)
    assert types(found) == []
    (home / "data.mdb").write_bytes(old)
    back = look(found[0])
    assert types(back) == ["model.changed"]
    learn("three")
    assert types(look(back[0])) == []
    other = look(found[0])
    assert types(other) == ["model.changed"]
    assert other[1][0].data["how"] == "replaced"
    assert types(look(other[0])) == []


# --- a daemon ------------------------------------------------------------------------------------


HOOKS = """
[webhook.chat]
url = "{url}"
secret_file = "{secret}"
events = {events}
[webhook.dead]
url = "http://127.0.0.1:{dead}/"
secret_file = "{secret}"
"""


def rejected(home):
    """Store a verdict as a worker does."""
    history = History.open(home / "history")
    entry = HistoryEntry(now_us(), os.urandom(16), b"", "", "spam", 0.99, 5.0, "reject", ())
    history.add([entry])
    history.close()


def hanging():
    """A receiver that accepts connections and never answers."""
    return socket.create_server(("127.0.0.1", 0))


def test_a_daemon_sends_its_events(tmp_path):
    """Each type once; a kill of the console and a receiver that is away lose and repeat none."""
    trained_home(tmp_path)
    home, sink, dead = tmp_path / "home", Sink(), hanging()
    receiver = Receiver()
    hooks = HOOKS.format(url=receiver.url, secret=write_secret(tmp_path),
                         events=json.dumps(EVENTS), dead=dead.getsockname()[1])  # fmt: skip
    keep = KEEP_ALL.replace("[quarantine]", "[quarantine]\nlimit_bytes = 1_048_576")
    upstream = f'upstream = "{sink.address}"'
    with console(tmp_path, listener=upstream, more=keep + hooks) as (daemon, address):
        admin = Api(address, token(home, "all", "admin"))
        alice = Api(address, token(home, "alice", "teach", user="alice@example.org"))
        spamnb(home, "bypass", "on")
        assert "bypass" in receiver.wait_for("warning.raised").body["data"]["text"]
        (pid,) = daemon.children("console")
        receiver.__exit__()
        os.kill(int(pid), signal.SIGKILL)
        spamnb(home, "bypass", "off")
        until(lambda: '"bypass": false' in spamnb(home, "status", "--json").out, "the scans")
        rejected(home)
        report(alice)
        exported = spamnb(home, "export").out
        assert spamnb(home, "import", "-", stdin=exported.encode()).code == 0
        send(daemon.port(), "x" * 1_020_000)
        assert not sink.messages, sink.messages[0][:1000]
        with Receiver(receiver.port) as back:
            assert "bypass" in back.wait_for("warning.cleared").body["data"]["text"]
            back.wait_for("review.waiting")
            back.wait_for("verdict.reject")
            back.wait_for("quarantine.full")
            assert back.wait_for("model.changed").body["data"]["how"] == "import"
            until(lambda: standing(admin, "dead")["waiting"] >= 4, "the other webhook")
            until(lambda: standing(admin, "chat")["waiting"] == 0, "an empty outbox")
            metrics = Api(address, token(home, "m", "metrics")).get("/metrics").body.decode()
            assert 'spamnb_webhook_waiting{webhook="chat"} 0' in metrics
        all_of = [*receiver.requests, *back.requests]
        bodies = {one.id: one.raw for one in all_of}
        assert all(bodies[one.id] == one.raw for one in all_of)
        assert len(set(bodies.values())) == len(bodies)
    dead.close()
    sink.close()


def report(user):
    """Give a label that waits for review, as soon as the console serves again."""

    def given():
        try:
            return user.post("/teach", b"Subject: x\r\n\r\nhello\r\n", label="spam").status == 202
        except OSError:
            return False

    until(given, "the console")


def standing(admin, name):
    none = {"waiting": -1}
    listed = admin.get("/status").body.get("webhooks", ())
    return next((one for one in listed if one["webhook"] == name), none)
