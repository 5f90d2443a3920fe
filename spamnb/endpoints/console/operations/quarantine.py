"""The operations on messages in quarantine: list, show, preview, release, delete.

A caller of one user finds the messages to that user, releases them to that user, and deletes them
for that user; other messages and other recipients do not exist for this caller (RefError).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from spamnb.endpoints.console.callers import ApiCaller
from spamnb.endpoints.console.operations.training import shown, speaker
from spamnb.endpoints.console.problems import ApiError
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.errors import RefError, SpamnbError, StoreDamagedError
from spamnb.service.admin.client import answer_of
from spamnb.service.feedback.ownership import own_addresses
from spamnb.service.feedback.types import Answer
from spamnb.service.scanning.quarantined import QuarantinedMessage

MOST_READ: Final = 2_000
"""messages that one request looks at (60 ms). Some of them belong to other users, so a page can
have fewer messages than its limit even if more pages follow."""


def listed(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """List the messages in quarantine, newest first."""
    caller, limit, below = request.caller, request.values["limit"], request.values["cursor"]
    names = [name for name in reversed(site.quarantine.ids()) if not below or name < below]
    found: list[dict[str, Any]] = []
    last = ""
    for last in names[:MOST_READ]:
        # Another process may delete it meanwhile.
        with suppress(RefError, StoreDamagedError):
            found.append(_facts(site, caller, _entry(site, caller, last)))
        if len(found) == limit:
            break
    more = last != "".join(names[-1:])
    return ApiReply({"messages": found, "next": last if more else None})


def show(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """One message: its envelope, verdict and subject."""
    caller = request.caller
    return ApiReply(_facts(site, caller, _entry(site, caller, request.values["id"])))


def view(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """A message as a safe HTML document: header, text, hidden text, names of attachments."""
    entry = _entry(site, request.caller, request.values["id"])
    return shown(site.quarantine.raw(entry.id))


def raw(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """The message itself, as a file."""
    entry = _entry(site, request.caller, request.values["id"])
    return ApiReply(
        data=site.quarantine.raw(entry.id), media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{entry.id}.eml"'},
    )  # fmt: skip


def release(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Deliver a message to recipients that do not have it; `teach` trains it as ham."""
    values, caller = request.values, request.caller
    entry = _entry(site, caller, values["id"])
    if not _may_release(site, caller, entry):
        raise ApiError(403, "only an administrator may release this message",
                       hint="see console.users_release")  # fmt: skip
    to = _own(site, caller, entry)
    if values["only"] is not None:
        to = entry.numbers_of(values["only"], to)
    message = site.quarantine.raw(entry.id)
    after = site.quarantine.release(entry.id, site.send, only=to, again=values["again"])
    delivered = to.isdisjoint(after.open)
    answer = _taught(site, caller, message) if values["teach"] and delivered else None
    results = [{"recipient": name, "reply": reply}
               for at, (name, reply) in enumerate(after.results()) if at in to]  # fmt: skip
    return ApiReply({"results": results, "delivered": delivered, "training": answer})


def _taught(site: ConsoleSite, caller: ApiCaller, message: bytes) -> dict[str, Any]:
    """The answer of the learner. Its error is not raised, because the release is already done."""
    try:
        asked = site.ask("teach", message, label="ham", **speaker(caller))
        return answer_of(asked.header).as_dict()
    except SpamnbError as error:
        return Answer("refused", reason=str(error)).as_dict()


def delete(site: ConsoleSite, request: ApiRequest) -> ApiReply:
    """Delete a message; it is not delivered. A caller of one user deletes it for that user."""
    caller = request.caller
    entry = _entry(site, caller, request.values["id"])
    if caller.user:
        site.quarantine.delete_for(entry.id, _own(site, caller, entry))
    else:
        site.quarantine.delete(entry.id)
    return ApiReply({"deleted": entry.id})


def _entry(site: ConsoleSite, caller: ApiCaller, name: str) -> QuarantinedMessage:
    """A message that waits for the caller, or for any recipient if the caller may see all mail."""
    entry = site.quarantine.get(name)
    if caller.user and _own(site, caller, entry).isdisjoint(entry.open):
        raise RefError(
            f"there is no message {name} in quarantine", hint="see `spamnb quarantine list`"
        )
    return entry


def _own(site: ConsoleSite, caller: ApiCaller, entry: QuarantinedMessage) -> frozenset[int]:
    """The indexes of the recipients for whom the caller may act."""
    if not caller.user:
        return frozenset(range(len(entry.names)))
    return own_addresses(entry.names, caller.user, site.config.teaching)


def _facts(site: ConsoleSite, caller: ApiCaller, entry: QuarantinedMessage) -> dict[str, Any]:
    """What the caller sees of a message; other recipients are hidden, because of blind copies."""
    found = entry.as_dict(_own(site, caller, entry))
    more = {"subject": site.quarantine.subject(entry.id)}
    return found | more | {"may_release": _may_release(site, caller, entry)}


def _may_release(site: ConsoleSite, caller: ApiCaller, entry: QuarantinedMessage) -> bool:
    """Whether the settings let the caller release a message."""
    return not caller.user or entry.may_release(site.users_release)
