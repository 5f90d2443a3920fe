"""The action of least expected loss: one sum for filters and for the family. Pure arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.likelihood.smoothing import Floats


def least_expected(P: Floats, losses: Floats) -> NDArray[np.intp]:
    """[M] the action, from P [M, K] and losses [actions, K]; of equal ones the first."""
    # Class by class, not a matrix product: that rounds as the machine's BLAS likes, and a tie
    # would go either way.
    expected = P[:, :1] * losses[:, 0]
    for k in range(1, P.shape[1]):
        expected += P[:, k, None] * losses[:, k]
    return np.asarray(expected.argmin(axis=1))
