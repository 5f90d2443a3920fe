"""Attacks on the pages: other sites, other hosts, other users, guessed passwords, old sessions."""

import http.client
import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from urllib.parse import urlencode

import pytest
from support.browser import LOGINS, PASSWORD, pages
from support.cli import spamnb
from support.console import trained_home
from support.daemon import send
from support.waiting import LIMIT_S

from spamnb.endpoints.console.pages.table import PAGES
from spamnb.endpoints.console.pages.visitors import (
    IDLE_US,
    LINK_US,
    LONGEST_US,
    PageRights,
    Visitor,
    Visitors,
)
from spamnb.endpoints.console.problems import ApiError
from spamnb.service.admin.logins import Cost, Login, hashed, read_logins, write_logins
from spamnb.store.sessions import LoginSession, SessionStore

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SOURCES = count(1)


class Answer:
    """A reply of the pages."""

    def __init__(self, reply):
        self.status, self.headers = reply.status, dict(reply.getheaders())
        self.text = reply.read().decode()

    @property
    def cookie(self):
        return self.headers.get("set-cookie", "").partition(";")[0]


class Rig:
    """A daemon with pages, and a client that sends what browsers would not."""

    def __init__(self, folder, daemon, url):
        self.folder, self.daemon = folder, daemon
        self.home, self.host = folder / "home", url.partition("//")[2]

    def ask(self, method, path, form=None, *, source="", **headers):
        """Send one request, each from another address unless `source` is given."""
        number = next(SOURCES)
        source = source or f"127.2.{number // 250}.{number % 250 + 1}"
        host, _, port = self.host.rpartition(":")
        connection = http.client.HTTPConnection(
            host, int(port), timeout=LIMIT_S, source_address=(source, 0)
        )
        headers = {name.replace("_", "-"): text for name, text in headers.items()}
        body = None if form is None else urlencode(form, doseq=True)
        connection.request(method, path, body, headers | (FORM if form is not None else {}))
        reply = Answer(connection.getresponse())
        connection.close()
        return reply

    def get(self, path, cookie="", **headers):
        return self.ask("GET", path, **headers, **({"Cookie": cookie} if cookie else {}))

    def post(self, path, form, cookie="", **headers):
        headers = {"Sec_Fetch_Site": "same-origin"} | headers
        headers = {name: value for name, value in headers.items() if value is not None}
        return self.ask("POST", path, form, Cookie=cookie, **headers)

    def log_in(self, login, password=PASSWORD, **more):
        return self.post("/login", {"login": login, "password": password}, **more)

    @staticmethod
    def token(path, cookie):
        """The token that forms for a path have in a session."""
        return Visitor("", "user", (), cookie.partition("=")[2]).form_token(path)

    def deliver(self, to):
        known = len(self.daemon.logged("message"))
        send(self.daemon.port(), f"text {known}", f"subject {known}", to)
        return self.daemon.wait_for("message", known + 1)["signature"]


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    trained_home(folder)
    with pages(folder) as (daemon, url):
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
    assert "require-trusted-types-for 'script'" in reply.headers["content-security-policy"]
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


def test_an_auditor_changes_nothing(rig, cookies):
    """Also with a form that the page does not show."""
    signature = rig.deliver("alice@example.org")
    path, audit = f"/message/{signature}", cookies["audit"]
    token = rig.token(path, audit)
    reply = rig.post(path, {"do": "teach", "label": "spam", "token": token}, audit)
    assert reply.status == 403
    assert "An auditor may look and not change." in reply.text


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
    texts = {name: found.log_in(name, PASSWORD.encode(), name) for name in ("root", "alice")}
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
    text = found.log_in("root", PASSWORD.encode(), "here")
    rights = found._rights
    found.apply_settings(rights._replace(admins=()))
    assert found.find(text).role == "user"
    found.apply_settings(rights._replace(admins=(), users=False))
    assert found.find(text) is None
    with pytest.raises(ApiError):
        found.log_in("alice", PASSWORD.encode(), "there")


def test_a_link_is_good_once_within_a_minute(visitors):
    """A used link and a late one do not log in."""
    found, store, clock = visitors
    link = LoginSession("owner", "", clock.now, clock.now, clock.now + LINK_US)
    first, late = store.add("links", link), store.add("links", link)
    assert found.find(found.log_in_by_link(first)).role == "admin"
    clock.now += LINK_US
    for text in (first, late, "x", ""):
        with pytest.raises(ApiError):
            found.log_in_by_link(text)
    assert found.find(first) is None
