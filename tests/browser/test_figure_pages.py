"""Graphs and What-if: pictures, the same numbers as tables, the form; on every screen."""

import pytest
from support.browser import PHONE, window
from support.waiting import until

LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "phone": {"size": PHONE},
    "no script": {"script": False},
}


_CUT = """() => [...document.querySelectorAll("svg.chart text")]
  .filter((one) => one.getBoundingClientRect().width
    && one.getBoundingClientRect().left < one.closest("svg").getBoundingClientRect().left)
  .map((one) => one.textContent)"""
"""texts of charts that begin left of their picture"""


@pytest.fixture(scope="module")
def judged(site):
    """A site that has judged some mail, which the index has."""
    texts = ["meeting agenda notes", "cheap pills viagra offer"]
    for number in range(6):
        site.deliver(f"figure {number}", text=texts[number % 2])
    return site


@pytest.mark.parametrize("look", LOOKS)
def test_every_screen_shows_the_figures(judged, browser, look):
    """Each page in both schemes, on a phone and without script; the tables opened as well."""
    options = LOOKS[look]
    with window(browser, judged.url, **options) as opened:
        page = opened.log_in("root", "/graphs")
        paths = ["/graphs?period=day", "/whatif?junk_from=10&messages=1000"]
        for path in [*paths, "/graphs?period=year", "/whatif"] if look == "light" else paths:
            assert opened.go(path).status == 200, path
            page.locator("h1").wait_for()
            for summary in page.locator("main details summary").all():
                summary.click()
            shown = page.locator("svg.chart:visible").count()
            empty = page.locator("section.graph .empty:visible").count()
            assert shown + empty == (15 if "graphs" in path else 1)
            assert page.evaluate(_CUT) == []
            if "graphs" in path:
                assert "the daemon was started." in page.inner_text("#marks")
                assert page.locator("svg.chart:visible .event").count() > 0
            if options.get("script", True):
                assert opened.fits(), path
                opened.accessible()


def test_the_page_of_senders_shows_who_writes_here(judged, browser):
    """An administrator sees domains with their share of junk; each leads to its messages."""
    with window(browser, judged.url) as opened:
        page = opened.log_in("root", "/senders")
        page.get_by_role("heading", name="Who writes here").wait_for()
        opened.accessible()
        page.locator("table[aria-labelledby=seen] tbody a").first.click()
        page.wait_for_url("**/search?from=*")
    with window(browser, judged.url) as opened:
        page = opened.log_in("alice", "/senders")
        assert page.get_by_role("heading", name="Who writes here").count() == 0


def test_a_picture_has_its_numbers_as_a_table(judged, browser):
    """The bars of a day are the cells of the table."""
    with window(browser, judged.url) as opened:
        page = opened.log_in("root", "/graphs?period=week")
        graph = page.locator("section.graph", has=page.get_by_role("heading", name="sure"))
        graph.get_by_text("As a table").click()
        cells = [float(one) for one in graph.locator("td:not(:last-child)").all_inner_texts()]
        assert sum(cells) == pytest.approx(100, abs=0.5)
        assert graph.locator("svg.desk rect").count() == sum(one > 0 for one in cells)


@pytest.mark.parametrize("script", [True, False])
def test_another_threshold_is_tried_by_the_form(judged, browser, script):
    """The three numbers stand apart, and each changed message is linked; nothing is changed."""
    with window(browser, judged.url, script=script) as opened:
        page = opened.log_in("root", "/whatif")

        def tried():
            page.get_by_label("Junk above a probability").fill("0.1")
            page.get_by_role("button", name="Show the messages").click()
            return "more are junk" in page.inner_text("main")

        until(tried, "the index has the messages")
        text = page.inner_text("main")
        assert "above 0.10 % (-6.9 nats)" in text
        for part in ("Known", "Expected", "Not enough evidence", "not a fair sample"):
            assert part in text
        rows = page.locator("table.verdicts tbody tr")
        counts = [
            int(one) for one in page.locator("table.facts").first.locator("td").all_inner_texts()
        ]
        changed = sum(count for at, count in enumerate(counts) if at % 5)
        assert rows.count() == changed
        if changed:
            rows.first.get_by_role("link").click()
            page.get_by_role("heading", name="figure").wait_for()


def test_the_slider_moves_the_numbers_without_requests(judged, browser):
    """Each position has the numbers that the form gives for its threshold."""
    with window(browser, judged.url) as opened:
        page = opened.log_in("root", "/whatif")
        requests = []
        page.on("request", lambda one: requests.append(one.url))
        slider = page.get_by_label("Junk above this threshold")
        mark = page.locator("svg.desk path.mark")
        before = mark.get_attribute("transform")
        slider.focus()
        for _ in range(20):
            page.keyboard.press("ArrowLeft")
        assert mark.get_attribute("transform") != before
        assert slider.get_attribute("aria-valuetext") in page.inner_text("#whatif-said")
        moved = [opened.texts("[data-text]"), mark.get_attribute("transform")]
        assert requests == []
        page.get_by_role("button", name="Show the messages").click()
        page.wait_for_url("**/whatif?junk_from=*")
        assert opened.texts("[data-text]") == moved[0]
        x = [float(one.partition("(")[2].partition(" ")[0])
             for one in (moved[1], mark.get_attribute("transform"))]  # fmt: skip
        assert x[0] == pytest.approx(x[1], abs=1)


def test_an_auditor_sees_the_figures_and_a_user_does_not(judged, browser):
    """Numbers of all mail are for administrators and auditors."""
    for login, status in (("audit", 200), ("alice", 404)):
        with window(browser, judged.url) as opened:
            opened.expected.append("404")
            opened.log_in(login)
            for path in ("/graphs", "/whatif?junk_from=50"):
                assert opened.go(path).status == status


@pytest.mark.parametrize("script", [True, False])
def test_a_threshold_is_put_in_force_and_taken_back(judged, browser, script):
    """The page between shows both thresholds; one press brings the first one back."""
    with window(browser, judged.url, script=script) as opened:
        page = opened.log_in("root", "/whatif")
        before = page.get_by_text("Now messages are junk above").inner_text()
        page.get_by_label("Junk above a probability").fill("60")
        page.get_by_role("button", name="Use this threshold…").click()
        page.get_by_role("heading", name="Use another threshold").wait_for()
        row = page.locator("table.facts").first.locator("tr", has_text="junk").last
        assert "99.45 %" in row.inner_text()
        assert "60.00 %" in row.inner_text()
        for part in ("keep silent about the rest", "evaluate --apply", "keep their decision"):
            assert part in page.inner_text("main")
        if script:
            assert opened.fits()
            opened.accessible()
        page.get_by_role("button", name="Use 60.00 % from now on").click()
        page.locator("#notices").get_by_text("The threshold of junk is 60.00 % now").wait_for()
        assert page.locator("#notices button").count() == 0

        def said(text):
            opened.go("/whatif")
            return text in page.inner_text("main")

        until(lambda: said("Now messages are junk above 60.00 %"), "the new threshold")
        assert "root chose the threshold of 60.00 %" in page.inner_text("main")
        if script:
            opened.accessible()
        page.get_by_role("button", name="Bring back").click()
        page.locator("#notices").get_by_text("again; before, it was 60.00 %").wait_for()
        until(lambda: said(before), "the threshold before")
        assert "chose the threshold" not in page.inner_text("main")


def test_the_page_says_where_costs_are_set(judged, browser):
    """The settings file has precedence: the page names the line, and has no button."""
    text = judged.config.read_text()
    judged.config.write_text(f"{text}\n[costs]\njunk = [50, 0.05]\n")
    try:
        with window(browser, judged.url) as opened:
            page = opened.log_in("root", "/status")
            page.get_by_role("button", name="Read the settings again").click()
            page.get_by_text("The daemon reads its settings again.").wait_for()
            line = f"Costs are set at {judged.config}, line {text.count(chr(10)) + 3}."

            def said():
                opened.go("/whatif/apply?junk_from=60")
                return line in page.inner_text("main")

            until(said, "the new settings")
            assert "junk = [1.225, 0.05], reject = [1000, 0]" in page.inner_text("main")
            assert page.locator("main form").count() == 0
    finally:
        judged.config.write_text(text)
        with window(browser, judged.url) as opened:
            page = opened.log_in("root", "/status")
            page.get_by_role("button", name="Read the settings again").click()
            page.get_by_text("The daemon reads its settings again.").wait_for()


def test_an_auditor_cannot_use_a_threshold(judged, browser):
    """The confirmation is shown without a button."""
    with window(browser, judged.url) as opened:
        page = opened.log_in("audit", "/whatif")
        assert page.get_by_role("button", name="Use this threshold…").count() == 0
        assert opened.go("/whatif/apply?junk_from=60").status == 200
        assert page.locator("main form[method=post]").count() == 0
