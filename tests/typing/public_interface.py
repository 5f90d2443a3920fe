"""A program that uses the public interface; `test_public_types` checks its types with mypy."""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import spamnb
from spamnb import Filter, Receipt, SpamnbError, Verdict
from spamnb.bayes import (
    BayesError,
    BeliefNetwork,
    CategoricalNB,
    Derivation,
    GaussianDiscriminant,
    GaussianNB,
    LearntNetwork,
    MixedNB,
    Node,
    RocCurve,
    bayes_error,
    conditional_risk,
    cut,
    error_probability,
    minimum_risk,
    roc_curve,
    search_structure,
    zero_one,
)

Floats = NDArray[np.float64]


def use_filter(raw: bytes) -> None:
    """Score, learn, correct, forget and undo."""
    with Filter.open("model/", create=True) as f:
        assert_type(f, Filter)
        verdict = f.score(raw)
        assert_type(verdict, Verdict)
        assert_type(verdict.label, str)
        assert_type(verdict.probability, float)
        assert_type(verdict.probabilities, dict[str, float])
        assert_type(verdict.clues(5)[0].token, str)
        assert_type(f.score_many([raw]), Iterator[Verdict])
        assert_type(f.explain(verdict.signature), Verdict)
        receipt = f.correct(raw, "ham")
        assert_type(receipt, Receipt)
        assert_type(receipt.changed, bool)
        assert_type(receipt.before, str | None)
        assert_type(receipt.error, SpamnbError | None)
        for another in (f.learn(raw, "spam"), f.forget(verdict.signature), f.undo(receipt)):
            assert_type(another, Receipt)
    assert_type(spamnb.__version__, str)


def report(error: SpamnbError) -> str:
    """Every error has a hint."""
    assert_type(error.hint, str)
    return f"{error}: {error.hint}"


def use_bayes(X: Floats) -> None:
    """Methods that return the model keep its type; probabilities are arrays."""
    model = GaussianNB(var_smoothing=1e-6).fit(X, ["ham", "spam"])
    assert_type(model, GaussianNB)
    assert_type(model.learn([1.0], "ham").forget([1.0], "ham"), GaussianNB)
    assert_type(model.merge(GaussianNB()), GaussianNB)
    assert_type(model.predict_proba(X), Floats)
    assert_type(model.predict(X), NDArray[Any])
    assert_type(model.theta_, Floats)
    assert_type(CategoricalNB(value_prior="marginal").fit([["a"]], [1]), CategoricalNB)
    assert_type(cut(X, X, 3, "quantile"), Floats)
    assert_type(bayes_error(X, [0, 1]), BayesError)
    assert_type(minimum_risk(model.predict_proba(X), zero_one(2)), NDArray[np.intp])
    assert_type(error_probability(X), float)
    network = BeliefNetwork([Node("rain", (True, False), [0.2, 0.8])])
    assert_type(network.log_probability({"rain": True}, "enumerate"), float)
    learnt = BeliefNetwork.fit(search_structure(X), X)
    assert_type(learnt, LearntNetwork)
    assert_type(learnt.learn({"rain": True}).merge(learnt), LearntNetwork)
    mixed = MixedNB(kinds={"age": "gaussian", "credit": CategoricalNB(m=1)})
    assert_type(mixed.fit({"age": [1], "credit": ["fair"]}, [1]), MixedNB)
    assert_type(mixed.explain([30, "fair"]), Derivation)
    assert_type(conditional_risk(X, zero_one(2, reject=0.1)), Floats)
    assert_type(roc_curve([True, False], [0.9, 0.1]), RocCurve)


def misuse(f: Filter) -> None:
    """Each line is a type error; an unused `type: ignore` fails the check."""
    f.score("text")  # type: ignore[arg-type]
    f.correct(b"", 1)  # type: ignore[arg-type]
    f.undo("event")  # type: ignore[arg-type]
    f.score(b"").absent  # type: ignore[attr-defined]  # noqa: B018
    GaussianDiscriminant(covariance="round")  # type: ignore[arg-type]
    GaussianNB().merge(CategoricalNB())  # type: ignore[arg-type]
