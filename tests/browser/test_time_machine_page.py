"""The time machine in a browser: a preview by its form, what it says, apply, bring back."""

import pytest
from support.browser import PHONE, Site, pages, window
from support.console import trained_home
from support.waiting import LIMIT_S

from spamnb.engine.filter import Filter
from spamnb.engine.values import Source


@pytest.fixture(scope="module")
def judged(browser, tmp_path_factory):
    """A site where mallory taught, and that has judged some mail."""
    folder = tmp_path_factory.mktemp("machine")
    trained_home(folder)
    with Filter.open(folder / "home", history=False) as model:
        raw = b"Subject: offer\n\ncheap pills viagra offer\n"
        model.correct(raw, "ham", source=Source("mallory", "imap"))
    with pages(folder) as (daemon, url):
        site = Site(folder, daemon, url)
        site.deliver("cheap offer", text="cheap pills viagra offer")
        yield site


LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "phone": {"size": PHONE},
    "no script": {"script": False},
}


def test_a_failed_preview_is_made_again(judged, browser):
    """The page says why it failed, and a button begins the same preview at once."""
    with window(browser, judged.url, script=False) as opened:
        page = opened.log_in("root", "/timemachine")
        page.get_by_role("button", name="Without mallory").first.click()
        page.locator('section[data-state="ready"]').wait_for(timeout=LIMIT_S * 1000)
        page.get_by_role("button", name="Discard").click()
        page.get_by_role("button", name="Make this preview again").click()
        page.locator('section[data-state="ready"]').wait_for(timeout=LIMIT_S * 1000)
        assert "Without the training by mallory" in page.inner_text("section[data-state]")
        page.get_by_role("button", name="Discard").click()


def test_a_user_is_left_out_by_buttons(judged, browser):
    """Preview, apply, bring back: in each look one step; the page shows what it is at."""
    steps = iter(
        [
            ("Without mallory", "Apply"),
            ("Bring back", "Apply"),
            ("Without mallory", "Discard"),
            ("Without mallory", "Apply"),
        ]
    )
    for look, options in LOOKS.items():
        begin, end = next(steps)
        with window(browser, judged.url, **options) as opened:
            page = opened.log_in("root", "/timemachine")
            page.get_by_role("button", name=begin).first.click()
            page.locator('section[data-state="ready"]').wait_for(timeout=LIMIT_S * 1000)
            assert "labelled as ham" in page.inner_text("main"), look
            if options.get("script", True):
                assert opened.fits(), look
                opened.accessible()
            page.get_by_role("button", name=end).click()
            state = "applied" if end == "Apply" else "ended"
            page.locator(f'section[data-state="{state}"]').wait_for(timeout=LIMIT_S * 1000)
