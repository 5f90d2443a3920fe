"""The family of naive Bayes for any table, with scikit-learn's names, one case at a time.

    from spamnb.bayes import GaussianNB

    model = GaussianNB().fit(X, y)
    model.learn(x, "spam"); model.forget(x, "spam"); model.merge(another)
    model.predict_proba(X)

Everything is kept as exact sums: forgetting what was learnt restores every number, and merging is
adding. The names below are the whole promise.
"""

from __future__ import annotations

from spamnb.bayes.categorical import CategoricalNB
from spamnb.bayes.classifier import Classifier
from spamnb.bayes.counting import BernoulliNB, ComplementNB, MultinomialNB
from spamnb.bayes.densities import BinnedNB, KernelNB, cut
from spamnb.bayes.dependence import AveragedOneDependence, TreeAugmentedNB
from spamnb.bayes.gaussian import GaussianDiscriminant, GaussianNB
from spamnb.bayes.network import BeliefNetwork, Node
from spamnb.bayes.risk import (
    BayesError,
    bayes_error,
    error_probability,
    minimum_risk,
    zero_one,
)
from spamnb.core.model.likelihood.smoothing import log_m_estimate, m_estimate

__all__ = [
    "AveragedOneDependence",
    "BayesError",
    "BeliefNetwork",
    "BernoulliNB",
    "BinnedNB",
    "CategoricalNB",
    "Classifier",
    "ComplementNB",
    "GaussianDiscriminant",
    "GaussianNB",
    "KernelNB",
    "MultinomialNB",
    "Node",
    "TreeAugmentedNB",
    "bayes_error",
    "cut",
    "error_probability",
    "log_m_estimate",
    "m_estimate",
    "minimum_risk",
    "zero_one",
]
