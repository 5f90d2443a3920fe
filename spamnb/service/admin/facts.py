"""The facts of `status`: of the home, of its model and, with a daemon, of the processes."""

from __future__ import annotations

from spamnb.errors import StoreError
from spamnb.service.admin.bypass import FILE
from spamnb.service.admin.model_config import read_clock
from spamnb.service.admin.ports import AdminDaemon, AdminModel
from spamnb.service.engine.clock import now_us
from spamnb.service.maintenance.expiry_clock import warning
from spamnb.service.telemetry import status
from spamnb.service.telemetry.influence import influential
from spamnb.service.telemetry.status import Facts


def gathered(model: AdminModel, daemon: AdminDaemon | None) -> Facts:
    """Return all facts, with warnings."""
    home = model.config.home
    facts: Facts = {"home": str(home), "model": None, "fault": model.fault, "bypass": False}
    if daemon is not None:
        empty = {"messages": 0, "bytes": 0}
        facts |= {"clock": "", "review": 0, "quarantine": empty} | daemon.facts()
    with status.noted(facts):
        status.check_home(home)
        if daemon is None:
            facts["bypass"] = (home / FILE).exists()
        facts["review"] = model.review_queue.count()
        facts["quarantine"] = status.folder_size(model.config.quarantine or home / "quarantine")
        if daemon is not None:
            with model.service() as service:
                facts["clock"] = warning(read_clock(model.config, service.model))
    try:
        with model.reading() as opened:
            facts["model"] = status.model_facts(home, opened)
            facts["model"]["influential"] = influential(opened, now_us())
    except StoreError as error:
        facts["fault"] = facts["fault"] or str(error)
    facts["warnings"] = status.warnings(facts, model.config.quiet_days)
    return facts
