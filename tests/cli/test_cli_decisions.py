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


def test_mail_of_another_kind_comes_after_all_other(tmp_path):
    """With --then, the ham that is filed after the change is counted apart."""
    new = tmp_path / "new"
    for label in ("ham", "spam"):
        (new / label).mkdir(parents=True)
        for number in range(30):
            text = f"{label} of another world {number % 5}, https://{label}.example/{number}"
            (new / label / f"{number}.eml").write_text(f"Subject: {label} {number}\n\n{text}\n")
    then = ("--then", new / "ham", new / "spam")
    done = spamnb(tmp_path, "evaluate", "--decisions", *then, "--json", "-", HAM, SPAM)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    ours = found["filters"][0]
    assert found["change"] == ours["ham"] + ours["spam"] - 60
    assert 0 <= ours["ham_filed_after_change"] <= ours["ham_filed"]
    shown = spamnb(tmp_path, "evaluate", "--decisions", *then, HAM, SPAM).out
    assert "ham filed of the first 50 then" in shown
    assert (
        "ham filed of the first 50 then"
        not in spamnb(tmp_path, "evaluate", "--decisions", HAM, SPAM).out
    )


def test_options_without_effect_are_refused(tmp_path):
    """Options of one way of evaluating do not work with another one."""
    for options in (
        ("--decisions", "--scores"),
        ("--decisions", "--feedback", "delayed"),
        ("--answered", "0.5"),
        ("--late", "5"),
        ("--decisions", "--apply"),
        ("--then", "ham", "spam"),
    ):
        done = spamnb(tmp_path, "evaluate", *options, HAM, SPAM)
        assert done.code == 2 or done.err, options
        assert not done.out, options
