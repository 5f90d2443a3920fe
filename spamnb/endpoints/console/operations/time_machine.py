"""Earlier states of the model, and the model without some training: preview and apply."""

from __future__ import annotations

import json
from typing import Any

from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.errors import RefError, UserError
from spamnb.service.admin.listings import timeline
from spamnb.service.admin.request import AdminResponse
from spamnb.store.rebuild import kept_files, kept_since

MOST_EVENTS = 5000
"""newest events of the journal that the time machine shows by day and user"""


def time_machine(site: ConsoleSite, _: ApiRequest) -> ApiReply:
    """When and by whom the model was trained, the models that were kept, the newest preview."""
    kept = [
        {"kept": one.name, "replaced": kept_since(one).isoformat(), "bytes": one.stat().st_size}
        for one in kept_files(site.config.home)
    ]
    with site.reading() as model:
        facts = timeline(model, MOST_EVENTS)
    try:
        newest = _preview(site.ask("rewind", do="show"))
    except RefError:
        newest = None
    return ApiReply(facts | {"kept": kept, "preview": newest})


def begin_preview(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Make another state of the model beside the present one, and say what it changes."""
    to_us, kept, *left_out = (
        request.values[name] for name in ("to", "kept", "without", "without_channel")
    )
    if sum(map(bool, (to_us, kept, any(left_out)))) != 1:
        raise UserError(
            "give exactly one of these: `to`; `kept`; or `without` and `without_channel`"
        )
    if any(left_out):
        users, channels = left_out
        answer = site.ask("relearn", do="preview", without=users, without_channel=channels)
    else:
        wanted = {"kept": kept} if kept else {"to_us": to_us}
        answer = site.ask("rewind", do="preview", **wanted)
    return ApiReply(_preview(answer))


def job(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """A preview: its state, and what it changes when it is made."""
    return ApiReply(_preview(site.ask("rewind", do="show", job=request.values["job"])))


def end_preview(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """End a preview, and remove its model."""
    return ApiReply(_preview(site.ask("rewind", do="cancel", job=request.values["job"])))


def apply_preview(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Replace the model by that of a preview, if nothing was learnt since; the old one is kept."""
    values, caller = request.values, request.caller
    wanted = {"job": values["job"], "expect": values["expect"]}
    return ApiReply(_preview(site.ask("rewind", do="apply", **wanted, **{"for": caller.name})))


def _preview(answer: AdminResponse) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.body)
    return found
