"""Lines of JSON with integers, as exports and priors have them: written, and checked when read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

MALFORMED = ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
"""exceptions that parsing an invalid line raises"""


def json_line(value: dict[str, Any]) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, separators=(",", ":")) + "\n"


def integers(
    values: Any, shape: tuple[int, ...], least: int = -(1 << 53), most: int = 1 << 53
) -> NDArray[np.int64]:
    """Return values of a parsed line as an array; ValueError for a wrong shape, type or range."""
    # Zeros of the announced shape could take all memory.
    found = np.array(values) if len(values) else np.zeros((0, *shape[1:]), np.int64)
    if found.dtype.kind not in "iu" or found.shape != shape:
        raise ValueError(f"expected integers of the shape {shape}")
    if found.size and not least <= int(found.min()) <= int(found.max()) <= most:
        raise ValueError(f"a number is not between {least} and {most}")
    return found.astype(np.int64)
