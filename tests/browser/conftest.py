"""One browser for all tests of the pages in a process, and one daemon for each module."""

import pytest
from support.browser import Site, chromium, pages
from support.console import trained_home


# Playwright keeps an event loop running in this thread: while it does, no other test can run one.
@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    trained_home(folder)
    with pages(folder) as (daemon, url):
        yield Site(folder, daemon, url)
