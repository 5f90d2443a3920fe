"""Chromium of the system in tests of the pages, driven by Playwright; skips where there is none.

A `Window` keeps what a page must not cause: reports of its content security policy, errors in its
console, requests to other sites. `Window.close` fails if there is any.
"""

import re
import shutil
from contextlib import contextmanager

import pytest

from spamnb.service.admin.logins import Cost, Login, hashed, write_logins
from support.console import console
from support.daemon import DELIVERY
from support.waiting import LIMIT_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}
PASSWORD = "correct horse"
LOGINS = {
    "root": ("root@example.org",),
    "audit": ("audit@example.org",),
    "alice": ("alice@example.org", "sales@example.org"),
    "bob": ("bob@example.org",),
}
_REPORTS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error("CSP: " + event.violatedDirective + " " + event.blockedURI));
"""


@contextmanager
def chromium():
    """Run a browser; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        try:
            yield found
        finally:
            found.close()


def write_password_file(path):
    """Write the logins, with hashes that take a millisecond to check."""
    secret = hashed(PASSWORD, Cost(ln=4))
    write_logins(path, {name: Login(name, secret, own) for name, own in LOGINS.items()})


@contextmanager
def pages(folder, more="", **settings):
    """Run a daemon whose pages have the logins; yields it and the URL of the pages."""
    path = folder / "passwords"
    write_password_file(path)
    rights = f'passwords = "{path}"\nadmins = ["root"]\nauditors = ["audit"]\n'
    settings = {"delivery": DELIVERY, "listener": "", **settings, "more": rights + more}
    with console(folder, **settings) as (daemon, address):
        yield daemon, f"http://{address}"


class Window:
    """A window of the browser, with its own cookies."""

    def __init__(self, browser, url, *, size=DESK, dark=False, script=True):
        self.url = url
        self.context = browser.new_context(
            base_url=url,
            viewport=size,
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
            reduced_motion="reduce",
        )
        self.context.set_default_timeout(LIMIT_S * 1000)
        self.context.add_init_script(_REPORTS)
        self.faults: list[str] = []
        self.expected: list[str] = []
        self.context.route(re.compile(f"^(?!{re.escape(url)}/)"), self._foreign)
        self.page = self.context.new_page()
        self.page.on("console", self._written)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

    def _foreign(self, route):
        self.faults.append(f"request to {route.request.url}")
        route.abort()

    def _written(self, message):
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def close(self):
        """Close the window; fail if a page did what it must not do."""
        self.context.close()
        faults = [one for one in self.faults if not any(part in one for part in self.expected)]
        assert faults == [], faults

    def go(self, path):
        """Open a page; the response."""
        return self.page.goto(path)

    def log_in(self, login, path="/"):
        """Log in with the password, and open a page."""
        self.go(f"/login?next={path}")
        self.page.get_by_label("Login or mail address").fill(login)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("button", name="Log out").wait_for()
        return self.page

    def texts(self, selector):
        """The texts of all elements."""
        return [one.inner_text() for one in self.page.locator(selector).all()]

    def accessible(self):
        """Fail if axe-core finds a violation; contrast, names, labels, landmarks are among them."""
        found = pytest.importorskip("axe_playwright_python.sync_playwright").Axe().run(self.page)
        wrong = [
            (one["id"], [node["html"] for node in one["nodes"]][:3])
            for one in found.response["violations"]
        ]
        assert wrong == [], wrong

    def fits(self):
        """Whether nothing is wider than the window."""
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        return wide <= self.page.viewport_size["width"]


@contextmanager
def window(browser, url, **options):
    """A window that is closed, and checked, at the end."""
    opened = Window(browser, url, **options)
    try:
        yield opened
    except BaseException:
        opened.context.close()
        raise
    opened.close()
