"""How a host finds the log of its fleet. Values only."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from spamnb.errors import SettingsError
from spamnb.store.fleet import OUTBOX_BYTES

Durable = Literal["local", "replica", "trust"]
Seal = Literal["chacha20", "hmac"]
SCHEMES = ("valkeys", "valkey", "rediss", "redis", "unix", "postgresql")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class FleetParams:
    """The log, and this host's part in it; without a url the host is alone."""

    url: str = ""
    name: str = "spamnb"
    host: str = ""
    key_file: str = ""
    password_file: str = ""
    ca_file: str = ""
    durable: Durable = "local"
    seal: Seal = "chacha20"
    fold_s: float = 0.5
    append_s: float = 1.0
    keep_events: int = 200_000
    outbox_bytes: int = OUTBOX_BYTES

    def __post_init__(self) -> None:
        for key in ("name", "host"):
            value = getattr(self, key)
            if not _NAME.fullmatch(value or "x"):
                raise SettingsError(
                    f"{key} is {value!r}", hint="use letters, digits, dots and dashes, at most 64"
                )
        url = urlsplit(self.url)
        if self.url and url.scheme not in SCHEMES:
            raise SettingsError(
                f"{self.url!r} is not a valid url",
                hint="valkeys://USER@HOST:PORT, unix://PATH, or postgresql://USER@HOST/DATABASE",
            )
        if url.password:
            raise SettingsError(
                "the url has a password, which other users may read", hint="set password_file"
            )

    @property
    def is_encrypted(self) -> bool:
        """Return True if the connection is encrypted."""
        return self.url.startswith(("valkeys:", "rediss:"))

    @property
    def effective_host(self) -> str:
        """The name of this host, by default that of the machine."""
        return self.host or socket.gethostname()[:64]
