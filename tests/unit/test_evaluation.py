"""Evaluation: the protocols keep their promises and can be had again, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from spamnb.errors import UserError
from spamnb.service.evaluation import Options, by_time, evaluate, shuffled

QUICK = Options(seed=3, resamples=10)


def message(number, word, subject=""):
    head = f"From: a{number}@example.org\nSubject: {subject or word} {number}\n"
    return f"{head}Message-ID: <{number}@x.test>\n\n{word} text number {number}\n".encode()


def corpus(count=40):
    """Ham and spam that share nothing but their form."""
    return [
        (message(i, "cheap" if i % 2 else "meeting"), "spam" if i % 2 else "ham")
        for i in range(count)
    ]


@pytest.mark.parametrize("protocol", ["online", "holdout", "folds"])
def test_messages_that_differ_are_told_apart(protocol):
    """Every protocol finds the difference between two plain classes."""
    outcome = evaluate(corpus(), replace(QUICK, protocol=protocol))
    assert outcome.report.auc_complement_percent < 15
    judged = {"online": 40, "holdout": 14, "folds": 40}[protocol]
    assert outcome.report.corpus.ham + outcome.report.corpus.spam == judged


def test_the_same_seed_gives_the_same_figures():
    """An evaluation can be had again, bit for bit."""
    first, second = evaluate(corpus(), QUICK), evaluate(corpus(), QUICK)
    assert first.judged.log_odds.tobytes() == second.judged.log_odds.tobytes()
    assert first.report == second.report


def test_online_judges_before_it_learns():
    """The first message is judged by a model that knows nothing, whatever it is."""
    for messages in (corpus(), [(raw, "ham" if s == "spam" else "spam") for raw, s in corpus()]):
        judged = evaluate(messages, QUICK).judged
        assert judged.probability[0] == 0.5
        assert judged.log_odds[0] == 0.0


def test_online_knows_nothing_of_what_comes_later():
    """The judgement on a message depends on those before it alone."""
    short = evaluate(corpus(20), QUICK).judged
    long = evaluate(corpus(40), QUICK).judged
    assert np.array_equal(long.log_odds[:20], short.log_odds)


def test_feedback_on_errors_teaches_less(monkeypatch):
    """With feedback on errors what is surely right is not taught."""
    taught = []
    from spamnb.service.learner import Learner

    real = Learner.run

    def counted(self, view, lessons, **more):
        taught.extend(lessons)
        return real(self, view, lessons, **more)

    monkeypatch.setattr(Learner, "run", counted)
    evaluate(corpus(), QUICK)
    assert len(taught) == 40
    taught.clear()
    evaluate(corpus(), replace(QUICK, feedback="errors"))
    assert 0 < len(taught) < 40


def test_noise_turns_labels_that_are_taught_but_not_the_truth():
    """Wrong labels are taught; the score is against the right ones."""
    clean = evaluate(corpus(), QUICK)
    noisy = evaluate(corpus(), replace(QUICK, noise=0.4, noise_seed=5))
    assert np.array_equal(clean.judged.truth, noisy.judged.truth)
    assert noisy.report.auc_complement_percent > clean.report.auc_complement_percent
    again = evaluate(corpus(), replace(QUICK, noise=0.4, noise_seed=5))
    other = evaluate(corpus(), replace(QUICK, noise=0.4, noise_seed=6))
    assert np.array_equal(again.judged.log_odds, noisy.judged.log_odds)
    assert not np.array_equal(other.judged.log_odds, noisy.judged.log_odds)


@pytest.mark.parametrize("kind", ["multinomial", "bernoulli"])
def test_the_classical_models_can_be_evaluated(kind):
    """Every kind of model goes through the same door."""
    assert evaluate(corpus(), replace(QUICK, kind=kind)).report.auc_complement_percent < 20


def test_the_order_comes_from_names_and_seed_alone():
    """How the files were found, and in which folder they lie, changes nothing."""
    named = [(f"{i:03}.eml", (raw, label)) for i, (raw, label) in enumerate(corpus())]
    assert shuffled(named, 7) == shuffled(reversed(named), 7)
    assert shuffled(named, 7) != shuffled(named, 8)
    twins = [("1", (b"a", "spam")), ("1", (b"b", "ham"))]
    assert shuffled(twins, 1) == shuffled(reversed(twins), 1)


def test_by_time_follows_the_newest_received_then_the_date():
    """Arrival is what the nearest server wrote; senders' clocks come second."""
    received = b"Received: from a by b;\n\t6 May 2024 10:00:00 +0200\nDate: 3 May 2030 1:0:0\n\n"
    dated = b"Date: Mon, 6 May 2024 09:30:00 +0000\r\n\r\n"
    nothing = b"Subject: x\n\nDate: Mon, 6 May 1990 09:30:00 +0000\n"
    absurd = b"Date: Mon, 6 May 99999999999 09:30:00 +0000\n\n"
    named = [("c", (dated, "ham")), ("b", (received, "spam")), ("z", (nothing, "ham")),
             ("a", (absurd, "ham"))]  # fmt: skip
    assert [raw for raw, _ in by_time(named)] == [absurd, nothing, received, dated]


@pytest.mark.parametrize("messages", [[], corpus()[::2], corpus(6)])
def test_what_cannot_be_judged_is_the_users_mistake(messages):
    """One class alone, or hardly any messages, give no figures but an error."""
    with pytest.raises(UserError, match="too few"):
        evaluate(messages, QUICK)


def test_foreign_labels_are_refused():
    """Only ham and spam have measures."""
    with pytest.raises(UserError, match="work"):
        evaluate([*corpus(), (b"a: b\n\n", "work")], QUICK)


def test_the_figures_have_the_promised_names():
    """`evaluate --json` keeps its keys."""
    plain = evaluate(corpus(), replace(QUICK, order="shuffle")).as_dict()
    promised = (
        "corpus protocol order seed auc_complement_percent auc_complement_interval_percent "
        "ham_lost_percent spam_missed_percent lam_percent spam_missed_percent_at_ham_lost "
        "calibration_error brier seconds messages_per_second cpu_seconds"
    )
    assert set(promised.split()) <= plain.keys()
    assert plain["corpus"] == {"ham": 20, "spam": 20}
    assert set(plain["spam_missed_percent_at_ham_lost"]) == {"0.1", "1"}


def test_progress_is_told_to_the_end():
    """A bar that follows it ends full."""
    seen = []
    evaluate(corpus(), replace(QUICK, progress=lambda done, total: seen.append((done, total))))
    assert seen[-1] == (40, 40)


@pytest.mark.full
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
