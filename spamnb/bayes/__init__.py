"""Naive Bayes classifiers for tables, with scikit-learn's API, plus learning and forgetting.

    from spamnb.bayes import GaussianNB

    model = GaussianNB().fit(X, y)
    model.learn(x, "spam"); model.forget(x, "spam"); model.merge(other)
    model.predict_proba(X); print(model.explain(x))

Models store exact sums: forgetting a case restores every number exactly, and merging two models
equals learning the cases of both. Belief networks learn their tables in the same way. Functions for
decisions: Bayes' rule, risk, ROC curves, the least possible error. docs/lectures.md shows all of it
with worked examples. The names in `__all__` are the public interface.
"""

from __future__ import annotations

from spamnb.bayes.categorical import (
    BernoulliNB,
    CategoricalNB,
    ComplementNB,
    MultinomialNB,
    PoissonNB,
)
from spamnb.bayes.classifier import Classifier, Derivation
from spamnb.bayes.gaussian import BinnedNB, GaussianDiscriminant, GaussianNB, KernelNB, cut
from spamnb.bayes.mixed import MixedNB
from spamnb.bayes.network import (
    AveragedOneDependence,
    BeliefNetwork,
    LearntNetwork,
    Node,
    TreeAugmentedNB,
    search_structure,
    structure_score,
)
from spamnb.bayes.risk import (
    BayesError,
    RocCurve,
    bayes_error,
    bayes_rule,
    conditional_risk,
    error_probability,
    exact_bayes_error,
    minimum_risk,
    risk_threshold,
    roc_curve,
    zero_one,
)
from spamnb.model.smoothing import log_m_estimate, m_estimate

__all__ = [
    "AveragedOneDependence",
    "BayesError",
    "BeliefNetwork",
    "BernoulliNB",
    "BinnedNB",
    "CategoricalNB",
    "Classifier",
    "ComplementNB",
    "Derivation",
    "GaussianDiscriminant",
    "GaussianNB",
    "KernelNB",
    "LearntNetwork",
    "MixedNB",
    "MultinomialNB",
    "Node",
    "PoissonNB",
    "RocCurve",
    "TreeAugmentedNB",
    "bayes_error",
    "bayes_rule",
    "conditional_risk",
    "cut",
    "error_probability",
    "exact_bayes_error",
    "log_m_estimate",
    "m_estimate",
    "minimum_risk",
    "risk_threshold",
    "roc_curve",
    "search_structure",
    "structure_score",
    "zero_one",
]
