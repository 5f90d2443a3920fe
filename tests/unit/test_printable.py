"""Text from messages and clients, as it is shown to people."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.cli.printing import safe
from spamnb.mail.limits import visible


@given(st.text())
def test_what_is_shown_controls_no_terminal(text):
    """No control character, mark of direction or surrogate is left; shown text stays as it is."""
    shown = visible(text)
    left = {one for one in shown if not one.isprintable()}
    assert {one for one in left if unicodedata.category(one) != "Zs"} <= set("\u200c\u200d")
    assert visible(shown) == shown
    assert "\u202e" not in visible(text + "\u202e" + text)


@pytest.mark.parametrize("bad", ["\x1b", "\n", "\x9b", "\u202e", "\u2066", "\u061c", "\u2028"])
def test_a_subject_cannot_control_the_terminal(bad):
    """Escape sequences, line ends and marks of direction are shown as what they are."""
    assert safe(f"a{bad}b") == f"a<U+{ord(bad):04X}>b"


@pytest.mark.parametrize(
    "good", ["a\tb", "a\xa0b", "請求\u3000書", "می\u200cخواهم", "👩\u200d🚀", "\udcff.eml"]
)
def test_words_of_all_languages_and_paths_stay(good):
    """Blanks, joiners and undecodable bytes of paths are harmless on a terminal."""
    assert safe(good) == good


def test_joiners_that_only_hide_are_shown():
    """After a Latin letter, or several at once, a joiner joins nothing."""
    assert safe("pay\u200dpal") == "pay<U+200D>pal"
    assert safe("می\u200c\u200cخواهم") == "می<U+200C x 2>خواهم"


def test_a_run_is_shown_once():
    """Hundreds of invisible characters do not fill the screen."""
    assert safe("a" + "\u200b" * 57 + "\u202eb") == "a<U+200B x 57><U+202E>b"
