"""`spamnb evaluate --decisions`: its figures and its refusals."""

import json

from support.cli import HAM, SPAM, spamnb


def test_it_prints_what_users_see(tmp_path):
    """Filed spam, filed ham and corrections, of all filters that are installed."""
    done = spamnb(tmp_path, "evaluate", "--decisions", "--feedback", "errors",
                  "--answered", "0.5", "--json", "-", HAM, SPAM)  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["feedback"], found["answered"], found["apart_s"]) == ("errors", 0.5, 900.0)
    first = found["filters"][0]
    assert first["filter"] == "spamnb"
    assert 0 <= first["spam_filed"] <= first["spam"]
    assert first["corrections"] > 0
    text = spamnb(tmp_path, "evaluate", "--decisions", "--feedback", "errors", HAM, SPAM)
    assert "spam filed" in text.out
    assert "junk from, at the end" in text.out


def test_options_without_effect_are_refused(tmp_path):
    """Options of one way of evaluating do not work with another one."""
    for options in (
        ("--decisions", "--scores"),
        ("--decisions", "--feedback", "delayed"),
        ("--answered", "0.5"),
        ("--late", "5"),
        ("--decisions", "--apply"),
    ):
        done = spamnb(tmp_path, "evaluate", *options, HAM, SPAM)
        assert done.code == 2 or done.err, options
        assert not done.out, options
