"""Choose the action of least expected loss, for the filter and for the classifiers in `bayes`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.likelihood.smoothing import Floats


def least_expected(P: Floats, losses: Floats) -> NDArray[np.intp]:
    """[M] the action with the least expected loss, from P [M, K] and losses [actions, K].

    Of equal losses the first action is taken.
    """
    # Label by label, not a matrix product: its rounding depends on the machine's BLAS, so ties
    # could be resolved either way.
    expected = P[:, :1] * losses[:, 0]
    for k in range(1, P.shape[1]):
        expected += P[:, k, None] * losses[:, k]
    return np.asarray(expected.argmin(axis=1))
