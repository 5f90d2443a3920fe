"""What one person can do to the mail of others with corrections of that person's choice."""

import copy
from contextlib import closing
from pathlib import Path

import pytest
from poisoning import oscillate, site, spend

from spamnb.engine.filter import Filter
from spamnb.engine.learner import Learner
from spamnb.model.costs import Costs
from spamnb.store.model_store import DATA_FILE, open_store

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
WORDS = 5
DIRECTIONS = ("spam", "ham")
OWN = {"spam": 3.3, "ham": 6.3}
WORST = {"spam": 4.0, "ham": 6.3}
ALTERNATING = {"spam": 1.5, "ham": 4.5}
"""percent of others' mail that corrections to a label may cost: the measured harm, 1.9 for spam and
4.2 for ham (alternating 0 and 2.1), and one message more: 1.3 of the ham, 2.1 of the spam. The site
has a fixed key; with one of eleven other keys the worst corrections cost 3.8 and 10.4. Since good
text around a spam is not counted, the worst corrections to spam cost 3.8 with each of seven keys,
without a message more here; their smooth harm is 6.7 instead of 7.0."""


@pytest.fixture(scope="module")
def trained():
    return site(SAMPLE, held_out=160, own=60)


@pytest.fixture
def small_site(trained, tmp_path):
    """A small model, 240 messages, where each word weighs much; the harm before."""
    made = copy.copy(trained)
    with (tmp_path / DATA_FILE).open("wb") as file:
        trained.store.environment.copy_to(file.fileno())
    with closing(open_store(tmp_path)) as made.store:
        made.model = Filter(made.store)
        made.learner = Learner(made.store.recipe, Costs())
        yield made, made.harm()


@pytest.mark.parametrize("label", DIRECTIONS)
def test_five_corrections_of_a_persons_own_mail_do_not_flip_the_site(small_site, label):
    """Five of a person's own messages under the wrong label cost others little of their mail."""
    made, before = small_site
    for raw in [raw for raw, truth in made.own if truth != label][:WORDS]:
        made.say(made.model.example(raw), label)
    assert made.harm().of(label)[0] <= before.of(label)[0] + OWN[label]


@pytest.mark.parametrize("label", DIRECTIONS)
def test_the_five_worst_corrections_do_not_flip_the_site(small_site, label):
    """The five worst corrections that a search finds with every count known change few verdicts."""
    made, before = small_site
    after = spend(made, label, WORDS, tries=12, joined=False)[-1]
    assert after.of(label)[0] <= before.of(label)[0] + WORST[label]


@pytest.mark.parametrize("label", DIRECTIONS)
def test_alternating_labels_gain_nothing(small_site, label):
    """Twenty labels each way on the same three messages harm no more than three labels."""
    made, before = small_site
    raws = [raw for raw, truth in made.own if truth != label][:3]
    assert oscillate(made, raws, label, 20).of(label)[0] <= before.of(label)[0] + ALTERNATING[label]
