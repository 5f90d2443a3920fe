"""The environment and the priority of Python processes that this package starts."""

from __future__ import annotations

import os
import site
from collections.abc import Container
from contextlib import suppress
from pathlib import Path


def lower_priority(steps: int) -> None:
    """Lower the priority of this process, if the system allows that.

    A filter of system calls may forbid it.
    """
    with suppress(OSError):
        os.nice(steps)


def package_environment(without: Container[str] = ()) -> dict[str, str]:
    """Return the environment of a child, in which it finds this same package."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    root = str(Path(__file__).resolve().parents[2])
    places = [*site.getsitepackages(), site.getusersitepackages()]
    if root not in places:
        # Run from a checkout: the child's working directory differs.
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH", "")]))
    return kept
