"""What speaks against a MAIL or RCPT command that could be read: a reply of the table, or nothing.

Pure. What is announced is judged; DSN's parameters (RFC 3461) are taken and forgotten; all others
are refused, so that nobody takes silence for a promise.
"""

from __future__ import annotations

from typing import Final

from spamnb.endpoints.smtp.delivery import replies
from spamnb.endpoints.smtp.protocol.address_syntax import Path, is_text

_DSN: Final = {"MAIL": {"RET", "ENVID"}, "RCPT": {"NOTIFY", "ORCPT"}}
"""Postfix's proxy sends them though we do not announce DSN, and a refusal would bounce the
message."""


def why_no_mail(path: Path, limit_bytes: int, *, extended: bool) -> str:
    """What speaks against a MAIL command."""
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
    params.pop("AUTH", None)  # RFC 4954 5: whoever is not trusted to say so is ignored
    if params.keys() - _DSN["MAIL"]:
        return replies.UNKNOWN_PARAMETER
    return _why_no_address(path.address, utf8=utf8 is not None)


def why_no_rcpt(path: Path, *, utf8: bool) -> str:
    """What speaks against a RCPT command."""
    if path.params.keys() - _DSN["RCPT"]:
        return replies.UNKNOWN_PARAMETER
    return _why_no_address(path.address, utf8=utf8) or ("" if path.address else replies.BAD_RCPT)


def _why_no_address(address: str, *, utf8: bool) -> str:
    if not is_text(address):
        return replies.BAD_ADDRESS
    return "" if utf8 or address.isascii() else replies.NEEDS_UTF8
