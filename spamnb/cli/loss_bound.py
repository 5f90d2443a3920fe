"""`--apply` of `evaluate` and `tune`: store costs that meet the ham loss target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spamnb.cli.printing import warn

if TYPE_CHECKING:
    from pathlib import Path

    from spamnb.cli.session import CliSession
    from spamnb.core.model.costs import Costs
    from spamnb.lab.statistics.loss_bound import HamLossBound


def store_loss_bound(session: CliSession, found: HamLossBound) -> bool:
    """Store the costs that meet the target in the home; False if there is not enough evidence.

    In that case earlier costs are removed too: they were found for another model or other mail.
    """
    from spamnb.core.model.costs import Costs
    from spamnb.lab.statistics.loss_bound import costs_for
    from spamnb.service.maintenance.cost_file import read_costs, remove_costs

    home, costs = session.home, session.settings.costs
    if found.log_odds is None:
        remove_costs(home)
        warn("not enough evidence for ham_loss.one_in: the costs of the settings apply")
        return False
    if costs == read_costs(home, found.one_in):
        costs = Costs()  # start from the defaults, not from the earlier result
    path = write_found(home, found, costs_for(costs, found))
    warn(f"{path} applies unless [costs] is set; a daemon reads it at its next reload")
    return True


def write_found(home: Path, found: HamLossBound, costs: Costs) -> Path:
    """Store costs with the evidence for them; return the file."""
    from spamnb.service.maintenance.cost_file import StoredCosts, write_stored

    comments = (
        "Written by `spamnb evaluate --apply`. Delete it to use the costs of the settings.",
        f"{found.ham_above} of {found.ham} good messages scored above the junk threshold:",
        f"at most {found.at_worst_percent:.3f} % are lost (95 % confidence).",
    )
    return write_stored(home, StoredCosts(costs, found.one_in), comments)
