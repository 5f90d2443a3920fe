"""spamnb: a self-learning spam filter.

    from spamnb import Filter

    with Filter.open("model/", create=True) as f:
        verdict = f.score(raw)
        receipt = f.correct(raw, "ham")
        f.undo(receipt)

`__all__` lists the public interface. Each name is imported on first use, so that the command line
starts in a tenth of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spamnb.engine.filter import Filter
    from spamnb.engine.receipt import Receipt
    from spamnb.errors import SpamnbError
    from spamnb.model.verdict import Verdict

__version__ = "0.1.0"
__all__ = ["Filter", "Receipt", "SpamnbError", "Verdict", "__version__"]

_MODULES = {
    "Filter": "spamnb.engine.filter",
    "Receipt": "spamnb.engine.receipt",
    "SpamnbError": "spamnb.errors",
    "Verdict": "spamnb.model.verdict",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'spamnb' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
