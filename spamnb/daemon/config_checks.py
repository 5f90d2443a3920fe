"""What `serve` would meet with these settings, found without serving: one line for each problem.

Each check does what a process of the daemon does with the same setting, as the user that the daemon
runs as, and reports the error that the process would report. Nothing is written; an address is
bound for a moment and released. An address that the running daemon of this home listens on is no
problem. Failure: none of its own; problems are returned as UserError values.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from spamnb.daemon.processes import privileges
from spamnb.daemon.processes.bootstrap import CONTROL, LOCK, POST, addresses_of, wants_post
from spamnb.daemon.processes.sockets import BindAddress, Sockets
from spamnb.daemon.roles.delivery import office_of
from spamnb.daemon.roles.learner import SYSTEM_SPOOL, user_id
from spamnb.endpoints.net.address import MOST_PATH_BYTES, Address
from spamnb.endpoints.smtp.delivery.logins import Passwords
from spamnb.endpoints.smtp.delivery.recipients import Recipients
from spamnb.endpoints.smtp.delivery.server import tls_context
from spamnb.errors import UserError
from spamnb.service.feedback import spool
from spamnb.service.scanning.access_lists import AccessLists, RuleFiles
from spamnb.settings import Settings, control_of

_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound


class Checked(NamedTuple):
    """What is checked."""

    settings: Settings
    home: Path
    environment: Mapping[str, str]


Problems = Iterator[UserError]


def problems(checked: Checked) -> list[UserError]:
    """Every problem that `serve` would meet, in the order in which it would meet them."""
    found = [*_collected(_AT_THE_START, checked)]
    who = None
    try:
        settings = checked.settings.serve
        who = privileges.identity(settings.user, settings.group, checked.home)
    except UserError as error:
        found.append(error)
    with _acting_as(who):
        found += _collected(_AS_THE_DAEMON, checked)
    # Two checks may meet the same error.
    return list({str(problem): problem for problem in found}.values())


def _collected(checks: tuple[Callable[[Checked], Problems], ...], checked: Checked) -> Problems:
    for check in checks:
        try:
            yield from check(checked)
        except UserError as error:
            yield error
        except OSError as error:
            yield UserError(f"{error.filename or checked.home}: {error.strerror}")


@contextmanager
def _acting_as(who: privileges.Identity | None) -> Iterator[None]:
    """Be the daemon's user inside the block; None: stay."""
    if who is None:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    try:
        os.initgroups(who.name, who.gid)
        os.setegid(who.gid)
        os.seteuid(who.uid)
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(gid)
        os.setgroups(groups)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


# -- as the user that starts the daemon -----------------------------------------------------------


def _addresses(checked: Checked) -> Problems:
    """Listeners that share an address, and addresses that cannot be listened on."""
    addresses = addresses_of(checked.settings)
    places = {name: _Place.of(address) for name, address in addresses.items()}
    control = control_of(checked.settings, checked.home, checked.environment)
    places[CONTROL] = _Place.at(str(control))
    for (one, first), (other, second) in combinations(places.items(), 2):
        if first.overlaps(second):
            yield UserError(
                f"{_named(one)} and {_named(other)} both listen on {second.text}",
                hint="give each an address of its own",
            )
    for name, place in places.items():
        try:
            _bindable(place, served=_is_served(checked.home))
        except UserError as error:
            yield UserError(f"{_named(name)}: {error}", hint=error.hint)
        except OSError as error:
            yield UserError(f"{_named(name)}: {place.text}: {error.strerror}")


def _named(name: str) -> str:
    return {CONTROL: "the control socket", POST: "the post office"}.get(name, f"listener.{name}")


class _Place(NamedTuple):
    """Where a listener listens, resolved."""

    text: str
    place: BindAddress
    ends: frozenset[tuple[str, int]]
    """addresses and ports of TCP; a path with port 0"""

    @classmethod
    def of(cls, text: str) -> _Place:
        """The place that a setting names."""
        address = Address.parse(text)
        if address.path:
            return cls.at(address.path)
        return cls(address.place, BindAddress(address.host, address.port), _resolved(address))

    @classmethod
    def at(cls, path: str) -> _Place:
        """The place of a unix socket."""
        return cls(f"unix:{path}", BindAddress(path=path), frozenset({(os.path.realpath(path), 0)}))

    def overlaps(self, other: _Place) -> bool:
        """Whether both cannot be listened on; port 0 is a port that the kernel chooses."""
        return any(
            port == its and (port or host.startswith("/")) and _same(host, their)
            for host, port in self.ends
            for their, its in other.ends
        )


def _same(host: str, other: str) -> bool:
    if host == other:
        return True
    one_family = (":" in host) == (":" in other)
    return one_family and not host.startswith("/") and bool({host, other} & {*_ANY})


def _resolved(address: Address) -> frozenset[tuple[str, int]]:
    """Its numeric addresses; none if the name is unknown, which binding reports."""
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return frozenset((str(end[0]), int(end[1])) for *_, end in found)
    return frozenset()


def _bindable(place: _Place, *, served: bool) -> None:
    """Raise the error that listening there would raise."""
    if place.place.path:
        _unix_bindable(Path(place.place.path))
        return
    sockets = Sockets()
    try:
        sockets.add("", place.place, 1)
    except UserError as error:
        cause = error.__cause__
        used = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
        if not (used and served):
            raise
    finally:
        sockets.close()


def _unix_bindable(path: Path) -> None:
    """The same for a unix socket, of which no file is made."""
    if len(os.fsencode(path)) > MOST_PATH_BYTES:
        raise UserError(
            f"unix:{path} has more than {MOST_PATH_BYTES} bytes, all that such an address holds",
            hint="listen elsewhere; for the control socket set serve.control",
        )
    if not path.parent.exists() and path.name == "control.sock":
        return  # in the home, which `serve --create` makes
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is no folder", hint="the folder must be there")
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise UserError(f"{path} is there and is no socket", hint="remove it, or listen elsewhere")
    if not _may(path.parent, os.W_OK | os.X_OK):
        raise UserError(
            f"unix:{path} may not be listened on",
            hint="the user that starts the daemon must be allowed to write in its folder",
        )


def _is_served(home: Path) -> bool:
    """Whether a daemon serves this home now: it holds the lock."""
    try:
        handle = os.open(home / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _upstreams(checked: Checked) -> Problems:
    """Listeners whose next hop is a listener of the same daemon: mail would go in a ring."""
    addresses = addresses_of(checked.settings)
    listeners = {name: _Place.of(addresses[name]) for name in addresses if name != POST}
    for name, listener in checked.settings.listener.items():
        if not listener.upstream:
            continue
        upstream = _Place.of(listener.upstream)
        for other, place in listeners.items():
            if upstream.overlaps(place):
                yield UserError(
                    f"the upstream of listener.{name}, {upstream.text}, is listener.{other} itself",
                    hint="name the server that takes the mail after spamnb",
                )


def _log_file(checked: Checked) -> Problems:
    """A log file that cannot be opened; the user that starts the daemon opens it."""
    file = checked.settings.log.file
    if file and (why := _unwritable(Path(file))):
        yield UserError(f"the log file {file} cannot be written: {why}", hint="see log.file")


def _unwritable(path: Path) -> str:
    """Why a file cannot be written or made; empty if it can be."""
    try:
        if path.is_dir():
            return os.strerror(errno.EISDIR)
        if path.exists():
            return "" if _may(path, os.W_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        return os.strerror(error.errno or errno.EACCES)
    if not path.parent.is_dir():
        return os.strerror(errno.ENOENT)
    return "" if _may(path.parent, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)


# -- as the user that the daemon runs as ----------------------------------------------------------


def _program(_: Checked) -> Problems:
    if not _may(Path(sys.executable), os.X_OK):
        yield UserError(
            f"the daemon's user cannot run {sys.executable}",
            hint="install Python where everyone may read it, or set serve.user",
        )


def _log_again(checked: Checked) -> Problems:
    """The daemon's processes open the log file by themselves."""
    file = checked.settings.log.file
    folder = _existing(Path(file).absolute().parent)
    if file and folder.is_dir() and not _may(folder, os.X_OK):
        yield UserError(
            f"the log file {file} cannot be reached by the daemon's user",
            hint="the user that the daemon runs as must be allowed to enter its folder",
        )


def _home(checked: Checked) -> Problems:
    """A home that the daemon could not read, write or make."""
    home, hint = checked.home, "it must belong to the user that the daemon runs as"
    there = _existing(home)
    if not there.is_dir():
        yield UserError(f"the home {home} is no folder", hint="set home to a folder")
    elif there == home and not _may(home, os.R_OK | os.W_OK | os.X_OK):
        yield UserError(f"the home {home} cannot be read and written", hint=hint)
    elif there == home:
        for name in ("data.mdb", "lock.mdb"):
            if (home / name).exists() and not _may(home / name, os.R_OK | os.W_OK):
                yield UserError(f"{home / name} cannot be read and written", hint=hint)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def _lists(checked: Checked) -> Problems:
    rules = checked.settings.rules
    for files in (RuleFiles(allow=rules.allow), RuleFiles(block=rules.block)):
        try:
            AccessLists.load(files)
        except UserError as error:
            yield error


def _post_office(checked: Checked) -> Problems:
    """What the post office reads at its start: certificate, users and logins."""
    agent = office_of(checked.settings, checked.home)
    for step in (
        lambda: tls_context(agent),
        lambda: Recipients(agent),
        lambda: Passwords(agent.passwords) if agent.passwords else None,
    ):
        try:
            step()
        except UserError as error:
            yield error
    root = Path(checked.settings.delivery.root)
    if checked.settings.delivery.root and wants_post(checked.settings):
        there = _existing(root)
        if not there.is_dir() or not _may(there, os.W_OK | os.X_OK):
            yield UserError(
                f"delivery.root {root} cannot be written",
                hint="it must belong to the user that the daemon runs as",
            )


def _delegates(checked: Checked) -> Problems:
    for name in checked.settings.serve.delegates:
        if user_id(name) is None:
            yield UserError(
                f"serve.delegates names {name!r}, which is no user here", hint="see getent passwd"
            )


def _spools(checked: Checked) -> Problems:
    """Spools that the daemon cannot empty, or that programs cannot write into as they must."""
    named = checked.settings.feedback.spool
    folder = Path(named) if named else SYSTEM_SPOOL
    there = _existing(folder)
    if there == folder:
        wrong = spool.problem(folder)
        # Without a setting, the system's spool counts if it belongs to the daemon.
        if wrong and (named or folder.stat().st_uid == os.geteuid()):
            yield wrong
    elif named and not (there.is_dir() and _may(there, os.W_OK | os.X_OK)):
        yield UserError(
            f"the spool {folder} is not there and cannot be made",
            hint=f"make it: install -d -m {spool.MODE:o} -o USER {folder}",
        )


_AT_THE_START = (_addresses, _upstreams, _log_file)
_AS_THE_DAEMON = (_program, _home, _log_again, _lists, _post_office, _delegates, _spools)
