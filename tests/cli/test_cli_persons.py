"""Persons from the command line, with and without a daemon."""

import shutil

import pytest
from support.cli import HAM, ONE_HAM, ONE_SPAM, spamnb

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


def test_a_person_must_be_one_of_this_site(home, trained):
    """A foreign address, and a person where persons are not enabled, are errors of the user."""
    place, config = home
    foreign = ("correct", "--person", "x@elsewhere.example", "ham", ONE_SPAM)
    done = spamnb(place, "--config", config, *foreign)
    assert (done.code, "address of no person" in done.err) == (2, True)
    done = spamnb(trained, "correct", "--person", "ann", "ham", ONE_SPAM)
    assert (done.code, "persons are not enabled" in done.err) == (2, True)
