"""`--apply` of `evaluate` and `tune`: store costs that meet the ham loss target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spamnb.cli.printing import warn
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.cli.session import CliSession
    from spamnb.lab.statistics.loss_bound import HamLossBound


def store_loss_bound(session: CliSession, found: HamLossBound) -> bool:
    """Store the costs that meet the target in the home; False if there is not enough evidence.

    In that case earlier costs are removed too: they were found for another model or other mail.
    """
    from spamnb.core.model.costs import Costs
    from spamnb.lab.statistics.loss_bound import costs_for
    from spamnb.settings.cost_override import read_costs, remove_costs, write_costs

    home, costs = session.home, session.settings.costs
    if found.log_odds is None:
        remove_costs(home)
        warn("not enough evidence for ham_loss.one_in: the costs of the settings apply")
        return False
    if costs == read_costs(home, found.one_in):
        costs = Costs()  # start from the defaults, not from the earlier result
    try:
        path = write_costs(home, found, costs_for(costs, found))
    except OSError as error:
        raise UserError(f"{home} cannot be written: {error.strerror}") from error
    warn(f"{path} applies unless [costs] is set; a daemon reads it at its next reload")
    return True
