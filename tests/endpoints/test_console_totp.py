"""The second factor of the pages: asked for after the password, each code once, few guesses."""

import time

import pytest
from support.browser import PASSWORD, pages, write_password_file
from support.cli import spamnb
from support.console import trained_home
from support.page_client import Rig

from spamnb.console.page import PageRights, Visitors
from spamnb.console.site import ApiError
from spamnb.operations.logins import STEP_S, code_at, read_logins
from spamnb.records.console import SessionStore

US = 1_000_000


def add_totp(home, path, login):
    """Make a secret by the command; the secret that it prints."""
    done = spamnb(home, "passwd", "--totp", login, "--file", path)
    assert done.code == 0, done
    lines = done.out.splitlines()
    secret = lines[0].removeprefix("secret: ")
    assert secret in lines[1]
    assert read_logins(path)[login].totp == secret
    return secret


class Door:
    """The logins of a home, at a time that the test sets."""

    def __init__(self, folder):
        self.path = folder / "passwords"
        write_password_file(self.path)
        self.secret = add_totp(folder, self.path, "root")
        self.now = 50_000 * STEP_S * US
        self.folder = folder
        self.store = SessionStore(folder)
        self.open()

    def open(self):
        self.visitors = Visitors(self.store, lambda: self.now)
        self.visitors.apply_settings(PageRights(self.path, ("root",)))

    def ticket(self):
        found = self.visitors.log_in("root", PASSWORD.encode(), "here")
        assert found.needs_code
        assert self.visitors.find(found.text) is None
        return found.text

    def code(self, away=0):
        return code_at(self.secret, self.now // US // STEP_S + away)

    def status(self, ticket, code, client="here"):
        """0 for a session, else the status of the refusal."""
        try:
            found = self.visitors.log_in_by_code(ticket, code, client)
        except ApiError as error:
            return error.status
        assert self.visitors.find(found.text).role == "admin"
        return 0


@pytest.fixture
def door(tmp_path):
    found = Door(tmp_path)
    yield found
    found.store.close()


def test_a_code_is_asked_for_and_good_once(door):
    """Also after a restart, and for another ticket; the next step has the next code."""
    first, second = door.ticket(), door.ticket()
    assert door.status(first, door.code()) == 0
    assert door.status(first, door.code(1)) == 410
    assert door.status(second, door.code()) == 401
    assert door.status(second, door.code(-1)) == 401
    door.open()
    assert door.status(second, door.code()) == 401
    door.now += STEP_S * US
    code = door.code()
    assert door.status(second, f"{code[:3]} {code[3:]}") == 0


def test_a_ticket_ends(door):
    """After five minutes, with another password or secret, and if it is cut or foreign."""
    ticket = door.ticket()
    for wrong in ("", ticket[:-1], "x" * 43):
        assert door.status(wrong, door.code()) == 410
    late = door.now
    door.now += 301 * US
    assert door.status(ticket, door.code()) == 410
    door.now = late
    door.secret = add_totp(door.folder, door.path, "root")
    assert door.status(ticket, door.code()) == 410
    assert door.status(door.ticket(), door.code()) == 0


def test_guesses_are_slowed_down(door):
    """By client and by login, however many clients guess; the right code has to wait, too."""
    ticket = door.ticket()
    statuses = [door.status(ticket, "000000", f"10.0.0.{number}") for number in range(6)]
    assert statuses[:3] == [401, 401, 401]
    assert 429 in statuses[3:]
    assert door.status(ticket, door.code(), "10.0.1.1") == 429


def test_sessions_end_when_a_secret_is_made(door):
    """A second factor that is added or removed ends the sessions of the login."""
    alice = door.visitors.log_in("alice", PASSWORD.encode(), "there").text
    assert door.visitors.find(alice)
    add_totp(door.folder, door.path, "alice")
    assert door.visitors.find(alice) is None
    spamnb(door.folder, "passwd", "--no-totp", "alice", "--file", door.path)
    assert not door.visitors.log_in("alice", PASSWORD.encode(), "there").needs_code


def test_a_new_password_keeps_the_secret(door):
    """So a new password is no way around it; an unknown login has none."""
    spamnb(door.folder, "passwd", "root", "--file", door.path, stdin=b"another\n")
    assert read_logins(door.path)["root"].totp == door.secret
    assert spamnb(door.folder, "passwd", "--totp", "nobody", "--file", door.path).code == 2


def test_the_pages_ask_for_the_code(tmp_path):
    """Only after the right password; until then no cookie is set."""
    trained_home(tmp_path)
    with pages(tmp_path) as (daemon, url):
        rig = Rig(tmp_path, daemon, url)
        secret = add_totp(rig.home, tmp_path / "passwords", "root")
        assert 'name="code"' not in rig.log_in("root", "wrong").text
        asked = rig.post("/login?next=/whatif", {"login": "root", "password": PASSWORD})
        assert (asked.status, asked.cookie) == (200, "")
        ticket = asked.text.partition('name="ticket" value="')[2].partition('"')[0]
        assert rig.get("/live", f"spamnb={ticket}").status == 303
        path = "/login/code?next=/whatif"
        assert rig.post(path, {"ticket": ticket, "code": "x"}).status == 401
        code = code_at(secret, int(time.time()) // STEP_S)
        form = {"ticket": ticket, "code": code}
        assert rig.post(path, form, Sec_Fetch_Site="cross-site").status == 403
        assert rig.get(path).status == 405
        done = rig.post(path, form)
        assert (done.status, done.headers["location"]) == (303, "/whatif")
        assert rig.get("/live", done.cookie).status == 200
        assert rig.post(path, form).status == 410
        daemon.wait_for("console", operation="log in by code", caller="root", status=200)
