"""Convert settings to the configuration of a model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from spamnb.engine.filter import new_recipe
from spamnb.fleet.membership import open_member
from spamnb.maintenance.expiry import ExpiryRules
from spamnb.maintenance.home_files import FILE, CostRules
from spamnb.settings.persons import served_domains
from spamnb.settings.schema import Settings


def model_options(settings: Settings, home: Path) -> dict[str, Any]:
    """Return the arguments of `ModelConfig`."""
    expire, fleet = settings.expire, settings.fleet
    served, delimiter = served_domains(settings), settings.delivery.delimiter
    model = settings.model
    return {
        "home": home,
        "recipe": partial(new_recipe, model.kind, settings.labels, vocabulary=model.vocabulary),
        "local": settings.site,
        "costs": settings.costs,
        "cost_rules": CostRules(_costs_set_at(settings, home), settings.ham_loss.one_in),
        "one_in": settings.ham_loss.aimed_at,
        "store_limit_bytes": settings.store.limit_bytes,
        "history": settings.history,
        "teaching": replace(settings.feedback, served=served, delimiter=delimiter),
        "review": settings.review,
        "expiry": ExpiryRules(settings.journal.keep_days, expire.after_days, expire.max_messages),
        "fleet": partial(open_member, fleet, home) if fleet.url else None,
    }


def _costs_set_at(settings: Settings, home: Path) -> str:
    """Return where the file, a variable or a flag sets a cost; empty if none does."""
    set_at = [where for name, where in settings.positions.items() if name.startswith("costs.")]
    return next((where for where in set_at if where != str(home / FILE)), "")
