"""A prior carries what is alike everywhere, weighs little, and nothing malformed is added."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from support.memory_store import MemoryStore

from spamnb.engine import prior as priors
from spamnb.engine.filter import OWNER, Filter, new_recipe
from spamnb.engine.prior import (
    features_of_priors,
    is_prior,
    make_prior,
    prior_load,
    read_prior,
)
from spamnb.engine.values import Learn
from spamnb.errors import RefusedError, UserError
from spamnb.maintenance.export import export
from spamnb.store import maintenance as audit

SAMPLE = Path(__file__).parents[2] / "corpora" / "sample"


def empty(**options):
    return Filter(MemoryStore(new_recipe(**options)))


def mail():
    pairs = zip(*(sorted((SAMPLE / label).iterdir()) for label in ("ham", "spam")), strict=True)
    return [(path.read_bytes(), label) for pair in pairs for label, path in enumerate(pair)]


def teach(model, rows):
    requests = [Learn(model.example(raw), label, OWNER, 1) for raw, label in rows]
    assert all(receipt.error is None for receipt in model.teach(requests))


@pytest.fixture(scope="module")
def trained():
    """Give a model of the sample."""
    model = empty()
    teach(model, mail())
    return model


@pytest.fixture(scope="module")
def text(trained):
    """Give the prior of the sample."""
    return "".join(make_prior(trained.store))


def add(model, text):
    return model.run(prior_load(model.recipe, read_prior(io.StringIO(text)), OWNER))


def features(model):
    with model.store.read() as view:
        return audit.collect(view.features(), 2)


def test_every_feature_of_a_prior_is_found_under_another_key(text):
    """The ids of the prior under a new key are ids that mail has under this key."""
    model = empty()
    add(model, text)
    ids, records = features(model)
    assert len(ids) == json.loads(text.partition("\n")[0])["features"] > 400
    seen = np.unique(np.concatenate([i for raw, _ in mail() for i in model.example(raw).ids]))
    assert np.isin(ids, seen).all()
    assert (records.w > 0).any(axis=0).all()
    assert not records.n.any()
    with model.store.read() as view:
        assert audit.check(view) == []
        assert {word.id for word in view.all_words()} == set(ids.tolist())


def test_a_new_model_with_a_prior_knows_ham_from_spam(text):
    """Without own training, spam of the same kind has the higher scores."""
    model = empty()
    add(model, text)
    P = [[], []]
    for raw, label in mail()[:100]:
        P[label].append(model.score(raw).log_odds)
    assert np.median(P[1]) > np.median(P[0]) + 0.5


def test_a_model_of_three_labels_has_a_prior_for_its_like():
    """Counts and corrections are kept label by label."""
    labels = ("ham", "spam", "news")
    model, other = empty(labels=labels), empty(labels=labels)
    head = "From: a@b.example\nMessage-ID: <{0}@b.example>\nSubject: kind{1}\n\nword{1} common"
    teach(model, [(head.format(n, n % 3).encode(), n % 3) for n in range(90)])
    add(other, "".join(make_prior(model.store)))
    verdict = other.score(head.format(100, 2).encode())
    assert verdict.label == "news"


def test_one_undo_takes_a_prior_back(text):
    """A prior counts as no message; after the undo no feature of it is left."""
    model = empty()
    receipt = add(model, text)
    with model.store.read() as view:
        assert features_of_priors(view) == len(features(model)[0])
        assert view.totals().messages.tolist() == [0, 0]
    model.undo(receipt)
    with model.store.read() as view:
        assert features_of_priors(view) == 0
    assert len(features(model)[0]) == 0


def test_a_clue_tells_whether_its_weight_is_that_of_the_prior(text):
    """All clues before a training; afterwards those that the trained message does not have."""
    model = empty()
    add(model, text)
    (first, _), (second, _) = mail()[:2]
    weighty = [clue for clue in model.score(first).clues() if clue.nats]
    assert weighty
    assert all(clue.prior for clue in weighty)
    model.learn(second, "spam")
    own = {clue[:2] for clue in model.score(second).clues()}
    assert own
    for clue in model.score(first).clues():
        assert not (clue.prior and clue[:2] in own)
    assert any(clue.prior for clue in model.score(first).clues())
    assert not any(clue.prior for clue in model.score(second).clues())


def test_own_training_outweighs_a_prior_that_contradicts_it(text):
    """After 400 messages with turned labels, these labels are the model's."""
    model = empty()
    add(model, text)
    turned = [(raw, 1 - label) for raw, label in mail()]
    teach(model, turned)
    right = [(model.score(raw).log_odds > 0) == bool(label) for raw, label in turned]
    assert np.mean(right) > 0.95


def test_a_prior_names_no_sender_recipient_host_or_link():
    """Features that only one site's users, hosts and lists have stay out, however frequent."""
    model = empty()
    raw = (
        "Received: from relay.hostone.example ([192.0.2.7]) by mx.hosttwo.example; x\n"
        "Return-Path: <pathuser@hosttwo.example>\nList-Id: <listname.hosttwo.example>\n"
        "Delivered-To: recipientuser@hosttwo.example\nX-Mailer: commonmailer 1\n"
        "From: Sendername Surname <senderuser@hostone.example>\nTo: recipientuser@hosttwo.example\n"
        "Message-ID: <{n}@idhost.example>\nSubject: shared subject\n\n"
        "hello shared text, Surname wrote; write to bodyuser@hostone.example or http://linkhost.example/linkpath\n"
    )
    teach(model, [(raw.format(n=n).encode(), n % 2) for n in range(60)])
    shown = "".join(make_prior(model.store))
    for word in ("shared", "commonmailer"):
        assert f'"token":"{word}"' in shown
    assert "@" not in shown.replace("a@a.a", "").replace('aa@aa.a"', "")
    people = ("pathuser", "listname", "recipientuser", "sendername", "surname", "senderuser")
    for name in (*people, "bodyuser", "idhost", "linkhost", "hostone", "hosttwo"):
        assert name not in shown.lower()


def test_a_prior_of_many_messages_has_only_frequent_features(trained, text, monkeypatch):
    """A feature of a large model must be in one of 600 messages, and one correction is limited."""
    monkeypatch.setattr(priors, "SHARE", 10)
    monkeypatch.setattr(priors, "CORRECTION", 1 << 16)
    head, *lines = make_prior(trained.store)
    assert 0 < json.loads(head)["features"] < json.loads(text.partition("\n")[0])["features"] / 2
    assert max(abs(w) for line in lines for w in json.loads(line)["w"]) == 1 << 16


@pytest.mark.parametrize(
    "made",
    [
        lambda: empty(kind="multinomial"),
        lambda: empty(documents=True),
        lambda: empty(vocabulary=False),
        empty,
    ],
)
def test_a_model_without_mail_or_texts_has_no_prior(made):
    """Another kind, documents, no vocabulary, or too few messages: refused."""
    with pytest.raises(RefusedError):
        list(make_prior(made().store))


def test_only_a_fitting_model_takes_a_prior(text):
    """Labels and kind must be those of the prior; nothing is changed otherwise."""
    for options in ({"labels": ("spam", "ham")}, {"kind": "bernoulli"}, {"documents": True}):
        model = empty(**options)
        with pytest.raises((UserError, RefusedError)):
            add(model, text)
        assert len(features(model)[0]) == 0


def test_an_export_is_no_prior(trained, text):
    """The first line distinguishes a prior from an export, and stays readable after the test."""
    lines = io.StringIO(text)
    assert is_prior(lines)
    assert lines.read() == text
    assert not any(map(is_prior, map(io.StringIO, ["", "{}", next(export(trained.store))])))


def changed(lines, number, **values):
    lines = list(lines)
    lines[number] = json.dumps(json.loads(lines[number]) | values)
    return lines


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: [],
        lambda _: ["[" * 100_000],
        lambda _: ["x" * 5_000_000],
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0], *lines[1:-1], lines[1]],
        lambda lines: changed(lines, 0, version=2),
        lambda lines: changed(lines, 0, labels=3),
        lambda lines: changed(lines, 0, labels=["ham"]),
        lambda lines: changed(lines, 0, labels=[["ham"], ["spam"]]),
        lambda lines: changed(lines, 0, features=True),
        lambda lines: changed(lines, 1, w=[1]),
        lambda lines: changed(lines, 1, w=[1 << 80, 1]),
        lambda lines: changed(lines, 1, w=[-(1 << 23), 0]),
        lambda lines: changed(lines, 1, w=[1 << 23, 0]),
        lambda lines: changed(lines, 1, w=[0.5, 0]),
        lambda lines: changed(lines, 1, w=None),
        lambda lines: changed(lines, 1, location="from"),
        lambda lines: changed(lines, 1, location=["body"]),
        lambda lines: changed(lines, 1, location="header", name="list-id"),
        lambda lines: changed(lines, 1, token=""),
        lambda lines: changed(lines, 1, token="x" * 129),
        lambda lines: changed(lines, 1, token="x" * 9_000),
        lambda lines: changed(lines, 1, location="mark", token="a@example.org"),
        lambda lines: changed(lines, 1, location="body", token="example.org"),
        lambda lines: changed(lines, 1, token="\ud800"),
        lambda lines: changed(lines, 1, name=7),
        lambda lines: [lines[0], "[]", *lines[2:]],
        lambda lines: [lines[0], "[" * 2_000, *lines[2:]],
    ],
)
def test_what_is_no_whole_prior_is_refused(text, spoil):
    """Sizes, ranges, locations and texts are checked before anything is added."""
    lines = [line.rstrip("\n") for line in text.splitlines()]
    with pytest.raises(UserError):
        read_prior(io.StringIO("\n".join(spoil(lines))))


def test_a_prior_with_too_many_features_is_refused(text, monkeypatch):
    """No more lines are read than a prior may have."""
    monkeypatch.setattr(priors, "FEATURES", 100)
    with pytest.raises(UserError, match="101 features"):
        read_prior(io.StringIO(text))
