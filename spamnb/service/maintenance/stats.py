"""Statistics and consistency check of a model.

Reads only. Must not know terminals or settings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spamnb.core.features.extract import Key
from spamnb.core.model.costs import Costs, thresholds
from spamnb.service.maintenance.prior import features_of_priors
from spamnb.store import check as audit
from spamnb.store.contract import Store
from spamnb.store.history.verdict_history import History
from spamnb.store.lmdb.sharing import DATA_FILE


@dataclass(frozen=True, slots=True)
class ModelStats:
    """Contents and sizes of a model."""

    home: str
    kind: str
    labels: tuple[str, ...]
    fingerprint: str
    """of the key: equal for models with exports that can be merged"""
    messages: dict[str, int]
    features: int
    prior: int
    """features of priors that can still be undone; they count as no message"""
    words: int
    events: int
    """in the journal; these can be undone"""
    folded: int
    """events in the checkpoint"""
    store_bytes: int
    store_limit_bytes: int
    bytes_per_feature: float | None
    history: int
    history_days: float
    constants: dict[str, Any]
    thresholds: dict[str, float]
    """probability of spam from which each decision applies"""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


_CONSTANTS = ("alpha", "kappa", "r", "eta", "rate_bias", "rate_temper", "groups", "vocabulary")


def stats(home: Path, store: Store, history: History | None, costs: Costs) -> ModelStats:
    """Return the statistics of a model; reads every word once."""
    recipe = store.recipe
    with store.read() as view:
        totals, base = view.totals(), view.base_totals()
        words = sum(1 for _ in view.all_words())
        prior = features_of_priors(view)
    size = (home / DATA_FILE).stat().st_size
    return ModelStats(
        home=str(home),
        kind=recipe.kind,
        labels=recipe.labels,
        fingerprint=Key(recipe.key).fingerprint().hex(),
        messages=dict(zip(recipe.labels, totals.messages.tolist(), strict=True)),
        features=totals.known,
        prior=prior,
        words=words,
        events=totals.last_seq - base.last_seq,
        folded=base.last_seq,
        store_bytes=size,
        store_limit_bytes=store.limit_bytes,
        bytes_per_feature=round(size / totals.known, 1) if totals.known else None,
        history=history.count() if history else 0,
        history_days=round(history.span_days(), 2) if history else 0.0,
        constants={name: getattr(recipe, name) for name in _CONSTANTS},
        thresholds={t.decision: t.probability for t in thresholds(costs)},
    )


def check(store: Store) -> list[str]:
    """Return the inconsistencies of a store, one sentence each; empty for a consistent store."""
    with store.read() as view:
        return audit.check(view) + audit.check_sums(view, store.recipe)
