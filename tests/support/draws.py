"""A property that prints its examples; tests/property/test_examples.py runs it with pytest."""

from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(), st.text())
def test_draws(number, text):
    """Any example is right."""
    print("drew", number, ascii(text))
