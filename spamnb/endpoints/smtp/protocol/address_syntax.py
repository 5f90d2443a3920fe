"""Parse the arguments of MAIL, RCPT and XFORWARD: strict, nothing is decoded.

An address is the text between the angle brackets. The email package's parser, which aiosmtpd uses,
decodes encoded words in it, so that one address becomes another, even with CRLF in it. This parser
rejects what is not an address of RFC 5321 4.1.2, and every control character. Pure. None means:
invalid syntax.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from spamnb.core.mail.envelope import Client
from spamnb.endpoints.smtp.protocol.commands import client_of

MAX_LOCAL_BYTES: Final = 64
MAX_DOMAIN_BYTES: Final = 255
"""RFC 5321 4.5.3.1"""

_ATOMS = r"[^\s<>@\"\\(),:;\[\]\x00-\x20\x7f]+"
_QUOTED = r"\"(?:[^\"\\\x00-\x1f\x7f]|\\[\x20-\x7e])*\""
_DOMAIN = r"\[[\x21-\x5a\x5e-\x7e]{1,80}\]|[^\s<>@\"\\(),:;\[\]\x00-\x20\x7f]+"
_PATH = re.compile(
    rf"[ \t]*<(?:@[^:<>\s\x00-\x20\x7f]{{1,255}}:)?(?:({_ATOMS}|{_QUOTED})(?:@({_DOMAIN}))?)?>"
    r"((?:[ \t]+[!-~]+)*)[ \t]*"
)
"""The source route before the colon is dropped (RFC 5321 4.1.1.3)."""
_PARAM = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([!-<>-~]+))?")
_XFORWARD = re.compile(r"([A-Za-z]{1,20})=([!-~]{0,1000})")
XFORWARD: Final = "NAME ADDR PORT PROTO HELO IDENT SOURCE"


class Path(NamedTuple):
    """An address and its ESMTP parameters."""

    address: str
    """empty for the null sender"""
    params: dict[str, str]
    """names in upper case"""


def read_path(word: str, arg: str | None) -> Path | None:
    """Parse `FROM:<...>` or `TO:<...>`."""
    arg = arg or ""
    if arg[: len(word)].upper() != word:
        return None
    found = _PATH.fullmatch(arg[len(word) :])
    if found is None:
        return None
    local, domain = found[1] or "", found[2] or ""
    if (
        len(local.encode("utf-8", "surrogateescape")) > MAX_LOCAL_BYTES
        or len(domain) > MAX_DOMAIN_BYTES
    ):
        return None
    params: dict[str, str] = {}
    for one in found[3].split():
        param = _PARAM.fullmatch(one)
        if param is None or param[1].upper() in params:
            return None
        params[param[1].upper()] = param[2] or ""
    return Path(f"{local}@{domain}" if domain else local, params)


def is_text(address: str) -> bool:
    """Whether an address is valid UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in address)


def read_client(known: Client, arg: str | None) -> Client | None:
    """Add the attributes of one XFORWARD command to a client."""
    words = (arg or "").split()
    if not words or not all(_XFORWARD.fullmatch(word) for word in words):
        return None
    return client_of(known, [f"XFORWARD {arg}".encode("ascii", "replace")])
