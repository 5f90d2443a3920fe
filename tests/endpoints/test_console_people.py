"""The page of the people: sessions end, tokens are made, shown once and revoked."""

import re

import pytest
from support.browser import pages
from support.console import Api, token, trained_home
from support.page_client import Rig

from spamnb.console.page import new_link
from spamnb.records.console import SessionStore
from spamnb.telemetry import now_us

PATH = "/people"


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    trained_home(folder)
    with pages(folder) as (daemon, url):
        yield Rig(folder, daemon, url)


def act(rig, cookie, **form):
    return rig.post(PATH, {"token": rig.token(PATH, cookie), **form}, cookie)


def test_sessions_of_a_login_end(rig):
    """The page and the API say who has sessions; those of others go on."""
    root, alice = rig.log_in("root").cookie, rig.log_in("alice").cookie
    admin = Api(rig.host, token(rig.home, "admin", "admin"))
    listed = {one["name"]: one for one in admin.get("/people").body["people"]}
    assert len(listed["alice"]["sessions"]) == 1
    assert (listed["root"]["role"], listed["bob"]["role"]) == ("admin", "user")
    assert "secret" not in str(listed)
    assert "scrypt" not in str(listed)
    assert "sales@example.org" in rig.get(PATH, root).text
    assert "1 session of alice ended" in act(rig, root, do="end", name="alice").text
    assert rig.get("/mail", alice).status == 303
    assert rig.get(PATH, root).status == 200
    assert admin.ask("DELETE", "/people/alice/sessions").body == {"ended": 0}


def test_a_token_is_made_shown_once_and_revoked(rig):
    """Its text is on the page that answers the form, and on no other one."""
    root = rig.log_in("root").cookie
    made = act(rig, root, do="create", name="robot", scopes=["read", "score"], user="", days="30")
    text = re.search(r"<code>(spamnb_[\w-]+)</code>", made.text)[1]
    assert text not in rig.get(PATH, root).text
    api = Api(rig.host, text)
    assert api.get("/me").body["scopes"] == ["read", "score"]
    assert act(rig, root, do="create", name="robot", scopes="read").status == 400
    assert act(rig, root, do="create", name="none").status == 400
    assert act(rig, root, do="create", name="x", scopes="admin", user="a@b.example").status == 400
    assert act(rig, root, do="revoke", name="robot").status == 200
    assert api.get("/me").status == 401
    assert act(rig, root, do="revoke", name="robot").status == 404


def test_an_auditor_looks_and_a_user_does_not(rig):
    """Without a form for the one, and without the page for the other."""
    audit, alice = rig.log_in("audit").cookie, rig.log_in("alice").cookie
    shown = rig.get(PATH, audit)
    assert (shown.status, 'value="create"' in shown.text) == (200, False)
    assert act(rig, audit, do="end", name="root").status == 403
    assert act(rig, audit, do="create", name="x", scopes="admin").status == 403
    assert rig.get(PATH, alice).status == 404
    assert act(rig, alice, do="end", name="root").status == 404


def test_sessions_by_a_link_are_listed(rig):
    """Also of a user without a line in the password file."""
    cookie = rig.post(f"/open/{opened(rig)}", {}).cookie
    assert rig.get(PATH, cookie).status == 200
    found = Api(rig.host, token(rig.home, "lister", "admin")).get("/people").body["people"]
    roles = {one["name"]: one["role"] for one in found if one["sessions"]}
    assert roles["operator"] == "admin"


def opened(rig):
    """Make a link of `spamnb console open`; its text."""
    store = SessionStore(rig.home)
    try:
        return store.add("links", new_link("operator", now_us()))
    finally:
        store.close()
