"""The everyday commands on real stores: what they print, promise and refuse."""

import re
import shutil

import pytest
from support.cli import HAM, ONE_HAM, ONE_SPAM, SAMPLE, SPAM, spamnb, undated

from spamnb.engine.filter import Filter

KEYS = ["path", "id", "label", "probability", "log_odds", "decision", "evidence", "clues"]
pytestmark = pytest.mark.usefixtures("alone")


# --- train ---------------------------------------------------------------------------------------


def test_train_makes_a_model_and_tells_what_it_did(tmp_path):
    """`train` in an empty place makes a private home with a model, and prints the counts."""
    done = spamnb(tmp_path / "new", "train", HAM, SPAM)
    assert done.code == 0
    assert done.lines[0].startswith("400 messages (200 ham, 200 spam)")
    assert "400 learnt" in done.lines[0]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_train_again_changes_nothing(home):
    """Training is resumable: what is learnt is found and counted."""
    done = spamnb(home, "train", "--json", HAM, SPAM)
    assert (done.json[0]["learnt"], done.json[0]["duplicates"]) == (0, 400)


def test_train_by_labels_makes_a_model_with_those_labels(tmp_path):
    """Labels other than ham and spam need no settings."""
    done = spamnb(tmp_path / "new", "train", "--label", f"work={HAM}", "--label", f"other={SPAM}")
    assert done.code == 0
    assert spamnb(tmp_path / "new", "stats", "--json").json[0]["labels"] == ["work", "other"]


def test_train_by_one_label_makes_a_model_with_the_usual_ones(tmp_path):
    """Ham alone is enough to begin with."""
    assert spamnb(tmp_path / "new", "train", "--label", f"ham={HAM}").code == 0
    stats = spamnb(tmp_path / "new", "stats", "--json").json[0]
    assert stats["messages"] == {"ham": 200, "spam": 0}


def test_train_can_make_a_classical_model_without_words(tmp_path):
    """Kind and vocabulary are chosen when the model is made."""
    arguments = ("train", "--kind", "bernoulli", "--no-vocabulary", HAM, SPAM)
    assert spamnb(tmp_path / "new", *arguments).code == 0
    stats = spamnb(tmp_path / "new", "stats", "--json").json[0]
    assert (stats["kind"], stats["words"]) == ("bernoulli", 0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["train"], "0 folders are given"),
        (["train", HAM], "1 folders are given"),
        (["train", HAM, HAM], "given for ham and for spam"),
        (["train", HAM, "/no/such/place"], "no such file or folder: /no/such/place"),
        (["train", "--label", HAM], "has no name or no path"),
        (["train", "--kind", "magic", HAM, SPAM], "'magic' is not one of"),
        (["train", "--jobs", "-1", HAM, SPAM], "--jobs"),
    ],
)
def test_train_refuses_what_makes_no_sense(tmp_path, arguments, error):
    """A mistake of the user is reported in one line with exit 2, and no model is made."""
    done = spamnb(tmp_path / "new", *arguments)
    assert done.code == 2
    assert error in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_train_refuses_an_empty_folder(tmp_path):
    """A folder without mail is an error, not a count of zero."""
    (tmp_path / "empty").mkdir()
    done = spamnb(tmp_path / "new", "train", HAM, tmp_path / "empty")
    assert (done.code, "no messages in" in done.err) == (2, True)


def test_train_skips_what_cannot_be_read(tmp_path):
    """A message that is no mail is reported and skipped, never fatal."""
    folder = shutil.copytree(SPAM, tmp_path / "spam")
    (folder / "zero.eml").write_bytes(b"")
    done = spamnb(tmp_path / "new", "train", HAM, folder)
    assert done.code == 0
    assert "1 unreadable" in done.out
    assert "zero.eml" in done.err


def test_train_that_could_read_nothing_fails(home, tmp_path):
    """A wrong folder is an error, not only a number in a line of success."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "photo").write_bytes(bytes(range(128, 256)) * 100)
    for arguments in ([], ["--json"], ["--thresholds"]):
        done = spamnb(home, "train", *arguments, tmp_path / "a", tmp_path / "b")
        assert done.code == 2
        assert "none of the 2 files could be read as mail" in done.err.splitlines()[-1]


def test_train_does_not_change_the_kind_of_a_model(home):
    """A model keeps its kind and its vocabulary; options that differ are an error."""
    other = spamnb(home, "train", "--kind", "bernoulli", HAM, SPAM)
    assert "is corrected, not bernoulli" in other.err
    assert "has a vocabulary" in spamnb(home, "train", "--no-vocabulary", HAM, SPAM).err
    assert spamnb(home, "train", "--kind", "corrected", HAM, SPAM).code == 0


def test_train_refuses_labels_the_model_was_not_made_with(home):
    """Labels are fixed with the model."""
    done = spamnb(home, "train", "--label", f"work={HAM}")
    assert (done.code, "no label 'work'" in done.err) == (2, True)


# --- score and explain ---------------------------------------------------------------------------


def test_score_prints_decision_label_probability_and_path(trained):
    """One line for each message, in the order of the paths; the decision comes first."""
    done = spamnb(trained, "score", ONE_SPAM, ONE_HAM)
    assert done.code == 0
    first, second = (line.split() for line in done.lines)
    assert (first[:2], first[3]) == (["reject", "spam"], str(ONE_SPAM))
    assert (second[:2], second[3]) == (["deliver", "ham"], str(ONE_HAM))
    assert float(first[2]) > 0.5 > float(second[2])


def test_every_place_names_the_decision_first(tmp_path, home):
    """An unsure message is nowhere called spam before it is called unsure."""
    costs = tmp_path / "costs.toml"
    costs.write_text("[costs]\njunk = [2e9, 0.2]\nreject = [3e9, 0.1]\n")
    asked = (home, "--config", costs)
    verdict = spamnb(*asked, "score", "--remember", "--json", ONE_SPAM).json[0]
    assert (verdict["label"], verdict["decision"]) == ("spam", "unsure")
    p = f"{verdict['probability']:.4f}"
    assert spamnb(*asked, "score", ONE_SPAM).out.split()[:3] == ["unsure", "spam", p]
    assert f"{ONE_SPAM}: unsure, label spam," in spamnb(*asked, "explain", ONE_SPAM).out
    assert f"  unsure  spam  {p}  " in spamnb(home, "history").out


def test_score_json_keeps_its_keys(trained):
    """The JSON has the documented keys, and clues that add up."""
    done = spamnb(trained, "score", "--json", "--clues", 3, ONE_SPAM)
    plain = done.json[0]
    assert list(plain) == KEYS
    assert len(plain["clues"]) == 3
    assert set(plain["clues"][0]) == {"location", "token", "nats", "prior"}
    assert len(plain["id"]) == 32


def test_score_reads_folders_and_standard_input(trained):
    """Folders of any depth and pipes are the same to it; what came by a pipe is called -."""
    assert len(spamnb(trained, "score", SAMPLE).lines) == 400
    done = spamnb(trained, "score", stdin=ONE_SPAM.read_bytes())
    assert done.lines[0].split()[1::2] == ["spam", "-"]
    mixed = spamnb(trained, "score", ONE_HAM, "-", stdin=ONE_SPAM.read_bytes())
    assert [line.split()[3] for line in mixed.lines] == [str(ONE_HAM), "-"]


def test_score_tells_what_it_cannot_read_and_goes_on(trained, tmp_path):
    """One bad file hides no verdict; the exit code reports the bad file."""
    bad = tmp_path / "bad.eml"
    bad.write_bytes(b"\x00\x01")
    done = spamnb(trained, "score", bad, ONE_HAM)
    assert done.code == 2
    assert "bad.eml" in done.err
    assert len(done.lines) == 1


def test_score_changes_nothing(home):
    """Scoring writes nothing without --remember."""
    before = (home / "data.mdb").read_bytes()
    spamnb(home, "score", SAMPLE)
    assert (home / "data.mdb").read_bytes() == before
    assert spamnb(home, "history").lines == []


def test_the_exit_code_answers_for_one_message(trained, tmp_path):
    """0 ham, 1 spam, 2 unsure: what a mail system asks for."""
    strange = tmp_path / "strange.eml"
    strange.write_bytes(b"Subject: xylophone\n\nquixotic zebra\n")
    verdicts = [("deliver", ONE_HAM, 0), ("reject", ONE_SPAM, 1)]
    for decision, path, code in verdicts:
        done = spamnb(trained, "score", "--exit-code", path)
        assert (done.code, done.out.split()[0]) == (code, decision)
    plain = spamnb(trained, "score", "--json", strange).json[0]
    wanted = {"deliver": 0, "unsure": 2, "junk": 1, "reject": 1}[plain["decision"]]
    assert spamnb(trained, "score", "--exit-code", strange).code == wanted


@pytest.mark.parametrize(
    "arguments",
    [
        ["/no/such/message"],
        ["--no-such-option"],
        [HAM],
        ["--clues", "x", str(ONE_HAM)],
        ["--help-me"],
    ],
)
def test_every_failure_under_exit_code_is_75(trained, arguments):
    """The exit code of a failure is never that of a verdict."""
    assert spamnb(trained, "score", "--exit-code", *arguments).code == 75


def test_a_missing_or_broken_store_under_exit_code_is_75(tmp_path):
    """The exit code is 75 also for a missing or damaged model and for wrong settings."""
    assert spamnb(tmp_path / "none", "score", "--exit-code", ONE_HAM).code == 75
    (tmp_path / "bad.toml").write_text("x = 1\n")
    wrong = ("--config", tmp_path / "bad.toml", "score", "--exit-code", ONE_HAM)
    assert spamnb(None, *wrong).code == 75
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "data.mdb").write_bytes(b"rubbish" * 1000)
    assert spamnb(tmp_path / "home", "score", "--exit-code", ONE_HAM).code == 75


def test_a_bug_under_exit_code_is_75_and_else_70(trained, monkeypatch):
    """An internal error also exits with 75, so the mail system tries again."""

    def broken(*_args, **_more):
        raise ZeroDivisionError("a test's")

    monkeypatch.setattr("spamnb.engine.bulk.score_paths", broken)
    done = spamnb(trained, "score", ONE_HAM)
    assert done.code == 70
    assert done.err.startswith("spamnb: ZeroDivisionError: a test's - this is a bug")
    assert spamnb(trained, "score", "--exit-code", ONE_HAM).code == 75


def test_an_interrupt_is_one_whatever_it_breaks(trained, monkeypatch):
    """An error that an interrupt caused on its way out is no bug."""

    def broken(*_args, **_more):
        try:
            raise KeyboardInterrupt
        finally:
            raise BufferError("closed too early")  # what mmap does

    monkeypatch.setattr("spamnb.engine.bulk.score_paths", broken)
    done = spamnb(trained, "score", ONE_HAM)
    assert (done.code, done.err) == (130, "spamnb: interrupted; all completed training is saved\n")


def test_score_without_a_model_says_what_to_do(tmp_path):
    """Without a model `score` says how to train one; exit 3."""
    done = spamnb(tmp_path / "none", "score", ONE_HAM)
    assert done.code == 3
    assert done.err.startswith("spamnb: there is no model in")
    assert "train" in done.err


def test_text_of_strangers_cannot_steer_the_terminal(trained, tmp_path):
    """Control characters in paths and words are made visible."""
    evil = tmp_path / "a\x1b[2Jb.eml"
    evil.write_bytes(ONE_HAM.read_bytes())
    done = spamnb(trained, "score", evil)
    assert "\x1b" not in done.out
    assert "a<U+001B>[2Jb.eml" in done.out


def test_explain_shows_clues_that_add_up(trained):
    """Bias and all clues are the log-odds."""
    done = spamnb(trained, "explain", "--count", "all", "--json", ONE_SPAM)
    plain = done.json[0]
    total = plain["bias"] + sum(clue["nats"] for clue in plain["clues"])
    assert total == pytest.approx(plain["log_odds"], abs=1e-9)


@pytest.mark.parametrize("arguments", [["score", "--clues"], ["explain", "--count"]])
def test_a_count_of_clues_means_one_thing(trained, arguments):
    """0 is none and `all` is all, in each command as in Python."""
    with Filter.open(trained, readonly=True, history=False) as model:
        verdict = model.score(ONE_SPAM.read_bytes())
    every = len(verdict.clues())
    assert every > 20
    for given, count in (("0", 0), ("3", 3), ("all", every)):
        done = spamnb(trained, *arguments, given, "--json", ONE_SPAM)
        assert len(done.json[0]["clues"]) == count
        assert spamnb(trained, *arguments, given, ONE_SPAM).code == 0
    assert verdict.clues(0) == []
    shown = spamnb(trained, "explain", "--count", "0", ONE_SPAM).out
    assert f"from {every} clues" in shown
    assert spamnb(trained, *arguments, "-1", ONE_SPAM).code == 2


def test_reload_without_a_daemon_says_what_to_do(trained):
    """`reload`, an operation of the daemon, is not taken for a mistyped `relearn`."""
    done = spamnb(trained, "reload")
    assert (done.code, "no daemon serves this home" in done.err) == (2, True)


def test_explain_sums_the_clues_by_kind_without_hexadecimal(trained):
    """The kinds and the bias are the log-odds; no line has a number that tells people nothing."""
    done = spamnb(trained, "explain", "--count", "all", "--json", ONE_SPAM)
    plain = done.json[0]
    assert sum(plain["kinds"].values()) + plain["bias"] == pytest.approx(plain["log_odds"])
    assert "words" in plain["kinds"]
    shown = spamnb(trained, "explain", "--count", "all", ONE_SPAM).out
    assert "by kind: " in shown
    assert re.search(r"\b[0-9a-f]{16,}\b", shown.partition("\n")[2]) is None


def test_explain_draws_a_table_without_colours_in_a_pipe(trained):
    """People see place, token and a bar; a pipe gets plain text."""
    done = spamnb(trained, "explain", "--count", 5, ONE_SPAM)
    assert done.code == 0
    assert "log-odds in total" in done.out
    assert "█" in done.out
    assert "\x1b" not in done.out


def test_explain_knows_a_taught_message_by_its_digest(home):
    """A reference is enough, the words come from the vocabulary."""
    digest = spamnb(home, "score", "--json", ONE_SPAM).json[0]["id"]
    by_path = spamnb(home, "explain", "--json", ONE_SPAM).json[0]
    by_digest = spamnb(home, "explain", "--json", digest).json[0]
    assert by_digest["log_odds"] == pytest.approx(by_path["log_odds"], abs=1e-9)
    assert {c["token"] for c in by_digest["clues"]} == {c["token"] for c in by_path["clues"]}


def test_explain_shows_the_verdict_of_the_scan_beside_that_of_today(home):
    """A correction changes the verdict of today; that of the scan stays."""
    before = spamnb(home, "score", "--remember", "--json", ONE_SPAM).json[0]
    spamnb(home, "correct", "ham", before["signature"])
    found = spamnb(home, "explain", "--json", before["signature"]).json[0]
    assert found["then"]["log_odds"] == pytest.approx(before["log_odds"], abs=1e-3)
    assert found["then"]["decision"] == before["decision"]
    assert found["log_odds"] < found["then"]["log_odds"]
    shown = spamnb(home, "explain", before["signature"]).out.splitlines()
    assert shown[0].startswith("then (")
    assert shown[1] == "now:"


# --- correct, forget, undo -----------------------------------------------------------------------


def test_a_correction_works_immediately_and_can_be_undone(home):
    """After a correction the verdict has the user's label; undo restores the old verdict."""
    before = spamnb(home, "score", ONE_SPAM).out
    done = spamnb(home, "correct", "--json", "ham", ONE_SPAM)
    receipt = done.json[0]
    assert (receipt["changed"], receipt["before"], receipt["after"]) == (True, "spam", "ham")
    assert spamnb(home, "score", ONE_SPAM).out.split()[1] == "ham"
    again = spamnb(home, "correct", "ham", ONE_SPAM)
    assert (again.code, again.out.startswith("unchanged")) == (0, True)
    assert spamnb(home, "undo", receipt["event"]).code == 0
    assert spamnb(home, "score", ONE_SPAM).out == before
    assert spamnb(home, "check").code == 0


def test_correct_takes_pipes_ids_and_signatures(home, tmp_path):
    """A mail program's pipe, a message id or the signature header is enough."""
    new = tmp_path / "new.eml"
    new.write_bytes(b"Message-ID: <new@x.test>\nSubject: offer\n\nunseen words here\n")
    signature = spamnb(home, "score", "--remember", "--json", new).json[0]["signature"]
    assert spamnb(home, "correct", "spam", stdin=new.read_bytes()).code == 0
    assert spamnb(home, "correct", "ham", "<new@x.test>").out.startswith("spam -> ham")
    assert spamnb(home, "correct", "spam", signature).out.startswith("ham -> spam")
    assert spamnb(home, "forget", "new@x.test").out.startswith("spam -> untrained")


def test_correct_refuses_labels_the_model_has_not(home):
    """A mistyped label is reported before anything is read."""
    done = spamnb(home, "correct", "spma", ONE_SPAM)
    assert (done.code, "no label 'spma'" in done.err, "ham, spam" in done.err) == (2, True, True)


def test_references_that_name_nothing_are_the_users_mistake(home):
    """Exit status 2; one line with the error and its remedy."""
    for arguments in (["correct", "ham", "nobody@x.test"], ["forget", "f" * 32], ["undo", 999_999]):
        done = spamnb(home, *arguments)
        assert done.code == 2
        assert len(done.err.splitlines()) == 1


def test_forget_restores_every_number(home):
    """Learn and forget leave the counts as they were."""
    new = b"Message-ID: <n@x.test>\nSubject: qqq\n\nsomething new\n"
    before = undated(spamnb(home, "export").out)
    spamnb(home, "correct", "ham", stdin=new)
    assert undated(spamnb(home, "export").out) != before
    spamnb(home, "forget", "n@x.test")
    assert undated(spamnb(home, "export").out) == before


# --- journal and history -------------------------------------------------------------------------


def test_the_journal_lists_and_filters(home):
    """Events are listed newest first, with filters by user, channel, label and time."""
    spamnb(home, "correct", "ham", ONE_SPAM)
    first = spamnb(home, "journal", "--json", "--limit", 1).json[0]
    assert (first["kind"], first["before"], first["after"]) == ("move", "spam", "ham")
    assert (first["channel"], first["event"]) == ("cli", 401)
    assert len(spamnb(home, "journal").lines) == 50
    assert len(spamnb(home, "journal", "--limit", 0).lines) == 401
    assert len(spamnb(home, "journal", "--limit", 0, "--label", "ham").lines) == 201
    assert spamnb(home, "journal", "--user", "nobody").lines == []
    assert spamnb(home, "journal", "--channel", "smtp").lines == []
    assert len(spamnb(home, "journal", "--since", "1h", "--limit", 0).lines) == 401
    assert spamnb(home, "journal", "--since", "2099-01-01").lines == []
    assert spamnb(home, "journal", "--since", "yesterday-ish").code == 2


def test_the_history_lists_what_was_remembered(home):
    """Verdicts with their signatures, newest first; filters as in the journal."""
    spamnb(home, "score", "--remember", ONE_SPAM, ONE_HAM)
    found = spamnb(home, "history", "--json").json
    assert [entry["label"] for entry in found] == ["ham", "spam"]
    assert found[0]["signature"].startswith("s")
    assert len(spamnb(home, "history", "--label", "spam").lines) == 1
    assert len(spamnb(home, "history", "--limit", 1).lines) == 1
    assert spamnb(home, "history", "--since", "2099-01-01").lines == []
    assert spamnb(home, "history", "--decision", "unsure").lines == []


# --- evaluate ------------------------------------------------------------------------------------


def test_evaluate_writes_the_promised_figures(tmp_path):
    """No model is needed, and the same seed gives the same figures."""
    target = tmp_path / "figures.json"
    done = spamnb(tmp_path / "none", "evaluate", HAM, SPAM, "--seed", 5, "--json", target)
    assert done.code == 0
    assert "1-AUC" in done.out
    assert not (tmp_path / "none").exists()
    one = spamnb(None, "evaluate", HAM, SPAM, "--seed", 5, "--json", "-").out
    import json

    first, second = json.loads(target.read_text()), json.loads(one)
    for figure in ("seconds", "cpu_seconds", "messages_per_second"):
        first.pop(figure)
        second.pop(figure)
    assert first == second
    assert first["corpus"] == {"ham": 200, "spam": 200}


def test_evaluate_refuses_one_folder_for_both():
    """One folder as ham and spam is refused, because the figures would mean nothing."""
    done = spamnb(None, "evaluate", HAM, HAM + "/")
    assert (done.code, "for ham and for spam" in done.err) == (2, True)


def test_evaluate_knows_other_protocols_and_orders():
    """Every combination runs."""
    for arguments in (["--protocol", "holdout", "--order", "time"], ["--feedback", "errors"]):
        assert spamnb(None, "evaluate", *arguments, HAM, SPAM).code == 0
