"""Text from messages and clients, as it is shown to people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.cli.printing import safe
from spamnb.core.mail.printable import printable


@given(st.text())
def test_what_is_shown_controls_no_terminal(text):
    """Every character is printable, and printable text stays as it is."""
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize("bad", ["\x1b", "\n", "\x9b", "\u202e", "\u2066", "\u061c", "\u2028"])
def test_a_subject_cannot_control_the_terminal(bad):
    """Escape sequences, line ends and marks of direction are replaced."""
    assert safe(f"a{bad}b") == "a\ufffdb"


@pytest.mark.parametrize("good", ["a\tb", "a\xa0b", "請求\u3000書", "می\u200cخواهم", "\udcff.eml"])
def test_words_of_all_languages_and_paths_stay(good):
    """Blanks, joiners and undecodable bytes of paths are harmless on a terminal."""
    assert safe(good) == good
