"""The page Senders: a user's own list, and all lists for an administrator."""

import pytest
from support.browser import PHONE, pages, window
from support.console import Api, token, trained_home

PERSONS = """
[local]
domains = ["example.org"]
[persons]
enabled = true
"""
SIZES = {"desk": {}, "phone": {"size": PHONE}, "no script": {"script": False}}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("senders")
    trained_home(folder)
    with pages(folder, more=PERSONS) as (_, url):
        text = token(folder / "home", "admin", "admin", "read", "teach")
        yield url, Api(url.removeprefix("http://"), text)


def listed(api, **of):
    found = api.get("/senders", **of).body["senders"]
    return {one["sender"]: one["word"] for one in found}


@pytest.mark.parametrize("look", SIZES)
def test_a_user_keeps_the_own_list(site, browser, look):
    """Several senders are added, undone, added one by one, found, and removed."""
    url, api = site
    with window(browser, url, **SIZES[look]) as opened:
        page = opened.log_in("alice", "/senders")
        field = page.get_by_label("Addresses or domains")
        field.fill("news@a.example\nunwanted b.example\n# a comment\n")
        page.get_by_role("button", name="Always wanted").click()
        page.get_by_text("2 senders are changed.").wait_for()
        assert listed(api, person="alice") == {"news@a.example": "wanted", "b.example": "unwanted"}
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("No sender is listed.").wait_for()
        assert listed(api, person="alice") == {}
        field.fill("shop.example")
        page.get_by_role("button", name="Never wanted").click()
        page.get_by_text("shop.example is never wanted.").wait_for()
        if look != "no script":
            assert opened.fits()
            opened.accessible()
        opened.go("/senders?q=shop")
        assert "shop.example" in page.inner_text("table.listed")
        opened.go("/senders?q=other")
        page.locator(".empty").wait_for()
        opened.go("/senders")
        page.get_by_role("button", name="Remove shop.example").click()
        page.get_by_text("No sender is listed.").wait_for()
        assert listed(api, person="alice") == {}


def test_the_file_of_the_lists_is_read_again(site, browser):
    """What an administrator saves restores a list; a wrong sender stops no other."""
    url, api = site
    with window(browser, url) as opened:
        opened.expected.append("400")
        page = opened.log_in("root", "/senders")
        page.get_by_label("Addresses or domains").fill("partner.example\nnot a sender at all")
        page.get_by_role("button", name="Always wanted").click()
        page.locator("#notices .error").wait_for()
        page.get_by_label("Addresses or domains").fill("partner.example\n@@\nunwanted x@y.example")
        page.get_by_role("button", name="Always wanted").click()
        page.get_by_text("2 senders are changed.").wait_for()
        assert page.locator("#notices .error").count() == 1
        opened.accessible()
        file = page.context.request.get(f"{url}/senders/file", max_retries=3).text()
        assert file == "# site\nwanted partner.example\nunwanted x@y.example\n"
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("No sender is listed.").wait_for()
        page.get_by_label("Addresses or domains").fill(file)
        page.locator("select[name=kind]").select_option("domain")
        page.get_by_role("button", name="Always wanted").click()
        page.get_by_text("Name the domain or the person.").wait_for()
        page.get_by_label("Addresses or domains").fill(file)
        page.locator("select[name=kind]").select_option("domain")
        page.get_by_label("Name of the domain or the person").fill("example.org")
        page.get_by_role("button", name="Always wanted").click()
        page.get_by_text("2 senders are changed.").wait_for()
    wanted = {"partner.example": "wanted", "x@y.example": "unwanted"}
    assert listed(api, domain="example.org") == wanted


def test_a_user_changes_no_list_of_others(site, browser):
    """A form that names another person is refused, and an auditor changes nothing."""
    url, api = site
    with window(browser, url) as opened:
        page = opened.log_in("bob", "/senders")
        form = {
            "token": page.locator("main input[name=token]").first.get_attribute("value"),
            "do": "change", "lines": "evil.example", "word": "wanted",
            "kind": "person", "name": "alice",
        }  # fmt: skip
        sent = page.context.request.post(
            f"{url}/senders",
            form=form,
            headers={"Sec-Fetch-Site": "same-origin"},
            max_retries=3,  # the server closes idle connections
        )
        assert sent.status == 400
    with window(browser, url) as opened:
        opened.log_in("audit", "/senders")
        assert opened.page.get_by_role("button", name="Always wanted").count() == 0
    assert "evil.example" not in listed(api)
