"""Passages: spam below or above good text is still spam, exactly explained and correctable."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory_store import MemoryStore

from spamnb.engine.filter import Filter
from spamnb.engine.values import Learn, Source
from spamnb.mail.message import read
from spamnb.model import scoring
from spamnb.model.events import Recipe
from spamnb.model.features import BLOCK_BYTES, MOST_BLOCKS, text_of_blocks
from spamnb.model.scoring import LENGTHS, passages
from spamnb.model.tokens import fields
from spamnb.store import maintenance as audit

KEY = bytes(range(32))
GOOD = [
    *("meeting", "agenda", "minutes", "garden", "library"),
    *("school", "weather", "train", "ticket", "recipe"),
]
BAD = [
    *("casino", "bonus", "pills", "cheap", "winner"),
    *("lottery", "urgent", "transfer", "crypto", "profit"),
]
PERSON = Source("ann@example.org", "imap", immediate=True)


def mail(number, words, *, html=False):
    kind = "Content-Type: text/html\n" if html else ""
    head = f"From: ann@a.example\nSubject: hello\nMessage-ID: <{number}@a.example>\n{kind}"
    return f"{head}\n{' '.join(words)}\n".encode()


def text(words, size, start=0):
    return [words[(start + n) % len(words)] + "abc"[n % 3] for n in range(size)]


def trained(labels=("ham", "spam"), kind="corrected", home=None):
    recipe = Recipe(kind=kind, labels=labels, key=KEY)
    store = MemoryStore(recipe)
    model = Filter.open(home, create=True, recipe=recipe) if home else Filter(store)
    for number in range(150):
        model.learn(mail(2 * number, text(GOOD, 20, number)), "ham")
        model.learn(mail(2 * number + 1, text(BAD, 20, number)), "spam")
    if len(labels) > 2:
        model.learn(mail(999, text(GOOD, 20)), labels[2])
    return model


@pytest.fixture(scope="module")
def model():
    return trained()


def filler(size):
    return text([f"{word}{n}" for n in range(40) for word in GOOD] + GOOD, size)


@pytest.mark.parametrize("size", [200, 1000, 3000])
@pytest.mark.parametrize("above", [True, False])
def test_spam_beside_good_text_is_spam(model, size, above):
    """Its clue names the words of the passage, and nothing else would have filed it."""
    spam, good = text(BAD, 20), text(GOOD, size)
    verdict = model.score(mail(5001, good + spam if above else spam + good))
    assert verdict.label == "spam"
    (clue,) = [one for one in verdict.clues() if one.location == "passage"]
    assert clue.nats > 0
    assert set(clue.token.split()) <= set(spam)
    assert verdict.log_odds - clue.nats < 0 or size == 200


def test_good_text_has_no_passage(model):
    """Wanted mail gets no clue of a passage, whatever its length, nor does a short spam."""
    for words in (text(GOOD, 20), text(GOOD, 3000), text(BAD, 20)):
        verdict = model.score(mail(5002, words))
        assert not [one for one in verdict.clues() if one.location == "passage"]


@pytest.mark.parametrize("labels", [("ham", "spam"), ("ham", "spam", "list")])
def test_clues_and_bias_make_the_score(labels):
    """With the passage among the clues, for two labels and for three."""
    model = trained(labels)
    verdict = model.score(mail(5003, text(BAD, 20) + text(GOOD, 1000)))
    clues = verdict.clues()
    assert [one for one in clues if one.location == "passage"]
    total = sum(one.nats for one in clues) + verdict.bias
    assert total == pytest.approx(verdict.log_odds, abs=1e-12)
    assert len(clues) == verdict.clue_count
    assert [abs(one.nats) for one in clues] == sorted(
        (abs(one.nats) for one in clues), reverse=True
    )


def test_all_ways_give_the_same_score(tmp_path):
    """Alone, in a batch, and from what the history and the journal keep."""
    with trained(home=tmp_path / "model") as model:
        same_scores(model)


def same_scores(model):
    raws = [mail(6000 + n, text(BAD, 20) + text(GOOD, 40 * n)) for n in range(8)]
    alone = [model.score(raw, remember=False).z for raw in raws]
    assert [one.z for one in model.score_many(raws, remember=False)] == alone
    assert [model.explain(model.score(raw).signature).z for raw in raws] == alone
    unseen = mail(6100, text(BAD, 20) + text(GOOD, 400))
    model.learn(unseen, "spam")
    again = model.score(unseen, remember=False)
    assert model.explain(again.digest.hex()).z == again.z


@pytest.mark.parametrize("person", [False, True])
def test_a_correction_works_at_once(person):
    """A newsletter that quotes spam is delivered after one label, for a person and for all."""
    model = trained()
    raw = mail(5004, text(BAD, 20) + text(GOOD, 1000))
    assert model.score(raw).label == "spam"
    ann = model.person("ann@example.org") if person else 0
    receipt = model.correct(raw, "ham", source=PERSON._replace(person=ann))
    assert receipt.changed
    found = model.score(raw, person=ann)
    assert (found.label, found.decision) == ("ham", "deliver")
    model.undo(receipt.event)
    assert model.score(raw).label == "spam"


def test_good_text_around_a_spam_is_not_counted_as_spam():
    """A hundred spam with filler are taught: ham with these words stays what it was."""
    model, words = trained(), text(GOOD, 400)
    before = model.score(mail(7000, words)).log_odds
    plain = trained()
    for number in range(100):
        spam = text(BAD, 30, number)
        model.learn(mail(7001 + number, spam + words), "spam")
        plain.learn(mail(7001 + number, spam), "spam")
    after = model.score(mail(7000, words)).log_odds
    assert after < max(before, plain.score(mail(7000, words)).log_odds) + 2
    assert model.score(mail(7200, text(BAD, 30))).label == "spam"


def numbers(model):
    """Counts and corrections, and whether the journal agrees with them."""
    with model.store.read() as view:
        _, rows = audit.collect(view.features(), len(model.labels))
        totals = view.totals()
        sums = totals.messages, totals.tokens, totals.bias, totals.temperatures, rows.n, rows.w
        return [one.tolist() for one in sums], audit.check(view)


@pytest.mark.parametrize("way", ["forget", "undo", "move"])
def test_what_is_left_out_is_left_out_when_it_is_taken_back(way):
    """Every number is as before, also after two labels in one transaction."""
    model = trained()
    first, second = (mail(number, text(BAD, 30) + text(GOOD, 400)) for number in (7300, 7301))
    before = numbers(model)
    if way == "move":
        labels = enumerate((1, 0))
        model.teach([Learn(model.example(first), label, PERSON, n) for n, label in labels])
    receipt = model.learn(second, "spam")
    with model.store.read() as view:
        event = view.event(receipt.event)
    assert sum(map(len, event.counted_ids)) < sum(map(len, event.ids))
    assert numbers(model)[1] == []
    if way == "undo":
        model.undo(receipt.event)
    else:
        model.forget(second)
    if way == "move":
        model.forget(first)
    assert numbers(model) == before


def test_models_of_other_kinds_have_no_passages():
    """The textbook's models score as the textbook says, and keep no blocks."""
    model = trained(kind="multinomial")
    raw = mail(5005, text(BAD, 20) + text(GOOD, 1000))
    assert model.example(raw).blocks is None
    assert not [one for one in model.score(raw).clues() if one.location == "passage"]


def test_blocks_follow_the_text_and_have_small_numbers(model):
    """Header and subject are in no block; a long text has larger ones."""
    for size in (5, 100, 8_000):
        words = [f"word{number}" for number in range(size)]
        features = model.reader.feature_batch([mail(5006, words)]).features
        most, length = int(features.blocks.max()), len(" ".join(words))
        assert most <= min(MOST_BLOCKS, -(-length // BLOCK_BYTES))
        assert most > 0.6 * min(MOST_BLOCKS, length // BLOCK_BYTES)
        locations = {features.word(row)[0].name for row in features.rows[features.blocks > 0]}
        assert locations <= {"BODY", "URL"}


@pytest.mark.parametrize("size", [100, 900, 8_000])
def test_the_text_of_blocks_has_their_words(model, size):
    """Each word of the text is in the text of its block, and all blocks are the whole text."""
    words = [f"word{number}x" for number in range(size)]
    raw = mail(5007, words)
    features = model.reader.feature_batch([raw]).features
    found = fields(read(raw))
    most = int(features.blocks.max())
    # A word at the edge of a block ends in the next one.
    texts = {at: text_of_blocks(found, at, 2) for at in range(1, most + 1)}
    for row, block in zip(features.rows.tolist(), features.blocks.tolist(), strict=True):
        word = features.word(row)[1]
        if block and word.startswith(b"word"):
            assert word in texts[block]
    assert text_of_blocks(found, 1, most).split() == " ".join(words).encode().split()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(-9, 9)), max_size=40),
)
def test_passages_are_the_sums_of_their_blocks(rows):
    """Each run of neighbouring blocks that is shorter than its text, with all outside of it."""
    rows = sorted(rows, key=lambda row: row[0])
    sizes = np.array([sum(row[0] == owner for row in rows) for owner in range(4)])
    blocks = np.array([row[1] for row in rows], np.uint8)
    values = np.array([[row[2] for row in rows]], float).reshape(1, len(rows))
    some = passages(values, blocks, sizes, 1)
    found, begin = {}, 0
    for owner, end in enumerate(some.ends):
        for line, length in enumerate(LENGTHS):
            for first in some.exists[line, begin:end].nonzero()[0].tolist():
                place = begin + first
                assert some.owner[place] == owner
                sums = some.sums[0, line, place], some.sizes[line, place]
                found[owner, first, length] = sums
        begin = end
    wanted = {}
    for owner in range(4):
        mine = [row for row in rows if row[0] == owner]
        most = max((row[1] for row in mine), default=0)
        for length in LENGTHS:
            for first in range(1, most - length + 2):
                inside = [r[2] for r in mine if r[1] == 0 or first <= r[1] < first + length]
                if length < most:
                    wanted[owner, first, length] = (sum(inside), len(inside))
    assert found == wanted


@given(st.floats(-20, 20), st.floats(-20, 20))
def test_a_passage_only_raises(joint, lead):
    """The score rises with the lead of the passage, and is never lower than without."""
    roles = ("ham", "spam")
    before, after = (0.0, joint), scoring.raised((0.0, joint), lead, roles)
    assert after[1] >= before[1]
    assert after[0] == before[0]
    assert scoring.raised((0.0, joint), lead + 0.1, roles)[1] >= after[1]
    if lead >= scoring.FULL:
        assert after[1] == pytest.approx(max(joint, lead), rel=1e-12)
