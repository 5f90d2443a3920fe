"""The HTTP API of a real daemon: rights by role and scope, replies as documented, attacks."""

import json
import os
import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from support.console import API, KEEP_ALL, Api, console, token, trained_home
from support.daemon import let_others_enter, send
from support.sink import Sink
from support.waiting import LIMIT_S, until

from spamnb.console.site import BURST, OF_USER
from spamnb.console.table import MOST_JSON_BYTES, OPERATIONS, in_path
from spamnb.maintenance.home_files import thresholds_of
from spamnb.model.costs import Costs
from spamnb.operations.logins import OF_SITE, SCOPES

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
STRANGER = 54321
ENDING = [one for one in OPERATIONS if one.name != "stream"]
"""whose replies end; see test_console_stream.py"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to connect as another user")


class Rig:
    """A daemon with a console at two addresses: TCP, and by a second daemon a unix socket."""

    def __init__(self, folder, daemon, address):
        self.folder, self.daemon, self.address = folder, daemon, address
        self.numbers = count()
        self.home = folder / "home"
        self.tokens = {scope: token(self.home, scope, scope) for scope in SCOPES}
        self.tokens["alice"] = token(self.home, "alice", *sorted(OF_USER), user="alice@example.org")
        self.tokens["bob"] = token(
            self.home, "bob", "score", "teach", "read", "quarantine", user="bob@example.org"
        )

    def api(self, name="", **more):
        return Api(self.address, self.tokens.get(name, ""), **more)

    def fresh(self, scope):
        """A client with a new token, which has sent no request yet."""
        return Api(self.address, token(self.home, f"fresh {next(self.numbers)}", scope))

    def deliver(self, to, subject="a note"):
        """Send a message into the quarantine; its verdict, found by the index."""
        ident = send(self.daemon.port(), subject=subject, to=to).strip("<>")
        api = self.fresh("read")

        def found():
            # Asked too often, it is refused for a moment.
            rows = api.get("/verdicts", to=to).body.get("verdicts", ())
            return next((row for row in rows if row["message_id"] == ident), None)

        return until(found, "the verdict")


@pytest.fixture(scope="module")
def rig():
    folder = Path(tempfile.mkdtemp(prefix="spamnb-"))
    trained_home(folder)
    sink = Sink()
    listener = f'upstream = "{sink.address}"'
    with console(folder, listener=listener, more=MORE) as (daemon, address):
        yield Rig(folder, daemon, address)
    sink.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def unix_rig():
    folder = Path(tempfile.mkdtemp(prefix="spamnb-"))
    let_others_enter(folder)
    trained_home(folder)
    sink = Sink()
    listener = f'upstream = "{sink.address}"'
    with console(folder, f"unix:{folder}/api.sock", listener=listener, more=MORE) as found:
        yield Rig(folder, *found)
    sink.close()
    shutil.rmtree(folder)


SOME = {"signature": "s" + "a" * 26, "name": "x", "id": "x", "job": "x"}
NUMBERS = count()
JUNK = thresholds_of(Costs())["junk"]
MORE = KEEP_ALL + "[persons]\nenabled = true\n"
BODIES = {
    "score": b"Subject: x\r\n\r\nhello\r\n",
    "explain": b"Subject: x\r\n\r\nhello\r\n",
    "teach": {"label": "ham", "ref": "unknown@example.org"},
    "forget": {"ref": "unknown@example.org"},
    "undo": {"event": 999_999},
    "decide": {"do": "refuse"},
    "release": {},
    "whatif": {"junk_from": 0.999},
    "choose_costs": {"junk_from": JUNK, "expect": JUNK},
    "begin_preview": {"kept": "unknown"},
    "apply_preview": {"expect": 1},
    "list_sender": {"word": "wanted", "sender": "news@x.example"},
    "bypass": {"on": False},
    "live": {"on": False},
    "undo_selected": {"since": "2100-01-01T00:00:00Z", "last_event": 1},
}
QUERIES = {
    "series": {"name": "scanned"},
    "undo_plan": {"since": "2100-01-01T00:00:00Z"},
    "take_back_costs": {"at": "2100-01-01T00:00:00Z"},
}


def asked(api, operation):
    """Send a request that is valid but for the things that it names."""
    path = operation.path.format(**{name: SOME[name] for name in in_path(operation)})
    query = QUERIES.get(operation.name, {})
    body = BODIES.get(operation.name)
    if operation.name == "create_token":
        body = {"name": f"made {next(NUMBERS)}", "scopes": ["admin"]}
    return api.ask(operation.method, path, body, **query)


def matches(schema, value):
    """Whether a value has the types and the required properties of a schema."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    types = {
        "object": dict, "array": list, "string": (str, bytes), "boolean": bool,
        "integer": int, "number": (int, float), "null": type(None),
    }  # fmt: skip
    if kinds and not any(isinstance(value, types[kind]) for kind in kinds):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        has = set(schema.get("required", ())) <= value.keys()
        return has and all(matches(known[name], value[name]) for name in known if name in value)
    return not isinstance(value, list) or all(matches(schema.get("items", {}), v) for v in value)


@pytest.mark.parametrize("operation", ENDING, ids=lambda one: one.name)
def test_an_operation_needs_its_scope(rig, unix_rig, operation):
    """By every role and scope: without identification 401, without the scope 403."""
    allowed = {name: asked(rig.api(name), operation).status for name in (*SCOPES, "alice")}
    for name, status in allowed.items():
        scopes = OF_USER if name == "alice" else {name}
        if operation.scope in ("", *scopes):
            assert status in (200, 404), (name, status)
        else:
            assert status == 403, name
    # Local programs read the counters without a token, as at the control socket.
    local = asked(rig.api(), operation)
    assert local.status == (200 if operation.scope in ("", "metrics") else 401)
    if operation.scope == "metrics":
        assert asked(rig.api(X_Forwarded_For="192.0.2.1"), operation).status == 401
    if local.status == 401:
        assert local.headers["www-authenticate"] == "Bearer"
    assert asked(unix_rig.api(), operation).status in (200, 404)
    if os.geteuid() == 0:
        other = asked(unix_rig.api(uid=STRANGER), operation)
        assert (other.status == 403) == (operation.scope not in ("", *OF_USER)), other


@pytest.mark.parametrize("operation", ENDING, ids=lambda one: one.name)
def test_a_reply_is_as_documented(rig, operation):
    """The status is documented, and the reply has the properties of the schema."""
    document = rig.api().get("/openapi.json").body
    described = document["paths"][API + operation.path][operation.method.lower()]
    reply = asked(rig.api(operation.scope or "read"), operation)
    where = described["responses"][str(reply.status)]
    while "$ref" in where:
        where = document["components"]["responses"][where["$ref"].rpartition("/")[2]]
    ((kind, content),) = where["content"].items()
    assert reply.headers["content-type"].partition(";")[0] == kind
    schema = content["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    assert matches(schema, reply.body), reply.body


def test_a_verdict_is_found_taught_and_taken_back(rig):
    """Search, look at, teach, undo: each reply leads to the next."""
    api, row = rig.api("read"), rig.deliver("alice@example.org", "Invoice of May")
    (found,) = api.get("/verdicts", q="invoice may", to="alice@example.org").body["verdicts"]
    assert found == row
    assert found["notes"]["subject"] == "Invoice of May"
    assert found["notes"]["from"] == "alice@example.com"
    assert found["notes"]["listener"] == "mx"
    shown = api.get(f"/verdicts/{row['signature']}").body
    assert shown["now"]["probability"] == row["probability"]
    assert shown["training"] is None
    clues = api.post("/explain", {"ref": row["signature"]}).body
    total = clues["bias"] + sum(clue["nats"] for clue in clues["clues"])
    assert total == pytest.approx(clues["log_odds"])

    label = "spam" if row["label"] == "ham" else "ham"
    taught = rig.api("teach").post("/teach", {"label": label, "ref": row["signature"]})
    assert (taught.status, taught.body["state"]) == (200, "learnt")
    event = taught.body["receipt"]["event"]
    shown = api.get(f"/verdicts/{row['signature']}").body
    assert (shown["now"]["label"], shown["training"]["event"]) == (label, event)
    assert shown["training"]["user"] == "token teach"
    (again,) = api.get("/verdicts", q="invoice", corrected="true").body["verdicts"]
    assert again["trained"] == label
    assert api.get("/journal", limit=1).body["events"][0]["event"] == event
    undone = rig.api("teach").post("/undo", {"event": event})
    assert undone.body["receipt"]["after"] is None
    assert api.get(f"/verdicts/{row['signature']}").body["now"] == {
        name: row[name] for name in ("label", "probability", "log_odds", "decision")
    }


def test_what_belongs_to_another_user_does_not_exist(rig):
    """Every reference to a message or an event of another user is 404, and no list has it."""
    row = rig.deliver("bob@example.org")
    taught = rig.api("bob").post("/teach", {"label": "ham", "ref": row["signature"]})
    assert taught.status == 200
    event = taught.body["receipt"]["event"] or taught.body["receipt"]["already"]
    alice, bob = rig.api("alice"), rig.api("bob")
    for ref in (row["signature"], row["id"], row["message_id"]):
        assert alice.post("/explain", {"ref": ref}).status == 404
        assert bob.post("/explain", {"ref": ref}).status == 200
        assert alice.post("/teach", {"label": "ham", "ref": ref}).status == 404
        assert alice.post("/forget", {"ref": ref}).status == 404
    assert alice.get(f"/verdicts/{row['signature']}").status == 404
    assert alice.post("/undo", {"event": event}).status == 404
    assert bob.get(f"/verdicts/{row['signature']}").status == 200
    seen = [one["notes"]["to"] for one in alice.get("/verdicts").body["verdicts"]]
    assert "bob@example.org" not in seen
    assert alice.get("/verdicts", to="bob@example.org").body["verdicts"] == []
    assert {one["user"] for one in alice.get("/journal").body["events"]} <= {"alice@example.org"}
    assert (
        alice.get("/journal", user="bob@example.org").body["events"]
        == alice.get("/journal").body["events"]
    )
    assert bob.post("/undo", {"event": event}).status == 200


def test_a_user_does_not_learn_who_else_got_a_message(rig):
    """The others may be recipients of a blind copy: neither lists nor searches name them."""
    both = ["alice@example.org", "bob@example.org"]
    send(rig.daemon.port(), subject="to both", to=both)
    row, *_ = rig.fresh("read").found(1, q="both")
    assert row["notes"]["to"].split() == both
    alice = rig.api("alice")
    (mine,) = alice.get("/verdicts", q="both").body["verdicts"]
    assert mine["notes"]["to"] == both[0]
    assert alice.get(f"/verdicts/{row['signature']}").body["notes"]["to"] == both[0]
    assert alice.get("/verdicts", q="both", to=both[0]).body["verdicts"] == [mine]
    assert alice.get("/verdicts", q="both", to=both[1]).body["verdicts"] == []


def test_an_administrator_sees_who_writes_to_the_site(rig):
    """The domains of authors, by the number of messages; users do not see it."""
    rig.deliver("alice@example.org", "who writes")
    found = rig.fresh("admin").get("/senders/seen", days=7).body["senders"]
    (one,) = (one for one in found if one["domain"] == "example.com")
    assert one["messages"] >= max(1, one["filed"])
    assert (one["checked"], one["authentic"]) == (0, 0)
    assert one["first"] <= one["last"]
    assert rig.fresh("read").get("/senders/seen").status == 403
    assert rig.api("alice").get("/senders/seen").status == 403


def test_a_user_has_the_own_list_of_senders(rig):
    """An administrator names any list; a user reaches no other one, and a change is taken back."""
    alice, bob, admin = rig.api("alice"), rig.api("bob"), rig.fresh("teach")
    asked = {"word": "unwanted", "sender": "Shop@X.example"}
    done = alice.post("/senders", asked)
    assert (done.status, done.body["state"]) == (200, "listed")
    facts = done.body["facts"]
    assert (facts["owner"], facts["before"]) == ("alice@example.org", None)
    for other in ({"person": "bob@example.org"}, {"domain": "example.org"}):
        assert alice.post("/senders", asked | other).status == 409
        assert alice.get("/senders", **other).status == 409
    assert admin.post("/senders", asked | {"person": "bob@example.org"}).status == 200
    assert admin.post("/senders", asked | {"domain": "example.org"}).status == 200
    every = rig.fresh("read").get("/senders", sender="shop@x.example").body["senders"]
    assert {one["list"] for one in every} == {"person", "domain"}
    for api, name in ((alice, "alice@example.org"), (bob, "bob@example.org")):
        (mine,) = api.get("/senders", sender="shop@x.example").body["senders"]
        assert (mine["owner"], mine["word"]) == (name, "unwanted")
    back = alice.post("/senders", asked | {"word": "none"})
    assert back.body["facts"]["before"] == "unwanted"
    assert alice.get("/senders", sender="shop@x.example").body["senders"] == []
    for wrong in ({"word": "perhaps"}, {"sender": "*"}, {"sender": ""}, {"ref": "x@y.example"}):
        assert alice.post("/senders", asked | wrong).status in (400, 422), wrong
    kept = rig.deliver("bob@example.org", "of a sender")
    by_ref = {"word": "wanted", "ref": kept["signature"]}
    assert alice.post("/senders", by_ref).status == 404
    assert bob.post("/senders", by_ref).body["facts"]["sender"] == kept["notes"]["from"]


def test_a_word_without_proof_waits_for_review(rig):
    """202, an entry in the queue, and the administrator's decision."""
    raw = sorted((SAMPLE / "ham").iterdir())[30].read_bytes()
    reply = rig.api("alice").post("/teach", raw, label="spam")
    assert (reply.status, reply.body["state"]) == (202, "review")
    (entry,) = rig.api("admin").get("/review").body["entries"]
    assert (entry["user"], entry["label"]) == ("alice@example.org", "spam")
    refused = rig.api("admin").post(f"/review/{entry['name']}", {"do": "refuse"})
    assert refused.status == 200
    assert rig.api("admin").get("/review").body["entries"] == []
    assert rig.api("alice").post("/score", raw, remember="true").status == 403


def test_kept_mail_is_released_or_deleted(rig):
    """A released message reaches its next hop, is taught, and leaves the quarantine."""
    api = rig.api("quarantine")
    first, second = (rig.deliver("carol@example.org", s) for s in ("first", "second"))
    kept = api.get("/quarantine", limit=2).body
    assert [one["subject"] for one in kept["messages"]] == ["second", "first"]
    rest = api.get("/quarantine", limit=200, cursor=kept["next"] or "0").body["messages"]
    assert not {one["id"] for one in rest} & {one["id"] for one in kept["messages"]}
    name = kept["messages"][1]["id"]
    released = api.post(f"/quarantine/{name}/release", {"teach": True})
    assert released.body["delivered"] is True
    assert released.body["results"] == [{"recipient": "carol@example.org", "reply": "delivered"}]
    assert released.body["training"]["state"] == "learnt"
    assert api.post(f"/quarantine/{name}/release", {}).status == 404
    deleted = api.ask("DELETE", f"/quarantine/{kept['messages'][0]['id']}")
    assert deleted.status == 200
    assert first["signature"] != second["signature"]
    rig.daemon.wait_for("console", operation="delete", caller="token quarantine", status=200)


@needs_root
def test_a_user_of_the_machine_has_the_own_messages(unix_rig):
    """The kernel names the user; messages to the login at any domain are the user's."""
    api = unix_rig.api(uid=STRANGER)
    assert api.get("/me").body == {
        "name": str(STRANGER), "user": str(STRANGER), "scopes": sorted(OF_USER),
    }  # fmt: skip
    send(unix_rig.daemon.port(), to=f"{STRANGER}@example.org")
    send(unix_rig.daemon.port(), to="other@example.org")
    assert len(unix_rig.api().found(2)) == 2
    (own,) = api.get("/verdicts").body["verdicts"]
    assert own["notes"]["to"] == f"{STRANGER}@example.org"
    assert api.post("/teach", {"label": "ham", "ref": own["signature"]}).status == 200


# --- attacks -----------------------------------------------------------------------------------


def test_a_token_that_is_not_valid_is_refused(rig):
    """Cut, changed, of another scheme, ended or revoked: 401, also where no scope is needed."""
    good = rig.tokens["read"]
    for text in (good[:-1], good + "x", good.upper(), "", "spamnb_", "\xff"):
        assert Api(rig.address, text or "x").get("/me").status == 401
    basic = Api(rig.address)
    basic.headers["Authorization"] = f"Basic {good}"
    assert basic.get("/health").status == 401
    made = token(rig.home, "short", "read")
    assert Api(rig.address, made).get("/me").status == 200
    path = rig.home / "console" / "tokens.json"
    rows = json.loads(path.read_bytes())
    path.write_text(json.dumps([one for one in rows if one["name"] != "short"]))
    assert Api(rig.address, made).get("/me").status == 401
    ended = [one | {"ends_us": 1} if one["name"] == "read" else one for one in rows]
    path.write_text(json.dumps(ended))
    assert Api(rig.address, good).get("/me").status == 401
    path.write_text(json.dumps(rows))
    assert Api(rig.address, good).get("/me").status == 200
    assert made not in path.read_text()


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "[", "", "192.0.2.1"])
def test_another_host_is_refused(rig, host):
    """A page that reaches this address under its own name (DNS rebinding) gets 421."""
    assert rig.api(Host=host).get("/health").status == 421
    for own in ("localhost", "127.0.0.1:1", "[::1]:8025", "LOCALHOST:80"):
        assert rig.api(Host=own).get("/health").status == 200


def test_rates_are_limited_by_source_and_by_token(rig):
    """A burst beyond the limit gets 429 with a time; other sources are served."""
    text = token(rig.home, "fast", "read")
    for more in ({"source": "127.9.9.9"}, {"token": text}):
        api = Api(rig.address, again=False, **more)
        statuses = [api.get("/me").status for _ in range(int(BURST) * 4)]
        assert statuses[:10] == [200] * 10
        if 429 in statuses:  # a slow machine sends no more than the rate
            assert statuses.index(429) >= BURST
    assert rig.api("read").get("/me").status == 200


@pytest.mark.parametrize(
    ("path", "body", "query", "status", "words"),
    [
        ("/undo", {"event": 1, "evnt": 2}, {}, 400, "did you mean event?"),
        ("/undo", {"event": "x"}, {}, 400, "a whole number"),
        ("/undo", {"event": True}, {}, 400, "a whole number"),
        ("/undo", {}, {}, 400, ""),
        ("/undo", b"[1]", {}, 415, "application/json"),
        ("/teach", {"label": "ham"}, {}, 400, ""),
        ("/teach", {"label": "other", "ref": "x"}, {}, 400, "its labels"),
        ("/teach", {"label": "ham", "ref": "x", "trust": "admin"}, {}, 400, "known"),
        ("/teach", {"label": "ham", "ref": "x", "for": "bob@example.org"}, {}, 400, "known"),
        ("/teach", b"Subject: x\r\n\r\n", {"label": "ham", "ref": "x"}, 400, ""),
        ("/undo", {"event": 1, "x" * MOST_JSON_BYTES: 1}, {}, 413, ""),
    ],
)
def test_a_bad_request_says_what_is_wrong(rig, path, body, query, status, words):
    """4xx with one line and a hint; nothing was changed, and no incident is logged."""
    reply = rig.fresh("teach").post(path, body, **query)
    assert (reply.status, reply.body["incident"]) == (status, "")
    assert words in reply.body["detail"]
    assert reply.title


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "since=yesterday", "since=2026-01-01", "cursor=-1", "decision=spam",
     "limit=1&limit=2", "corrected=1", "x=" + "y" * 2000, "&".join("to=x" for _ in range(60)),
     "to=%00", "label=%FF"],
)  # fmt: skip
def test_a_bad_query_is_an_error(rig, query):
    """No parameter is ignored or guessed."""
    reply = rig.fresh("read").ask("GET", f"{API}/verdicts?{query}")
    assert reply.status == (200 if query == "label=%FF" else 400), reply


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"POST /api/v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /api/v1/score HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: x\r\n\r\n0\r\n",
    ],
)
def test_hostile_bytes_end_one_connection(rig, sent):
    """The connection is answered with 4xx or closed; the next one is served."""
    host, _, port = rig.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as client:
        client.sendall(sent)
        first = client.recv(4096)
    assert first.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")) or not first
    assert rig.api().get("/health").status == 200
    assert rig.daemon.logged("fault") == []


def test_a_head_that_never_ends_is_cut_off(rig):
    """A client that sends a byte now and then is disconnected after ten seconds."""
    host, _, port = rig.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as client:
        client.sendall(b"GET /api/v1/health HTTP/1.1\r\n")
        with suppress(ConnectionResetError):
            assert client.recv(4096) == b""


def test_without_the_learner_a_change_is_503(rig):
    """The learner's silence is one sentence and a time to try again; reading goes on."""
    (learner,) = rig.daemon.children("learner")
    os.kill(learner, signal.SIGSTOP)
    try:
        reply = rig.api("teach").post("/teach", {"label": "ham", "ref": "x@example.org"})
        assert rig.api("read").get("/verdicts").status == 200
        assert rig.api().get("/health").status == 200
    finally:
        os.kill(learner, signal.SIGCONT)
    assert reply.status == 503
    assert reply.title == "the daemon does not answer: it took too long"
    assert int(reply.headers["retry-after"]) > 0


def test_a_killed_console_costs_no_mail(rig):
    """Mail is accepted while the console is dead; its successor has the index."""
    (pid,) = rig.daemon.children("console")
    os.kill(pid, signal.SIGKILL)
    row = rig.deliver("dave@example.org")
    assert row["notes"]["to"] == "dave@example.org"
    rig.daemon.wait_for("process died", role="console")


def test_tokens_of_one_user_are_not_for_the_site(rig):
    """A token of one user cannot have a scope of the whole site."""
    from support.cli import spamnb

    for scope in OF_SITE:
        made = spamnb(
            rig.home, "token", "create", "--name", "x", "--scope", scope, "--for", "alice"
        )
        assert made.code == 2, scope
    assert spamnb(rig.home, "token", "create", "--name", "x", "--scope", "all").code == 2
    assert spamnb(rig.home, "token", "create", "--name", "read", "--scope", "read").code == 2
    listed = spamnb(rig.home, "token", "list", "--json").json
    assert {one["name"] for one in listed} >= {"read", "alice"}
    assert spamnb(rig.home, "token", "revoke", "nobody").code == 2
