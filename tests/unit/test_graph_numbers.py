"""The numbers of graphs: quantiles of times, what was said and found, who taught."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from spamnb.console.pages_admin import GROUPS, trend_text
from spamnb.model.events import EventKind
from spamnb.operations.figures import (
    JudgedMessage,
    calibration_chart,
    counter_charts,
    known_chart,
    last_taught,
    marks_in,
    mistakes,
    quantile_ms,
    teaching_charts,
)
from spamnb.records.verdicts import HistoryEntry
from spamnb.telemetry import COUNTERS, HISTOGRAMS, Meters, bucket, growing

ENTRY = HistoryEntry(0, b"s" * 16, b"d", "", "spam", 0.95, 3.0, "junk", ())
PLACES, STARTS = ("a", "b"), (0, 100)
DAY_US = 86_400_000_000


def judged(probability=0.95, said=None, *, before=True, at_us=0, **more):
    decision = "junk" if probability > 0.9 else "deliver"
    entry = replace(ENTRY, probability=probability, decision=decision, time_us=at_us, **more)
    return JudgedMessage(entry, said, before and said is not None)


def test_a_series_has_every_number_that_only_grows():
    """Counters and buckets; a bucket holds what was observed."""
    meters = Meters()
    meters.count("scanned", 3)
    meters.observe("scan_seconds", 0.003)
    meters.observe("scan_seconds", 100.0)
    found = growing(meters)
    assert found["scanned"] == 3
    assert found[bucket("scan_seconds", 0.005)] == 1
    assert found["scan_seconds_to_inf"] == 1
    assert len(found) == len(COUNTERS) + 17 * len(HISTOGRAMS)


@pytest.mark.parametrize(
    ("counts", "median", "late"),
    [
        ({}, None, None),
        ({"0.01": 4}, 7.5, 9.95),
        ({"0.01": 99, "60": 1}, 5 + 5 * 50 / 99, 10.0),
        ({"inf": 2}, 60_000, 60_000),
        ({"0.0005": 1, "inf": 9}, 60_000, 60_000),
    ],
)
def test_a_quantile_lies_in_its_bucket(counts, median, late):
    """Linear between the bounds; what is above the last bound is said to be at it."""
    grown = {f"scan_seconds_to_{bound}": count for bound, count in counts.items()}
    assert quantile_ms("scan_seconds", grown, 0.5) == (median and pytest.approx(median))
    assert quantile_ms("scan_seconds", grown, 0.99) == (late and pytest.approx(late))


def test_what_was_said_is_compared_with_what_was_found():
    """Only mail that was judged before it was taught counts."""
    mail = [judged(said="spam"), judged(said="ham"), judged(0.05, "ham"), judged(0.05)]
    mail.append(judged(0.5, "spam", before=False))
    chart = calibration_chart(mail)
    assert chart.places == ("0 %", "90 %")
    by_name = {one.name: one.values for one in chart.series}
    assert by_name["said"] == pytest.approx((5, 95))
    assert by_name["found"] == (0, 50)
    assert calibration_chart([]).places == ()


def test_known_features_are_averaged_over_the_messages_that_have_the_note():
    """Entries from before the note count in no mean."""
    mail = [judged(notes={"known": text}) for text in ("80", "90")] + [judged()]
    (series,) = known_chart(mail, PLACES, STARTS).series
    assert series.values == (85, None)


def test_mistakes_are_labels_against_decisions():
    """The last 7 days beside the 30 before; what was corrected in the right way is no mistake."""
    now = 40 * DAY_US
    mail = [judged(said="ham", at_us=now - DAY_US), judged(said="spam", at_us=now - DAY_US)]
    mail += [judged(0.5, "spam", at_us=now - 9 * DAY_US), judged(0.5, at_us=now - 9 * DAY_US)]
    found = mistakes(mail, now)
    assert {name: (one["wrong"], one["messages"]) for name, one in found.items()} == {
        "week": (1, 2), "before": (1, 2),
    }  # fmt: skip
    assert "chance" in trend_text(found)
    week = {"share": 9.0, "low": 8.0, "high": 10.0, "messages": 7.0}
    before = {"share": 3.0, "low": 2.0, "high": 4.0, "messages": 7.0}
    assert "worse" in trend_text({"week": week, "before": before})
    assert "better" in trend_text({"week": before, "before": week})
    assert "No message" in trend_text({})


def test_those_who_teach_most_are_named_and_the_others_together():
    """By channel and by user, in each step; the last training of each label is known."""
    users = ["anna"] * 3 + [f"user{number}" for number in range(6)]
    events = [
        SimpleNamespace(time_us=150_000_000, channel="folder", user=user, after=1,
                        kind=EventKind.LEARN) for user in users
    ]  # fmt: skip
    channels, teachers = teaching_charts(events, PLACES, STARTS)
    assert [(one.title, one.values) for one in channels.series] == [("folder", (0, 9))]
    assert teachers.series[0].title == "anna"
    assert teachers.series[-1].values == (0, 2)
    assert np.sum([one.values for one in teachers.series]) == 9
    ham, spam = last_taught(events, ("ham", "spam"))
    assert (ham["time"], spam["user"]) == (None, "anna")


def test_each_chart_is_on_the_page():
    """No chart of the counters is left out."""
    made = {chart.name for chart in counter_charts(PLACES, [Counter(), Counter()])}
    assert made <= {name for _, names in GROUPS for name in names}


def test_starts_and_replaced_models_are_marked():
    """Each in its step, with their number; what is outside of the period is not."""
    grown = [Counter(starts=1), Counter(), Counter(starts=2)]
    found = marks_in(grown, [99, 100, 115, 131], (100, 110, 120), 10)
    assert [(one["kind"], one["place"], one["time_s"], one["count"]) for one in found] == [
        ("started", 0, 100, 1),
        ("replaced", 0, 100, 1),
        ("replaced", 1, 110, 1),
        ("started", 2, 120, 2),
    ]
