"""What the daemon may do: who it becomes when root started it, and what no process of it needs.

Everything here happens once, after the sockets are bound and before a byte of mail is read. Must
not know settings or sockets. Failure: UserError that says what to do; nothing runs as root because
nobody thought of it.
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

USER = "spamnb"
"""who we are if nobody says otherwise"""

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True, slots=True)
class Identity:
    """Who to become."""

    name: str
    uid: int
    gid: int


def identity(user: str, group: str, home: Path) -> Identity | None:
    """Whom root should become: as set, else the home's owner, else `spamnb`; None: stay.

    Who is not root stays who they are. So does root if `user = "root"` says so in as many words.
    """
    if os.geteuid() != 0:
        if user and user != _name(os.geteuid()):
            raise UserError(
                f"only root can become {user}", hint="start it as root, or leave serve.user empty"
            )
        return None
    if user == "root":
        return None
    found = _user(user) if user else _owner(home) or _default()
    gid = _gid(group) if group else found.pw_gid
    if found.pw_uid == 0:
        raise UserError(f"{found.pw_name} is root", hint="serve.user must be somebody else")
    return Identity(found.pw_name, found.pw_uid, gid)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        raise UserError(
            f"there is no user {name}", hint=f"make one: useradd --system {name}"
        ) from error


def _gid(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise UserError(
            f"there is no group {name}", hint=f"make one: groupadd --system {name}"
        ) from error


def _owner(home: Path) -> pwd.struct_passwd | None:
    """Whoever the home belongs to, if it is there and not root's."""
    with suppress(OSError, KeyError):
        uid = home.stat().st_uid
        return pwd.getpwuid(uid) if uid else None
    return None


def _default() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(USER)
    except KeyError as error:
        raise UserError(
            "mail is not read as root, and there is no user spamnb to become",
            hint="make one: useradd --system spamnb; or set serve.user",
        ) from error


def make_home(home: Path, who: Identity | None) -> None:
    """Make a home that is not there, for whom it is to be."""
    try:
        home.mkdir(mode=0o700, parents=True)
        if who is not None:
            os.chown(home, who.uid, who.gid)
    except OSError as error:
        raise UserError(f"{home} cannot be made: {error.strerror}") from error


def drop(who: Identity) -> None:
    """Become somebody, for good."""
    os.initgroups(who.name, who.gid)
    os.setresgid(who.gid, who.gid, who.gid)
    os.setresuid(who.uid, who.uid, who.uid)
    if not os.access(sys.executable, os.X_OK):
        raise UserError(
            f"{who.name} cannot run {sys.executable}",
            hint="install Python where everyone may read it, or set serve.user",
        )


def harden() -> None:
    """Give up what no process of the daemon needs; take all the file descriptors we may have."""
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A core would hold people's mail and the model's key.
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, most)):
        # The cage of our systemd unit forbids setrlimit, and has set both itself.
        with suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """End this process at once if its parent does, however that dies (and if it has by now)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    """Ask the kernel; systems without prctl go without."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
