"""Hostile mail in a real browser: a preview runs no script and sends no request.

The cleaner and the headers of the reply are tested apart and together, so that a fault of one of
them alone harms no reader.
"""

from contextlib import suppress

import pytest
from support.html_attacks import AT_ONCE, PRESSED
from support.html_mutations import MUTATIONS, PRESSED_MUTATIONS
from support.waiting import LIMIT_S

from spamnb.console.preview import HEADERS, preview, safe_target

WHERE = "https://preview.test/"
HTML = "text/html; charset=utf-8"
LATER_MS = 60
"""for what acts after the page is loaded; a shorter wait can only miss an effect"""
ALL_AT_ONCE = AT_ONCE | {f"mutation: {name}": page for name, page in MUTATIONS.items()}
ALL_PRESSED = PRESSED | PRESSED_MUTATIONS
LEAST_EFFECTS = 50
"""of the pages without protection: the test would notice"""


class Watched:
    """A browser, and what documents do in it: one alone, several in frames as in the console."""

    def __init__(self, context):
        self.context, self.documents, self.headers = context, {}, {}
        self.effects, self.page = [], None
        context.route("**/*", self._answer)
        context.on("page", self._opened)

    def _answer(self, route):
        if route.request.method != "GET" or route.request.url not in self.documents:
            self.effects.append(route.request.url)
            route.abort()
        else:
            body, headers = self.documents[route.request.url]
            route.fulfill(body=body, headers=headers, content_type=HTML)

    def _opened(self, page):
        page.on("console", lambda line: line.text == "hit" and self.effects.append("script"))
        page.on("dialog", lambda dialog: self.effects.append("dialog") or dialog.dismiss())

    def effects_of(self, documents, headers):
        """Open documents, press the element of one, and tell what happened."""
        shown = {f"{WHERE}{at}": (one, headers) for at, one in enumerate(documents)}
        frames = "".join(f"<iframe src={url} width=90 height=60></iframe>" for url in shown)
        self.documents, self.effects = shown | {WHERE: (f"<!DOCTYPE html>{frames}", {})}, []
        self.page = page = self.page or self.context.new_page()
        with suppress(pytest.importorskip("playwright.sync_api").Error):  # it may leave its page
            if len(documents) > 1:
                page.goto(WHERE)
            else:
                page.goto(f"{WHERE}0")
                if (pressed := page.query_selector("#press")) is not None:
                    pressed.click(force=True, no_wait_after=True, timeout=1_000)
            page.wait_for_timeout(LATER_MS)
        frames = page.main_frame.child_frames if len(documents) > 1 else []
        urls = {frame.url.partition("#")[0] for frame in (page, *frames)}
        self.effects += sorted(urls - self.documents.keys())
        if self.effects:  # what it began may not reach the next document
            self.page = page.close()
        return self.effects


@pytest.fixture
def watched(browser):
    """Each test has its own: a request of the one before may come late."""
    context = browser.real.new_context()
    context.set_default_timeout(LIMIT_S * 1_000)
    yield Watched(context)
    context.close()


def effects(watched, document_of, headers, *, alone):
    """The effects of the attacks; if not alone, of a quarter of those that are pressed."""
    at_once = [document_of(page) for page in ALL_AT_ONCE.values()]
    pressed = [document_of(page) for page in ALL_PRESSED.values()][:: 1 if alone else 4]
    together = [[one] for one in at_once] if alone else [at_once]
    groups = [*together, *([one] for one in pressed)]
    return [seen for group in groups for seen in watched.effects_of(group, headers)]


def bare(page):
    return f"<!DOCTYPE html><html><body>{page}"


def cleaned(page):
    head = b"Subject: x\nContent-Type: text/html; charset=utf-8\n\n"
    return preview(head + b"<p>text</p>" + page.encode())


attacks = pytest.mark.parametrize(
    "alone", [False, pytest.param(True, marks=pytest.mark.full)], ids=["together", "alone"]
)


@attacks
def test_attacks_have_effects_without_protection(watched, alone):
    """What the other tests look for can be seen. Each effect takes a new page, a second or more."""
    assert len(ALL_AT_ONCE) + len(ALL_PRESSED) >= 280
    found = effects(watched, bare, {}, alone=alone)
    assert len({*found}) >= LEAST_EFFECTS, found


@attacks
@pytest.mark.parametrize(
    ("document_of", "headers"), [(cleaned, {}), (bare, HEADERS)], ids=["cleaner", "headers"]
)
def test_a_preview_has_no_effect(watched, document_of, headers, alone):
    """The cleaner alone and the headers alone stop every script and request."""
    assert effects(watched, document_of, headers, alone=alone) == []


@pytest.mark.full
def test_cleaner_and_headers_together_have_no_effect(watched):
    """What one of them stops, the other does not let through."""
    assert effects(watched, cleaned, HEADERS, alone=True) == []


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
