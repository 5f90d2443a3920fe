"""The system's Chromium in tests of the pages, driven by Playwright; skips if it is missing.

A `Window` keeps what a page must not cause: reports of its content security policy, errors in its
console, requests to other sites. `Window.close` fails if there is any.
"""

import re
import shutil
from contextlib import contextmanager
from itertools import count

import pytest

from spamnb.operations.logins import Cost, Login, hashed, write_logins
from support.console import console
from support.daemon import DELIVERY, send
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
    """Run a browser; the test is skipped if there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        try:
            yield Browser(found)
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


_SESSIONS: dict[tuple[str, str], list] = {}
"""URL and login -> cookies"""


_NUMBERS = count()


class Site:
    """A daemon with pages and a home that is trained with some of the sample."""

    def __init__(self, folder, daemon, url):
        self.folder, self.daemon, self.url = folder, daemon, url
        self.home = folder / "home"
        self.config = folder / "spamnb.toml"

    def deliver(self, subject, to="alice@example.org", text="hello"):
        """Send a unique message; return the signature of its verdict."""
        known = len(self.daemon.logged("message"))
        send(self.daemon.port(), f"{text} number{next(_NUMBERS)}", subject, to)
        return self.daemon.wait_for("message", known + 1)["signature"]


class Browser:
    """A browser with pages that windows use in turn, because a new one costs a second."""

    def __init__(self, real):
        self.real = real
        self._free: dict[bool, list] = {True: [], False: []}

    def free(self, *, script):
        """The free pages with script or without; at least one."""
        if not self._free[script]:
            context = self.real.new_context(java_script_enabled=script, reduced_motion="reduce")
            context.set_default_timeout(LIMIT_S * 1000)
            context.add_init_script(_REPORTS)
            self._free[script].append(context.new_page())
        return self._free[script]


class Window:
    """A window of the browser, with its own cookies."""

    def __init__(self, browser, url, *, size=DESK, dark=False, script=True):
        self.url = url
        self.free = browser.free(script=script)
        self.page = self.free.pop()
        self.context = self.page.context
        self.page.set_viewport_size(size)
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.faults: list[str] = []
        self.expected: list[str] = []
        self.context.route(re.compile(f"^(?!{re.escape(url)}/)"), self._foreign)
        self.page.on("console", self._written)
        self.page.on("pageerror", self._failed)

    def _foreign(self, route):
        self.faults.append(f"request to {route.request.url}")
        route.abort()

    def _written(self, message):
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def _failed(self, error):
        self.faults.append(f"error: {error}")

    def leave(self):
        """Leave the page to the next window."""
        self.page.remove_listener("console", self._written)
        self.page.remove_listener("pageerror", self._failed)
        self.context.unroute_all()
        self.page.goto("about:blank")
        self.context.clear_cookies()
        self.free.append(self.page)

    def close(self):
        """Close the window; fail if a page did what it must not do."""
        self.leave()
        faults = [one for one in self.faults if not any(part in one for part in self.expected)]
        assert faults == [], faults

    def go(self, path):
        """Open a page; the response."""
        return self.page.goto(self.url + path)

    def log_in(self, login, path="/"):
        """Open a page with the session of an earlier window, or log in with the password."""
        self.context.add_cookies(_SESSIONS.get((self.url, login), []))
        self.go(path)
        if "/login" in self.page.url:
            self.page.get_by_label("Login or mail address").fill(login)
            self.page.get_by_label("Password").fill(PASSWORD)
            self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("button", name="Log out").wait_for()
        self.page.wait_for_load_state()
        _SESSIONS[self.url, login] = self.context.cookies()
        return self.page

    def texts(self, selector):
        """The texts of all elements."""
        return [one.inner_text() for one in self.page.locator(selector).all()]

    def accessible(self):
        """Fail if axe-core finds a violation, such as of contrast, names, labels or landmarks."""
        found = pytest.importorskip("axe_playwright_python.sync_playwright").Axe().run(self.page)
        wrong = [
            (one["id"], [node["html"] for node in one["nodes"]][:3])
            for one in found.response["violations"]
        ]
        assert wrong == [], wrong

    def fits(self):
        """Whether no element is wider than the window, after the styles are loaded."""
        self.page.wait_for_load_state()
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        return wide <= self.page.viewport_size["width"]


@contextmanager
def window(browser, url, **options):
    """A window that is closed, and checked, at the end."""
    opened = Window(browser, url, **options)
    try:
        yield opened
    except BaseException:
        opened.leave()
        raise
    opened.close()
