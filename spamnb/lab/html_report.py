"""Write the HTML report of an evaluation: one page that loads no other file.

It has tables of the metrics, the plots as inline SVG, and sentences that explain them. Must not
know terminals. Input from outside (paths, labels) is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from spamnb.core.model.costs import Costs, Decision, thresholds
from spamnb.lab.evaluation import Evaluation
from spamnb.lab.plots import as_svg, draw
from spamnb.lab.statistics.bayes_error import BayesErrorEstimate
from spamnb.lab.statistics.loss_bound import HamLossBound, costs_for

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #22223b; background: #fff;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p.how { color: #5c6378; margin-top: .2rem; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { text-align: left; padding: .25rem 1.4rem .25rem 0; border-bottom: 1px solid #e3e6ec; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; }
.pictures svg { width: 100%; height: auto; } figure { margin: 0; }
"""
_CAPTIONS = {
    "roc": "Spam caught at each share of ham lost; both axes are logarithmic.",
    "det": "Spam missed against ham lost; nearer to the lower left is better.",
    "learning": "Errors in each twentieth of the messages, in the order of scoring.",
    "reliability": "Of messages with a probability of 80 %, four in five should be spam: points "
    "on the line are well calibrated. Numbers are messages; bars are 95 % intervals.",
    "scores": "Distribution of ham and spam scores. Dashed lines are the decision thresholds.",
}


def report_page(evaluation: Evaluation, loss_bound: HamLossBound, title: str = "spamnb") -> str:
    """Return the page as HTML text."""
    pictures = "".join(
        f"<figure>{as_svg(figure)}<figcaption>{_CAPTIONS[name]}</figcaption></figure>"
        for name, figure in draw(evaluation).items()
    )
    costs = evaluation.options.costs or Costs()
    sections = (
        f"<h1>{escape(title)}</h1><p class=how>{escape(how(evaluation))}</p>",
        "<h2>Metrics</h2>", _table(("", ""), figures(evaluation)),
        f"<p>{escape(bayes_error_text(evaluation.bayes_error))}</p>",
        "<h2>Decisions</h2>", _decisions(evaluation),
        "<h2>Ham loss bound</h2>", f"<p>{escape(loss_bound_text(loss_bound, costs))}</p>",
        f"<h2>Plots</h2><div class=pictures>{pictures}</div>",
    )  # fmt: skip
    head = f"<meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    body = "".join(sections)
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>\n"


def how(evaluation: Evaluation) -> str:
    """Return one sentence that describes the run: messages, protocol and options."""
    options, corpus = evaluation.options, evaluation.report.corpus
    parts = [
        f"{corpus.ham:,} ham and {corpus.spam:,} spam scored",
        f"protocol {options.protocol}",
        f"order {options.order}",
        f"seed {options.seed}",
    ]
    if options.protocol == "online":
        parts.append(f"feedback {options.feedback}")
    if options.noise:
        parts.append(f"{options.noise:.1%} of the labels trained wrong")
    return ", ".join(parts) + f", model {options.kind}."


def figures(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the metrics as (name, formatted value) rows."""
    found, details = evaluation.report, evaluation.details()
    low, high = found.auc_complement_interval_percent or (0.0, 0.0)
    cost = details["cost"]
    assert isinstance(cost, dict)
    mean, expected_cost, unfiltered = cost["mean"], cost["expected"], cost["unfiltered"]
    error, expected_error = details["error_percent"], details["error_expected_percent"]
    speed = len(evaluation.results.truth) / max(evaluation.seconds, 1e-9)
    return [
        ("messages", f"{found.corpus.ham} ham, {found.corpus.spam} spam"),
        ("1-AUC", f"{percent(found.auc_complement_percent, 4)} ({low:.4f} to {high:.4f})"),
        ("ham lost", percent(found.ham_lost_percent, 3)),
        ("spam missed", percent(found.spam_missed_percent, 2)),
        *(
            (f"spam missed at {point} % ham lost", percent(value, 2))
            for point, value in found.spam_missed_percent_at_ham_lost.items()
        ),
        ("LAM", percent(found.lam_percent, 3)),
        ("wrong side of 50 %", f"{error:.2f} % ({expected_error:.2f} % expected)"),
        ("calibration error", f"{found.calibration_error or 0:.4f}"),
        ("Brier score", f"{found.brier or 0:.5f}"),
        (
            "cost of a message",
            f"{mean:.4f} ({expected_cost:.4f} expected, {unfiltered:.4f} without a filter)",
        ),
        ("speed", f"{speed:.1f} messages a second, {evaluation.cpu_seconds:.1f} s of CPU"),
    ]


def percent(value: float | None, digits: int) -> str:
    """Format a percentage; "-" for None."""
    return "-" if value is None else f"{value:.{digits}f} %"


def loss_bound_text(found: HamLossBound, costs: Costs) -> str:
    """Explain the ham loss bound in a few sentences, with the settings that apply it."""
    if found.log_odds is None:
        return (
            f"Not enough evidence yet: to guarantee that at most 1 in {found.one_in} good "
            f"messages is lost takes {found.ham_needed} scored ham; there are {found.ham}. "
            f"These can guarantee at most 1 in {max(int(100 / found.at_worst_percent), 1)}."
        )
    missed = percent(found.spam_missed_percent, 2)
    return (
        f"At most 1 in {found.one_in} good messages is lost (95 % confidence) if the junk "
        f"threshold is at log-odds {found.log_odds:.2f}: {found.ham_above} of {found.ham} ham "
        f"scored above it, at worst {found.at_worst_percent:.3f} %, expected by the "
        f"probabilities {percent(found.expected_percent, 3)}. Spam missed at this threshold: "
        f"{missed}. The bound holds for mail like this. Settings that apply it: "
        f"{settings_for(found, costs)}"
    )


def bayes_error_text(found: BayesErrorEstimate | None) -> str:
    """Explain the bounds on the least possible error in a few sentences."""
    if found is None:
        return "Least possible error: unknown, for there is too little ham or spam."
    least, words = found.scores_at_least, found.nearest_by_words
    text = (
        f"Least possible error: of {found.messages:,} messages {found.error:.2f} % were "
        f"classified wrong; no rule on these scores alone has an error below {least:.2f} %. "
        f"The label of the message with the most similar words is wrong for {words:.2f} %: "
    )
    if found.words_at_least is None:
        return text + "no tighter bound than the error of this filter is known."
    return text + f"by the words, the least possible error is about {found.words_at_least:.2f} %."


def settings_for(found: HamLossBound, costs: Costs) -> str:
    """Return the costs for that junk threshold, in the syntax of the settings file."""
    made = costs_for(costs, found)
    pairs = (("junk", made.junk), ("reject", made.reject))
    return ", ".join(f"costs.{name} = [{ham!r}, {spam!r}]" for name, (ham, spam) in pairs)


def decision_rows(evaluation: Evaluation) -> list[tuple[str, str, str, str]]:
    """Return rows of (decision, its lowest probability, ham count, spam count)."""
    details = evaluation.details()["decisions"]
    assert isinstance(details, dict)
    starts: dict[Decision, float] = {
        t.decision: t.probability for t in thresholds(evaluation.options.costs or Costs())
    }
    return [
        (name, f"{starts[name]:.6f}" if name in starts else "never",
         str(counts["ham"]), str(counts["spam"]))
        for name, counts in details.items()
    ]  # fmt: skip


def _decisions(evaluation: Evaluation) -> str:
    costs = evaluation.options.costs or Costs()
    price = dict(zip(("deliver", "unsure", "junk", "reject"), costs.table(), strict=True))
    rows = [(*row, *(f"{cost:g}" for cost in price[row[0]])) for row in decision_rows(evaluation)]
    head = ("decision", "from probability", "ham", "spam", "costs, if ham", "if spam")
    return _table(head, rows, numbers=range(1, 6))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        made = (
            f"<{tag}{' class=n' if i in numbers else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    top = line(head, "th") if any(head) else ""
    return f"<table>{top}{''.join(line(row, 'td') for row in rows)}</table>"
