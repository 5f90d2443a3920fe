"""Every number of docs/how-it-decides.md is what the filter computes."""

import re
from math import exp, log

import pytest
from support.cli import spamnb
from support.docs_snippets import DOCS

from spamnb.model.costs import Costs, thresholds
from spamnb.model.events import Recipe

TEXT = (DOCS / "how-it-decides.md").read_text("utf-8")
LEARNT, ASKED = re.findall(r"^```text\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)[:2]


def rows(head):
    """Return the rows of the table below a head: first cell -> the others."""
    table = TEXT.partition(f"| {head} |")[2].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {first: rest for first, *rest in lines}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Train the texts of the page; returns the home and the file of the new text."""
    place = tmp_path_factory.mktemp("example")
    for number, line in enumerate(LEARNT.splitlines()):
        label, text = line.split(maxsplit=1)
        (place / label).mkdir(exist_ok=True)
        (place / label / f"{number}.txt").write_text(text + "\n")
    (place / "new.txt").write_text(ASKED)
    labels = [f"--label={label}={place / label}" for label in ("ham", "spam")]
    assert spamnb(place / "home", "train", "--plain", *labels).code == 0
    return place / "home", place / "new.txt"


def test_the_counts_and_their_evidence():
    """The first table follows from the texts by the formula of the page."""
    recipe, texts = Recipe(), [line.split() for line in LEARNT.splitlines()]
    table = rows("word | ham with it | spam with it | evidence of the counts | with the reduction")
    assert len(table) == 4
    for word, cells in table.items():
        ham, spam = (
            sum(label == text[0] and word in text for text in texts) for label in ("ham", "spam")
        )
        evidence = log((spam + recipe.alpha) / (ham + recipe.alpha))
        reduced = evidence * (ham + spam) / (ham + spam + recipe.r)
        assert cells == [str(ham), str(spam), f"{evidence:.2f}", f"{reduced:.2f}"]
    assert round(4 / (4 + recipe.r), 2) == 0.93
    assert (round(exp(1), 1), round(exp(2), 1)) == (2.7, 7.4)


def test_the_weights_and_the_probability(model):
    """The second table and the odds are those of `spamnb explain`."""
    home, file = model
    [found] = spamnb(home, "explain", file, "--json").json
    weights = {clue["token"]: clue["nats"] for clue in found["clues"] if clue["location"] == "word"}
    weights |= {"bias": found["bias"], "sum": found["log_odds"]}
    shown = {word: [f"{nats:+.3f}"] for word, nats in weights.items()}
    assert rows("word | weight in this message") == shown
    assert f"{found['log_odds']:.3f} nats are odds of {exp(found['log_odds']):.1f} to 1" in TEXT
    assert f"a probability of {found['probability']:.1%}".replace("%", " %") in TEXT
    assert found["decision"] == "unsure"


def test_the_expected_costs(model):
    """The third table follows from the probability and the default costs."""
    home, file = model
    [found] = spamnb(home, "explain", file, "--json").json
    spam = found["probability"]
    costs = dict(zip(("deliver", "unsure", "junk", "reject"), Costs().table(), strict=True))
    shown = {
        name: [f"{for_ham:g}", f"{for_spam:g}", f"{for_ham * (1 - spam) + for_spam * spam:.2f}"]
        for name, (for_ham, for_spam) in costs.items()
    }
    assert rows("decision | cost if it is ham | cost if it is spam | expected") == shown
    edges = {edge.decision: edge.probability for edge in thresholds(Costs())}
    assert f"{edges['junk']:.2%}".replace("%", " %") in TEXT
    assert f"{edges['reject']:.3%}".replace("%", " %") in TEXT


def test_the_correction_and_its_undoing(model):
    """A correction changes the numbers as the page says; undoing it restores them."""
    home, file = model
    [before] = spamnb(home, "explain", file, "--json").json
    assert spamnb(home, "correct", "spam", file).code == 0
    [after] = spamnb(home, "explain", file, "--json").json
    pair = [f"{one['probability']:.4f}" for one in (before, after)]
    assert f"from {pair[0]} to {pair[1]}" in TEXT.replace("\n", " ")
    meeting = [
        f"{clue['nats']:+.3f}"
        for one in (before, after)
        for clue in one["clues"]
        if clue["token"] == "meeting"
    ]
    assert f"from {meeting[0]} to {meeting[1]}" in TEXT
    assert after["clues"][0]["location"] == "self"
    assert spamnb(home, "undo", "13").code == 0
    [undone] = spamnb(home, "explain", file, "--json").json
    assert undone == before
