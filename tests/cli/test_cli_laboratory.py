"""Commands of the laboratory: evaluate, compare, tune, and labels other than ham and spam."""

import json
import shutil
import tempfile

import documentcraft
import pytest
from support.cli import HAM, SPAM, spamnb


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for part, count in (("train", 300), ("test", 100)):
        for number, (text, label) in enumerate(documentcraft.collection(count, 1, part)):
            place = folder / part / label
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number:04}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Folders with 60 ham and 60 spam, for tests that do not check figures."""
    folders = []
    for name, source in (("ham", HAM), ("spam", SPAM)):
        folder = tmp_path_factory.mktemp(name)
        for number in range(60):
            (folder / f"{number:04}.eml").symlink_to(f"{source}/{number:04}.eml")
        folders.append(folder)
    return folders


def run(*arguments, code=0, home=None):
    done = spamnb(home, *arguments)
    assert done.code == code, done.err
    return done


def test_two_runs_are_compared(tmp_path, few):
    """--scores writes what --compare reads; without --json FILE it is refused."""
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    run("evaluate", *few, "--json", a, "--scores")
    run("evaluate", *few, "--json", b, "--scores", "--noise", 0.4)
    assert "120 messages scored in both runs" in run("evaluate", "--compare", a, b).out
    found = json.loads(run("evaluate", "--compare", a, b, "--json", "-").out)
    assert found["differences"][0]["better"] == "A"
    assert run("evaluate", *few, "--scores", code=2).err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--delay", "5"], "--delay needs --feedback delayed"),
        (["--share", "0.5"], "--share needs --feedback partial"),
        (["--share", "nan", "--feedback", "partial"], "'nan' is not a number"),
        (["--noise", "nan"], "'nan' is not a number"),
        (["--scores"], "--scores needs --json FILE"),
        (["--against-rest"], "--against-rest needs --label or --plain"),
        (["--compare", "a", "b"], "--compare takes no mail"),
    ],
)
def test_options_without_the_option_they_need_are_refused(arguments, error):
    """Invalid options are refused before any mail is read."""
    assert error in run("evaluate", *arguments, "no/ham", "no/spam", code=2).err


@pytest.mark.parametrize("arguments", [["--test", "x"], ["--one-in", "50"], ["--apply"]])
def test_what_is_for_ham_and_spam_is_refused_for_other_labels(arguments):
    done = run("evaluate", "--label", f"a={HAM}", "--label", f"b={SPAM}", *arguments, code=2)
    assert f"{arguments[0]} works only with the labels ham and spam" in done.err


def test_feedback_protocols_and_the_loss_bound(tmp_path, few):
    """Every feedback option runs; too little evidence for the ham loss bound is reported.

    The bound of the command line and that of the settings are in force.
    """
    for arguments in (["--feedback", "delayed", "--delay", "20"], ["--feedback", "partial"],
                  ["--protocol", "folds", "--jobs", "2"]):  # fmt: skip
        out = run("evaluate", *arguments, *few).out
        assert "Not enough evidence yet" in out
    settings = tmp_path / "s.toml"
    settings.write_text("[ham_loss]\none_in = 30\n")
    out = run("--config", settings, "evaluate", "--one-in", 20, HAM, SPAM).out
    assert "Least possible error: of 200 messages" in out
    assert "At most 1 in 20" in out
    assert "costs.junk" in out
    assert "At most 1 in 30" in run("--config", settings, "evaluate", HAM, SPAM).out


def test_the_loss_bound_is_applied(tmp_path, home):
    """--apply sets the ham loss bound, or removes it if the evidence does not suffice."""

    def stats(*options):
        lines = run(*options, "stats", home=home).out.splitlines()
        return [line for line in lines if not line.startswith("limit")]  # follows the disk

    settings = tmp_path / "s.toml"
    settings.write_text("[ham_loss]\none_in = 20\n")
    config = ("--config", settings)
    before = stats()
    done = run(*config, "evaluate", "--apply", HAM, SPAM, home=home)
    assert "applies unless" in done.err
    first = stats(*config)
    assert first != before
    run(*config, "evaluate", "--apply", HAM, SPAM, home=home)
    assert stats(*config) == first
    assert stats() == before
    asked = run("evaluate", "--apply", "--one-in", 20, HAM, SPAM, home=home, code=2)
    assert "ham_loss.one_in = 20" in asked.err
    assert "not enough evidence" in run("evaluate", "--apply", HAM, SPAM, home=home, code=1).err
    assert stats(*config) == before


def test_one_collection_teaches_and_another_is_judged(tmp_path):
    """Cross-corpus, also in TREC's layout; --test and the protocol go together."""
    (tmp_path / "full").mkdir()
    lines = [f"ham {HAM}/{i:04}.eml\nspam {SPAM}/{i:04}.eml\n" for i in range(30)]
    (tmp_path / "full" / "index").write_text("".join(lines))
    found = json.loads(run("evaluate", tmp_path, "--json", "-").out)
    assert (found["corpus"], found["order"]) == ({"ham": 30, "spam": 30}, "given")
    crossed = json.loads(run("evaluate", HAM, SPAM, "--test", tmp_path, "--json", "-").out)
    assert (crossed["protocol"], crossed["corpus"]) == ("cross", {"ham": 30, "spam": 30})
    assert "need each other" in run("evaluate", HAM, SPAM, "--protocol", "cross", code=2).err
    assert "1 paths" in run("evaluate", HAM, code=2).err


def test_pictures_and_page_are_written(tmp_path, few):
    """--plots and --report write files; a path that cannot be written is a usage error."""
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    page, folder = tmp_path / "report.html", tmp_path / "plots"
    run("evaluate", *few, "--plots", folder, "--report", page)
    assert len(list(folder.glob("*.png"))) == 5
    assert page.read_text().startswith("<!doctype html>")
    assert "cannot be written" in run("evaluate", *few, "--plots", page, code=2).err


def test_labels_of_ones_own_are_evaluated(texts):
    """A collection with a train/test split is evaluated by it; folders are labels."""
    found = json.loads(run("evaluate", "--plain", texts, "--json", "-").out)
    assert (found["protocol"], found["documents"]) == ("cross", 100)
    assert len(found["labels"]) == 10
    assert {"precision", "recall", "f1"} <= found["labels"][0]["by_threshold"].keys()
    assert "macro F1" in run("evaluate", "--plain", texts).out
    arguments = ["--label", f"trade={texts}/train/trade", "--label", f"tax={texts}/train/tax"]
    out = run("evaluate", "--plain", *arguments, "--protocol", "folds").out
    assert "break-even" in out
    rest = run("evaluate", "--plain", "--against-rest", texts, "--json", "-")
    assert json.loads(rest.out)["confusion"] is None
    assert "labels ham and spam" in run("evaluate", "--plain", texts, "--plots", "x", code=2).err


def test_mail_with_labels_of_ones_own_is_evaluated(tmp_path):
    """Mail can have labels other than ham and spam; messages are ordered by date."""
    for label, source, first in (("work", HAM, 0), ("lists", HAM, 40), ("junk", SPAM, 0)):
        (tmp_path / label).mkdir()
        for number in range(first, first + 40):
            shutil.copy(f"{source}/{number:04}.eml", tmp_path / label)
    arguments = [f"--label={label}={tmp_path / label}" for label in ("work", "lists", "junk")]
    for more in (["--order", "time"], ["--protocol", "holdout"], ["--order", "given"]):
        found = json.loads(run("evaluate", *arguments, *more, "--json", "-").out)
        assert {one["label"] for one in found["labels"]} == {"work", "lists", "junk"}
    assert "leave out HAM SPAM" in run("evaluate", *arguments, HAM, SPAM, code=2).err


def test_documents_from_end_to_end(tmp_path, texts, trained):
    """train, score, correct and explain work on plain texts, with label thresholds."""
    home = tmp_path / "documents"
    done = run("train", "--plain", "--classes", texts / "train", "--thresholds", "--json",
               home=home).json[0]  # fmt: skip
    assert done["learnt"] == 300
    assert set(done["thresholds"]) == set(documentcraft.SHARES)
    lines = run("score", "--json", texts / "test" / "trade", home=home).json
    right = [line for line in lines if "trade" in line["assigned"]]
    assert len(right) > 0.7 * len(lines)
    one = next((texts / "test" / "trade").iterdir())
    assert "[" in run("score", one, home=home).out
    assert "word" in run("explain", one, home=home).out
    run("correct", "health", one, home=home)
    assert run("score", "--json", one, home=home).json[0]["label"] == "health"
    assert "for mail" in run("train", "--plain", HAM, SPAM, home=trained, code=2).err


def test_tune_writes_nothing_and_claims_nothing(tmp_path, home, few):
    """Without a confirmed gain nothing is written, and --apply exits with 1."""
    done = run("tune", *few, "--tries", 3, "--json", home=tmp_path / "none").json[0]
    assert done["confirmed"] is False
    assert not (tmp_path / "none").exists()
    before = (home / "data.mdb").read_bytes()
    done = run("tune", *few, "--tries", 2, "--apply", home=home, code=1)
    assert "nothing was changed" in done.err
    assert (home / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_trials_leave_no_files(tmp_path, monkeypatch, few, jobs):
    """Each trial has a store of its own in a temporary folder, and removes it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run("tune", *few, "--tries", 3, "--jobs", jobs)
    run("evaluate", *few, "--protocol", "folds", "--jobs", jobs)
    assert list(tmp_path.glob("spamnb-*")) == []


@pytest.mark.timed
def test_tune_takes_a_minute_at_most():
    """All tries on the sample, on one processor: 60 s, of the clock and of CPU."""
    done = run("tune", HAM, SPAM, "--jobs", 1, "--json").json[0]
    assert done["tries"] > 10
    assert done["cpu_seconds"] < 60
    assert done["seconds"] < 60


def test_tune_applies_what_is_confirmed(home, few):
    """--apply relearns the model with better constants and keeps the old model."""
    run("relearn", "--set", "eta=0.05", "--set", "r=3", "--yes", home=home)
    before = run("stats", "--json", home=home).json[0]["constants"]
    done = run("tune", *few, "--tries", 10, "--apply", home=home)
    assert "confirmed" in done.out
    assert "400 messages relearnt" in done.err
    assert run("stats", "--json", home=home).json[0]["constants"] != before
    assert run("check", home=home).code == 0


def test_models_for_persons_are_compared(few):
    """A world is made of sorted mail; each model has figures for the persons of the world."""
    words = ["evaluate", "--people", 4, "--world"]
    found = json.loads(run(*words, "conflict", *few, "--json", "-").out)
    models = [result["model"] for result in found["results"]]
    assert len(models) == 5
    assert models[3:] == ["personal corrections", "without budget"]
    assert found["results"][0]["figures"]["all"]["deliveries"] > 120
    assert "24 messages of ham" in run(*words, "newsletters", *few, code=2).err
    assert "--people needs --world" in run("evaluate", "--people", 4, *few, code=2).err
    done = run(*words, "peace", *few, "--json", "-", "--scores", code=2)
    assert "--scores does not work" in done.err


def test_deliveries_to_persons_are_read_from_a_file(tmp_path, few):
    """Each line of the file is a delivery: what one person gets, and wants it to be."""
    lines = [
        f"{folder}/{number:04}.eml {person} {label}\n"
        for number in range(10)
        for label, folder in zip(("ham", "spam"), few, strict=True)
        for person in ("ann", "bob")
    ]
    file = tmp_path / "deliveries"
    file.write_text("".join(lines))
    assert "personal corrections" in run("evaluate", "--persons", file).out
    file.write_text("one.eml ann maybe\n")
    assert "line 1" in run("evaluate", "--persons", file, code=2).err
    assert "names all mail" in run("evaluate", "--persons", file, *few, code=2).err
