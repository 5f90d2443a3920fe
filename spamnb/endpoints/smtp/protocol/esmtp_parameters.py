"""Check the parameters and address of MAIL and RCPT: the rejecting reply, or an empty text.

Pure. Announced parameters are checked; DSN's (RFC 3461) are accepted and ignored; all others are
rejected, so that no client believes that an unknown parameter has an effect.
"""

from __future__ import annotations

from typing import Final

from spamnb.endpoints.smtp.delivery import replies
from spamnb.endpoints.smtp.protocol.address_syntax import Path, is_text

_DSN: Final = {"MAIL": {"RET", "ENVID"}, "RCPT": {"NOTIFY", "ORCPT"}}
"""Postfix's proxy sends them although DSN is not announced; a rejection would bounce the
message."""


def mail_refusal(path: Path, limit_bytes: int, *, extended: bool) -> str:
    """The reply that rejects a MAIL command; empty if it is accepted."""
    params = dict(path.params)
    if params and not extended:
        return replies.UNKNOWN_PARAMETER
    if params.pop("BODY", "7BIT").upper() not in {"7BIT", "8BITMIME"}:
        return replies.BAD_PARAMETER
    utf8 = params.pop("SMTPUTF8", None)
    size = params.pop("SIZE", "0")
    if utf8 or not (size.isascii() and size.isdigit() and len(size) <= 20):
        return replies.BAD_PARAMETER
    if int(size) > limit_bytes:
        return replies.TOO_BIG
    params.pop("AUTH", None)  # RFC 4954 5: ignored from untrusted clients
    if params.keys() - _DSN["MAIL"]:
        return replies.UNKNOWN_PARAMETER
    return _address_refusal(path.address, utf8=utf8 is not None)


def rcpt_refusal(path: Path, *, utf8: bool) -> str:
    """The reply that rejects a RCPT command; empty if it is accepted."""
    if path.params.keys() - _DSN["RCPT"]:
        return replies.UNKNOWN_PARAMETER
    return _address_refusal(path.address, utf8=utf8) or ("" if path.address else replies.BAD_RCPT)


def _address_refusal(address: str, *, utf8: bool) -> str:
    if not is_text(address):
        return replies.BAD_ADDRESS
    return "" if utf8 or address.isascii() else replies.NEEDS_UTF8
