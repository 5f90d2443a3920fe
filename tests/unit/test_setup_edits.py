"""Marked blocks in files of other programs: each file comes back byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.setup.edits import blocks, with_block, without_blocks

LINES = st.lists(st.text(st.sampled_from("ab#->< =\t\r\x85é\udcff"), max_size=8), max_size=8)
TEXTS = st.tuples(LINES, st.sampled_from(["", "\n"])).map(lambda two: "\n".join(two[0]) + two[1])
OWN = st.lists(st.text(st.sampled_from("ab= "), max_size=8).map("x{}".format), max_size=3)


def count(text):
    return len(text.split("\n")) - (text.endswith("\n") or not text)


@given(TEXTS, OWN, st.integers(0, 9), st.integers(0, 3), st.sampled_from(["", "dnl "]))
def test_a_block_is_taken_out_exactly(text, lines, at, replaced, prefix):
    """Wherever it stands, whatever it replaces, with and without a line feed at the end."""
    at = min(at, count(text))
    replaced = min(replaced, count(text) - at)
    new = with_block(text, "one.two_3", lines, range(at, at + replaced), prefix=prefix)
    assert without_blocks(new) == text
    (block,) = blocks(new)
    assert block.name == "one.two_3"
    assert list(block.lines[len(block.lines) - len(lines) :]) == lines


@given(TEXTS, OWN, OWN)
def test_two_blocks_are_taken_out(text, first, second):
    """One at the end, and one in front of everything."""
    new = with_block(with_block(text, "one", first), "two", second, range(0))
    assert [one.name for one in blocks(new)] == ["two", "one"]
    assert without_blocks(new) == text


@given(TEXTS, OWN, TEXTS)
def test_what_others_add_stays(text, lines, more):
    """Lines that were added after the block are lines of their own."""
    ended = text if text.endswith("\n") or not text else f"{text}\n"
    assert without_blocks(with_block(text, "one", lines) + more) == (
        (text if not more else ended) + more
    )


@pytest.mark.parametrize(
    "text",
    [
        "# >>> spamnb setup: one\nx\n",
        "x\n# <<< spamnb setup: one\n",
        "# >>> spamnb setup: one\nx\n# <<< spamnb setup: two\n",
        "  # >>> spamnb setup: one\nx\n  # <<< spamnb setup: one\n",
    ],
)
def test_what_is_no_block_stays(text):
    """A marker without its other one is a comment."""
    assert without_blocks(text) == text
    assert blocks(text) == []
