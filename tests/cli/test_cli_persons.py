"""Persons from the command line, with and without a daemon."""

import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from support.cli import HAM, ONE_HAM, ONE_SPAM, spamnb

from spamnb.engine.filter import Filter
from spamnb.imap.sync import MailboxModel
from spamnb.scan.judge import ModelSession, SessionConfig
from spamnb.settings import load
from spamnb.settings.persons import person_names
from spamnb.settings.values import TeachingRules

pytestmark = pytest.mark.usefixtures("alone")

SETTINGS = """
[persons]
enabled = true
aliases = "{aliases}"
[local]
domains = ["example.org"]
"""


@pytest.fixture
def home(trained, tmp_path):
    home = shutil.copytree(trained, tmp_path / "home")
    aliases = tmp_path / "virtual"
    aliases.write_text("sales@example.org bob\n")
    config = tmp_path / "spamnb.toml"
    config.write_text(SETTINGS.format(aliases=aliases))
    return home, config


def run(place, *words):
    home, config = place
    done = spamnb(home, "--config", config, *words)
    assert done.code == 0, done.err
    return done


def test_a_person_is_taught_explained_listed_and_erased(home):
    """Each command takes an address, an alias or a login, and means one person."""
    correct = ("correct", "--json", "--person", "sales@example.org", "ham")
    (receipt,) = run(home, *correct, ONE_SPAM).json
    assert receipt["after"] == "ham"
    assert receipt["probability_after"] < 0.5
    (mine,) = run(home, "score", "--json", "--person", "bob", ONE_SPAM).json
    (shared,) = run(home, "score", "--json", ONE_SPAM).json
    assert mine["label"] == "ham"
    assert mine["probability"] == pytest.approx(receipt["probability_after"])
    assert shared["label"] == "spam"
    (explained,) = run(home, "explain", "--json", "--count", "all", "--person", "bob+x@example.org",
                       ONE_SPAM).json  # fmt: skip
    total = sum(clue["nats"] for clue in explained["clues"]) + explained["bias"]
    assert total == pytest.approx(mine["log_odds"])
    (bob,) = run(home, "persons", "list", "--json").json
    assert (bob["name"], bob["labels"]) == ("bob", {"ham": 1})
    assert run(home, "persons", "show", "--json", "sales@example.org").json == [bob]
    (erased,) = run(home, "persons", "erase", "--yes", "--json", "bob").json
    assert (erased["events"], erased["still_named"]) == (1, [])
    assert run(home, "persons", "list").lines == []
    assert run(home, "check").code == 0


def test_a_person_is_trained_and_forgets(home):
    """`train --person` learns sorted mail for one person; `forget --person` takes a label back."""
    (summary,) = run(home, "train", "--json", "--person", "ann", "--label", f"spam={HAM}").json
    assert summary["learnt"] == summary["messages"]
    (ann,) = run(home, "persons", "list", "--json").json
    assert ann["labels"] == {"spam": summary["messages"]}
    (gone,) = run(home, "forget", "--json", "--person", "ann", ONE_HAM).json
    assert (gone["before"], gone["after"]) == ("spam", None)
    assert run(home, "relearn", "--yes", "--without", "ann").code == 0
    assert run(home, "persons", "list", "--json").lines == []


def test_persons_survive_and_follow_maintenance(home, tmp_path):
    """Backup, restore, export, undo, rewind, relearn and bisect treat them as other labels."""

    def listed(place=home):
        return run(place, "persons", "list", "--json").json

    run(home, "correct", "--person", "ann", "spam", ONE_HAM)
    (ann,) = listed()
    (receipt,) = run(home, "correct", "--json", "--person", "bob", "ham", ONE_SPAM).json
    both = listed()
    assert [one["name"] for one in both] == ["bob", "ann"]

    run(home, "backup", tmp_path / "copy")
    restored = tmp_path / "restored", home[1]
    run(restored, "restore", tmp_path / "copy")
    assert listed(restored) == both
    run(home, "export", "--persons", "--with-key", tmp_path / "model.jsonl")
    imported = tmp_path / "imported", home[1]
    run(imported, "import", "--as-new", tmp_path / "model.jsonl")
    (mine,) = run(imported, "score", "--json", "--person", "bob", ONE_SPAM).json
    assert mine["label"] == "ham"

    (cause,) = run(home, "bisect", "--json", "--limit", "0", ONE_SPAM).json
    assert "bob" in [one["user"] for one in cause["shares"]]
    (own,) = run(home, "bisect", "--json", "--person", "bob", ONE_SPAM).json
    assert own["log_odds"] < 0 < cause["log_odds"]
    strongest = own["shares"][0]
    assert (strongest["user"], strongest["label"]) == ("bob", "ham")
    assert strongest["nats"] < -abs(own["log_odds"])
    time = run(home, "journal", "--json", "--user", "ann").json[0]["time"]
    (done,) = run(home, "rewind", time, "--yes", "--json").json
    assert listed() == [ann]
    run(home, "rewind", Path(done["kept"]).name, "--yes")
    assert listed() == both
    run(home, "undo", receipt["event"])
    assert [one | {"name": "ann"} for one in listed() if one["places"]] == [ann]
    run(home, "correct", "--person", "bob", "ham", ONE_SPAM)
    run(home, "relearn", "--yes")
    assert {one["name"]: one["labels"] for one in listed()} == {
        "ann": {"spam": 1}, "bob": {"ham": 1},
    }  # fmt: skip
    for person, label, raw in (("ann", "spam", ONE_HAM), ("bob", "ham", ONE_SPAM)):
        (mine,) = run(home, "score", "--json", "--person", person, raw).json
        assert mine["label"] == label
    run(home, "check")


def test_the_commands_of_the_docs_work(home, tmp_path, monkeypatch):
    """Each command of docs/persons.md, in its order, on a message of a file."""
    text = (Path(__file__).parents[2] / "docs" / "persons.md").read_text()
    commands = [
        re.split(" {2,}", one)[0].split()[1:]
        for one in re.findall("^spamnb .*", text, re.MULTILINE)
    ]
    shutil.copy(ONE_SPAM, tmp_path / "new.eml")
    monkeypatch.chdir(tmp_path)
    for command in sorted(commands, key=lambda one: "erase" in one):
        assert run(home, *command, *(["--yes"] if "erase" in command else [])).code == 0
    assert {one[0] for one in commands} >= {"senders", "correct", "score", "explain", "persons"}
    assert run(home, "persons", "list").lines == []


def test_a_person_must_be_one_of_this_site(home, trained):
    """A foreign address, and a person where persons are not enabled, are errors of the user."""
    place, config = home
    foreign = ("correct", "--person", "x@elsewhere.example", "ham", ONE_SPAM)
    done = spamnb(place, "--config", config, *foreign)
    assert (done.code, "not the address of a person" in done.err) == (2, True)
    done = spamnb(trained, "correct", "--person", "ann", "ham", ONE_SPAM)
    assert (done.code, "persons are not enabled" in done.err) == (2, True)


def test_a_watched_maildir_labels_for_its_user(home, tmp_path):
    """A move in the Maildir of a user is that person's label, with every user of the command."""
    root = tmp_path / "Maildir"
    for folder in ("", ".Junk"):
        for part in ("tmp", "new", "cur"):
            (root / folder / part).mkdir(parents=True)
    path = root / "cur" / "1:2,S"
    path.write_bytes(b"X-Spam-Flag: NO\n" + ONE_HAM.read_bytes())
    watch = ("watch", "--once", "--json", f"ann@example.org={root}")
    assert run(home, *watch).json == []
    path.rename(root / ".Junk" / "cur" / path.name)
    (answer,) = run(home, *watch).json
    assert (answer["after"], answer["state"]) == ("spam", "learnt")
    (ann,) = run(home, "persons", "list", "--json").json
    assert (ann["name"], ann["labels"]) == ("ann@example.org", {"spam": 1})
    (mine,) = run(home, "score", "--json", "--person", "ann", ONE_HAM).json
    assert mine["label"] == "spam"


def test_a_mailbox_is_judged_for_its_user(home):
    """`spamnb imap` and the daemon judge and look up labels for the user of an account."""
    run(home, "correct", "--person", "bob", "ham", ONE_SPAM)
    names = person_names(load(home[1], environment={}))
    session = ModelSession(SessionConfig(home[0], persons=names))
    opened = partial(Filter.open, home[0], readonly=True, history=False)
    model = MailboxModel(session, opened, TeachingRules())
    raw = ONE_SPAM.read_bytes()
    try:
        (mine,), (other,) = model.judge([raw], "sales@example.org"), model.judge([raw], "ann")
        assert (mine.label, other.label) == ("ham", "spam")
        assert model.label_of(raw, "bob") == "ham"
        assert model.label_of(raw, "ann") is None
    finally:
        model.close()


def test_the_costs_of_a_person_are_shown(home):
    """`score` and `explain` decide by the costs of the person, and name them."""
    _, config = home
    with config.open("a") as file:
        file.write("[person.ann]\njunk_costs = [1e9, 0.05]\nreject_costs = [1e9, 0]\n")
        file.write('[domain."example.org"]\nreject_costs = [500, 0]\n')
    (mine,) = run(home, "score", "--json", "--person", "ann@example.org", ONE_SPAM).json
    (shared,) = run(home, "score", "--json", ONE_SPAM).json
    assert (mine["decision"], shared["decision"] in ("junk", "reject")) == ("unsure", True)
    assert mine["log_odds"] == shared["log_odds"]
    assert mine["costs"]["of"] == "person.ann"
    assert mine["costs"]["junk"] == [1e9, 0.05]
    assert "costs" not in shared
    run(home, "correct", "--person", "ann", "spam", ONE_SPAM)
    (mine,) = run(home, "score", "--json", "--person", "ann@example.org", ONE_SPAM).json
    assert mine["decision"] in ("junk", "reject")
    (explained,) = run(home, "explain", "--json", "--person", "bob", ONE_SPAM).json
    assert explained["costs"] == {
        "of": "domain.example.org", "deliver": [0, 1], "unsure": [0.4, 0.6], "junk": [100, 0.05],
        "reject": [500, 0],
    }  # fmt: skip
    assert (
        "costs of person.ann: unsure from 50.0000%"
        in run(home, "explain", "--person", "ann", ONE_SPAM).out
    )
