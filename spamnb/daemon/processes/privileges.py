"""User and group that the daemon runs as, and limits for all its processes.

Applied once, after the sockets are bound and before mail is read. Must not know settings or
sockets. Failure: UserError with a hint; the daemon runs as root only if serve.user is root.
"""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spamnb.errors import UserError
from spamnb.service.admin.request import login_of

USER = "spamnb"
"""the default user"""

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True, slots=True)
class Identity:
    """User and group to run as."""

    name: str
    uid: int
    gid: int


def identity(user: str, group: str, home: Path) -> Identity | None:
    """Choose the user: as set, else the home's owner, else `spamnb`; None: do not change it.

    Only root can change its user. Root stays root only with `user = "root"`.
    """
    if os.geteuid() != 0:
        if user and user != login_of(os.geteuid()):
            raise UserError(
                f"only root can start the daemon as {user}",
                hint="start it as root, or leave serve.user empty",
            )
        return None
    if user == "root":
        return None
    found = _user(user) if user else _owner(home) or _default()
    gid = _gid(group) if group else found.pw_gid
    if found.pw_uid == 0:
        raise UserError(
            f"the user {found.pw_name} has the user id of root",
            hint="set serve.user to another user",
        )
    return Identity(found.pw_name, found.pw_uid, gid)


def _user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        raise UserError(
            f"there is no user {name}", hint=f"create it: useradd --system {name}"
        ) from error


def _gid(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise UserError(
            f"there is no group {name}", hint=f"create it: groupadd --system {name}"
        ) from error


def _owner(home: Path) -> pwd.struct_passwd | None:
    """Return the owner of the home; None if it is missing or belongs to root."""
    with suppress(OSError, KeyError):
        uid = home.stat().st_uid
        return pwd.getpwuid(uid) if uid else None
    return None


def _default() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(USER)
    except KeyError as error:
        raise UserError(
            "the daemon refuses to run as root, and there is no user spamnb",
            hint="create it: useradd --system spamnb; or set serve.user",
        ) from error


def make_home(home: Path, identity: Identity | None) -> None:
    """Create a missing home for the daemon's user."""
    try:
        home.mkdir(mode=0o700, parents=True)
        if identity is not None:
            os.chown(home, identity.uid, identity.gid)
    except OSError as error:
        raise UserError(f"{home} cannot be created: {error.strerror}") from error


def drop(identity: Identity) -> None:
    """Change user and group permanently."""
    os.initgroups(identity.name, identity.gid)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    if not os.access(sys.executable, os.X_OK):
        raise UserError(
            f"{identity.name} cannot run {sys.executable}",
            hint="install Python where all users can read it, or set serve.user",
        )


def harden() -> None:
    """Disable core dumps and new privileges; raise the limit of file descriptors."""
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A core dump would contain mail and the model's key.
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, most)):
        # The shipped systemd unit forbids setrlimit, and sets both limits itself.
        with suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Kill this process as soon as its parent ends, or now if it has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    """Call prctl(2) if the system has it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
