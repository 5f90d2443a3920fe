"""Open the log of a fleet as this host's settings say.

Failure: FleetError if the key or the password cannot be read, or a package is missing.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from spamnb.endpoints.fleet.params import FleetParams
from spamnb.endpoints.fleet.valkey_log import ValkeyLog
from spamnb.errors import FleetError
from spamnb.service.fleet.fleet_store import Member
from spamnb.store.fleet.seal import KEY_BYTES, SEALERS

KEY_FILE = "fleet.key"


def open_member(params: FleetParams, home: Path) -> Member:
    """Return the log and the seal; connections are opened later, when they are needed."""
    path = key_path(params, home)
    try:
        key = bytes.fromhex(_read(path))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise FleetError(f"{path} holds no key of a fleet", hint="copy it from another host")
    password = _read(Path(params.password_file)) if params.password_file else ""
    log, sealer = ValkeyLog(params, password), SEALERS[params.seal](key)
    return Member(params.effective_host, log, sealer, params.fold_s)


def key_path(params: FleetParams, home: Path) -> Path:
    """Return the file of the fleet's key."""
    return Path(params.key_file) if params.key_file else home / KEY_FILE


def make_key(path: Path) -> None:
    """Write a new key that only the owner can read; an existing one stays."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise FleetError(f"{path}: {error.strerror}", hint="check fleet.key_file") from error
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(KEY_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise FleetError(f"{path} can be read by other users", hint=f"chmod 600 {path}")
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise FleetError(
            f"{path} cannot be read: {error}",
            hint="`spamnb fleet init` makes the key; copy it to each host",
        ) from error
