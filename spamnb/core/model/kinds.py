"""The names of the model kinds, which settings and recipes share, without the arithmetic."""

from __future__ import annotations

from typing import Final

KINDS: Final = ("corrected", "multinomial", "bernoulli")
"""the default, and the two classical event models"""
