"""The numbers of the graphs, and what other costs would have decided."""

from __future__ import annotations

from dataclasses import replace

from spamnb.core.model.costs import junk_from, log_odds_of
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.errors import SettingsError, UserError
from spamnb.service.engine.clock import iso, now_us
from spamnb.service.figures.judged_mail import judged_mail
from spamnb.service.figures.teachers import teacher_facts
from spamnb.service.figures.teaching_charts import last_taught, newest_trainings, teaching_charts
from spamnb.service.figures.verdict_charts import (
    BEFORE_US,
    WEEK_US,
    calibration_chart,
    correction_charts,
    known_chart,
    log_odds_chart,
    mistakes,
)
from spamnb.service.figures.whatif import slider_facts, whatif_facts
from spamnb.service.maintenance.cost_file import stored_facts, thresholds_of
from spamnb.service.telemetry.graphs import PERIODS, counter_charts, growth_in, marks_in
from spamnb.store.rebuild import kept_files, kept_since

_MOST_JUDGED = 20_000
"""verdicts that one request for graphs reads"""
_LAST_S = 1 << 40


def graphs(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The numbers of the page Graphs, over a day, a week, a month or a year."""
    period, now = PERIODS[request.values["period"]], now_us()
    starts = period.starts(now // 1_000_000)
    places = tuple(iso(start * 1_000_000) for start in starts)
    rows = site.series.growth(period.step, starts[0], _LAST_S)
    grown = growth_in(rows, starts, period.seconds)
    charts = counter_charts(places, grown)
    replaced = [int(kept_since(one).timestamp()) for one in kept_files(site.config.home)]
    since = min(starts[0] * 1_000_000, now - WEEK_US - BEFORE_US)
    with site.reading() as model:
        judged = judged_mail(model, site.index, _MOST_JUDGED, since)
        events, labels = newest_trainings(model), model.labels
    charts += teaching_charts(events, places, starts)
    charts += [
        *correction_charts(judged, places, starts),
        calibration_chart(judged),
        log_odds_chart(judged, now),
        known_chart(judged, places, starts),
    ]
    return ApiReply(
        {
            "step_s": period.seconds,
            "messages": len(judged),
            "charts": [chart.as_dict() for chart in charts],
            "marks": marks_in(grown, replaced, starts, period.seconds),
            "mistakes": mistakes(judged, now),
            "last_taught": last_taught(events, labels),
        }
    )


def teachers(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """Users, and how many of their labels other users or the rest of the model contradict."""
    with site.reading() as model, model.store.read() as view:
        return ApiReply(teacher_facts(view, model.recipe, newest_trainings(model)))


def whatif(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """What other costs would have decided on the newest messages; nothing is changed."""
    values, old = request.values, site.config.costs
    junk, costs = values["junk_from"], values["costs"]
    if (junk is None) == (costs is None):
        raise UserError("give `junk_from` or `costs`, and not both")
    try:
        new = junk_from(old, log_odds_of(junk)) if junk else replace(old, **costs)
    except SettingsError as error:
        raise UserError(str(error), hint=error.hint) from error
    with site.reading() as model:
        judged = judged_mail(model, site.index, values["messages"])
        labels = model.labels
    one_in = values["one_in"] or site.config.cost_rules.one_in
    found = whatif_facts(judged, labels, (old, new), one_in, values["limit"])
    wanted = values["steps"]
    steps = slider_facts(judged, labels, old, one_in) if wanted else {"steps": None, "spread": None}
    return ApiReply(found | steps)


def costs(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """The thresholds in force, where they come from, and what an administrator chose."""
    config = site.config
    return ApiReply(
        {
            "thresholds": thresholds_of(config.costs),
            "set_at": config.cost_rules.set_at,
            "stored": stored_facts(config.home, config.cost_rules),
        }
    )


def choose_costs(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Put another threshold of junk in force, as `POST /whatif` tried it."""
    asked = {name: request.values[name] for name in ("junk_from", "expect")}
    who = request.caller.name
    return ApiReply(site.ask("costs", do="choose", **{"for": who}, **asked).header)


def take_back_costs(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Bring back the costs that were in force before an administrator chose others."""
    who, at = request.caller.name, request.values["at"]
    return ApiReply(site.ask("costs", do="take_back", **{"for": who}, at=at).header)
