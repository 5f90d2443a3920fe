"""Drawings of charts, as reviewed by a person."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spamnb.operations.figures import (
    DESK,
    PHONE,
    Chart,
    ChartSeries,
    ChartWords,
    draw,
    number_text,
)

HERE = Path(__file__).parent
BARS = Chart(
    "volume", "count", ("Mon", "Tue", "<Wed>"),
    (ChartSeries("deliver", "bar", (3, 0, 10)), ChartSeries("junk", "bar", (1, None, 5))),
)  # fmt: skip
LINES = Chart(
    "lost", "per_mille", ("1", "2", "3", "4"),
    (ChartSeries("interval", "band", (2.5, 3, None, 9), (0.5, 1, None, 0)),
     ChartSeries("share", "line", (1.5, 2, None, 4))),
)  # fmt: skip
EMPTY = Chart("volume", "count", ("1",), (ChartSeries("deliver", "bar", (0,)),))
CHARTS = {"bars": (BARS, DESK), "lines": (LINES, PHONE), "empty": (EMPTY, PHONE)}


def drawn(chart, size):
    return draw(chart, ChartWords("Title & more", "What it says", " %", chart.places), size)


@pytest.mark.parametrize("name", CHARTS)
def test_a_drawing_is_as_reviewed(name):
    """A change of a drawing is seen in the difference of its file."""
    assert drawn(*CHARTS[name]) + "\n" == (HERE / f"chart_{name}.svg").read_text("utf-8")


NUMBERS = st.one_of(st.none(), st.floats(0, 1e9), st.integers(0, 10**9))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60), st.sampled_from([DESK, PHONE]))
@example([(5e-324, None)], DESK)
def test_every_drawing_is_xml_inside_its_frame(rows, size):
    """Whatever the numbers: no style, no script, and no point outside of the frame."""
    values = [tuple(column) for column in zip(*rows, strict=True)] or [(), ()]
    both = [max(pair, key=lambda one: one or 0) if None not in pair else None for pair in rows]
    series = (
        ChartSeries("a", "bar", values[0]),
        ChartSeries("b", "bar", values[1]),
        ChartSeries("c", "line", values[0]),
        ChartSeries("d", "band", tuple(both), (0,) * len(both)),
    )
    places = tuple("<&\"'>" for _ in rows)
    root = ET.fromstring(drawn(Chart("x", "count", places, series), size))
    assert root.find("title").text == "Title & more"
    for element in root.iter():
        assert set(element.attrib) <= {
            "class", "viewBox", "role", "d", "x", "y", "width", "height",
        }  # fmt: skip
        for edge, most in (("x", size.width), ("y", size.height)):
            assert -1 <= float(element.get(edge, 0)) <= most


def test_numbers_are_short():
    """Thousands are apart, and small shares keep their digits."""
    texts = [number_text(one) for one in (0, 1200000, 0.05, 12.5, 123.45, 0.00012)]
    assert texts == ["0", "1\u202f200\u202f000", "0.05", "12.5", "123.5", "0.0001"]
