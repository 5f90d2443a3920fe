"""The names of scikit-learn that tests compare with, imported at their first use.

The import takes a second of CPU; each worker of pytest-xdist reads all modules of tests.
"""

from importlib import import_module

_MODULES = {
    "naive_bayes": ("BernoulliNB", "CategoricalNB", "ComplementNB", "GaussianNB", "MultinomialNB"),
    "discriminant_analysis": ("LinearDiscriminantAnalysis", "QuadraticDiscriminantAnalysis"),
    "neighbors": ("KernelDensity",),
    "preprocessing": ("KBinsDiscretizer",),
    "metrics": ("brier_score_loss", "log_loss", "roc_auc_score", "roc_curve"),
}


def __getattr__(name):
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"sklearn.{module}"), name)
    raise AttributeError(name)
