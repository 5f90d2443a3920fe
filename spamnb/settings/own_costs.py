"""The costs in the sections of domains and persons. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from spamnb.model.costs import DECISIONS, Costs, Pair
from spamnb.policy.actions import ActionMap


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """The costs for some recipients; all four are empty if these recipients have none."""

    deliver_costs: Pair | tuple[()] = ()
    unsure_costs: Pair | tuple[()] = ()
    junk_costs: Pair | tuple[()] = ()
    reject_costs: Pair | tuple[()] = ()

    @property
    def costs(self) -> Costs | None:
        """The costs; None if there are none. SettingsError if they are inconsistent."""
        found = {name: getattr(self, f"{name}_costs") for name in DECISIONS}
        return Costs(**found) if all(found.values()) else None

    def completed(self, others: Costs) -> Self:
        """Return the section with the missing costs taken from `others`, if it has any.

        SettingsError if both together are inconsistent.
        """
        keys = {f"{name}_costs": getattr(others, name) for name in DECISIONS}
        given = {name: pair for name in keys if (pair := getattr(self, name))}
        if not given:
            return self
        whole = replace(self, **(keys | given))
        Costs(*(getattr(whole, name) for name in keys))
        return whole


@dataclass(frozen=True)
class DomainSettings(ActionMap, CostSettings):
    """Actions and costs for the recipients of one domain."""
