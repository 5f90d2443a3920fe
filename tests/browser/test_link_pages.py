"""Signed links of the digest, in a real browser: what they show, and what they do not allow."""

import time
from types import SimpleNamespace

import pytest
from support.browser import PHONE, pages, window
from support.console import Api, token, trained_home
from support.daemon import send
from support.sink import Sink

from spamnb.console.site import LIFE_S, SignedLink, SignedLinks

MORE = """
[quarantine]
[actions]
deliver = "quarantine"
unsure = "quarantine"
junk = "quarantine"
reject = "quarantine"
"""
ALICE, BOB = "alice@example.org", "bob@example.org"
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("links")
    trained_home(folder)
    sink = Sink()
    with pages(folder, delivery="", listener=f'upstream = "{sink.address}"', more=MORE) as found:
        daemon, url = found
        api = Api(url.removeprefix("http://"), token(folder / "home", "admin", "quarantine"))
        links = SignedLinks(folder / "home")

        def keep(*to):
            """Send a message into the quarantine; its facts."""
            send(daemon.port(), subject="an offer", to=[*to])
            return api.get("/quarantine", limit=1).body["messages"][0]

        def link(kept, user, now=None):
            made = links.make(SignedLink(kept["id"], user), now or time.time())
            return f"/d/{made}"

        yield SimpleNamespace(url=url, daemon=daemon, api=api, keep=keep, link=link)
    sink.close()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_a_link_releases_to_its_recipient_alone(site, browser, script):
    """A GET shows the message and changes nothing; the form acts once, without a login."""
    kept = site.keep(ALICE, BOB)
    path = site.link(kept, ALICE)
    with window(browser, site.url, script=script, size=PHONE) as opened:
        for _ in range(2):
            opened.go(path)
        assert opened.fits()
        frame = opened.page.frame_locator("iframe.preview")
        frame.get_by_text("an offer", exact=True).wait_for()
        assert "bob@" not in opened.page.content()
        assert site.api.get(f"/quarantine/{kept['id']}").body == kept
        opened.page.get_by_role("button", name="Not junk").click()
        opened.page.get_by_text(f"Released to {ALICE}.").wait_for()
        opened.page.get_by_text("Taught as ham.").wait_for()
        opened.page.get_by_text("no longer waits").wait_for()
        opened.go(path)
        opened.page.get_by_text("no longer waits").wait_for()
        assert opened.context.cookies() == []
        opened.go("/quarantine")
        assert "/login" in opened.page.url
    assert site.api.get(f"/quarantine/{kept['id']}").body["waiting"] == [BOB]
    site.daemon.wait_for("console", operation="link release_teach", caller=f"link {ALICE}",
                         id=kept["id"], status=200)  # fmt: skip


def test_a_link_deletes_for_its_recipient_alone(site, browser):
    """The message waits for the others."""
    kept = site.keep(ALICE, BOB)
    with window(browser, site.url) as opened:
        opened.go(site.link(kept, ALICE))
        opened.page.get_by_role("button", name="Delete").click()
        opened.page.get_by_text("The message is deleted.").wait_for()
    assert site.api.get(f"/quarantine/{kept['id']}").body["waiting"] == [BOB]


def test_links_that_are_not_valid_do_nothing(site, browser):
    """Late, cut, changed, of another recipient or another message: nothing is shown or done."""
    kept, other = site.keep(ALICE), site.keep(BOB)
    good = site.link(kept, ALICE)
    bad = {
        site.link(kept, ALICE, time.time() - LIFE_S - 1): 410,
        good[:-3]: 404,
        f"{good}AAAA": 404,
        "/d/x": 404,
        good.replace("/d/", "/d/A"): 404,
    }
    strange = [site.link(other, ALICE), site.link(kept, "eve@example.org")]
    with window(browser, site.url) as opened:
        ask = opened.context.request
        for path, status in bad.items():
            for rest in ("", "/view"):
                found = ask.get(site.url + path + rest)
                assert found.status == status, path
                assert "an offer" not in found.text()
            form = {"do": "release"}
            assert ask.post(site.url + path, form=form, headers=SAME_SITE).status == status
        for path in strange:
            assert "an offer" not in ask.get(site.url + path).text()
            assert ask.get(f"{site.url}{path}/view").status == 404
            for do in ("release", "delete"):
                ask.post(site.url + path, form={"do": do}, headers=SAME_SITE)
    for one in (kept, other):
        assert site.api.get(f"/quarantine/{one['id']}").body == one


def test_other_sites_and_methods_cannot_use_a_link(site, browser):
    """A form of another site, another verb, or an unknown act changes nothing."""
    kept = site.keep(ALICE)
    path = site.link(kept, ALICE)
    with window(browser, site.url) as opened:
        ask = opened.context.request
        form = {"do": "delete"}
        for origin in ("cross-site", "same-site", "none"):
            headers = {"Sec-Fetch-Site": origin}
            assert ask.post(site.url + path, form=form, headers=headers).status == 403
        assert ask.post(site.url + path, form={"do": "x"}, headers=SAME_SITE).status == 400
        assert ask.post(f"{site.url}{path}/view", form=form, headers=SAME_SITE).status == 405
        assert ask.delete(site.url + path).status == 405
        assert ask.get(f"{site.url}{path}?do=delete").status == 200
    assert site.api.get(f"/quarantine/{kept['id']}").body == kept


def test_digests_are_turned_off_and_on(site, browser):
    """By the page, or by a mail program with one request; a GET changes nothing."""
    path = site.link({"id": ""}, ALICE).replace("/d/", "/digest/")
    off = "mails about new messages in quarantine are off"
    with window(browser, site.url, size=PHONE) as opened:
        for _ in range(2):
            opened.go(path)
            opened.page.get_by_role("button", name="Turn them off").wait_for()
        assert opened.fits()
        opened.page.get_by_role("button", name="Turn them off").click()
        opened.page.get_by_text(off).wait_for()
        opened.page.get_by_role("button", name="Turn them on").click()
        opened.page.get_by_role("button", name="Turn them off").wait_for()
        ask = opened.context.request
        form = {"List-Unsubscribe": "One-Click"}
        assert off in ask.post(site.url + path, form=form).text()
        assert off in ask.get(site.url + path).text()
        assert ask.post(f"{site.url}{path}A", form=form).status == 404
        other = site.link(site.keep(ALICE), ALICE)
        assert ask.post(site.url + other.replace("/d/", "/digest/"), form=form).status == 404
        assert "an offer" not in ask.get(site.url + path.replace("/digest/", "/d/")).text()
    site.daemon.wait_for("console", operation="digest off", caller=f"link {ALICE}")
