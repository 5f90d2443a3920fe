"""The commands of all protocols: what each needs, and the reply to it. Pure.

A command is answered at once (`Answered`), needs a scan (`Scan`), or needs a question to the
learner (`AskDaemon`). Failure: RequestError for an unknown or invalid command, RefusedError for a
client that may not teach, another SpamnbError if the rights of the client cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spamnb.endpoints.scanner import http_replies, spamd_replies
from spamnb.endpoints.scanner.actions import AskDaemon
from spamnb.endpoints.scanner.message import original
from spamnb.endpoints.scanner.params import ScannerParams
from spamnb.endpoints.scanner.request import ClientRequest, Dialect, RequestError
from spamnb.endpoints.scanner.stat import stat_of
from spamnb.endpoints.scanner.teaching import PeerIdentity, teaching_fields
from spamnb.errors import RefusedError, SpamnbError, StoreBusyError, UserError
from spamnb.service.admin.request import AdminResponse

NO_FUZZY: Final = "No content to generate fuzzy hashes: none are kept here"
_LOCAL_FILES: Final = ("file", "path")
"""headers by which a client of rspamd names a file that the server reads"""


@dataclass(frozen=True, slots=True)
class Answered:
    """The reply is known."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """The message of the request is scanned."""


Plan = Scan | AskDaemon | Answered


def plan_of(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
    """Return what a request needs."""
    if request.dialect == "http":
        return _http_plan(request, peer, params)
    return _spamd_plan(request, peer, params)


def problem(dialect: Dialect, error: RequestError, request: ClientRequest | None = None) -> bytes:
    """The reply to a request that is not served."""
    if dialect == "http":
        return http_replies.failure(request, http_replies.STATUSES[error.problem], error.text)
    return spamd_replies.failure(spamd_replies.CODES[error.problem], error.text, dialect)


def busy(request: ClientRequest) -> bytes:
    """The reply while the learner is away."""
    return worded(request, StoreBusyError("the learner does not answer"))


def worded(request: ClientRequest, answer: AdminResponse | SpamnbError) -> bytes:
    """The reply with the learner's answer."""
    if isinstance(answer, SpamnbError):
        return _failed(request, answer)
    if request.verb == "/stat":
        return http_replies.answer(request, 200, stat_of(answer.header))
    if request.verb == "/metrics":
        kind = {"Content-Type": "text/plain; version=0.0.4"}
        return http_replies.answer(request, 200, answer.body, kind)
    return _taught(request, answer.header)


def _taught(request: ClientRequest, header: Mapping[str, Any]) -> bytes:
    state = header.get("state")
    if state == "refused":
        return _failed(request, RefusedError(str(header.get("reason") or "refused")))
    if request.dialect == "http":
        if state == "review":
            value = {"success": False, "review": str(header.get("review", ""))}
            return http_replies.answer(request, 202, value)
        return http_replies.answer(request, 200, {"success": True})
    done, removes = state == "learnt", "remove" in request.headers
    return spamd_replies.taught(did_set=done and not removes, did_remove=done and removes)


def _failed(request: ClientRequest, error: SpamnbError) -> bytes:
    transient = bool(getattr(error, "transient", False)) or isinstance(error, StoreBusyError)
    invalid = isinstance(error, UserError) and not isinstance(error, RefusedError)
    if request.dialect == "http":
        status = 503 if transient else 400 if invalid else 403
        if not transient and not isinstance(error, UserError):
            status = 503
        return http_replies.failure(request, status, str(error))
    if isinstance(error, RefusedError):
        code = spamd_replies.NO_PERMISSION
    else:
        code = spamd_replies.CODES["data"] if invalid else spamd_replies.TEMPORARY
    return spamd_replies.failure(code, str(error), request.dialect)


# --- spamd ---------------------------------------------------------------------------------------


def _spamd_plan(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
    verb = request.verb
    if request.dialect == "rspamc" and verb != "CHECK":
        raise RequestError("usage", "no such command")
    if verb in spamd_replies.SCANNED:
        return Scan()
    if verb == "PING":
        return Answered(spamd_replies.PONG)
    if verb == "SKIP":
        return Answered(b"")
    if verb == "TELL":
        return _tell(request, peer, params)
    raise RequestError("usage", "no such command")


def _places(request: ClientRequest, name: str) -> set[str]:
    return {word.strip().lower() for word in request.header(name).split(",")} - {""}


def _tell(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
    """Learn or forget locally; nothing is ever reported to other sites."""
    learns = "local" in _places(request, "set")
    forgets = "local" in _places(request, "remove")
    label = request.header("message-class").lower()
    if learns and forgets:
        raise RequestError("data", "a message cannot be learnt and forgotten at once")
    if not learns and not forgets:
        return Answered(spamd_replies.taught(did_set=False, did_remove=False))
    if learns and label not in ("spam", "ham"):
        raise RequestError("data", "Message-class is neither spam nor ham")
    fields = teaching_fields(peer, params, request.header("user"))
    if forgets:
        return AskDaemon("forget", original(request), fields)
    return AskDaemon("teach", original(request), fields | {"label": label})


# --- HTTP ----------------------------------------------------------------------------------------


def _http_plan(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
    for name in request.headers:
        if name in _LOCAL_FILES or name.startswith("shm"):
            raise RequestError("protocol", "messages are not read from files")
    if request.header("compression", "content-encoding").lower() not in ("", "identity"):
        raise RequestError("media", "compressed messages cannot be read")
    path = _PATHS.get(request.verb)
    if path is None:
        raise RequestError("usage", "no such path")
    method, plan = path
    if request.method not in ("POST", method):
        raise RequestError("method", f"use {method}")
    return plan(request, peer, params)


def _scan(_request: ClientRequest, _peer: PeerIdentity, _params: ScannerParams) -> Plan:
    return Scan()


def _learn(label: str) -> Callable[[ClientRequest, PeerIdentity, ScannerParams], Plan]:
    def plan(request: ClientRequest, peer: PeerIdentity, params: ScannerParams) -> Plan:
        named = label or request.header("class").lower()
        if not named:
            raise RequestError("data", "no Class is given")
        if not request.body:
            raise RequestError("data", "no message is given")
        user, password = request.header("deliver-to", "user"), request.header("password")
        fields = teaching_fields(peer, params, user, password)
        return AskDaemon("teach", request.body, fields | {"label": named})

    return plan


def _fixed(value: object) -> Callable[[ClientRequest, PeerIdentity, ScannerParams], Plan]:
    def plan(request: ClientRequest, _peer: PeerIdentity, _params: ScannerParams) -> Plan:
        return Answered(http_replies.answer(request, 200, value))

    return plan


def _question(op: str) -> Callable[[ClientRequest, PeerIdentity, ScannerParams], Plan]:
    def plan(_request: ClientRequest, _peer: PeerIdentity, _params: ScannerParams) -> Plan:
        return AskDaemon(op)

    return plan


_PATHS: Final[
    dict[str, tuple[str, Callable[[ClientRequest, PeerIdentity, ScannerParams], Plan]]]
] = {
    **dict.fromkeys(("/checkv2", "/check", "/scan", "/symbols", "/v1/message"), ("POST", _scan)),
    "/learnspam": ("POST", _learn("spam")),
    "/learnham": ("POST", _learn("ham")),
    "/learnclass": ("POST", _learn("")),
    "/fuzzyadd": ("POST", _fixed({"success": False, "error": NO_FUZZY})),
    "/fuzzydel": ("POST", _fixed({"success": False, "error": NO_FUZZY})),
    "/ping": ("GET", _fixed("pong\r\n")),
    "/auth": ("GET", _fixed({"auth": "ok"})),
    "/healthy": ("GET", _fixed({"success": True})),
    "/ready": ("GET", _fixed({"success": True})),
    "/stat": ("GET", _question("status")),
    "/metrics": ("GET", _question("metrics")),
}
