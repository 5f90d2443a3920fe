"""The table below a picture."""

from spamnb.console.pages_admin import shown_chart
from spamnb.operations.figures import Chart, ChartSeries


def test_the_table_has_the_times_of_the_picture():
    """Both are in UTC: the table has no time element, which the script would turn."""
    series = (ChartSeries("share", "line", (1.0,)), ChartSeries("interval", "band", (3,), (0.5,)))
    chart = Chart("ham_filed", "per_mille", ("2026-05-31T06:00:00Z",), series)
    shown = shown_chart(chart.as_dict(), "%H:%M")
    assert shown.drawings[0].words.places == ("06:00",)
    assert shown.rows == [("2026-05-31 06:00", ["1", "0.5 – 3"])]
