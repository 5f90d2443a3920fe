"""Parts of the pages without a daemon: numbers as text, texts, rows."""

import re
from typing import get_args

import pytest

from spamnb.console import page as rendering
from spamnb.console.page import Renderer, percent, sentence, size_text, threshold, when
from spamnb.console.pages_mail import (
    clue_rows,
    deciding,
    live_rows,
    mail_flow,
    shown_outcomes,
)
from spamnb.console.pages_senders import names_of
from spamnb.console.site import KEPT
from spamnb.console.texts import TEXTS, text
from spamnb.model.events import EventKind
from spamnb.scan.values import Action

FOLDER = rendering._HERE


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.0, "0 %"),
        (1e-9, "under 0.01 %"),
        (0.004, "0.40 %"),
        (0.5, "50.0 %"),
        (0.992, "99.20 %"),
        (0.9998, "99.98 %"),
        (0.999999, "over 99.99 %"),
        (1.0, "100 %"),
    ],
)
def test_a_probability_is_never_rounded_to_certainty(share, shown):
    assert percent(share) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.985, "98.50 %"),
        (0.994508, "99.45 %"),
        (0.9999997, "99.999970 %"),
        (0.00031, "0.031 %"),
        (0.0, "0.00 %"),
        (1.0, "100.00 %"),
    ],
)
def test_all_thresholds_have_one_precision(share, shown):
    assert threshold(share) == shown


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 corrections are accepted."),
        ("1", "1 correction is accepted."),
        (2, "2 corrections are accepted."),
    ],
)
def test_numbers_and_their_nouns_agree(count, said):
    assert text("review.several_accept", count=count) == said


def test_numbers_have_units_and_errors_are_sentences():
    assert [size_text(size) for size in (12, 2048, 3 << 20)] == ["12 bytes", "2.0 KB", "3.0 MB"]
    assert sentence("there is no label 'x'") == "There is no label 'x'."
    assert sentence("see the log?") == "See the log?"
    shown = when("2026-11-23T13:00:00+01:00")
    assert shown == '<time datetime="2026-11-23T12:00:00+00:00">2026-11-23 12:00 UTC</time>'


def test_every_text_is_used_and_every_used_text_exists():
    """The table of texts is complete, and has nothing that no page shows."""
    sources = "".join(
        path.read_text()
        for path in [*FOLDER.rglob("*.html"), *FOLDER.rglob("*.py")]
        if path.name != "texts.py"
    )
    used = set(re.findall(r"\b(?:t|text|said)\(\s*\"([\w.?]+)\"(?! ~| \+)", sources))
    assert used <= TEXTS.keys()
    heads = set(re.findall(r"\"(\w+)\.?\"(?: ~| \+|, )", sources))
    named = set(re.findall(r"\"([\w.?]+)\"", sources))
    unused = {key for key in TEXTS.keys() - named if key.partition(".")[0] not in heads}
    assert unused == set()


def test_templates_mark_nothing_as_safe_and_style_nothing_inline():
    """Values are always escaped, and the policy allows neither inline style nor inline script."""
    unsafe = r"\|\s*safe|autoescape|\sstyle=|\son\w+=|<script(?! type=\"module\" src)"
    for path in FOLDER.rglob("*.html"):
        assert not re.search(unsafe, path.read_text()), path


def test_the_assets_are_small():
    """Together below 40 KB, the script at most 400 lines."""
    assets = Renderer().assets
    assert sum(len(asset.data) for asset in assets.values()) < 40_000
    assert len(assets["console.js"].data.splitlines()) <= 400


def test_a_message_without_a_verdict_has_a_row():
    """The list is in the order of time, with what became of each message."""
    verdicts = [{"time": "2026-01-01T00:00:02+00:00", "signature": "s1", "notes": {}}]
    outcomes = [
        {"time": 1767225601.0, "signature": "s1", "action": "relay"},
        {"time": 1767225603.0, "signature": "", "action": "relay", "reason": "oversize"},
    ]
    rows = live_rows(verdicts, outcomes)
    assert [row["signature"] for row in rows] == ["", "s1"]
    assert [row["outcome"]["action"] for row in rows] == ["relay", "relay"]


def test_bars_are_relative_to_the_strongest_clue():
    clues = [
        {"location": "body", "token": "a", "nats": 2.0, "prior": False},
        {"location": "body", "token": "b", "nats": -1.0, "prior": True},
    ]
    without = [{"decision": "junk"}, {"decision": "deliver"}]
    rows = clue_rows(clues, without)
    assert [(row.start, row.length) for row in rows] == [(60, 60), (30, 30)]
    assert deciding(without, "junk") == {"decision": "deliver"}
    assert deciding(without[:1], "junk") is None
    assert [row.prior for row in rows] == [False, True]
    assert clue_rows([clues[0] | {"nats": 0.0}], [])[0].length == 0


def test_the_rate_is_that_of_the_last_minute():
    """Older messages do not count; if all that are kept are newer, their own span counts."""
    old, fresh = {"time": 30.0, "decision": "junk"}, {"time": 95.0, "decision": "junk"}
    plain = {"time": 96.0, "decision": ""}
    assert mail_flow([], 100.0) == (0.0, None)
    assert mail_flow([old, fresh, plain], 100.0) == (2.0, 1.0)
    many = [{"time": 98.0 + number / KEPT, "decision": "deliver"} for number in range(KEPT)]
    assert mail_flow(many, 100.0) == (KEPT * 30, 0.0)


def test_messages_without_a_verdict_are_filtered_as_the_others():
    """A decision leaves them out, unless it is theirs; a listener is that of each."""
    outcomes = [
        {"signature": "s", "listener": "mx"},
        {"signature": "", "listener": "mx"},
        {"signature": "", "listener": "out"},
    ]
    assert shown_outcomes(outcomes, "", "") == outcomes
    assert shown_outcomes(outcomes, "junk", "") == outcomes[:1]
    assert shown_outcomes(outcomes, "unscanned", "out") == outcomes[2:]


def test_each_action_of_the_log_has_its_word():
    """What became of a message is not said by a word of another action."""
    names = {key.partition(".")[2] for key in TEXTS if key.startswith("action.")}
    assert names == {*get_args(Action), "advise"}
    assert TEXTS["action.keep"] == "in quarantine"


def test_each_kind_of_event_has_its_words():
    """The page of the trainings shows every event of the journal."""
    names = {key.partition(".")[2] for key in TEXTS if key.startswith("event.")}
    assert names == {*(kind.name.lower() for kind in EventKind), "number"}


def test_the_names_of_a_sender_are_those_of_author_and_envelope():
    """Both can be listed, each with its domain; what cannot be listed is left out."""
    notes = {"author": "news@shop.example", "from": "bounce-1@mailer.example", "to": "a@x.example"}
    names = ("news@shop.example", "shop.example", "bounce-1@mailer.example", "mailer.example")
    assert names_of(notes) == names
    assert names_of(notes | {"from": "other@shop.example"}) == (*names[:2], "other@shop.example")
    assert names_of({"from": "root@localhost"}) == ()
    assert names_of({}) == ()
