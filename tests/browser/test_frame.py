"""Logins, sessions and the frame of the pages, in a real browser."""

from support.browser import PHONE, window
from support.cli import spamnb


def test_a_page_needs_a_login_and_comes_after_it(site, browser):
    """A visitor without a session logs in first; after that the wanted page is shown."""
    with window(browser, site.url) as opened:
        opened.go("/live?")
        assert "/login" in opened.page.url
        opened.log_in("root", "/live")
        assert opened.page.url.endswith("/live")
        assert opened.page.get_by_role("link", name="Live").get_attribute("aria-current") == "page"
        opened.page.get_by_role("button", name="Log out").click()
        opened.page.get_by_label("Password").wait_for()
        opened.go("/live")
        assert "/login" in opened.page.url


def test_a_wrong_password_is_said_and_the_name_kept(site, browser):
    """The page says what is wrong, and does not say whether there is such a login."""
    with window(browser, site.url) as opened:
        opened.expected.append("401")
        texts = set()
        for name in ("root", "nobody"):
            opened.go("/login")
            opened.page.get_by_label("Login or mail address").fill(name)
            opened.page.get_by_label("Password").fill("wrong")
            opened.page.get_by_role("button", name="Log in").click()
            texts.add(opened.page.get_by_role("alert").inner_text())
            assert opened.page.get_by_label("Login or mail address").input_value() == name
        assert texts == {"The login or the password is wrong."}


def test_a_link_of_the_command_logs_in_once(site, browser):
    """`spamnb console open` prints a link that is good for one login."""
    made = spamnb(site.home, "--config", str(site.config), "console", "open")
    assert made.code == 0, made
    path = "/open/" + made.out.strip().rpartition("/")[2]
    with window(browser, site.url, script=False, size=PHONE) as opened:
        opened.expected.append("401")
        opened.go(path)
        opened.go(path)
        opened.page.get_by_role("button", name="Log in").click()
        opened.page.get_by_role("button", name="Log out").wait_for()
        opened.go(path)
        opened.page.get_by_role("button", name="Log in").click()
        assert "This link was used" in opened.page.inner_text("main")
    ended = spamnb(site.home, "console", "sessions", "--end", "root")
    assert ended.code == 0
    assert " sessions ended" in ended.out


def test_new_messages_appear_on_the_live_page(site, browser):
    """A message is shown as it comes, without a reload, whatever its subject is."""
    with window(browser, site.url) as opened:
        page = opened.log_in("root", "/live")
        page.get_by_text("New messages appear here").wait_for()
        site.deliver("<img src=x onerror=alert(1)> now")
        page.get_by_role("link", name="<img src=x onerror=alert(1)> now").wait_for()
        assert opened.fits()


def test_the_live_page_is_filtered_and_says_how_much_comes(site, browser):
    """The rate and the share of junk stand above; the filter is the address of the page."""
    site.deliver("of this listener")
    with window(browser, site.url) as opened:
        page = opened.log_in("root", "/live")
        row = page.locator("tr", has=page.get_by_role("link", name="of this listener"))
        row.get_by_text("passed on").wait_for()
        assert "messages in the last minute" in page.inner_text(".flow")
        page.get_by_label("Decision").select_option("unscanned")
        page.get_by_role("button", name="Show only these").click()
        page.get_by_text("None of the newest messages").wait_for()
        assert "decision=unscanned" in page.url
        opened.accessible()
        page.get_by_label("Decision").select_option("")
        page.get_by_label("Listener").select_option("mx")
        page.get_by_role("button", name="Show only these").click()
        page.get_by_role("link", name="of this listener").wait_for()


def test_the_menu_has_six_entries_for_staff_and_three_for_users(site, browser):
    """The pages of an entry are tabs below the menu; the menu marks the entry of the page."""
    staff = ["Overview", "Messages", "Review", "Training", "Filter", "System"]
    own = ["Quarantine", "All mail", "Senders"]
    signature = site.deliver("marked entries")
    for login, path, entries, tabs in (
        ("root", "/search", staff, ["Live", "Search", "Quarantine"]),
        ("audit", "/whatif", staff, ["Graphs", "What if", "Senders"]),
        ("root", "/status", staff, []),
        ("alice", "/mail", own, ["All mail", "Trainings"]),
        ("alice", "/senders", own, []),
        ("root", f"/message/{signature}", staff, ["Live", "Search", "Quarantine"]),
        ("root", "/trainings/undo", staff, ["Trainings", "Time machine"]),
    ):
        with window(browser, site.url) as opened:
            page = opened.log_in(login, path)
            assert page.locator("#menu a").all_inner_texts() == entries
            assert page.locator("nav.tabs a").all_inner_texts() == tabs
            assert page.locator("#menu a[aria-current]").count() == 1


def test_reviews_that_cannot_be_counted_make_no_page_fail(site, browser):
    """Instead of the folder of the reviews there is a file: the other pages have no count."""
    (site.home / "review").write_text("no folder")
    with window(browser, site.url) as opened:
        page = opened.log_in("root", "/search")
        assert page.get_by_role("heading", level=1).count() == 1
        assert page.locator("#menu .count").count() == 0
    (site.home / "review").unlink()


def test_a_phone_has_a_menu_and_targets_of_44_pixels(site, browser):
    """The entries are hidden until the menu is opened; each button and entry is high enough."""
    site.deliver("to be touched")
    with window(browser, site.url, size={"width": 390, "height": 844}, script=False) as opened:
        page = opened.log_in("alice", "/mail")
        entry = page.get_by_role("navigation").get_by_role("link", name="Quarantine")
        assert not entry.is_visible()
        page.get_by_role("link", name="Menu").click()
        targets = page.locator("main button:visible, main select:visible, nav a:visible").all()
        assert len(targets) > 4
        assert min(one.bounding_box()["height"] for one in targets) >= 44
        entry.click()
        page.wait_for_url("**/quarantine")


def test_an_error_keeps_the_menu_and_the_form(site, browser):
    """A wrong day is named above the search; nothing chosen is said in plain words."""
    site.deliver("not chosen")
    with window(browser, site.url) as opened:
        opened.expected.append("400")
        opened.expected.append("404")
        page = opened.log_in("root", "/search?since=tomorrow")
        page.get_by_text("“From day” is not valid").wait_for()
        page.get_by_role("search").wait_for()
        opened.go("/search")
        page.get_by_role("button", name="It is ham").click()
        page.get_by_text("Choose at least one message").wait_for()
        opened.go("/message/s" + "a" * 26)
        page.get_by_role("navigation").get_by_role("link", name="Messages").wait_for()
