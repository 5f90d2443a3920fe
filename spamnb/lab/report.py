"""The HTML report of an evaluation: one page that loads no other file, with its plots.

It has tables of the metrics, the plots as inline SVG (ROC, DET, learning curve, reliability,
scores), and sentences that explain them. Must not know terminals. Input from outside (paths,
labels) is escaped. The only module that uses matplotlib, an optional extra that is imported when
the first plot is drawn. Failure: UserError if matplotlib is not installed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from spamnb.errors import UserError
from spamnb.lab import statistics
from spamnb.lab.evaluate import Evaluation
from spamnb.lab.statistics import BayesErrorEstimate, HamLossBound, costs_for
from spamnb.model.costs import Costs, Decision, thresholds
from spamnb.model.scoring import reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HAM, SPAM, LINE, GREY = "#2a6f97", "#c1440e", "#22223b", "#8d99ae"
_PLOT_STYLE: dict[str, Any] = {
    "font.family": "sans-serif", "font.size": 10, "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": GREY, "axes.labelcolor": LINE,
    "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.grid": True, "grid.color": "#e3e6ec", "grid.linewidth": 0.7, "axes.axisbelow": True,
    "xtick.color": LINE, "ytick.color": LINE, "legend.frameon": False, "svg.hashsalt": "spamnb",
}  # fmt: skip
_SHARES = (0.0001, 0.001, 0.01, 0.05, 0.2, 0.5)
_SIZE = (6.4, 4.4)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def draw(evaluation: Evaluation) -> dict[str, Figure]:
    """Return all plots by file name (without suffix)."""
    try:
        from matplotlib import rc_context  # noqa: PLC0415 - an extra, and slow to import
        from matplotlib.figure import Figure as NewFigure  # noqa: PLC0415 - the same
    except ImportError as error:
        raise UserError(
            "plots need matplotlib, which is not installed",
            hint="pip install 'spamnb[plots]', or leave out --plots and --report",
        ) from error
    made = {}
    for name, picture in PICTURES.items():
        with rc_context(_PLOT_STYLE):
            figure = NewFigure(figsize=_SIZE, layout="constrained")
            picture(figure.subplots(), evaluation)
            made[name] = figure
    return made


def as_png(figure: Figure) -> bytes:
    """Return a plot as PNG bytes, without metadata."""
    return _saved(figure, "png", dpi=130, metadata={"Software": None})


def as_svg(figure: Figure) -> str:
    """Return a plot as an <svg> element for an HTML page."""
    text = _saved(figure, "svg", metadata={"Date": None, "Creator": None}).decode()
    return _METADATA.sub("", text[text.index("<svg") :])


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    from matplotlib import rc_context  # noqa: PLC0415 - as above

    buffer = io.BytesIO()
    with rc_context(_PLOT_STYLE):
        figure.savefig(buffer, format=kind, facecolor="white", **options)
    return buffer.getvalue()


def _roc(axes: Axes, evaluation: Evaluation) -> None:
    """Both axes are logarithmic."""
    results = evaluation.results
    curve = statistics.roc(results.truth, results.log_odds)
    ham, spam = max(int((~results.truth).sum()), 1), max(int(results.truth.sum()), 1)
    # A log axis has no 0: half a message stands for none.
    lost = [100 * max(share, 0.5 / ham) for share in curve.ham_lost]
    missed = [100 * max(share, 0.5 / spam) for share in curve.spam_missed]
    axes.plot(lost, missed, color=LINE, lw=1.8, drawstyle="steps-post")
    for point, value in evaluation.report.spam_missed_percent_at_ham_lost.items():
        if value is not None:
            axes.plot(float(point), max(value, 50 / spam), "o", color=SPAM, ms=6, zorder=3)
            axes.annotate(
                f"{value:.2f} % missed at {point} %",
                (float(point), max(value, 50 / spam)),
                xytext=(8, -12), textcoords="offset points", color=SPAM, fontsize=9,
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(min(lost) * 0.9, 100), ylim=(100, 40 / spam))
    ticks = [tick for tick in (0.001, 0.01, 0.1, 1, 10, 50) if tick > 40 / spam]
    axes.set_yticks(ticks, [f"{100 - tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    shown = [tick for tick in (0.001, 0.01, 0.1, 1, 10, 100) if tick >= min(lost) * 0.9]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    area = evaluation.report.auc_complement_percent
    axes.set(xlabel="ham lost, %", ylabel="spam caught, %")
    axes.set_title(f"ROC: 1-AUC {area:.4f} %" if area is not None else "ROC")


def _det(axes: Axes, evaluation: Evaluation) -> None:
    """Both axes are normal deviates: normally distributed scores give a straight line."""
    results = evaluation.results
    curve = statistics.roc(results.truth, results.log_odds)
    floor = 0.5 / max(len(results.truth), 1)
    deviate = NormalDist().inv_cdf

    def axis_position(share: float) -> float:
        return deviate(min(max(share, floor), 1 - floor))

    axes.plot(
        [axis_position(x) for x in curve.ham_lost], [axis_position(y) for y in curve.spam_missed],
        color=LINE, lw=1.8,
    )  # fmt: skip
    low, high = axis_position(floor * 2), deviate(0.6)
    axes.plot([low, high], [low, high], color=GREY, lw=1, ls=":")
    axes.annotate("equal errors", (deviate(0.2), deviate(0.2)), xytext=(4, -8), color=GREY,
                  textcoords="offset points", fontsize=8)  # fmt: skip
    ticks = [share for share in _SHARES if share > floor]
    positions, names = [deviate(share) for share in ticks], [f"{100 * share:g}" for share in ticks]
    axes.set_xticks(positions, names)
    axes.set_yticks(positions, names)
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="ham lost, %", ylabel="spam missed, %")
    axes.set_title("DET: spam missed against ham lost")


def _learning(axes: Axes, evaluation: Evaluation) -> None:
    results = evaluation.results
    segments = statistics.learning(results.truth, results.log_odds, results.probability)
    seen = [part.messages for part in segments]
    floor = 50 / max(seen[0], 1)
    axes.plot(seen, [max(part.error_percent, floor / 10) for part in segments], "o-", color=SPAM,
              ms=4, lw=1.6, label="wrong side of 50 %")  # fmt: skip
    ranked = [(part.messages, part.auc_complement_percent) for part in segments]
    areas = [(x, max(y, floor / 10)) for x, y in ranked if y is not None]
    if areas:
        axes.plot(*zip(*areas, strict=True), "s-", color=HAM, ms=4, lw=1.6, label="1-AUC")
    axes.set(yscale="log", ylim=(floor / 25, None))
    axes.set(xlabel="messages scored", ylabel="% in each twentieth of them")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.axhline(floor / 10, color=GREY, lw=1, ls=":")
    axes.text(0.995, 0.015, "dotted line: no errors", color=GREY, fontsize=8, ha="right",
              transform=axes.transAxes)  # fmt: skip
    axes.legend()
    online = evaluation.options.protocol == "online"
    axes.set_title("Learning curve" if online else "Errors by message number")


def _reliability(axes: Axes, evaluation: Evaluation) -> None:
    results = evaluation.results
    bins = reliability(results.truth, results.probability)
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":")
    predicted, observed = [part.said for part in bins], [part.seen for part in bins]
    # In a bin of one class the interval ends at the observed share, up to rounding.
    below = [max(part.seen - part.low, 0.0) for part in bins]
    above = [max(part.high - part.seen, 0.0) for part in bins]
    axes.errorbar(
        predicted, observed, [below, above], fmt="o", color=LINE, ecolor=GREY, ms=5, capsize=3
    )
    for part in bins:
        left = part.said > 0.8
        axes.annotate(
            f"{part.messages:,}", (part.said, part.seen), fontsize=8, color=GREY,
            xytext=(-8 if left else 8, -10 if part.seen > 0.1 else 8), textcoords="offset points",
            ha="right" if left else "left",
        )  # fmt: skip
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="predicted probability of spam",
             ylabel="observed share of spam")  # fmt: skip
    error = evaluation.report.calibration_error
    axes.set_title(f"Reliability: calibration error {error or 0:.4f}")


def _scores(axes: Axes, evaluation: Evaluation) -> None:
    results = evaluation.results
    found = statistics.histogram(results.truth, results.log_odds)
    width = found.edges[1] - found.edges[0]
    for counts, colour, name in ((found.ham, HAM, "ham"), (found.spam, SPAM, "spam")):
        axes.bar(found.edges[:-1], counts, width, align="edge", color=colour, alpha=0.65,
                 label=name)  # fmt: skip
    highest = max(*found.ham, *found.spam, 1)
    axes.set(yscale="log", ylim=(0.6, 8 * highest), xlabel="log-odds of spam", ylabel="messages")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for threshold in thresholds(evaluation.options.costs or Costs())[1:]:
        if found.edges[0] < threshold.log_odds < found.edges[-1]:
            axes.axvline(threshold.log_odds, color=LINE, lw=1, ls="--")
            axes.text(threshold.log_odds, 0.985, f"{threshold.decision} ", color=LINE, fontsize=8,
                      rotation=90, ha="right", va="top",
                      transform=axes.get_xaxis_transform())  # fmt: skip
    axes.legend(loc="upper left")
    axes.set_title("Scores")


PICTURES: dict[str, Callable[[Axes, Evaluation], None]] = {
    "roc": _roc,
    "det": _det,
    "learning": _learning,
    "reliability": _reliability,
    "scores": _scores,
}


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
