"""Search, message, trainings and own mail: each act end to end, on every screen, for all people."""

import json
import re

import pytest
from support.browser import DESK, PASSWORD, PHONE, window
from support.cli import spamnb

SUBJECTS = {
    "hostile": "<script>alert(1)</script>\"' onmouseover=x {{ 7*7 }} ${7*7}",
    "long": "W" * 300,
    "right to left": "=?utf-8?B?16nXnNeV150g4oCuZXhl4oCsINec15vXldec150=?=",
    "Chinese": "=?utf-8?B?5oSf6LCi5oKo55qE5p2l5L+h77yM6K+35p+l5pS25paw55qE5Y+R56Wo?=",
    "empty": "",
}
LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "phone": {"size": PHONE},
    "no script": {"script": False},
}


def searched(opened, words):
    """Search by the form until the index has the message."""
    page = opened.page
    for _ in range(100):
        page.get_by_label("Words of the subject").fill(words)
        page.get_by_role("button", name="Search").click()
        page.wait_for_url(re.compile(r"q="))
        if page.locator("table.verdicts tbody tr").count():
            return page
        page.wait_for_timeout(100)
    raise AssertionError(page.inner_text("main"))


def test_clues_and_facts_are_folded_and_users_see_no_nats(site, browser):
    """Administrators see the clues at once and with their numbers; a user opens them."""
    site.deliver("folded details")
    with window(browser, site.url) as opened:
        page = opened.log_in("alice", "/mail")
        page.get_by_role("link", name="folded details").first.click()
        page.get_by_role("heading", name="folded details").wait_for()
        assert not page.locator("table.clues").is_visible()
        page.locator("summary", has_text="Why").click()
        page.locator("table.clues").wait_for()
        assert "nats" not in page.inner_text("main").lower()
        assert page.locator("table.clues tfoot").count() == 0
        address = page.url
        opened.accessible()
    with window(browser, site.url) as opened:
        page = opened.log_in("root", address.removeprefix(site.url))
        page.locator("table.clues tfoot").wait_for()
        assert "nats" in page.inner_text("table.clues").lower()
        assert not page.locator("table.facts").is_visible()


@pytest.mark.parametrize("script", [True, False])
def test_a_message_is_found_explained_taught_and_taken_back(site, browser, script):
    """Search, open, teach, undo: each step is a link or a button, with script and without."""
    site.deliver(f"Quarterly figures {script}")
    with window(browser, site.url, script=script) as opened:
        opened.log_in("root", "/search")
        page = searched(opened, f"quarterly {script}")
        page.get_by_role("link", name=f"Quarterly figures {script}").click()
        page.get_by_role("heading", name=f"Quarterly figures {script}").wait_for()
        assert "It was not taught." in page.inner_text("main")
        total = page.locator(".total td.number").first.inner_text()
        parts = [float(one) for one in opened.texts(".clues tr:not(.total) td:nth-of-type(2)")]
        assert sum(parts) == pytest.approx(float(total), abs=0.2)
        page.get_by_role("button", name="It is spam").click()
        notice = page.locator("#notices")
        notice.get_by_text("Taught as spam. The probability of spam went from").wait_for()
        assert page.get_by_text("It was taught as spam.").is_visible()
        notice.get_by_role("button", name="Undo").click()
        page.locator("#notices").get_by_text("is undone").wait_for()
        assert page.get_by_text("It was not taught.").is_visible()
        assert (
            opened.texts(".events li")[0].startswith("undid event")
            or "undid" in opened.texts(".events li")[0]
        )


def test_chosen_messages_are_taught_together(site, browser):
    """One form teaches all that are chosen; one notice says so, and its button undoes all."""
    for name in ("first", "second"):
        site.deliver(f"together {name}")
    with window(browser, site.url) as opened:
        opened.log_in("root", "/search")
        searched(opened, "together second")
        page = searched(opened, "together")
        assert page.locator("table.verdicts tbody tr").count() == 2
        page.get_by_label("All").check()
        page.get_by_role("button", name="It is ham").click()
        page.get_by_text("2 messages are taught as ham.").wait_for()
        assert len(opened.texts("#notices .notice p")) == 1
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("2 changes are undone.").wait_for()
        page.get_by_label("All").check()
        page.get_by_role("button", name="It is ham").click()
        page.get_by_text("2 messages are taught as ham.").wait_for()
        page.get_by_role("link", name="Training", exact=True).click()
        rows = opened.texts("table.events tbody tr")
        assert "taught as ham" in rows[0]
        assert "root, api" in rows[0]
        page.get_by_role("link", name="root", exact=True).first.click()
        page.wait_for_url("**/trainings?user=root&since=*&until=*")
        assert all("root" in row for row in opened.texts("table.events tbody tr"))


def test_the_keyboard_alone_teaches(site, browser):
    """j, o, s, u: choose, open, teach, undo; `?` lists the keys."""
    site.deliver("by keyboard")
    with window(browser, site.url) as opened:
        page = opened.log_in("root", "/live")
        page.get_by_role("link", name="by keyboard").wait_for()
        page.keyboard.press("?")
        page.get_by_role("heading", name="Keys").wait_for()
        page.keyboard.press("Escape")
        page.locator("#keys").wait_for(state="hidden")  # keys in it are ignored
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.textContent") == "by keyboard"
        page.keyboard.press("o")
        page.get_by_role("heading", name="by keyboard").wait_for()
        page.wait_for_load_state()  # the script reads the keys
        page.keyboard.press("s")
        page.locator("#notices").get_by_text("Taught as spam.").wait_for()
        page.keyboard.press("u")
        page.get_by_text("is undone").wait_for()


def test_a_key_counts_from_the_moment_the_list_of_keys_is_closed(site, browser):
    """A key that is pressed before the browser's next frame, when the dialog has the focus."""
    site.deliver("by keyboard")
    with window(browser, site.url) as opened:
        page = opened.log_in("root", "/live")
        page.get_by_role("link", name="by keyboard").first.wait_for()
        focused = page.evaluate("""() => {
            const keys = document.querySelector("#keys"), press = () => document.activeElement
                .dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
            keys.showModal();
            press();
            const open = document.activeElement.className;
            keys.close();
            press();
            return [open, document.activeElement.className];
        }""")
        assert focused == ["", "open"]


def test_a_user_sees_and_corrects_the_own_mail_alone(site, browser):
    """All mail has what was delivered to the user; a message of another does not exist."""
    mine, others = site.deliver("for alice"), site.deliver("for bob", to="bob@example.org")
    with window(browser, site.url, size=PHONE) as opened:
        opened.expected.append("404")
        page = opened.log_in("alice")
        assert page.url.endswith("/quarantine")
        page.get_by_role("link", name="Menu").click()
        page.get_by_role("link", name="All mail").click()
        searched(opened, "for alice")
        page.get_by_label("Choose “for alice”").check()
        page.get_by_role("button", name="Not junk").click()
        page.get_by_text("Taught as ham.").wait_for()
        page.locator("#notices").get_by_role("button", name="Undo").click()
        page.get_by_text("is undone").wait_for()
        assert opened.go(f"/message/{mine}").status == 200
        assert "Which trainings" not in page.inner_text("main")
        for path in (f"/message/{others}", f"/message/{mine}/influence", "/live", "/search"):
            assert opened.go(path).status == 404, path
            assert "bob" not in page.inner_text("body")


def test_an_auditor_sees_everything_and_changes_nothing(site, browser):
    """No page shows an auditor a button that changes anything."""
    signature = site.deliver("for the auditor")
    with window(browser, site.url) as opened:
        page = opened.log_in("audit", "/live")
        for path in ("/live", "/search", "/trainings", "/people", f"/message/{signature}"):
            assert opened.go(path).status == 200
            assert page.locator("main form[method=post]").count() == 0


def test_trainings_behind_a_verdict_are_those_of_bisect(site, browser):
    """The page has the shares that `spamnb bisect` computes."""
    signature = site.deliver("why is this so")
    with window(browser, site.url) as opened:
        opened.log_in("root", f"/message/{signature}/influence")
        shown = [float(one) for one in opened.texts("tbody td.verdict .p")]
    told = spamnb(site.home, "bisect", signature, "--limit", "10", "--json")
    assert told.code == 0, told
    nats = [share["nats"] for share in json.loads(told.out)["shares"]]
    assert shown == pytest.approx(nats, abs=0.005)
    assert len(shown) == 10


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_is_for_all_people_and_screens(site, browser, look):
    """Both schemes, no script; any subject on a phone: nothing breaks, axe-core finds nothing."""
    options = LOOKS[look]
    subjects = [*SUBJECTS.values()] if look == "phone" else [SUBJECTS["hostile"]]
    people = ["alice@example.org", f"{'a' * 60}@{'b' * 60}.example.org"]
    signatures = [site.deliver(subject, people) for subject in subjects]
    with window(browser, site.url, **options) as opened:
        opened.go("/login")
        if options.get("script", True):
            opened.accessible()
        opened.log_in("root", "/live")
        paths = [
            "/live",
            "/search",
            "/search?q=nothingatall",
            "/trainings",
            "/people",
            "/trainings?user=nobody",
        ]
        paths += [f"/message/{signature}" for signature in signatures]
        paths += [f"/message/{signatures[0]}/influence"]
        for path in paths:
            assert opened.go(path).status == 200, path
            opened.page.locator("h1").wait_for()
            if options.get("script", True):
                assert opened.fits(), path
                opened.accessible()


def test_a_user_page_is_for_all_people(site, browser):
    """All mail, with mail and without, on a desk and on a phone."""
    site.deliver("for alice")
    for size in (DESK, PHONE):
        with window(browser, site.url, size=size, dark=size is PHONE) as opened:
            opened.log_in("alice")
            for path in ("/mail", "/mail?address=sales%40example.org", "/trainings"):
                assert opened.go(path).status == 200
                assert opened.fits()
                opened.accessible()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_a_form_of_an_ended_session_is_sent_after_the_login(site, browser, script):
    """The page asks for the login, and then offers what was asked; nothing was changed before."""
    ref = site.deliver(f"ended {script}")
    with window(browser, site.url, script=script) as opened:
        opened.expected.append("401")
        page = opened.log_in("root", f"/message/{ref}")
        opened.context.clear_cookies()
        page.get_by_role("button", name="It is spam").click()
        page.get_by_label("Login or mail address").fill("root")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("The login or the password is wrong").wait_for()
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("nothing was changed").wait_for()
        page.get_by_role("button", name="Go on").click()
        page.locator("#notices").get_by_text("Taught as spam.").wait_for()
        assert page.url.endswith(f"/message/{ref}")


def test_trainings_are_named_by_the_message(site, browser):
    """The subject of the message, with a link to its page."""
    ref = site.deliver("named in the list")
    with window(browser, site.url) as opened:
        page = opened.log_in("root", f"/message/{ref}")
        page.get_by_role("button", name="It is spam").click()
        page.locator("#notices").get_by_text("Taught as spam.").wait_for()
        opened.go("/trainings")
        page.get_by_role("link", name="named in the list").first.click()
        page.wait_for_url(f"**/message/{ref}")
