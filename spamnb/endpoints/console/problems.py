"""Errors as replies: RFC 9457, with the fields of the control socket's errors. Pure."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, NamedTuple

from spamnb import errors
from spamnb.errors import SpamnbError, UserError

MEDIA_TYPE: Final = "application/problem+json"
RETRY_S: Final = 5
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["title", "status", "detail", "error_type", "code", "incident"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "error_type": {"type": "string"},
        "code": {"type": "integer"},
        "incident": {"type": "string"},
    },
}
_STATUSES: Final[tuple[tuple[type[SpamnbError], int], ...]] = (
    (errors.RefError, 404),
    (errors.LimitError, 429),
    (errors.RefusedError, 409),
    (errors.UserError, 400),
    (errors.StoreError, 503),
    (errors.PeerError, 502),
)
"""the first class that an error belongs to decides"""


class ApiError(UserError):
    """A refused request; `status` is that of the reply."""

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class Problem(NamedTuple):
    """The status, body and headers of a reply."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def problem_of(error: SpamnbError, incident: str = "") -> Problem:
    """Return the reply for an error."""
    status = 500
    if isinstance(error, ApiError):
        status = error.status
    else:
        status = next((one for kind, one in _STATUSES if isinstance(error, kind)), status)
    body = {
        "title": " ".join(str(error).split()),
        "status": status,
        "detail": error.hint,
        "error_type": type(error).__name__,
        "code": error.exit_code,
        "incident": incident,
    }
    return Problem(status, body, _headers(status))


def problem_of_status(status: int) -> Problem:
    """Return the reply for an error of HTTP itself, such as an unknown path."""
    phrase = HTTPStatus(status).phrase.lower()
    return problem_of(ApiError(status, phrase, hint="see /api/v1/openapi.json"))


def _headers(status: int) -> dict[str, str]:
    if status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": "Bearer"}
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return {"Retry-After": str(RETRY_S)}
    return {}
