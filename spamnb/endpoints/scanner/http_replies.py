"""HTTP replies: rspamd's JSON, and the marked header section for spamnb's own path. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from spamnb.core.policy.verdict_headers import REQUIRED_SCORE
from spamnb.endpoints.scanner.message import (
    header_of,
    marked,
    message_id_in,
    own_names_in,
    subject_in,
)
from spamnb.endpoints.scanner.report import report_of
from spamnb.endpoints.scanner.request import ClientRequest, Problem
from spamnb.service.scanning.types import ScanResult

STATUSES: Final[dict[Problem, int]] = {
    "usage": 404,
    "method": 405,
    "data": 400,
    "size": 413,
    "media": 415,
    "protocol": 400,
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON: Final = "application/json"
_as_json: Final = json.JSONEncoder(separators=(",", ":")).encode
"""made once: `json.dumps` makes an encoder for each call with separators"""
_REASONS: Final = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def reply(  # noqa: PLR0913 - the parts of a reply
    status: int,
    body: bytes,
    kind: str = "text/plain",
    *,
    version: tuple[int, int] = (1, 1),
    keep_alive: bool = False,
    extra: Mapping[str, str] | None = None,
) -> bytes:
    """A whole reply."""
    lines = [
        f"HTTP/{version[0]}.{version[1]} {status} {_REASONS[status]}",
        "Server: spamnb",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
        *(f"{name}: {value}" for name, value in (extra or {}).items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii", "replace") + body


def answer(
    request: ClientRequest, status: int, value: object, extra: Mapping[str, str] | None = None
) -> bytes:
    """A reply to a request: text or bytes as they are, everything else as JSON."""
    kind = "text/plain"
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes):
        kind, value = _JSON, _as_json(value).encode()
    extra = dict(extra or {})
    kind = extra.pop("Content-Type", kind)
    return reply(
        status, value, kind, version=request.version, keep_alive=request.keep_alive, extra=extra
    )


def failure(request: ClientRequest | None, status: int, text: str) -> bytes:
    """An error as rspamd words it."""
    if request is None:
        return reply(status, json.dumps({"error": text}).encode(), _JSON)
    return answer(request, status, {"error": text})


def scanned(request: ClientRequest, result: ScanResult, seconds: float) -> bytes:
    """The reply to a scanned message."""
    if result.action == "defer":
        if request.verb == "/v1/message":
            return failure(request, 503, "try again later")
        value = _skipped(request, seconds) | {"action": "soft reject"}
    elif request.verb == "/v1/message":
        return _own(request, result)
    else:
        value = _checked(request, result, seconds)
    return answer(request, 200, {"default": value} if request.verb == "/scan" else value)


def _skipped(request: ClientRequest, seconds: float) -> dict[str, Any]:
    return {
        "is_skipped": True,
        "score": 0.0,
        "required_score": 999.0,
        "action": "no action",
        "symbols": {},
        "messages": {"smtp_message": "Try again later"},
        "message-id": message_id_in(header_of(request)),
        "time_real": round(seconds, 6),
    }


def _checked(request: ClientRequest, result: ScanResult, seconds: float) -> dict[str, Any]:
    report, header = report_of(result), header_of(request)
    names = dict.fromkeys((*own_names_in(header), *(name for name, _ in result.add)), 0)
    value: dict[str, Any] = {
        "is_skipped": report.skipped,
        "score": report.score,
        "required_score": report.reject_score,
        "action": report.action,
        "thresholds": {"add header": REQUIRED_SCORE, "reject": report.reject_score},
        "symbols": {
            name: _symbol(name, score, text) for name, (score, text) in report.symbols().items()
        },
        "messages": {},
        "message-id": message_id_in(header),
        "time_real": round(seconds, 6),
        "milter": {
            "add_headers": {name: {"value": text, "order": 0} for name, text in result.add},
            "remove_headers": names,
        },
    }
    if report.action == "reject":
        value["messages"] = {"smtp_message": "This message is not wanted here"}
    if result.tag:
        value["subject"] = f"{result.tag.decode().rstrip()} {subject_in(header)}".rstrip()
    return value


def _symbol(name: str, score: float, text: str) -> dict[str, Any]:
    options = [text] if name.startswith("SPAMNB_CLUE_") else []
    return {
        "name": name,
        "score": score,
        "metric_score": score,
        "description": text,
        "options": options,
    }


def _own(request: ClientRequest, result: ScanResult) -> bytes:
    report = report_of(result)
    outcome = {
        "action": report.action,
        "spam": report.spam,
        "score": report.score,
        "required_score": REQUIRED_SCORE,
        "reject_score": report.reject_score,
        "skipped": report.skipped,
        **{name: result.facts.get(name, "") for name in _OUTCOME_FACTS},
    }
    header, body = marked(request.body, result.add, result.tag)
    full = request.query == "full=1"
    kind = "message/rfc822" if full else "message/rfc822-headers"
    extra = {"Content-Type": kind, "Spamnb-Outcome": _as_json(outcome)}
    return answer(request, 200, header + body if full else header, extra)


_OUTCOME_FACTS: Final = ("verdict", "probability", "decision", "mail_action", "reason", "signature")
