"""Where the events of one webhook go, as the settings describe it. Values only."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from spamnb.endpoints.net.credentials import SecretSource
from spamnb.errors import SettingsError, UserError

EVENTS: Final = (
    "review.waiting",
    "warning.raised",
    "warning.cleared",
    "quarantine.full",
    "model.changed",
    "verdict.reject",
)
"""Their places are on disk: add new ones at the end."""
_RARE: Final = EVENTS[:-1]
_PORTS: Final = {"http": 80, "https": 443}
_URL: Final = re.compile(r"[!-~]{1,2000}")
_SECRET: Final = "whsec_"  # noqa: S105 - the prefix of each secret
_KEY_BYTES: Final = range(24, 65)


class WebhookTarget(NamedTuple):
    """What a URL says."""

    tls: bool
    host: str
    port: int
    netloc: str
    """for the field Host"""
    path: str
    """with the query"""


@dataclass(frozen=True, slots=True)
class WebhookParams:
    """The receiver, and the events that it gets."""

    url: str = ""
    secret_file: str = ""
    secret_command: tuple[str, ...] = ()
    ca_file: str = ""
    events: tuple[str, ...] = _RARE

    def __post_init__(self) -> None:
        self.secret.check_one()
        if self.url:
            _ = self.target

    @property
    def secret(self) -> SecretSource:
        """Where the secret comes from."""
        return SecretSource("secret", self.secret_file, self.secret_command)

    @property
    def target(self) -> WebhookTarget:
        """The parts of the URL. Failure: SettingsError for one that is not valid."""
        try:
            parts = urlsplit(self.url)
            port = parts.port or _PORTS[parts.scheme]
            plain = _URL.fullmatch(self.url) and not ("@" in parts.netloc or parts.fragment)
        except (ValueError, KeyError):
            plain = None
        if not (plain and parts.hostname):
            raise SettingsError(
                "the url is not valid",  # it is often a password, so it is not shown
                hint="https://HOST/PATH, without a login and without #",
            )
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return WebhookTarget(parts.scheme == "https", parts.hostname, port, parts.netloc, path)

    def key(self) -> bytes:
        """Return the key of the signature, read from its source. Failure: UserError."""
        text = self.secret.read()
        try:
            found = b64decode(text.removeprefix(_SECRET), validate=True)
        except (Base64Error, ValueError):
            found = b""
        if not text.startswith(_SECRET) or len(found) not in _KEY_BYTES:
            raise UserError(
                "the secret of the webhook is not valid",
                hint=f"{_SECRET} and the base64 form of 24 to 64 random bytes",
            )
        return found


def webhook_problems(params: WebhookParams) -> Iterator[UserError]:
    """Yield what would stop this webhook; nothing is connected or run."""
    if not params.url:
        yield SettingsError("url is not set", hint="the address of the receiver")
    problems = list(params.secret.problems())
    yield from problems
    if params.secret_file and not problems:
        try:
            params.key()
        except UserError as error:
            yield error
    if params.ca_file and not os.access(params.ca_file, os.R_OK, effective_ids=True):
        yield SettingsError(f"the file {params.ca_file} cannot be read", hint="see ca_file")
