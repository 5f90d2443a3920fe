"""One browser for all tests of the pages in a process, and one daemon for each module."""

from itertools import count

import pytest
from support.browser import chromium, pages
from support.console import trained_home
from support.daemon import send

_NUMBERS = count()


class Site:
    """A daemon with pages and a home that is trained with some of the sample."""

    def __init__(self, folder, daemon, url):
        self.folder, self.daemon, self.url = folder, daemon, url
        self.home = folder / "home"
        self.config = folder / "spamnb.toml"

    def deliver(self, subject, to="alice@example.org", text="hello"):
        """Send a message that is like no other; the signature of its verdict."""
        known = len(self.daemon.logged("message"))
        send(self.daemon.port(), f"{text} number{next(_NUMBERS)}", subject, to)
        return self.daemon.wait_for("message", known + 1)["signature"]


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
