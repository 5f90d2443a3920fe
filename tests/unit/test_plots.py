"""Pictures and the report: drawn from any evaluation, self-contained, and optional."""

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from spamnb.errors import UserError
from spamnb.lab import report
from spamnb.lab.evaluate import Options, evaluate
from spamnb.lab.report import decision_rows, figures, loss_bound_text, report_page
from spamnb.lab.statistics import ham_loss_bound


@pytest.fixture(scope="module")
def outcome():
    rows = []
    for i in range(120):
        label = "spam" if i % 3 == 0 else "ham"
        word = "cheap" if (i % 3 == 0) != (i % 11 == 0) else "meeting"
        head = f"Subject: {word}\nMessage-ID: <{i}@x.test>"
        rows.append((f"{head}\n\n{word} text {i % 7}\n".encode(), label))
    return evaluate(rows, Options(resamples=10))


def test_nothing_is_imported_before_a_picture_is_asked_for():
    """Matplotlib is imported only when a plot is drawn, for its import takes half a second."""
    code = (
        "import sys, spamnb.lab.report, spamnb.cli.evaluate\nsys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_matplotlib_the_error_says_how_to_get_it(outcome, monkeypatch):
    """A missing matplotlib is a UserError with a hint to install it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError) as caught:
        report.draw(outcome)
    assert "spamnb[plots]" in caught.value.hint


def test_every_picture_is_drawn(outcome):
    """PNG for files, SVG without a declaration for pages."""
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    drawn = report.draw(outcome)
    assert set(drawn) == set(report.PICTURES)
    for figure in drawn.values():
        assert report.as_png(figure).startswith(b"\x89PNG")
        assert report.as_svg(figure).startswith("<svg")


@pytest.mark.parametrize(
    "truth",
    [[i % 2 == 0 for i in range(49)], [True] * 49, [False] * 49, [True], [False, True]],
    ids=["apart", "spam alone", "ham alone", "one", "two"],
)
def test_every_picture_is_drawn_where_a_bin_holds_one_class(outcome, truth):
    """Perfect scores, a single class and a single message can be drawn."""
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    spam = np.array(truth)
    odds = np.where(spam, 9.0, -9.0)
    results = outcome.results._replace(
        truth=spam, log_odds=odds, probability=np.where(spam, 0.9999, 0.0001)
    )
    drawn = report.draw(replace(outcome, results=results))
    assert all(report.as_svg(figure).startswith("<svg") for figure in drawn.values())


def test_pictures_can_be_had_again(outcome):
    """The same evaluation gives the same bytes, so that reports can be compared."""
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    first, second = (report.as_png(report.draw(outcome)["roc"]) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("spam", [1, 119])
def test_lopsided_and_perfect_evaluations_can_be_drawn(outcome, spam):
    """Every plot can be drawn for one spam and one ham without errors."""
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    results = outcome.results
    truth = results.truth.copy()
    truth[:] = [i < spam for i in range(len(truth))]
    odds = truth * 8.0 - 4
    lopsided = replace(outcome, results=results._replace(truth=truth, log_odds=odds))
    for figure in report.draw(lopsided).values():
        assert report.as_png(figure)


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.loads = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            inner = (value or "").startswith(("#", "data:"))
            if name in ("src", "href", "xlink:href", "srcset") and not inner:
                self.loads.append(value)


def test_the_page_loads_nothing(outcome):
    """The report is self-contained: no script, font or image from another file."""
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    text = report_page(outcome, outcome.loss_bound(), "a <b> & c")
    page = _Page()
    page.feed(text)
    assert page.loads == []
    assert page.tags.count("svg") == len(report.PICTURES)
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "a &lt;b&gt; &amp; c" in text


def test_the_figures_are_those_of_the_evaluation(outcome):
    """Tables for people say what the JSON says."""
    shown = dict(figures(outcome))
    assert shown["messages"] == "80 ham, 40 spam"
    assert shown["1-AUC"].startswith(f"{outcome.report.auc_complement_percent:.4f} %")
    rows = decision_rows(outcome)
    assert sum(int(row[2]) + int(row[3]) for row in rows) == 120


def test_a_promise_is_a_sentence_with_its_settings(outcome):
    """The text says how much evidence is missing, or gives the costs that apply the bound."""
    results = outcome.results
    thin = loss_bound_text(ham_loss_bound(results.truth, results.log_odds, 1000), outcome_costs())
    assert thin.startswith("Not enough evidence yet")
    assert "2995" in thin
    full = loss_bound_text(ham_loss_bound(results.truth, results.log_odds, 20), outcome_costs())
    assert full.startswith("At most 1 in 20")
    assert "costs.junk = [" in full


def outcome_costs():
    from spamnb.model.costs import Costs

    return Costs()
