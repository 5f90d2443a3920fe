"""Draw the plots of an evaluation: ROC, DET, learning curve, reliability, scores.

The only module that uses matplotlib, an optional extra that is imported when the first plot is
drawn. Draws the data of `curves`. Failure: UserError if matplotlib is not installed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from spamnb.core.model.costs import Costs, thresholds
from spamnb.core.model.evidence import reliability
from spamnb.errors import UserError
from spamnb.lab.statistics import curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from spamnb.lab.evaluation import Evaluation

HAM, SPAM, LINE, GREY = "#2a6f97", "#c1440e", "#22223b", "#8d99ae"
_STYLE: dict[str, Any] = {
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
        with rc_context(_STYLE):
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
    with rc_context(_STYLE):
        figure.savefig(buffer, format=kind, facecolor="white", **options)
    return buffer.getvalue()


def _roc(axes: Axes, evaluation: Evaluation) -> None:
    """Both axes are logarithmic."""
    results = evaluation.results
    curve = curves.roc(results.truth, results.log_odds)
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
    curve = curves.roc(results.truth, results.log_odds)
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
    segments = curves.learning(results.truth, results.log_odds, results.probability)
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
    found = curves.histogram(results.truth, results.log_odds)
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
