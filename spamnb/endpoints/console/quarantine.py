"""The operations on messages in quarantine: list, show, preview, release, delete."""

from __future__ import annotations

from typing import Any

from spamnb.endpoints.console.operations import speaker
from spamnb.endpoints.console.preview.document import HEADERS, preview
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.errors import RefError
from spamnb.service.admin.client import answer_of


def listed(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """List the messages in quarantine, newest first."""
    limit, below = request.values["limit"], request.values["cursor"]
    names = [name for name in reversed(site.quarantine.ids()) if not below or name < below]
    found = []
    for name in names[:limit]:
        # Another process may delete it meanwhile.
        try:
            entry = site.quarantine.get(name)
        except RefError:
            continue
        found.append(entry.as_dict() | {"subject": site.quarantine.subject(name)})
    return ApiReply({"messages": found, "next": names[limit - 1] if len(names) > limit else None})


def show(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """One message: its envelope, verdict and subject."""
    name = request.values["id"]
    entry = site.quarantine.get(name)
    return ApiReply(entry.as_dict() | {"subject": site.quarantine.subject(name)})


def view(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """A message as a safe HTML document: header, text, hidden text, names of attachments."""
    page = preview(site.quarantine.raw(request.values["id"]))
    return ApiReply(
        data=page.encode("utf-8", "replace"), media_type="text/html; charset=utf-8", headers=HEADERS
    )


def raw(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The message itself, as a file."""
    name = request.values["id"]
    return ApiReply(
        data=site.quarantine.raw(name), media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name}.eml"'},
    )  # fmt: skip


def release(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Deliver a message to the recipients that do not have it; `teach` trains it as ham."""
    name, values = request.values["id"], request.values
    message = site.quarantine.raw(name)
    entry = site.quarantine.release(name, site.send, again=values["again"])
    answer: dict[str, Any] | None = None
    if values["teach"] and not entry.open:
        asked = site.ask("teach", message, label="ham", **speaker(request.caller))
        answer = answer_of(asked.header).as_dict()
    results = [{"recipient": to, "reply": reply} for to, reply in entry.results()]
    return ApiReply({"results": results, "delivered": not entry.open, "training": answer})


def delete(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Delete a message; it is not delivered."""
    site.quarantine.delete(request.values["id"])
    return ApiReply({"deleted": request.values["id"]})
