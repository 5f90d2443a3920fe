"""A message of a kind that ham has not met must clear a higher threshold, until some are taught."""

from math import inf

import pytest
from support.cli import forked as spamnb
from support.memory_store import MemoryStore
from support.new_kinds import FIRST, SALE, WORDS, listed, shop, write_mail

from spamnb.engine.filter import Filter
from spamnb.model.costs import Costs, OwnCosts
from spamnb.model.events import Recipe
from spamnb.model.verdict import MOST, NEW_KIND, SHIPPED, decide, novelty, plain


@pytest.fixture
def model():
    """A model of 200 messages of a list, and of 60 newsletters that are spam."""
    recipe = Recipe(kind="corrected", labels=("ham", "spam"), key=bytes(32))
    with Filter(MemoryStore(recipe)) as found:
        for number in range(200):
            found.learn(listed(number), "ham")
            if number % 10 < 3:
                found.learn(shop(number, f"Bad{number % 7}", SALE), "spam")
        yield found


def test_the_first_ham_of_a_new_kind_is_unsure(model):
    """It has more nats than the shipped threshold, and the verdict says what keeps it."""
    verdict = model.score(FIRST)
    before = plain(verdict.spam_log_odds, verdict.threshold)
    assert decide(before, Costs()) in {"junk", "reject"}
    assert (verdict.decision, verdict.reason) == ("unsure", NEW_KIND)
    assert verdict.threshold == SHIPPED + verdict.novelty.nats > before
    assert verdict.novelty.share < 0.5


def test_usual_mail_is_not_new(model):
    """The score of a message like the taught ones is as it was."""
    verdict = model.score(listed(5000))
    assert (verdict.novelty.nats, verdict.threshold, verdict.reason) == (0, SHIPPED, "")


def test_clues_add_up_to_the_score_of_a_new_kind(model):
    """The clues of such a message are scaled as its score is."""
    verdict = model.score(FIRST)
    total = sum(clue.nats for clue in verdict.clues()) + verdict.bias
    assert verdict.novelty.nats > 0
    assert total == pytest.approx(verdict.log_odds, abs=1e-9)


def test_a_few_taught_ham_open_a_kind(model):
    """After five ham of other shops, spam of this form is filed again."""
    spam = shop(2000, "Bad2", SALE)
    was = model.score(FIRST).novelty.nats
    for number in range(5):
        model.learn(shop(3000 + number, f"Kind{number}", WORDS), "ham")
    assert was > model.score(FIRST).novelty.nats == 0
    assert model.score(spam).novelty.nats == 0


def test_undoing_a_training_makes_a_kind_new_again(model):
    """Novelty follows from the counts alone."""
    was = model.score(FIRST)
    receipt = model.learn(shop(3000, "Kind", WORDS), "ham")
    assert model.score(FIRST).novelty != was.novelty
    model.undo(receipt)
    again = model.score(FIRST)
    assert (again.novelty, again.z, again.reason) == (was.novelty, was.z, was.reason)


def test_words_in_the_text_do_not_make_a_message_new(model):
    """A sender who fills the text with unknown words moves no threshold."""
    spam = shop(2000, "Bad2", SALE)
    salad = " ".join(f"qx{number}zv" for number in range(1000)).encode()
    padded = spam.replace(b"</td>", salad + b"</td>")
    assert model.score(padded).novelty.nats == pytest.approx(
        model.score(spam).novelty.nats, abs=0.5
    )


def test_strong_evidence_is_junk_however_new_the_kind():
    """The bound of novelty, for a message with nothing but unknown headers."""
    assert novelty(0.0, 10**6).nats == MOST
    assert novelty(1.0, 10**6).nats == novelty(0.0, 5).nats == 0
    found = [novelty(share / 100, 1000).nats for share in range(101)]
    assert found == sorted(found, reverse=True)


def test_own_costs_apply_to_new_kinds(model):
    """Costs of a person that file from low odds on file it; the reason is then gone."""
    own = OwnCosts("bob@mx.test", Costs(junk=(0.5, 0.05), unsure=(0.4, 0.6)))
    verdict = model.score(FIRST, own_costs=own)
    assert verdict.novelty.nats > 0
    assert verdict.decision in {"junk", "reject"}
    assert verdict.reason == ""


def test_explain_says_that_the_kind_is_new(home):
    """The sentence, and the same facts as JSON."""
    (home / "first.eml").write_bytes(FIRST)
    assert spamnb(home / "home", "train", *write_mail(home / "mail")).code == 0
    said = spamnb(home / "home", "explain", home / "first.eml").out
    assert "a kind of mail that this filter has not met: ham has " in said
    facts = spamnb(home / "home", "explain", "--json", home / "first.eml").json[0]
    found = facts["novelty"]
    assert 0 < found["nats"] <= MOST
    assert found["threshold"] - found["nats"] <= SHIPPED < inf
