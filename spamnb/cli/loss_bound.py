"""`--apply` of what evaluation found out about ham that is lost: into force, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spamnb.cli.printing import warn
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.cli.session import CliSession
    from spamnb.lab.statistics.loss_bound import HamLossBound


def keep_promise(session: CliSession, found: HamLossBound) -> bool:
    """Keep the costs of the promise in the home; False if the evidence is too thin for any.

    What was kept before goes in that case too: it was found for a filter that is no more, or for
    mail that has changed.
    """
    from spamnb.core.model.costs import Costs
    from spamnb.lab.statistics.loss_bound import costs_for
    from spamnb.settings.cost_override import drop, keep, kept

    home, costs = session.home, session.settings.costs
    if found.log_odds is None:
        drop(home)
        warn("not enough evidence for the promise: the costs are as they are set")
        return False
    if costs == kept(home, found.one_in):
        costs = Costs()  # found anew from the start, not from what was found before
    try:
        path = keep(home, found, costs_for(costs, found))
    except OSError as error:
        raise UserError(f"{home} cannot be written: {error.strerror}") from error
    warn(f"{path} is in force where [costs] sets none; a daemon takes it at its next reload")
    return True
