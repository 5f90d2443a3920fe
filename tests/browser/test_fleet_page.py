"""The page Fleet in a browser: the hosts, with the numbers of the API and of the command."""

import pytest
from support.browser import PHONE, Site, pages, window
from support.cli import forked as spamnb
from support.console import Api, token, trained_home
from support.valkey_server import ValkeyServer, needs_valkey
from support.waiting import until

from spamnb.fleet.log import START, Beat

pytestmark = needs_valkey
OTHER = Beat("mx2", "i", 3, START, "fedcba9876543210", 1, "0.9", 0, waiting=7)


@pytest.fixture(scope="module")
def site(browser, tmp_path_factory, place_of_server):
    """The console of a host whose fleet has another one, which is some events behind."""
    folder = tmp_path_factory.mktemp("fleet")
    trained_home(folder)
    more = f'[fleet]\nurl = "unix://{place_of_server.path}"\nhost = "mx1"\nappend_s = 30\n'
    (folder / "only.toml").write_text(more)
    config = ("--config", folder / "only.toml")
    begun = spamnb(folder / "home", *config, "fleet", "init")
    assert begun.code == 0, begun.err
    log = place_of_server.log()
    log.beat(OTHER._replace(epoch=log.head().epoch))
    log.close()
    with pages(folder, more) as (daemon, url):
        yield Site(folder, daemon, url)


@pytest.fixture(scope="module")
def place_of_server(tmp_path_factory):
    running = ValkeyServer(tmp_path_factory.mktemp("v")).start()
    yield running
    running.kill()


def test_the_hosts_are_shown_with_their_numbers(site, browser):
    """Each host has a row in each look; the API and the command have the same numbers."""
    api = Api(site.url.removeprefix("http://"), token(site.home, "root", "admin"))
    found = until(lambda: (one := api.get("/fleet").body)["hosts"] and one, "the first beat")
    first, second = found["hosts"]
    assert (first["host"], first["lag_events"], found["host"]) == ("mx1", 0, "mx1")
    assert (second["seq"], second["waiting"], second["fingerprint"]) == (3, 7, OTHER.fingerprint)
    assert second["lag_events"] == first["seq"] - 3
    command = spamnb(site.home, "--config", site.config, "fleet", "status", "--json").json[0]
    for one in (*found["hosts"], *command["hosts"]):
        del one["age_s"], one["lives"]
    assert command["hosts"] == found["hosts"]
    for options in ({}, {"dark": True}, {"size": PHONE}, {"script": False}):
        with window(browser, site.url, **options) as opened:
            page = opened.log_in("root", "/fleet")
            page.locator("nav a", has_text="Fleet").wait_for(state="attached")
            rows = page.locator("tr[data-host]").all_inner_texts()
            assert ["mx1" in rows[0], "mx2" in rows[1], OTHER.fingerprint in rows[1]] == [True] * 3
            assert "This host follows the log." in page.inner_text("main")
            if options.get("script", True):
                assert opened.fits(), options
                opened.accessible()
