"""Listening and connecting addresses: one text form for TCP and unix sockets, SMTP and LMTP.

`127.0.0.1:25`, `[::1]:25`, `localhost:25` and `unix:/path`, each with or without `smtp:`, `lmtp:`,
`smtp://` or `lmtp://` in front. Must not know sockets. Fails with ValueError, which says what is
allowed.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

MailProtocol = Literal["smtp", "lmtp"]

_SCHEME = re.compile(r"(smtp|lmtp):(?://)?(?=.*[:/])", re.IGNORECASE)
_TCP = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})")
MOST_PATH_BYTES = 107
"""sun_path has 108 bytes with its NUL (unix(7))"""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address or a socket's path; one of `host` and `path` is empty."""

    host: str = ""
    port: int = 0
    path: str = ""
    protocol: MailProtocol = "smtp"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse the text form."""
        scheme = _SCHEME.match(text)
        protocol: MailProtocol = "lmtp" if scheme and scheme[1].lower() == "lmtp" else "smtp"
        rest = text[scheme.end() :] if scheme else text
        if rest.startswith("unix:"):
            return cls(path=_path(rest[5:], text), protocol=protocol)
        if rest.startswith("/"):
            return cls(path=_path(rest, text), protocol=protocol)
        found = _TCP.fullmatch(rest)
        if not found or not 0 <= int(found[3]) <= 65535:
            raise ValueError(
                f"{text!r} is not an address: give host:port, [IPv6]:port or unix:/path,"
                " optionally with smtp:// or lmtp:// in front"
            )
        if found[1]:
            _check_ipv6(found[1], text)
        return cls(host=found[1] or found[2], port=int(found[3]), protocol=protocol)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can be at the other end."""
        if self.path or self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def socket_name(self) -> str:
        """The text form without the protocol."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.socket_name if self.protocol == "smtp" else f"lmtp:{self.socket_name}"


def _path(path: str, text: str) -> str:
    path = "/" + path.lstrip("/") if path.startswith("//") else path
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{text!r} is not an absolute path")
    if len(path.encode()) > MOST_PATH_BYTES:
        raise ValueError(
            f"{text!r} is longer than {MOST_PATH_BYTES} bytes, the limit for a socket's path"
        )
    return path


def _check_ipv6(host: str, text: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError as error:
        raise ValueError(f"{text!r} has no valid IPv6 address in its brackets") from error
