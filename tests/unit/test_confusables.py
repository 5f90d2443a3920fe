"""Text of any script becomes runs of word bytes: folded, split and paired."""

from functools import partial

import pytest
from support.cpu_time import is_within, least_seconds

from spamnb.mail.confusables import plain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ＶＩＡＧＲＡ", "viagra"),
        ("𝐂𝐚𝐬𝐢𝐧𝐨 𝓫𝓸𝓷𝓾𝓼", "casino bonus"),
        ("Ⓒⓐⓢⓗ", "cash"),
        ("ﬁnance ﬂow", "finance flow"),
        ("STRASSE straße", "STRASSE strasse"),
        ("ПРИВЕТ привет", "привет привет"),
        ("naïve", "naïve"),
        ("nai\u0308ve", "naïve"),
        ("«plum»—fig…", "plum fig"),
    ],
)
def test_compatibility_forms_become_plain_letters(text, words):
    """Full width, mathematical and circled letters become plain; case is folded beyond ASCII."""
    found = plain(text).decode().replace("...", " ").lower()
    assert found.split() == words.lower().split()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("無料購入", ["無料", "料購", "購入"]),
        ("無", ["無"]),
        ("コーヒー", ["コー", "ーヒ", "ヒー"]),
        ("안녕하세요", ["안녕", "녕하", "하세", "세요"]),
        ("ฟรี", ["ฟร", "รี"]),
        ("buy無料now", ["buy", "無料", "now"]),
        ("無料、購入", ["無料", "購入"]),
    ],
)
def test_scripts_without_spaces_become_pairs(text, words):
    """Overlapping pairs of neighbours, never across a word of another script or a mark."""
    assert plain(text).decode().split() == words


@pytest.mark.parametrize("text", ["plum", "Plum FIG", "a\tb\r\n", "\0\x7f", "mail.example.com", ""])
def test_ascii_stays_as_it_is(text):
    """ASCII keeps case and control characters, so a text gives the same words as bytes or str."""
    assert plain(text) == text.encode()


@pytest.mark.parametrize(
    "text",
    ["無料 plum", "\ud800", "\U0010ffff", "e\u0301" * 50, "\u202eabc", "\u200bplum", "ß" * 99],
)
def test_it_is_total_and_settled(text):
    """Any text gives UTF-8 without punctuation beyond ASCII; a second time changes no word."""
    once = plain(text).decode()
    assert plain(once).split() == once.encode().split() or any(map(wide, once))


def wide(letter):
    return letter > "\u0e00"


@pytest.mark.parametrize("marks", ["\u0301", "\u0301\u0316", "\u0301\u0327\u0316\u0345"])
def test_stacked_marks_are_bounded(marks):
    """A hundred thousand marks on one letter take no time: sorting them would be quadratic."""
    text = "a" + marks * 100_000
    assert is_within(lambda: plain(text), 0.5)
    assert len(plain(text).decode()) < 64


def test_it_is_linear():
    """Ten times the text takes about ten times as long, not a hundred."""
    took = []
    for size in (20_000, 200_000):
        text = "無料 naïve ПРИВЕТ ﬁ " * (size // 16)
        took.append(least_seconds(partial(plain, text)))
    assert took[1] < 40 * took[0]
