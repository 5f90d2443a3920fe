"""Status, Settings and the undo of several trainings, on every screen."""

import os
import re
import signal
from contextlib import contextmanager

import pytest
from support.browser import PHONE, window
from support.cli import ONE_HAM, spamnb
from support.console import Api, token
from support.daemon import send
from support.waiting import until

LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "phone": {"size": PHONE},
    "no script": {"script": False},
}


@contextmanager
def seen(site, browser, path, login="root", **options):
    with window(browser, site.url, **options) as opened:
        yield opened, opened.log_in(login, path)


@pytest.mark.parametrize("look", LOOKS)
def test_every_screen_shows_status_and_settings(site, browser, look):
    """Both pages and the plan of an undo, also with everything opened."""
    options = LOOKS[look]
    site.deliver("one message")
    spamnb(site.home, "--config", str(site.config), "correct", "spam", ONE_HAM)
    with seen(site, browser, "/status", **options) as (opened, page):
        for path in ("/status", "/settings", "/settings?changed=true", "/trainings/undo",
                     "/trainings/users", "/trainings/undo?channel=cli"):  # fmt: skip
            assert opened.go(path).status == 200, path
            page.locator("h1").wait_for()
            for summary in page.locator("main details summary").all():
                summary.click()
            if options.get("script", True):
                assert opened.fits(), path
                opened.accessible()


def test_the_status_has_the_facts_of_the_command(site, browser):
    """Messages of each label, events and processes are those of `spamnb status`."""
    told = spamnb(site.home, "--config", str(site.config), "status", "--json").json[0]
    with seen(site, browser, "/status") as (opened, page):
        text = page.inner_text("main")
        for label, count in told["model"]["messages"].items():
            assert re.search(rf"Taught as {label}\s+{count} messages", text)
        assert f"{told['model']['events']} events" in text
        pids = opened.texts("table.processes tbody th small")
        assert pids == [str(one["pid"]) for one in told["processes"]]


def test_the_page_ends_the_marks_of_observing_listeners(site, browser):
    """What `spamnb live on` began ends by a button."""
    where = (site.home, "--config", str(site.config))
    spamnb(*where, "live", "on")
    until(lambda: spamnb(*where, "status", "--json").json[0]["live"], "the switch")
    with seen(site, browser, "/status") as (_, page):
        page.get_by_text("they mark and file mail").wait_for()
        page.get_by_role("button", name="Only observe again").click()
        page.locator("#notices").get_by_text("only observed").wait_for()
    assert not (site.home / "live").exists()


def test_scanning_is_turned_off_and_on(site, browser):
    """Mail passes unscanned meanwhile, and the page warns of it."""
    with seen(site, browser, "/status") as (_, page):
        page.get_by_text("Turn scanning off").click()
        page.get_by_role("button", name="Pass all mail unscanned").click()
        page.locator("#notices").get_by_text("Scanning is off").wait_for()
        try:
            page.locator("main").get_by_role("alert").get_by_text("Bypass is on").wait_for()
            told = spamnb(site.home, "--config", str(site.config), "status", "--json").json[0]
            assert told["bypass"] is True
            before = told["counters"]["unscanned_bypass"]
            send(site.daemon.port(), "anything", "while scanning is off")

            def passed():
                found = spamnb(site.home, "--config", str(site.config), "status", "--json").json[0]
                return found["counters"]["unscanned_bypass"] > before

            until(passed, "the message is counted as unscanned")
        finally:
            page.get_by_role("button", name="Scan mail again").click()
        page.locator("#notices").get_by_text("Scanning is on").wait_for()
        assert page.get_by_text("Bypass is on").count() == 0


def test_the_settings_are_read_again(site, browser):
    """The page shows a changed setting after a press of the button."""
    text = site.config.read_text()
    with seen(site, browser, "/settings") as (opened, page):
        row = page.locator("[data-setting='journal.keep_days']")
        assert "400" in row.inner_text()
        site.config.write_text(f"{text}\n[journal]\nkeep_days = 123\n")
        try:
            opened.go("/status")
            page.get_by_role("button", name="Read the settings again").click()
            page.get_by_text("The daemon reads its settings again.").wait_for()

            def applied():
                opened.go("/settings?changed=true")
                return row.count() and "123" in row.inner_text()

            until(applied, "the new settings are in force")
            assert "The default is 400" in row.inner_text()
        finally:
            site.config.write_text(text)
        opened.go("/status")
        page.get_by_role("button", name="Read the settings again").click()
        until(lambda: opened.go("/settings?changed=true") and not row.count(), "the old settings")


def test_no_secret_is_on_the_page(site):
    """Secrets are masked, in the API as on the page."""
    api = Api(site.url.removeprefix("http://"), token(site.home, "root", "admin"))
    found = {one["name"]: one for one in api.get("/settings").body["settings"]}
    shown = spamnb(site.home, "--config", str(site.config), "config", "show", "--json").json[0]
    assert found.keys() | {"file"} == shown.keys()
    assert api.get("/settings").body["file"] == str(site.config)
    lines = site.config.read_text().splitlines()
    admins = found["console.admins"]
    number = int(admins["position"].removeprefix(f"{site.config}, line "))
    assert (admins["changed"], lines[number - 1].partition(" ")[0]) == (True, "admins")
    assert found["journal.keep_days"] | {"reason": ""} == {
        "name": "journal.keep_days", "value": "400", "default": "400", "changed": False,
        "restart": False, "reason": "", "position": "",
    }  # fmt: skip


def test_several_trainings_are_undone_after_a_look(site, browser):
    """All that one user taught until the look; with what came later, the model is as before."""
    signatures = [site.deliver(f"several {number}") for number in range(5)]
    address = site.url.removeprefix("http://")
    mallory = Api(address, token(site.home, "mallory", "read", "teach"))
    until(lambda: len(mallory.get("/verdicts", q="several").body["verdicts"]) == 5, "the index")
    before = mallory.post("/explain", {"ref": signatures[0]}).body["log_odds"]
    for one in signatures[:4]:
        assert mallory.post("/teach", {"ref": one, "label": "spam"}).status == 200
    assert mallory.post("/teach", {"ref": signatures[3], "label": "ham"}).status == 200
    with seen(site, browser, "/trainings?user=token%20mallory") as (opened, page):
        page.get_by_role("link", name="Undo all of these").click()
        assert "5 of them can be undone" in page.inner_text("main")
        assert "User: token mallory." in page.inner_text("main")
        later = mallory.post("/teach", {"ref": signatures[4], "label": "spam"}).body["receipt"]
        page.get_by_role("button", name="Undo these trainings (5)").click()
        page.locator("#notices").get_by_text("5 trainings are undone.").wait_for()
        opened.accessible()
    assert mallory.post("/undo", {"event": later["event"]}).body["state"] == "learnt"
    after = mallory.post("/explain", {"ref": signatures[0]}).body["log_odds"]
    assert after == pytest.approx(before, abs=1e-9)


def test_an_auditor_sees_no_switches(site, browser):
    """Status, settings and plan without a button; the acts are refused."""
    with seen(site, browser, "/status", "audit") as (opened, page):
        for path in ("/status", "/settings", "/trainings/undo?channel=api", "/trainings/users"):
            assert opened.go(path).status == 200
            assert page.locator("main form[method=post]").count() == 0


def test_live_and_status_show_what_they_know_without_the_learner(site, browser):
    """A red line says that the learner is silent; the messages and the model are still shown."""
    site.deliver("before the silence")
    told = spamnb(site.home, "--config", str(site.config), "status", "--json").json[0]
    (learner,) = (one["pid"] for one in told["processes"] if one["role"] == "learner")
    with seen(site, browser, "/live") as (opened, page):
        page.get_by_role("link", name="before the silence").wait_for()
        os.kill(learner, signal.SIGSTOP)
        try:
            opened.go("/live")
            page.get_by_role("alert").get_by_text("The learner does not answer").wait_for()
            assert page.get_by_role("link", name="before the silence").count() == 1
            opened.go("/status")
            page.get_by_role("alert").get_by_text("The learner does not answer").wait_for()
            assert re.search(r"Taught as ham\s+[1-9]", page.inner_text("main"))
        finally:
            os.kill(learner, signal.SIGCONT)
        until(lambda: opened.go("/status") and not page.get_by_role("alert").count(), "an answer")
