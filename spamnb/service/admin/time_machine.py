"""The operations `rewind` and `relearn`: preview another state of the model, and apply it.

    do = preview    begin to make the model, and to compare it with the present one
    do = show       the preview `job`, as soon as it is made, or after half a second; without
                    `job` the present one
    do = apply      put it in the place of the present model; `expect`: as shown, the last event
                    of the model that was copied
    do = cancel     end the preview

In a fleet the hosts share one model, so it is not replaced while a daemon runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from spamnb.errors import RefusedError, UserError
from spamnb.service.admin.ports import AdminDaemon, AdminModel
from spamnb.service.admin.request import (
    AdminRequest,
    AdminResponse,
    Field,
    Header,
    anything,
    text,
)
from spamnb.service.maintenance.rewind import changed_recipe
from spamnb.service.timemachine.jobs import Preview, TimeMachine
from spamnb.service.timemachine.preview import PreviewTask
from spamnb.service.timemachine.wanted import Wanted

_SHOW_S: Final = 0.5
"""how long `show` waits for the end of a preview, so that clients need not ask often"""


class AnyAdministration(Protocol):
    """What these operations use."""

    model: AdminModel
    daemon: AdminDaemon | None
    time_machine: TimeMachine

    def forget_facts(self) -> None:
        """Gather the facts of `status` again at the next request."""


def rewind(admin: AnyAdministration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Preview or apply the state of an earlier time, or a model that was kept."""
    return _do(admin, request, fields, _rewinding)


def relearn(admin: AnyAdministration, request: AdminRequest, fields: Header) -> AdminResponse:
    """Preview or apply the model without some training, or with other constants."""
    return _do(admin, request, fields, _relearning)


def _do(
    admin: AnyAdministration,
    request: AdminRequest,
    fields: Header,
    wanted: Callable[[AnyAdministration, Header], Wanted],
) -> AdminResponse:
    do, job = fields["do"], fields["job"]
    if do == "preview":
        return _facts(_begun(admin, wanted(admin, fields)))
    if do == "show":
        found = admin.time_machine.find(job)
        if job:
            found.made.wait(_SHOW_S)
        return _facts(found)
    if do == "cancel":
        found = admin.time_machine.find(job)
        found.end()
        return _facts(found)
    if do == "apply":
        user = fields["for"] or request.caller.login
        return _facts(_applied(admin, user, job, _number(fields, "expect")))
    raise UserError("`do` must be preview, show, apply or cancel")


def _facts(preview: Preview) -> AdminResponse:
    facts = preview.as_dict()
    return AdminResponse({"job": facts["job"], "state": facts["state"]}, json.dumps(facts).encode())


def _begun(admin: AnyAdministration, wanted: Wanted) -> Preview:
    config = admin.model.config
    if admin.daemon is not None and config.fleet is not None:
        raise RefusedError(
            "a host of a fleet cannot replace the model while it runs",
            hint="stop the daemon of this host, and try again: see docs/fleet.md",
        )
    costs_of = partial(config.recipient_costs.of_label, names=config.persons)
    task = PreviewTask(
        config.home, Path(), wanted, config.costs, config.history, costs_of, config.one_in
    )
    return admin.time_machine.start(task, config.log)


def _applied(admin: AnyAdministration, user: str, job: str, expect: int) -> Preview:
    began = time.monotonic()
    found = admin.time_machine.apply(job, expect, admin.model.replaced)
    admin.forget_facts()
    if admin.daemon is not None:
        admin.model.config.log(
            {"event": "model replaced", "user": user, "file": found.kept}
            | {"closed_ms": round(1000 * (time.monotonic() - began))}
        )
    return found


# --- what is wanted ------------------------------------------------------------------------------


def _rewinding(_: AnyAdministration, fields: Header) -> Wanted:
    kept = fields["kept"]
    if bool(kept) == (fields["to_us"] is not None):
        raise UserError("give `to_us` or `kept`, and not both")
    if kept:
        return Wanted("kept", kept=kept)
    return Wanted("rewind", _number(fields, "to_us"))


def _relearning(admin: AnyAdministration, fields: Header) -> Wanted:
    constants = fields["set"] or {}
    if not isinstance(constants, dict) or not all(map(_is_number, constants.values())):
        raise UserError("`set` must be an object of numbers")
    with admin.model.reading() as model:
        changed_recipe(model.recipe, constants)
    return Wanted(
        "relearn",
        without=_texts(fields, "without"),
        without_channel=_texts(fields, "without_channel"),
        constants=tuple(sorted((name, float(value)) for name, value in constants.items())),
    )


def _number(fields: Header, name: str) -> int:
    found = fields[name]
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 63:
        raise UserError(f"`{name}` must be a whole number of 0 or more")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(fields: Header, name: str) -> tuple[str, ...]:
    found = fields[name] or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise UserError(f"`{name}` must be a list of texts")
    return tuple(found)


_COMMON: Final[Mapping[str, Field]] = {"do": text, "job": text, "expect": anything, "for": text}
REWIND: Final = {**_COMMON, "to_us": anything, "kept": text}
RELEARN: Final = {
    **_COMMON,
    **dict.fromkeys(("without", "without_channel", "set"), anything),
}
