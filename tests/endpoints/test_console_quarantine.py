"""The quarantine by the HTTP API of a real daemon: previews, partial releases, users' own parts."""

import re
import shutil
import tempfile
from itertools import count
from pathlib import Path

import pytest
from support.console import KEEP_ALL, Api, console, token, trained_home
from support.daemon import send
from support.sink import Sink
from support.waiting import until

NAMES = ["alice@example.org", "bob@example.org", "eve@example.org"]


class KeptMail:
    """A daemon that keeps all mail, and tokens of an administrator and of users."""

    def __init__(self, folder, daemon, address, sink):
        self.home, self.daemon, self.address, self.sink = folder / "home", daemon, address, sink
        self.tokens = {"admin": token(self.home, "admin", "quarantine", "admin", "teach")}
        self.numbers = count()
        for name in ("alice", "bob"):
            self.tokens[name] = token(
                self.home, name, "quarantine", "teach", "read", user=f"{name}@example.org"
            )

    def api(self, name="admin"):
        return Api(self.address, self.tokens[name])

    def keep(self, *to):
        """Send a message into the quarantine; its facts."""
        send(self.daemon.port(), subject=f"number {next(self.numbers)}", to=[*to])
        (kept,) = self.api().get("/quarantine", limit=1).body["messages"]
        return kept


@pytest.fixture(scope="module")
def rig():
    folder = Path(tempfile.mkdtemp(prefix="spamnb-"))
    trained_home(folder)
    sink = Sink()
    with console(folder, listener=f'upstream = "{sink.address}"', more=KEEP_ALL) as found:
        yield KeptMail(folder, *found, sink)
    sink.close()
    shutil.rmtree(folder)


def test_kept_mail_is_released_to_some(rig):
    """Those who are named get it, and the message waits for the others."""
    api, kept = rig.api(), rig.keep(*NAMES)
    assert kept["waiting"] == NAMES
    where = f"/quarantine/{kept['id']}"
    for only in (["carl@example.org"], [NAMES[0], "x"], NAMES[0], [1], [""]):
        assert api.post(f"{where}/release", {"only": only}).status == 400
    assert api.post(f"{where}/release", {"only": []}).status == 409
    released = api.post(f"{where}/release", {"only": NAMES[:1], "teach": True}).body
    assert released["results"] == [{"recipient": NAMES[0], "reply": "delivered"}]
    assert (released["delivered"], released["training"]["state"]) == (True, "learnt")
    assert api.get(where).body["waiting"] == NAMES[1:]
    assert api.post(f"{where}/release", {"only": NAMES[:1]}).status == 409
    assert api.post(f"{where}/release", {}).body["delivered"] is True
    assert api.get(where).status == 404


def test_kept_mail_is_shown_safely(rig):
    """The preview forbids the browser all that acts; the message itself is only a file."""
    api, kept = rig.api(), rig.keep("alice@example.org")
    where = f"/quarantine/{kept['id']}"
    assert api.get(where).body == kept
    shown = api.get(f"{where}/view")
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert shown.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert shown.headers["cache-control"] == "no-store"
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert shown.headers["referrer-policy"] == "no-referrer"
    assert f"<bdi>{kept['subject']}</bdi>".encode() in shown.body
    raw = api.get(f"{where}/raw")
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["content-disposition"].startswith("attachment; ")
    assert raw.headers["content-security-policy"].startswith("default-src 'none'")
    assert f"Subject: {kept['subject']}".encode() in raw.body
    assert api.get("/quarantine", limit=1).body["messages"] == [kept]
    for looked in ("view", "raw"):
        rig.daemon.wait_for("console", operation=looked, caller="token admin", status=200)
        for name in ("../..", "0" * 40, "%2e%2e%2f%2e%2e%2fetc%2fpasswd", kept["id"] + "%00"):
            assert api.get(f"/quarantine/{name}/{looked}").status in (400, 404)


def test_a_user_has_only_the_own_part(rig):
    """Other recipients do not exist for a user; nothing that a user does concerns them."""
    kept = rig.keep(*NAMES)
    where, bob = f"/quarantine/{kept['id']}", rig.api("bob")
    (seen,) = bob.get("/quarantine", limit=1).body["messages"]
    assert (seen["id"], seen["recipients"]) == (kept["id"], ["bob@example.org"])
    assert "eve@" not in str(bob.get(where).body)
    assert bob.post(f"{where}/release", {"only": ["eve@example.org"]}).status == 400
    released = bob.post(f"{where}/release", {"teach": True}).body
    assert released["results"] == [{"recipient": "bob@example.org", "reply": "delivered"}]
    assert released["training"]["state"] == "learnt"
    assert bob.get(where).status == 404
    assert rig.api("alice").ask("DELETE", where).status == 200
    assert rig.api().get(where).body["waiting"] == ["eve@example.org"]


def test_a_preview_shows_the_passage_that_is_like_spam(rig):
    """Spam below good text: the preview names the spam; a short message has no passage."""
    api = rig.api()
    bad = "cheap casino pills winner bonus lottery transfer profit crypto urgent " * 5
    good = " ".join(f"garden{number} minutes{number}" for number in range(300))
    for text, label in [(bad, "spam"), (bad, "spam"), (good, "ham")] * 10:
        raw = f"Subject: x\nMessage-ID: <{next(rig.numbers)}@{label}.example>\n\n{text}"
        assert api.post("/teach", raw.encode(), label=label).status == 200
    send(rig.daemon.port(), subject="both", to=["alice@example.org"], text=f"{good}\n{bad}\n{good}")
    (kept,) = api.get("/quarantine", limit=1).body["messages"]
    shown = api.get(f"/quarantine/{kept['id']}/view").body.decode()
    (quoted,) = re.findall(r'<section class="passage">.*?</section>', shown, re.DOTALL)
    assert "casino" in quoted
    assert len(quoted) < len(shown) / 4
    other = rig.keep("alice@example.org")
    assert b'class="passage"' not in api.get(f"/quarantine/{other['id']}/view").body


@pytest.mark.parametrize("rest", ["", "/view", "/raw", "/release", "delete"])
def test_the_mail_of_others_does_not_exist(rig, rest):
    """By each operation a message to another user is answered as an unknown one."""
    kept = rig.keep("eve@example.org", "bob@sub.example.org")
    bob, replies = rig.api("bob"), []
    for name in (kept["id"], "20260101T000000000000-01234567"):
        where = f"/quarantine/{name}"
        if rest == "delete":
            found = bob.ask("DELETE", where)
        elif rest == "/release":
            found = bob.post(where + rest, {"again": True})
        else:
            found = bob.get(where + rest)
        replies.append((found.status, found.title.replace(name, ""), found.body["detail"]))
    assert replies[0] == replies[1]
    assert replies[0][0] == 404
    assert kept["id"] not in str(bob.get("/quarantine", limit=200).body)
    assert rig.api().get(f"/quarantine/{kept['id']}").body == kept


def test_a_get_changes_nothing(rig):
    """Programs that follow links change nothing; the other method is refused."""
    kept = rig.keep(*NAMES)
    where, api = f"/quarantine/{kept['id']}", rig.api()
    assert api.get(f"{where}/release").status == 405
    for path in (where, f"{where}/view", f"{where}/raw", "/quarantine", "/review"):
        for _ in range(2):
            assert api.get(path).status == 200
    assert api.get(where).body == kept


def test_a_message_in_review_is_shown_safely(rig):
    """A submitted message that waits for a decision has a preview; a reference alone has none."""
    message = b"Subject: please learn\r\nContent-Type: text/html\r\n\r\n<script>1</script><b>x</b>"
    waits = rig.api("bob").ask("POST", "/teach", message, label="spam")
    assert waits.status == 202, waits
    name = waits.body["review"]
    shown = until(lambda: rig.api().get(f"/review/{name}/view"), "the preview")
    assert shown.headers["content-security-policy"].startswith("sandbox; ")
    assert b"<b>x</b>" in shown.body
    assert b"script" not in shown.body
    assert rig.api("bob").get(f"/review/{name}/view").status == 403
    assert rig.api().get("/review/x/view").status == 404
    assert rig.api().post(f"/review/{name}", {"do": "refuse"}).status == 200
    assert rig.api().get(f"/review/{name}/view").status == 404
