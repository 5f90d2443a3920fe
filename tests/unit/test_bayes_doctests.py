"""The examples in the docstrings of spamnb.bayes give the output they show."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import spamnb.bayes
import spamnb.model

MODULES = [
    f"{family.__name__}.{found.name}"
    for family in (spamnb.bayes, spamnb.model)
    for found in pkgutil.iter_modules(family.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_come_out(name):
    """Each doctest prints what it shows."""
    assert doctest.testmod(import_module(name)).failed == 0


def test_every_model_shows_an_example():
    """Every public name that computes something has an example in its docstring."""
    shown = {
        test.name.rsplit(".", 1)[-1]
        for name in MODULES
        for test in doctest.DocTestFinder(exclude_empty=True).find(import_module(name))
        if test.examples
    }
    quiet = {"BayesError", "Classifier", "Derivation", "Node", "RocCurve", "log_m_estimate"}
    assert set(spamnb.bayes.__all__) - quiet == shown & set(spamnb.bayes.__all__)
