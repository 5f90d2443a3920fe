"""The pages with an empty store, and while the learner does not answer."""

import os
import signal

from support.browser import pages, window

from spamnb.engine.filter import Filter


def test_an_empty_store_has_pages(browser, tmp_path):
    """Before the first message each page says that there is nothing yet."""
    Filter.open(tmp_path / "home", create=True, history=False).close()
    with pages(tmp_path) as (_, url), window(browser, url) as opened:
        opened.log_in("root", "/live")
        for path in ("/live", "/search", "/trainings"):
            assert opened.go(path).status == 200
            assert opened.page.locator(".empty").count() == 1
            opened.accessible()
            assert opened.fits()
        with window(browser, url) as users:
            users.log_in("alice", "/mail")
            assert "has been judged yet" in users.page.inner_text("main")


def test_without_the_learner_pages_are_read_and_a_change_is_refused(site, browser):
    """A change says that the daemon does not answer; the message can be read all the same."""
    signature = site.deliver("learner away")
    (learner,) = site.daemon.children("learner")
    with window(browser, site.url) as opened:
        opened.expected.append("503")
        page = opened.log_in("root", f"/message/{signature}")
        os.kill(learner, signal.SIGSTOP)
        try:
            page.get_by_role("button", name="It is spam").click()
            page.locator("#notices .error").get_by_text("The daemon does not answer").wait_for()
            assert page.get_by_role("heading", name="learner away").is_visible()
            assert opened.go("/search").status == 200
        finally:
            os.kill(learner, signal.SIGCONT)
