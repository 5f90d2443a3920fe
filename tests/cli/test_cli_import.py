"""`spamnb import --from`: counts of another filter in a model, and out of it again."""

import pytest
from support.cli import HAM, ONE_SPAM, SPAM, spamnb

DUMP = b"".join(
    [
        b".MSG_COUNT 40 60 20240102\n",
        b"subj:price 30 1 20240102\nsubj:special 30 1 20240102\nmeeting 1 40 20240102\n",
        b"rtrn:xyz 3 3 20240102\nno counts\n",
    ]
)


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "words.dump"
    path.write_bytes(DUMP)
    return path


def test_a_dump_makes_a_model_and_undo_empties_it(tmp_path, dump):
    """A missing model is created; the counts are one event, which `undo` takes back."""
    home = tmp_path / "home"
    done = spamnb(home, "import", "--from", "bogofilter", dump)
    assert done.code == 0, done.err
    assert "trained with  60 ham and 40 spam; counts as 60 ham and 40 spam" in done.out
    assert "3 taken, 1 have no place in this model" in done.out
    assert "1 lines that are not a word" in done.out
    assert "4 features added, event 1" in done.out
    assert "nothing was checked" in done.out
    [stats] = spamnb(home, "stats", "--json").json
    assert stats["messages"] == {"ham": 60, "spam": 40}
    [event] = spamnb(home, "journal", "--json").json
    assert event["channel"] == "cli"
    assert "price" in spamnb(home, "explain", ONE_SPAM).out
    assert spamnb(home, "undo", "1").code == 0
    [stats] = spamnb(home, "stats", "--json").json
    assert (stats["messages"], stats["features"]) == ({"ham": 0, "spam": 0}, 0)
    assert spamnb(home, "check").code == 0


def test_a_second_import_needs_again(tmp_path, dump):
    """A dump that is in the model is refused, unless the user insists or has undone it."""
    home = tmp_path / "home"
    importing = "import", "--from", "bogofilter"
    assert spamnb(home, *importing, "-", stdin=DUMP).code == 0
    done = spamnb(home, *importing, dump)
    assert done.code == 2
    assert "imported before: event 1 - `spamnb undo 1` removes it; with --again" in done.err
    assert spamnb(home, *importing, "--again", dump).code == 0
    [stats] = spamnb(home, "stats", "--json").json
    assert stats["messages"] == {"ham": 120, "spam": 80}
    for event in (2, 1):
        assert spamnb(home, "undo", event).code == 0
    assert spamnb(home, *importing, "--json", "--most", "10", dump).json[0]["messages"] == [6, 4]


def test_a_dry_run_changes_nothing(tmp_path, dump):
    """`--dry-run` shows what can be used, with or without a model."""
    home = tmp_path / "home"
    done = spamnb(home, "import", "--from", "bogofilter", "--dry-run", dump)
    assert done.code == 0, done.err
    assert done.out.endswith("4 features found; nothing was changed\n")
    assert not home.exists()


def test_a_check_scores_the_mail_that_is_shown(tmp_path, dump):
    """`--check` gives the errors on own mail, and the bound or that the evidence is too little."""
    home = tmp_path / "home"
    done = spamnb(home, "import", "--from", "bogofilter", "--check", HAM, SPAM, dump)
    assert done.code == 0, done.err
    assert "checked            200 ham and 200 spam" in done.out
    assert "spam missed " in done.out
    assert "Not enough evidence yet" in done.out
    done = spamnb(home, "import", "--from", "bogofilter", "--again", "--json", dump,
                  "--check", HAM, SPAM)  # fmt: skip
    assert done.json[0]["check"]["corpus"] == {"ham": 200, "spam": 200}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--from", "spamassassin"], "hashes instead of words"),
        (["--from", "spambayes"], "does not say how many messages"),
        (["--from", "popfile"], "not an SQLite database"),
        (["--from", "bogofilter", "--label-spam", "junk"], "labels are ham, spam"),
        (["--from", "bogofilter", "--as-new"], "leave out --as-new"),
        (["--dry-run"], "--dry-run needs --from"),
        (["--again"], "--again needs --from"),
        (["--from", "bogofilter", "--dry-run", "--check", HAM, SPAM], "leave out --dry-run"),
    ],
)
def test_what_cannot_be_imported_is_refused(tmp_path, dump, arguments, reason):
    """The error names the reason, and no model is created."""
    home = tmp_path / "home"
    done = spamnb(home, "import", *arguments, dump)
    assert done.code == 2
    assert reason in done.err
    assert not home.exists()


def test_words_with_control_characters_are_cleaned_and_counted(tmp_path):
    """One line says of how many words characters were removed; the model has the clean word."""
    dump = tmp_path / "dump"
    dump.write_bytes(b".MSG_COUNT 40 60 20240102\nvi\0agra 5 1 20240102\ngood 5 1 20240102\n")
    done = spamnb(tmp_path / "home", "import", "--from", "bogofilter", dump)
    line = "1 words contain control or invisible characters, which are removed, as in mail"
    assert done.code == 0, done.err
    assert [one for one in done.lines if line in one]
