"""Open the log of a fleet as this host's settings say.

Failure: FleetError if the key or the password cannot be read, or a package is missing.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from spamnb.errors import FleetError
from spamnb.fleet.entries import KEY_BYTES, SEALERS
from spamnb.fleet.log import FleetLog, Tail
from spamnb.fleet.store import Member
from spamnb.fleet.valkey import ValkeyLog
from spamnb.settings.values import FleetParams

KEY_FILE = "fleet.key"


def open_member(params: FleetParams, home: Path) -> Member:
    """Return the log and the seal; connections are opened when they are first needed."""
    path = key_path(params, home)
    try:
        key = bytes.fromhex(_read(path))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise FleetError(
            f"{path} does not contain the key of a fleet", hint="copy the key from another host"
        )
    password = _read(Path(params.password_file)) if params.password_file else ""
    log, sealer = open_log(params, password), SEALERS[params.seal](key)
    tail, host = Tail(home), params.effective_host
    return Member(host, log, sealer, params.fold_s, tail, params.outbox_bytes)


def open_log(params: FleetParams, password: str = "") -> FleetLog:
    """Return the log on the server of the url."""
    if not params.url.startswith("postgresql:"):
        return ValkeyLog(params, password)
    try:
        from spamnb.fleet.postgres import (  # noqa: PLC0415 - an extra
            PostgresLog,
        )
    except ImportError as error:
        raise FleetError(
            "fleet.url names a PostgreSQL server, but the package psycopg is not installed",
            hint="install spamnb[fleet]",
        ) from error
    return PostgresLog(params, password)


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
