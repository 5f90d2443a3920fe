"""Scoring: clues add up to the score, in every way of calling it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.memory_store import MemoryStore

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.scoring import score_examples
from spamnb.model.costs import KINDS
from spamnb.model.events import BIAS_ONE
from spamnb.model.scoring import (
    COMMON,
    KNOWN,
    SHARE,
    correction_weights,
    joint_lead,
    maturity,
    probabilities,
)

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
THREE = ("ham", "spam", "list")
CLOSE = 1e-9


def sample(side, start, stop):
    return [path.read_bytes() for path in sorted((SAMPLE / side).iterdir())[start:stop]]


NEW = sample("ham", 60, 75) + sample("spam", 60, 75)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=[("ham", "spam"), THREE], ids=["two", "three"])
def labels(request):
    return request.param


def teach(model):
    """Sixty messages of each side; with three labels every third ham is from a list."""
    for number, (ham, spam) in enumerate(
        zip(sample("ham", 0, 60), sample("spam", 0, 60), strict=True)
    ):
        listed = "list" in model.labels and number % 3 == 0
        model.learn(ham, "list" if listed else "ham")
        model.learn(spam, "spam")


@pytest.fixture(scope="module")
def model(tmp_path_factory, kind, labels):
    folder = tmp_path_factory.mktemp("judging")
    with Filter.open(folder, create=True, recipe=new_recipe(kind, labels)) as model:
        teach(model)
        yield model


def added_up(verdict):
    return sum(clue.nats for clue in verdict.clues()) + verdict.bias


def test_clues_and_bias_make_the_log_odds(model):
    """All clues plus the bias are the log-odds to twelve digits, whatever the kind and labels."""
    for verdict in model.score_many(NEW):
        size = abs(verdict.bias) + sum(abs(clue.nats) for clue in verdict.clues())
        assert abs(added_up(verdict) - verdict.log_odds) < 1e-12 * max(size, 1)


def test_the_strongest_clues_come_first(model):
    """clues(n) is the beginning of clues(), by size whatever the sign."""
    verdict = model.score(NEW[0])
    sizes = [abs(clue.nats) for clue in verdict.clues()]
    assert sizes == sorted(sizes, reverse=True)
    assert verdict.clues(3) == verdict.clues()[:3]
    assert len(verdict.clues()) == sum(map(len, verdict_ids(model, NEW[0])))


def test_only_what_is_asked_for_is_named(model):
    """clues(n) looks up n texts, however many features the message has."""
    feature_batch = model.reader.feature_batch([NEW[0]])
    features = feature_batch.features
    named = []

    class Counting:
        def __getattr__(self, name):
            return getattr(features, name)

        def word(self, row):
            named.append(row)
            return features.word(row)

    verdict = model.score_batches([feature_batch._replace(features=Counting())])[0]
    assert len(verdict.clues(5)) == len(named) == 5
    assert added_up(verdict) == pytest.approx(verdict.log_odds, abs=CLOSE)
    assert verdict.clue_count == len(verdict.clues()) > 5


def test_texts_are_looked_up_only_for_an_explained_verdict(model):
    """A verdict from ids alone, as corrections need it, reads no vocabulary and has no clues."""
    example = model.example(NEW[0])

    class Unnamed:
        def __init__(self, view):
            self.view = view

        def __getattr__(self, name):
            return getattr(self.view, name)

        def words(self, *_):
            raise AssertionError("texts were looked up")

    with model.store.read() as view:
        [verdict] = score_examples(model.recipe, model.costs, Unnamed(view), [example])
        [told] = score_examples(model.recipe, model.costs, view, [example], explained=True)
    assert verdict == told
    assert (verdict.clues(), verdict.clue_count) == ([], 0)
    assert told.clue_count == len(told.clues()) > 5


def verdict_ids(model, raw):
    return model.example(raw).ids


def test_one_by_one_and_together_give_the_same_score(model):
    """A message scores the same alone, among others, and in any company."""
    together = [verdict.log_odds for verdict in model.score_many(NEW)]
    backwards = [verdict.log_odds for verdict in model.score_many(NEW[::-1])]
    alone = [model.score(raw).log_odds for raw in NEW]
    assert together == pytest.approx(alone, abs=CLOSE)
    assert backwards[::-1] == pytest.approx(alone, abs=CLOSE)


def test_explained_by_reference_the_score_is_the_same(model):
    """Without the body, from the ids in the history: same score, same clues with their texts."""
    for raw in NEW[::5]:
        verdict = model.score(raw)
        explanation = model.explain(verdict.digest.hex())
        assert explanation.log_odds == pytest.approx(verdict.log_odds, abs=CLOSE)
        assert added_up(explanation) == pytest.approx(explanation.log_odds, abs=CLOSE)
        assert model.explain(raw).log_odds == pytest.approx(verdict.log_odds, abs=CLOSE)


def test_explained_by_reference_occurrences_count(tmp_path):
    """The same for models that count occurrences."""
    made = replace(new_recipe("multinomial"), occurrences=True)
    with Filter.open(tmp_path / "m", create=True, recipe=made) as model:
        teach(model)
        verdict = model.score(NEW[0])
        explanation = model.explain(verdict.digest.hex())
        assert explanation.log_odds == pytest.approx(verdict.log_odds, abs=CLOSE)


def test_occurrences_add_up_too(tmp_path):
    """Clues of repeated words carry their number."""
    made = replace(new_recipe("multinomial"), occurrences=True)
    with Filter.open(tmp_path / "m", create=True, recipe=made) as model:
        teach(model)
        for verdict in model.score_many(NEW):
            assert added_up(verdict) == pytest.approx(verdict.log_odds, abs=CLOSE)


def test_clues_by_reference_have_the_texts_of_the_words(model):
    """The vocabulary has the same words as the message, for all that were learnt."""
    raw = sample("spam", 0, 1)[0]
    verdict = model.score(raw)
    explanation = model.explain(verdict.signature)
    pairs = zip(sorted(explanation.clues()), sorted(verdict.clues()), strict=True)
    for by_reference, by_body in pairs:
        assert by_reference[:2] == by_body[:2]
        assert by_reference.nats == pytest.approx(by_body.nats, abs=CLOSE)


def test_a_verdict_outlives_the_model(tmp_path, kind, labels):
    """Clues are worked out from what the verdict keeps: no store is asked."""
    with Filter.open(tmp_path / "m", create=True, recipe=new_recipe(kind, labels)) as model:
        teach(model)
        verdicts = list(model.score_many(NEW))
        for raw in NEW:
            model.learn(raw, "ham")
    for verdict in verdicts:
        assert added_up(verdict) == pytest.approx(verdict.log_odds, abs=CLOSE)


def test_probabilities_are_those_of_the_scores(model, labels):
    """P is the softmax of z, sums to one, and the label is the likeliest."""
    for verdict in model.score_many(NEW):
        P = verdict.probabilities
        assert list(P) == list(labels)
        assert sum(P.values()) == pytest.approx(1)
        assert max(P, key=P.get) == verdict.label
        assert verdict.probability == pytest.approx(P["spam"])
        assert list(P.values()) == pytest.approx(list(probabilities(np.array(verdict.z))))


def test_a_signed_verdict_differs_by_its_signature_alone(model):
    """A signed verdict has the same fields and clues as before."""
    for verdict in model.score_many(NEW[:2]):
        signed = verdict.signed("sabc")
        assert signed == replace(verdict, signature="sabc")
        assert signed.clues(3) == verdict.clues(3)
        assert signed.clues(3)
        assert replace(signed, signature="") == verdict


def test_log_odds_are_those_of_spam_or_of_the_most_probable_label(model):
    """Two labels: spam against ham, of either sign. More: the winner's lead over the next."""
    for verdict in model.score_many(NEW):
        ranked = sorted(verdict.z, reverse=True)
        expected = ranked[0] - ranked[1]
        if len(verdict.labels) == 2:
            expected = verdict.z[1] - verdict.z[0]
        assert verdict.log_odds == pytest.approx(expected, abs=CLOSE)


def test_spam_against_all_others_is_what_decisions_go_by(model):
    """However many labels there are, it is the log-odds of the probability of spam."""
    for verdict in model.score_many(NEW):
        probability = 1 / (1 + np.exp(-np.clip(verdict.spam_log_odds, -700, 700)))
        assert probability == pytest.approx(verdict.probabilities["spam"], abs=CLOSE)
        if len(verdict.labels) == 2:
            assert verdict.spam_log_odds == verdict.log_odds
        foreign = replace(verdict, labels=("a", "b", "c")[: len(verdict.labels)])
        assert foreign.spam_log_odds == float("-inf")


def test_a_new_model_has_no_opinion(tmp_path, kind, labels):
    """Before any training every label is as likely as the others and nothing stands behind it."""
    with Filter.open(tmp_path / "m", create=True, recipe=new_recipe(kind, labels)) as model:
        verdict = model.score(NEW[0])
    assert list(verdict.probabilities.values()) == pytest.approx([1 / len(labels)] * len(labels))
    assert verdict.evidence == 0
    assert verdict.decision in ("deliver", "unsure")


@pytest.mark.parametrize("raw", [b"", b"\n", b"\xff\x00", b"a" * 100_000, b"Subject:\n\n"])
def test_anything_gets_a_verdict(model, raw):
    """Whatever the bytes: a finite score, and clues that add up."""
    verdict = model.score(raw)
    assert np.isfinite(verdict.z).all()
    assert added_up(verdict) == pytest.approx(verdict.log_odds, abs=CLOSE)


def test_evidence_is_the_share_of_known_features(tmp_path):
    """Messages of the rarest label, times how much of this message is known."""
    with Filter.open(tmp_path / "m", create=True) as model:
        teach(model)
        model.forget(sample("ham", 0, 1)[0])
        known = model.score(sample("spam", 0, 1)[0])
        foreign = model.score(b"Zxqv: wvut\n\nqwxyz zyxwq xyxyx\n")
    assert known.evidence == pytest.approx(59)
    assert foreign.evidence < known.evidence / 2


def test_the_bias_is_the_score_of_a_message_without_features(model, kind):
    """The default's bias is the learnt one, calibrated; the classical models' is their prior."""
    verdict = model.score(NEW[0])
    with model.store.read() as view:
        totals = view.totals()
    if kind == "corrected" and len(model.labels) == 2:
        of_group = (totals.bias[:, 1] - totals.bias[:, 0]) / BIAS_ONE
        lead = abs(verdict.log_odds)
        calibration = lead / joint_lead(lead, maturity(totals))
        assert verdict.bias == pytest.approx(calibration * SHARE * of_group.sum())
    if kind == "multinomial" and len(model.labels) == 2:
        N = totals.messages
        assert verdict.bias == pytest.approx(np.log(N[1]) - np.log(N[0]), abs=1e-6)


@pytest.mark.parametrize("words", [100, 1_000])
def test_unknown_words_around_a_payload_thin_it_out_only_so_far(words):
    """However many unknown words, each clue keeps at least 1 / KNOWN of its evidence."""
    with Filter(MemoryStore(replace(new_recipe(), eta=0.0))) as model:
        teach(model)
        payload = b"From: b@y.test\nSubject: cheap offer\n\ncheap pills, order now\n"
        added = " ".join(f"qx{number}zv" for number in range(words))
        plain, salad = (
            {clue[:2]: clue.nats for clue in model.score(raw).clues() if clue.nats}
            for raw in (payload, payload + added.encode() + b"\n")
        )
        text = [name for name in plain if name[0] in ("body", "subject")]
        assert text
        assert all(abs(salad[name]) > abs(plain[name]) / KNOWN - CLOSE for name in text)


def test_an_expert_learns_from_its_own_mistake(tmp_path):
    """The group that was wrong about a message moves further than the one that was right."""
    words = b"cheap winner lottery prize casino bonus money"
    ham = b"From: Ann Lee <ann@x.test>\nMessage-ID: <a.b.c@x.test>\nUser-Agent: Mutt"
    spam = b"Message-ID: <77@99-z.test>\nX-Mailer: Bulk 9\nFrom: 1234@y.test"
    with Filter.open(tmp_path / "m", create=True) as model:
        for number in range(30):
            model.learn(b"%s\n\nminutes agenda %d\n" % (ham, number), "ham")
            model.learn(b"%s\n\npills offer %s %d\n" % (spam, words, number), "spam")
        receipt = model.learn(b"%s\n\npills offer %s\n" % (ham, words), "spam")
        with model.store.read() as view:
            event = view.event(receipt.event)
    written, sent = (
        steps[1] * max(len(ids), 1) ** 0.5
        for steps, ids in zip(event.delta.steps, event.ids, strict=True)
    )
    assert sent > 2 * written > 0
    assert event.delta.bias[1, 1] > event.delta.bias[0, 1]


def test_a_correction_counts_less_the_more_every_label_contains_its_feature():
    """In full for features of one label alone, and by the label that contains it least."""
    counts = np.array([[0, 1, 100, 100, 100], [0, 0, 0, 10, 50]], np.float64)
    weights = correction_weights(np.array([100, 50]), counts)
    assert weights == pytest.approx([1, 1, 1, 1 / (1 + COMMON / 5), 1 / (1 + COMMON)], abs=1e-15)


def test_without_messages_of_a_label_corrections_count_in_full():
    """A model that knows one label alone learns it as any other."""
    counts = np.array([[3.0, 1.0], [0.0, 0.0]])
    assert correction_weights(np.array([3, 0]), counts).tolist() == [1, 1]
