"""Secrets and certificates that the settings name.

A secret is the first line of a file that only its owner may read, or of the output of a program. It
is read when it is used, and never appears in a log, an error or the arguments of a process.
Failure: UserError for a file or a program without a secret, SettingsError for a certificate that
cannot be used.
"""

from __future__ import annotations

import os
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from spamnb.errors import SettingsError, UserError

_COMMAND_S: Final = 60.0
"""a program may ask its server for a new token"""
_SECRET_BYTES: Final = 1 << 16


class SecretSource(NamedTuple):
    """The settings `NAME_file` and `NAME_command` of one secret."""

    name: str
    """what the secret is, such as "password" """
    file: str
    command: tuple[str, ...]

    def check_one(self) -> None:
        """Raise SettingsError if both are set."""
        if self.file and self.command:
            raise SettingsError(
                f"{self.name}_file and {self.name}_command are both set",
                hint="remove one of them",
            )

    def problems(self) -> Iterator[UserError]:
        """Yield what would stop `read`, without running the program."""
        if not (self.file or self.command):
            yield SettingsError(
                f"no {self.name} is given",
                hint=f"set {self.name}_file to a file with mode 0600, or {self.name}_command",
            )
        if self.command and not _found(self.command[0]):
            yield SettingsError(
                f"the program {self.command[0]!r} does not exist", hint=f"see {self.name}_command"
            )
        try:
            if self.file:
                self._from_file()
        except UserError as error:
            yield error

    def read(self) -> str:
        """Return the secret."""
        found = self._from_command() if self.command else self._from_file()
        try:
            secret = found.decode("utf-8").partition("\n")[0].rstrip("\r")
        except UnicodeDecodeError:
            secret = ""
        if not secret or "\0" in secret:
            source = self.command[0] if self.command else self.file
            raise UserError(
                f"{source} gives no {self.name}", hint="it must be the first line, in UTF-8"
            )
        return secret

    def _from_file(self) -> bytes:
        """Read a file that only its owner may read."""
        file = f"the {self.name} file {self.file}"
        try:
            handle = os.open(
                Path(self.file).expanduser(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            )
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}") from error
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise UserError(f"{file} is not a regular file")
            if about.st_uid not in (0, os.geteuid()):
                raise UserError(f"{file} belongs to another user")
            if about.st_mode & 0o077:
                raise UserError(
                    f"other users may read or write {file}", hint=f"chmod 600 {self.file}"
                )
            return os.read(handle, _SECRET_BYTES)
        finally:
            os.close(handle)

    def _from_command(self) -> bytes:
        """Run a program without a shell; what it writes to its standard error is not shown."""
        program = f"{self.name}_command: {self.command[0]}"
        try:
            done = subprocess.run(  # noqa: S603 - the administrator's command
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_COMMAND_S,
                check=False,
            )
        except OSError as error:
            raise UserError(f"{program}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise UserError(f"{program} takes too long") from error
        if done.returncode:
            raise UserError(f"{program} fails with exit code {done.returncode}")
        return done.stdout[:_SECRET_BYTES]


def _found(program: str) -> bool:
    folders = [""] if "/" in program else os.get_exec_path()
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in folders)  # noqa: PTH118 - as the shell does


def server_tls(certificate: str, key: str) -> ssl.SSLContext | None:
    """Return the TLS of a server; None without a certificate. Empty key: it is in the same file."""
    if not certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An empty passphrase: without it OpenSSL would prompt on the terminal and block.
        context.load_cert_chain(certificate, key or None, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"the certificate {certificate} cannot be used: {error}",
            hint="give PEM files that the daemon's user can read",
        ) from error
    return context
