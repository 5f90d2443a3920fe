"""One account on an IMAP server, as the settings describe it. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, NamedTuple

from spamnb.endpoints.net.credentials import SecretSource
from spamnb.errors import SettingsError

ImapTls = Literal["implicit", "starttls", "none"]
ImapAction = Literal["move", "flag", "nothing"]
_PORTS = {"implicit": 993, "starttls": 143, "none": 143}


class ImapTimes(NamedTuple):
    """Time limits of one connection."""

    step_s: float = 30.0
    """for connecting, and for each read and write"""
    command_s: float = 300.0
    """for the whole answer to a command: 8 MB at 250 kbit/s"""


def is_here(host: str) -> bool:
    """Return True for a server on this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class ImapParams:
    """The server, the login, and what becomes of junk."""

    host: str = ""
    port: int = 0
    tls: ImapTls = "implicit"
    ca_file: str = ""
    user: str = ""
    auth: Literal["password", "xoauth2"] = "password"
    password_file: str = ""
    password_command: tuple[str, ...] = ()
    inbox: str = "INBOX"
    junk: str = ""
    act: ImapAction = "move"
    poll_s: float = 60.0

    def __post_init__(self) -> None:
        self.password.check_one()
        if self.tls == "none" and self.host and not self.is_here:
            raise SettingsError(
                f"a password for {self.host} would be sent without encryption",
                hint='set tls to "implicit" or "starttls"; "none" is for this machine only',
            )

    @property
    def password(self) -> SecretSource:
        """Where the password comes from."""
        return SecretSource("password", self.password_file, self.password_command)

    @property
    def is_here(self) -> bool:
        """Return True for a server on this machine."""
        return is_here(self.host)

    @property
    def effective_port(self) -> int:
        """The port, by default that of the kind of encryption."""
        return self.port or _PORTS[self.tls]

    @property
    def place(self) -> str:
        """The mailbox in one text, for logs and for the state on disk."""
        return f"{self.user} at {self.host}:{self.effective_port}"
