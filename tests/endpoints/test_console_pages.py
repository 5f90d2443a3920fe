"""Attacks on the pages: other sites, other hosts, other users, guessed passwords, old sessions."""

import html
import json
import re
import smtplib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from urllib.parse import urlencode

import pytest
from support.browser import LOGINS, PASSWORD, pages
from support.cli import HAM, SPAM, spamnb
from support.console import trained_home
from support.page_client import Rig
from support.waiting import LIMIT_S, until

from spamnb.console.page import (
    IDLE_US,
    LINK_US,
    LONGEST_US,
    PageRights,
    Visitors,
)
from spamnb.console.pages_http import PAGES
from spamnb.console.site import ApiError
from spamnb.operations.logins import Cost, Login, hashed, read_logins, write_logins
from spamnb.records.console import LoginSession, SessionStore, _hash
from spamnb.store.model_store import release, share_or_renew


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    trained_home(folder)
    with pages(folder, "[persons]\nenabled = true\n") as (daemon, url):
        yield Rig(folder, daemon, url)


@pytest.fixture(scope="module")
def cookies(rig):
    return {login: rig.log_in(login).cookie for login in LOGINS}


@pytest.mark.parametrize("login", ["", "root", "audit", "alice"])
@pytest.mark.parametrize("page", [one for one in PAGES if not one.name.endswith("stream")],
                         ids=lambda one: one.name)  # fmt: skip
def test_a_page_is_for_its_roles(rig, cookies, page, login):
    """Without a session a page leads to the login; without the role it does not exist.

    The tests of quarantine and review show messages that exist.
    """
    here = "{id}" not in page.path and "{name}" not in page.path
    path = page.path.format(
        signature=rig.deliver("alice@example.org"), id="20260101T000000000000-01234567", name="none"
    )
    reply = rig.get(path, cookies.get(login, ""))
    role = {"root": "admin", "audit": "auditor", "alice": "user"}.get(login)
    assert reply.status == (303 if not login else 200 if here and role in page.roles else 404)
    policy = "sandbox;" if page.in_frame else "require-trusted-types-for 'script'"
    assert policy in reply.headers["content-security-policy"]
    assert reply.headers["cache-control"] == "no-store"
    for name in page.acts:
        form = {"do": name, "token": "0" * 64, "event": 1, "label": "spam"}
        assert rig.post(path, form, cookies.get(login, "")).status in (401, 403, 404)


def test_a_form_of_another_site_does_nothing(rig, cookies):
    """Neither a foreign site nor a missing, old or other token changes anything."""
    signature = rig.deliver("alice@example.org")
    path, cookie = f"/message/{signature}", cookies["root"]
    token = rig.token(path, cookie)
    form = {"do": "teach", "label": "spam", "token": token}
    own = f"http://{rig.host}"
    refused = [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": own},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": None},
        {"Sec_Fetch_Site": None, "Origin": "https://evil.example"},
        {"Sec_Fetch_Site": None, "Origin": "null"},
        {"Sec_Fetch_Site": None, "Origin": f"{own}.evil.example"},
    ]
    for headers in refused:
        assert rig.post(path, form, cookie, **headers).status == 403, headers
    others = rig.token("/search", cookie), rig.token(path, cookies["audit"])
    for wrong in ("", "x", "ä", *others):
        assert rig.post(path, form | {"token": wrong}, cookie).status == 403
    assert rig.post(path, form, cookies["alice"]).status == 403
    assert "It was not taught" in rig.get(path, cookie).text
    as_json = rig.ask("POST", path, Cookie=cookie, Sec_Fetch_Site="same-origin")
    assert as_json.status == 415
    assert rig.post(path, form, cookie, Sec_Fetch_Site=None, Origin=own).status == 200
    assert "It was taught as spam" in rig.get(path, cookie).text


def test_a_get_changes_nothing(rig, cookies):
    """Programs that follow links cannot teach, undo, log in or log out."""
    signature = rig.deliver("alice@example.org")
    token = rig.token(f"/message/{signature}", cookies["root"])
    query = urlencode({"do": "teach", "label": "spam", "token": token})
    assert rig.get(f"/message/{signature}?{query}", cookies["root"]).status == 400
    assert "It was not taught" in rig.get(f"/message/{signature}", cookies["root"]).text
    assert rig.get("/logout", cookies["root"]).status == 405
    assert rig.get("/live", cookies["root"]).status == 200


def test_other_hosts_are_not_served(rig, cookies):
    """A name of a stranger for this machine gets 421, also with a session."""
    for path in ("/login", "/live", "/"):
        assert rig.get(path, cookies["root"], Host="evil.example").status == 421
    reply = rig.log_in("root", Host="evil.example", Origin="http://evil.example")
    assert reply.status == 421
    assert reply.cookie == ""


def test_the_login_leads_to_no_other_site(rig):
    """`next` is a path of this site."""
    for after in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:1", ""):
        query = urlencode({"next": after})
        form = {"login": "root", "password": PASSWORD}
        assert rig.post(f"/login?{query}", form).headers["location"] == "/"


def test_things_of_another_user_do_not_exist(rig, cookies):
    """Another user's message, event and list are answered as unknown ones are."""
    bobs, root = rig.deliver("bob@example.org"), cookies["root"]
    path, alice = f"/message/{bobs}", cookies["alice"]
    unknown = rig.get("/message/s" + "a" * 26, alice)
    assert unknown.status == rig.get(path, alice).status == 404
    form = {"do": "teach", "label": "spam", "token": rig.token(path, root)}
    assert rig.post(path, form, root).status == 200
    events = rig.get("/trainings", root).text
    event = re.search(r'name="event" value="(\d+)"', events)[1]
    own = rig.token("/mail", alice)
    refused = rig.post("/mail", {"do": "undo", "event": event, "token": own}, alice)
    assert refused.status == 404
    refused = rig.post("/mail", {"do": "teach", "ref": bobs, "label": "ham", "token": own}, alice)
    assert "there is no verdict" in refused.text.lower()
    assert "It was taught as spam" in rig.get(path, root).text
    assert rig.get("/mail?address=bob%40example.org", alice).status == 404
    assert "bob" not in rig.get("/trainings?user=root", alice).text


def test_the_sender_of_a_message_is_listed_and_taken_back(rig, cookies):
    """A user changes the own list only; an administrator one of a recipient, a domain or all."""
    signature = rig.deliver("alice@example.org")
    path, alice, root = f"/message/{signature}", cookies["alice"], cookies["root"]
    text = rig.get(path, alice).text
    sender = re.search(r"<option>([^<@]+@[^<]+)</option>", text)[1]
    assert 'name="of"' not in text
    form = {"do": "list", "sender": sender, "word": "unwanted", "token": rig.token(path, alice)}
    done = rig.post(path, form | {"of": "person:bob@example.org"}, alice)
    assert done.status == 409
    done = rig.post(path, form, alice)
    assert (done.status, "is never wanted." in done.text) == (200, True)
    assert '<input type="hidden" name="word" value="none">' in done.text
    form["token"] = rig.token(path, root)
    shown = rig.get(path, root).text
    assert f"{sender} is unwanted for alice@example.org" in shown
    for of in ("domain:example.org", "site:"):
        assert f'value="{of}"' in shown
        assert rig.post(path, form | {"of": of}, root).status == 200
    assert rig.post(path, form, cookies["audit"]).status == 403
    newest = rig.get(f"/message/{rig.deliver('alice@example.org')}", alice).text
    assert "recipient's list of unwanted senders" in html.unescape(newest)
    for of, cookie in (("", alice), ("domain:example.org", root), ("site:", root)):
        back = (
            form | {"word": "none", "token": rig.token(path, cookie)} | ({"of": of} if of else {})
        )
        assert "no longer on the list" in rig.post(path, back, cookie).text
    assert "No list names" in rig.get(path, root).text


def test_the_box_of_the_sender_tells_what_came_before(rig, cookies):
    """An administrator sees the counts of all mail from the domain, a user those of own mail."""
    known = len(rig.daemon.logged("message"))
    for to in ("alice@example.org", "alice@example.org", "bob@example.org"):
        with smtplib.SMTP("127.0.0.1", rig.daemon.port(), timeout=LIMIT_S) as peer:
            peer.sendmail("ann@letters.example", [to], "From: ann@letters.example\r\n\r\nhello")
    signature = rig.daemon.wait_for("message", known + 1)["signature"]

    def shown(login):
        page = rig.get(f"/message/{signature}", cookies[login]).text
        found = re.search(r"From letters\.example since .*?: (\d+) messages", page, re.DOTALL)
        return int(found[1]) if found else 0

    until(lambda: (shown("root"), shown("alice")) == (3, 2), "the index of verdicts")
    assert "Show them" in rig.get(f"/message/{signature}", cookies["alice"]).text


def test_an_auditor_changes_nothing(rig, cookies):
    """Also with a form that the page does not show."""
    signature = rig.deliver("alice@example.org")
    path, audit = f"/message/{signature}", cookies["audit"]
    token = rig.token(path, audit)
    reply = rig.post(path, {"do": "teach", "label": "spam", "token": token}, audit)
    assert reply.status == 403
    assert "An auditor may look but not change anything." in reply.text


def test_wrong_passwords_are_slowed_down(rig):
    """After three wrong passwords the right one has to wait, too; others are not locked out."""
    source = "127.3.0.1"
    assert [rig.log_in("root", "wrong", source=source).status for _ in range(3)] == [401] * 3
    late = rig.log_in("root", source=source)
    assert late.status == 429
    assert late.cookie == ""
    assert rig.log_in("root").status == 303


def test_a_flood_of_logins_does_not_stop_the_pages(rig, cookies):
    """While a hundred clients guess, pages are served, and few passwords are checked."""
    with ThreadPoolExecutor(20) as pool:
        guesses = [
            pool.submit(rig.log_in, "root", f"guess {number}", source="127.3.0.2")
            for number in range(100)
        ]
        assert rig.get("/live", cookies["root"]).status == 200
        statuses = [one.result().status for one in guesses]
    assert set(statuses) <= {401, 429, 503}
    assert statuses.count(401) <= 10


def test_sessions_end(rig):
    """By logging out, by the command, and when the password changes."""
    cookie = rig.log_in("bob").cookie
    assert re.fullmatch(r"spamnb=[\w-]{43}", cookie)
    token = rig.token("/logout", cookie)
    assert f'name="token" value="{token}"' in rig.get("/mail", cookie).text
    assert rig.post("/logout", {"token": token}, cookie).status == 303
    assert rig.get("/mail", cookie).status == 303
    cookie = rig.log_in("bob").cookie
    assert spamnb(rig.home, "console", "sessions", "--end", "BOB").code == 0
    assert rig.get("/mail", cookie).status == 303
    cookie = rig.log_in("bob").cookie
    path = rig.folder / "passwords"
    secret = hashed("another password", Cost(ln=4))
    write_logins(path, read_logins(path) | {"bob": Login("bob", secret, LOGINS["bob"])})
    assert rig.get("/mail", cookie).status == 303
    assert rig.log_in("bob").status == 401
    assert rig.log_in("bob", "another password").status == 303


def test_the_log_says_who_did_what(rig, cookies):
    """Logins, changes and looks at a message are logged with the login."""
    signature = rig.deliver("alice@example.org")
    rig.get(f"/message/{signature}", cookies["root"])
    rig.daemon.wait_for("console", operation="message", caller="root", signature=signature)
    rig.daemon.wait_for("console", operation="log in", caller="alice", status=200)


def test_a_cookie_is_secure_behind_tls(tmp_path):
    """At the URL of the web server the cookie has the prefix __Host- and is Secure."""
    trained_home(tmp_path)
    with pages(tmp_path, url="https://mail.example.org") as (daemon, url):
        rig = Rig(tmp_path, daemon, url)
        there = {"Host": "mail.example.org", "X_Forwarded_For": "192.0.2.7"}
        reply = rig.log_in("root", **there)
        assert reply.status == 303
        cookie = reply.headers["set-cookie"]
        assert cookie.startswith("__Host-spamnb=")
        assert all(part in cookie for part in ("Secure", "HttpOnly", "SameSite=lax", "Path=/"))
        own = {"Sec_Fetch_Site": None, "Origin": "https://mail.example.org"}
        assert rig.log_in("root", **there, **own).status == 303
        own["Origin"] = "http://mail.example.org"
        assert rig.log_in("root", **there, **own).status == 403
        # The client of the web server is slowed down, not the web server.
        for _ in range(3):
            assert rig.log_in("root", "wrong", source="127.0.0.1", **there).status == 401
        assert rig.log_in("root", source="127.0.0.1", **there).status == 429
        there["X_Forwarded_For"] = "198.51.100.9, 192.0.2.8"
        assert rig.log_in("root", source="127.0.0.1", **there).status == 303


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = time.time_ns() // 1000

    def __call__(self):
        return self.now


@pytest.fixture
def visitors(tmp_path):
    path = tmp_path / "passwords"
    secret = hashed(PASSWORD, Cost(ln=4))
    write_logins(path, {name: Login(name, secret, own) for name, own in LOGINS.items()})
    store, clock = SessionStore(tmp_path), Clock()
    found = Visitors(store, clock)
    found.apply_settings(PageRights(path, ("root",), ("audit",)))
    yield found, store, clock
    store.close()


def test_a_session_ends_when_it_is_idle_and_after_a_week(visitors):
    """An administrator's idle session ends after an hour, a user's after twelve."""
    found, _, clock = visitors
    texts = {name: found.log_in(name, PASSWORD.encode(), name).text for name in ("root", "alice")}
    clock.now += IDLE_US["admin"] - 1
    assert found.find(texts["root"]).role == "admin"
    clock.now += IDLE_US["admin"] + 1
    assert found.find(texts["root"]) is None
    ends = clock.now + LONGEST_US
    while clock.now < ends:
        assert found.find(texts["alice"]) is not None or clock.now > ends - 3 * IDLE_US["admin"]
        clock.now += IDLE_US["user"] - 1
    assert found.find(texts["alice"]) is None


def test_a_role_is_that_of_the_settings_now(visitors):
    """An administrator who is taken out of the settings is a user at the next request."""
    found, _, _ = visitors
    text = found.log_in("root", PASSWORD.encode(), "here").text
    rights = found._rights
    found.apply_settings(rights._replace(admins=()))
    assert found.find(text).role == "user"
    found.apply_settings(rights._replace(admins=(), users=False))
    assert found.find(text) is None
    with pytest.raises(ApiError):
        found.log_in("alice", PASSWORD.encode(), "there")


def test_a_look_alike_of_an_administrator_is_none(visitors):
    """Of two letters that are one in other case rules, such as a long s, each is its own."""
    found, _, _ = visitors
    rights = found._rights
    found.apply_settings(rights._replace(admins=("Sally", "ROOT"), auditors=("sally",)))
    roles = [found._role_of(name) for name in ("sALLY", "root", "\u017fally", "roo\u1e97")]
    assert roles == ["admin", "admin", "user", "user"]


def test_a_link_is_good_once_within_a_minute(visitors):
    """A used link and a late one do not log in."""
    found, store, clock = visitors
    link = LoginSession("owner", "", clock.now, clock.now, clock.now + LINK_US)
    first, late = store.add("links", link), store.add("links", link)
    assert found.find(found.log_in_by_link(first).text).role == "admin"
    clock.now += LINK_US
    for text in (first, late, "x", ""):
        with pytest.raises(ApiError):
            found.log_in_by_link(text)
    assert found.find(first) is None


def test_no_user_ends_the_sessions_of_others(tmp_path):
    """Of one login a hundred sessions stay; a folder of an earlier version is taken over."""
    folder = tmp_path / "console" / "sessions"
    earlier = share_or_renew(folder, ("sessions", "links"))
    text = "x" * 43
    row = json.dumps(asdict(LoginSession("alice", "", 1, 1, 1 << 60))).encode()
    earlier.transact(lambda tables: tables["sessions"].put(_hash(text), row))
    release(earlier)
    store = SessionStore(tmp_path)
    newest = [store.add("sessions", LoginSession("bob", "", at, at, 1 << 60)) for at in range(150)]
    assert store.find(text).login == "alice"
    assert [store.find(one) is not None for one in newest] == [False] * 50 + [True] * 100
    assert store.use_step("bob", 7)
    assert not store.use_step("BOB", 7)
    store.close()


def test_the_status_shows_the_threshold_and_its_history(rig, cookies):
    """Where junk begins, as `spamnb status` says it, and the event that set it."""
    done = spamnb(rig.home, "train", "--expect", "--json", HAM, SPAM)
    assert done.code == 0, done.err
    nats = f"{done.json[0]['expected']['threshold']:.2f} nats"
    told = spamnb(rig.home, "status", "--json").json[0]["model"]["threshold"]
    page = rig.get("/status", cookies["root"]).text
    assert f"Junk from {nats} on" in page
    assert re.search(rf"{nats}:\s*<a[^>]*>event {told['past'][0]['event']}</a>", page)
