"""Hostile mail in a real browser: a preview runs no script and sends no request.

The cleaner and the headers of the reply are tested apart and together, so that a fault of one of
them alone harms no reader.
"""

from contextlib import suppress

import pytest
from support.html_attacks import AT_ONCE, PRESSED
from support.waiting import LIMIT_S

from spamnb.endpoints.console.preview.document import HEADERS, preview
from spamnb.endpoints.console.preview.html_cleaner import safe_target

WHERE = "https://preview.test/"
HTML = "text/html; charset=utf-8"
LATER_MS = 60
"""for what acts after the page is loaded; a shorter wait can only miss an effect"""
LEAST_EFFECTS = 60
"""of the pages without protection: the test would notice"""


class Watched:
    """A browser, and what documents do in it."""

    def __init__(self, context):
        self.context, self.document, self.headers = context, "", {}
        self.effects, self.page = [], None
        context.route("**/*", self._answer)
        context.on("page", self._opened)

    def _answer(self, route):
        if route.request.url == WHERE and route.request.method == "GET":
            route.fulfill(body=self.document, headers=self.headers, content_type=HTML)
        else:
            self.effects.append(route.request.url)
            route.abort()

    def _opened(self, page):
        page.on("console", lambda line: line.text == "hit" and self.effects.append("script"))
        page.on("dialog", lambda dialog: self.effects.append("dialog") or dialog.dismiss())

    def effects_of(self, document, headers, *, press):
        """Open a document, press its element, and tell what happened."""
        self.document, self.headers, self.effects = document, dict(headers), []
        self.page = page = self.page or self.context.new_page()
        with suppress(pytest.importorskip("playwright.sync_api").Error):  # it may leave its page
            page.goto(WHERE)
            if press and (shown := page.query_selector("#press")) is not None:
                shown.click(force=True, no_wait_after=True, timeout=1_000)
            page.wait_for_timeout(LATER_MS)
        if page.url.partition("#")[0] != WHERE:
            self.effects.append(page.url)
        if self.effects:  # what it began may not reach the next document
            self.page = page.close()
        return self.effects


@pytest.fixture(scope="module")
def watched(browser):
    context = browser.new_context()
    context.set_default_timeout(LIMIT_S * 1_000)
    yield Watched(context)
    context.close()


def effects(watched, document_of, headers, every=1):
    """The effects of the attacks, by name, that have any; of each `every`th attack."""
    found = {}
    for pages, press in ((AT_ONCE, False), (PRESSED, True)):
        for name, page in [*pages.items()][::every]:
            seen = watched.effects_of(document_of(page), headers, press=press)
            if seen:
                found[name] = seen
    return found


def bare(page):
    return f"<!DOCTYPE html><html><body>{page}"


def cleaned(page):
    head = b"Subject: x\nContent-Type: text/html; charset=utf-8\n\n"
    return preview(head + b"<p>text</p>" + page.encode())


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.full)])
def test_attacks_have_effects_without_protection(watched, every):
    """What the other tests look for can be seen. Each effect takes a new page, a second or more."""
    assert len(AT_ONCE) + len(PRESSED) >= 100
    found = effects(watched, bare, {}, every)
    assert len(found) >= LEAST_EFFECTS // every, sorted({*AT_ONCE, *PRESSED} - found.keys())


@pytest.mark.parametrize(
    ("document_of", "headers"),
    [(cleaned, {}), (bare, HEADERS), (cleaned, HEADERS)],
    ids=["cleaner", "headers", "both"],
)
def test_a_preview_has_no_effect(watched, document_of, headers):
    """The cleaner alone, the headers alone, and both stop every script and request."""
    assert effects(watched, document_of, headers) == {}


LINKS = (
    *("https://example.org/a?b#c", "https://bank.example@evil.example/", "https://a.example:81/x"),
    *(r"https:\\evil.example\bank.example", r"https://evil.example\@bank.example"),
    *("https:////evil.example", "ht\ntps://ev\til.example\r", "\1 https://evil.example"),
    *("https://%65vil.example", "https://ｅｖｉｌ。example", "https://bücher.example"),
    *("https://faß.example", "https://a_b.example", "https://example.org.", "http://[::1]:8/"),
    *(
        "https://a:b@c:d@evil.example",
        "https://evil.example:443:x",
        "https://x%2fy",
        "https://x%41y",
    ),
    *("https://\u0131\u212a.example", "https://a\xadb.example", "https://x?@y", "https://x#@y"),
    *("https:evil.example", "https:/evil.example", "//evil.example", "javascript://x/%0a1"),
)


def test_the_host_that_is_shown_is_the_host_of_the_link(watched):
    """A browser reads the target of each link with the host that the preview shows."""
    page, kept = watched.context.new_page(), 0
    for link in LINKS:
        target = safe_target(link)
        if target is not None:
            kept += 1
            named = page.evaluate("text => new URL(text).host", target)
            assert target.partition("://")[2].startswith(named), (link, target, named)
    assert kept >= 15
