"""Evaluation: each protocol scores before it trains, and is reproducible bit for bit."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spamnb.errors import CorpusError, UserError
from spamnb.lab.evaluate import Options, by_time, evaluate, shuffled
from spamnb.lab.runs import (
    as_given,
    index_of,
    indexed,
    read_each,
    sorted_mail,
    units_by_time,
)
from spamnb.model.costs import Costs

QUICK = Options(seed=3, resamples=10)


def message(number, word, subject=""):
    head = f"From: a{number}@example.org\nSubject: {subject or word} {number}\n"
    return f"{head}Message-ID: <{number}@x.test>\n\n{word} text number {number}\n".encode()


def corpus(count=40):
    """Ham and spam without a word in common."""
    return [
        (message(i, "cheap" if i % 2 else "meeting"), "spam" if i % 2 else "ham")
        for i in range(count)
    ]


@pytest.mark.parametrize(("protocol", "bound"), [("online", 18), ("holdout", 1), ("folds", 1)])
def test_messages_that_differ_are_distinguished(protocol, bound):
    """Every protocol finds the difference between two plain classes.

    Online, an empty model scores the first messages: 1-AUC is 16.75 %; otherwise it is 0.
    """
    outcome = evaluate(corpus(), replace(QUICK, protocol=protocol))
    assert outcome.report.auc_complement_percent < bound
    results = {"online": 40, "holdout": 14, "folds": 40}[protocol]
    assert outcome.report.corpus.ham + outcome.report.corpus.spam == results


def test_the_same_seed_gives_the_same_figures():
    """The same seed gives the same scores, bit for bit."""
    first, second = evaluate(corpus(), QUICK), evaluate(corpus(), QUICK)
    assert first.results.log_odds.tobytes() == second.results.log_odds.tobytes()
    assert first.report == second.report


def test_online_judges_before_it_learns():
    """The first message is scored by an empty model."""
    for messages in (corpus(), [(raw, "ham" if s == "spam" else "spam") for raw, s in corpus()]):
        results = evaluate(messages, QUICK).results
        assert results.probability[0] == 0.5
        assert results.log_odds[0] == 0.0


def test_online_knows_nothing_of_what_comes_later():
    """The score of a message depends only on earlier messages."""
    short = evaluate(corpus(20), QUICK).results
    long = evaluate(corpus(40), QUICK).results
    assert np.array_equal(long.log_odds[:20], short.log_odds)


def test_feedback_on_errors_teaches_less(monkeypatch):
    """With feedback on errors, a correct and confident verdict is not trained."""
    taught = []
    from spamnb.engine.learner import Learner

    real = Learner.run

    def counted(self, view, requests, **more):
        taught.extend(requests)
        return real(self, view, requests, **more)

    monkeypatch.setattr(Learner, "run", counted)
    evaluate(corpus(), QUICK)
    assert len(taught) == 40
    taught.clear()
    evaluate(corpus(), replace(QUICK, feedback="errors"))
    assert 0 < len(taught) < 40


def test_noise_turns_labels_that_are_taught_but_not_the_truth():
    """Noise changes the labels that are trained; metrics use the right ones."""
    clean = evaluate(corpus(), QUICK)
    noisy = evaluate(corpus(), replace(QUICK, noise=0.4, noise_seed=5))
    assert np.array_equal(clean.results.truth, noisy.results.truth)
    assert noisy.report.auc_complement_percent > clean.report.auc_complement_percent
    again = evaluate(corpus(), replace(QUICK, noise=0.4, noise_seed=5))
    other = evaluate(corpus(), replace(QUICK, noise=0.4, noise_seed=6))
    assert np.array_equal(again.results.log_odds, noisy.results.log_odds)
    assert not np.array_equal(other.results.log_odds, noisy.results.log_odds)


@pytest.mark.parametrize("kind", ["multinomial", "bernoulli"])
def test_the_classical_models_can_be_evaluated(kind):
    """Every kind of model can be evaluated: 1-AUC is 5.0 and 5.25 %."""
    assert evaluate(corpus(), replace(QUICK, kind=kind)).report.auc_complement_percent < 7


def test_the_order_comes_from_names_and_seed_alone():
    """The shuffled order does not depend on folders or on the order of discovery."""
    named = [(f"{i:03}.eml", (raw, label)) for i, (raw, label) in enumerate(corpus())]
    assert shuffled(named, 7) == shuffled(reversed(named), 7)
    assert shuffled(named, 7) != shuffled(named, 8)
    twins = [("1", (b"a", "spam")), ("1", (b"b", "ham"))]
    assert shuffled(twins, 1) == shuffled(reversed(twins), 1)


def test_by_time_follows_the_newest_received_then_the_date():
    """The time of arrival is that of the newest Received; Date comes second."""
    received = b"Received: from a by b;\n\t6 May 2024 10:00:00 +0200\nDate: 3 May 2030 1:0:0\n\n"
    dated = b"Date: Mon, 6 May 2024 09:30:00 +0000\r\n\r\n"
    nothing = b"Subject: x\n\nDate: Mon, 6 May 1990 09:30:00 +0000\n"
    absurd = b"Date: Mon, 6 May 99999999999 09:30:00 +0000\n\n"
    named = [("c", (dated, "ham")), ("b", (received, "spam")), ("z", (nothing, "ham")),
             ("a", (absurd, "ham"))]  # fmt: skip
    assert [raw for raw, _ in by_time(named)] == [absurd, nothing, received, dated]


@pytest.mark.parametrize("messages", [[], corpus()[::2], corpus(6)])
def test_what_cannot_be_judged_is_the_users_mistake(messages):
    """One class alone, or too few messages, are refused."""
    with pytest.raises(UserError, match="too few"):
        evaluate(messages, QUICK)


def test_foreign_labels_are_refused():
    """Labels other than ham and spam are refused."""
    with pytest.raises(UserError, match="work"):
        evaluate([*corpus(), (b"a: b\n\n", "work")], QUICK)


def test_the_figures_have_the_documented_names():
    """`evaluate --json` keeps its keys."""
    plain = evaluate(corpus(), replace(QUICK, order="shuffle")).as_dict()
    documented = (
        "corpus protocol order seed auc_complement_percent auc_complement_interval_percent "
        "ham_lost_percent spam_missed_percent lam_percent spam_missed_percent_at_ham_lost "
        "calibration_error brier seconds messages_per_second cpu_seconds"
    )
    assert set(documented.split()) <= plain.keys()
    assert plain["corpus"] == {"ham": 20, "spam": 20}
    assert set(plain["spam_missed_percent_at_ham_lost"]) == {"0.1", "1"}


def test_how_far_from_what_is_possible():
    """The result has bounds on the least possible error, or None for too little mail."""
    assert evaluate(corpus(), QUICK).as_dict()["bayes_error_bound_percent"] is None
    found = evaluate(corpus(240), QUICK).as_dict()["bayes_error_bound_percent"]
    assert found["messages"] == 120
    assert found["scores_at_least"] <= found["error"]
    assert found["at_most"] <= found["error"]


def test_progress_is_reported_to_the_end():
    """The last progress report is complete."""
    seen = []
    evaluate(corpus(), replace(QUICK, progress=lambda done, total: seen.append((done, total))))
    assert seen[-1] == (40, 40)


def test_delayed_labels_come_late_and_all_but_the_last_come():
    """With a delay of 10 a label is trained 10 messages later; the last ten never."""
    late = evaluate(corpus(), replace(QUICK, feedback="delayed", delay=10)).results
    assert (late.log_odds[:11] == 0).all()
    assert late.log_odds[12] != 0
    prompt = evaluate(corpus(30), QUICK).results
    assert late.log_odds[30] == pytest.approx(_asked_after(20, 30))
    assert prompt.log_odds[20] == pytest.approx(_asked_after(20, 20))


def _asked_after(taught, asked):
    """Log-odds of a message of the corpus after training the given number."""
    options = replace(QUICK, protocol="cross", tested=len(corpus()) - taught)
    return evaluate(corpus(), options).results.log_odds[asked - taught]


def test_partial_feedback_teaches_a_share_chosen_by_the_seed():
    """A share of 1 is full feedback, 0 is none, and the seed determines the choice."""
    full = evaluate(corpus(), QUICK).results.log_odds
    assert np.array_equal(
        evaluate(corpus(), replace(QUICK, feedback="partial", share=1.0)).results.log_odds, full
    )
    none = replace(QUICK, feedback="partial", share=0.0)
    assert not evaluate(corpus(), none).results.log_odds.any()
    some = replace(QUICK, feedback="partial", share=0.5)
    first, second = (evaluate(corpus(), some).results.log_odds for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, full)


def test_folds_on_two_processes_are_the_folds_on_one():
    """Scores do not depend on the number of processes."""
    options = replace(QUICK, protocol="folds")
    alone = evaluate(corpus(), options).results
    shared = evaluate(corpus(), replace(options, jobs=3)).results
    assert np.array_equal(alone.log_odds, shared.log_odds)


def test_cross_judges_only_the_other_collection():
    """Cross: the first part is trained, the rest is scored and never trained."""
    options = replace(QUICK, protocol="cross", tested=15)
    results = evaluate(corpus(), options).results
    assert len(results.truth) == 15
    turned = corpus()[:25] + [(raw, label) for raw, label in corpus()[25:]][::-1]
    again = evaluate(turned, options).results
    assert np.array_equal(results.log_odds, again.log_odds[::-1])


def test_messages_may_be_read_one_by_one():
    """A generator of messages gives the same result as a list."""
    listed = evaluate(corpus(), QUICK).results.log_odds
    assert np.array_equal(evaluate(iter(corpus()), QUICK).results.log_odds, listed)


def test_decisions_and_cost_add_up():
    """Every message has one decision; the mean cost follows from the cost table."""
    outcome = evaluate(corpus(), QUICK)
    details, table = outcome.details(), Costs().table()
    counts = [[d["ham"], d["spam"]] for d in details["decisions"].values()]
    assert np.sum(counts) == 40
    assert details["cost"]["mean"] == pytest.approx((np.array(counts) * table).sum() / 40)
    assert details["cost"]["unfiltered"] == pytest.approx(0.5)
    assert 0 <= details["error_expected_percent"] <= 50
    assert sum(part["messages"] for part in details["reliability"]) == 40
    assert details["learning_curve"][-1]["messages"] == 40


def test_scores_name_every_message():
    """Digest, truth and score of each message, as JSON can hold them, also before any training."""
    scores = evaluate(corpus(), replace(QUICK, kind="bernoulli")).scores()
    assert len({row["id"] for row in scores}) == 40
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores
    assert [row["spam"] for row in scores] == [i % 2 == 1 for i in range(40)]


def test_the_index_of_a_collection_is_read_in_its_order(tmp_path):
    """The layout of TREC's spam track: `spam ../data/inmail.1`, in the order of arrival."""
    (tmp_path / "full").mkdir()
    (tmp_path / "data").mkdir()
    lines = []
    for number, (raw, label) in enumerate(corpus(12)):
        (tmp_path / "data" / f"inmail.{number}").write_bytes(raw)
        lines.append(f"{label} ../data/inmail.{number}\n")
    index = tmp_path / "full" / "index"
    index.write_text("".join(lines))
    assert index_of(str(tmp_path)) == index_of(str(index)) == index
    read = list(read_each(as_given(indexed(index)), pytest.fail))
    assert read == corpus(12)
    assert index_of(str(tmp_path / "data")) is None
    index.write_text("spam ../data/inmail.0\nmaybe ../data/inmail.1\n")
    with pytest.raises(CorpusError, match="line 2"):
        indexed(index)


def test_what_cannot_be_read_is_reported_and_left_out(tmp_path):
    """A missing file of an index costs its message, not the evaluation."""
    index = tmp_path / "index"
    index.write_text("spam nowhere\n")
    unreadable = []
    assert list(read_each(as_given(indexed(index)), unreadable.append)) == []
    assert "nowhere" in unreadable[0]


def test_files_are_brought_in_order_of_time_by_their_heads(tmp_path):
    """`units_by_time` orders files as `by_time` orders messages in memory."""
    for name, day in (("a", 9), ("b", 3), ("c", 6)):
        (tmp_path / name).write_bytes(b"Date: %d May 2024 10:00:00 +0000\n\nx" % day)
    ordered = units_by_time(sorted_mail(str(tmp_path), "ham"))
    assert [Path(unit.path).name for unit, _ in ordered] == ["b", "c", "a"]


@pytest.mark.timed
def test_the_spamassassin_corpus_takes_its_time_and_no_more(shared_corpora):
    """6,046 messages in at most 20 s of processor time, with 1-AUC below 0.1 %."""
    folder = shared_corpora / "spamassassin"
    if not folder.is_dir():
        pytest.skip("no SpamAssassin corpus")
    named = [
        (path.name, (path.read_bytes(), label))
        for label in ("ham", "spam")
        for path in (folder / label).iterdir()
    ]
    outcome = evaluate(shuffled(named, 7), Options(seed=7))
    assert outcome.cpu_seconds < 20
    assert outcome.report.auc_complement_percent < 0.1
