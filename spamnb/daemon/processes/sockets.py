"""Listening sockets: bound before privileges are dropped, and by a reload that adds listeners.

A TCP address gets one SO_REUSEPORT socket per worker slot, so that the kernel distributes the
connections, and the death of a worker does not affect the queues of others. The process that
replaces a worker inherits the sockets of the slot with the waiting connections, because the
supervisor keeps them open. All workers share a unix socket, or a socket from the service manager.
Must not know the protocol. Failure: UserError, one line with the address.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from spamnb.endpoints.net.address import MOST_PATH_BYTES
from spamnb.errors import UserError

BACKLOG = 1024
"""connections that may wait while all workers are busy or one is restarted"""
_FIRST_FD = 3


@dataclass(frozen=True, slots=True)
class BindAddress:
    """A host and port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SocketGroup:
    """The sockets of one bound address: one per slot, or one for all."""

    sockets: tuple[socket.socket, ...]
    file: tuple[Path, int] | None = None
    """path and inode of a unix socket that was created"""

    def of(self, slot: int) -> socket.socket:
        """Return the socket of a slot, counted from 0."""
        return self.sockets[slot % len(self.sockets)]

    @property
    def bound(self) -> str:
        """Bound address, with the port that the kernel chose."""
        return text_of(self.sockets[0])

    def close(self) -> None:
        """Close the sockets, and remove the created file unless it was replaced."""
        for one in self.sockets:
            one.close()
        if self.file is not None:
            path, inode = self.file
            with suppress(OSError):
                if path.stat().st_ino == inode:
                    path.unlink()


@dataclass(slots=True)
class Sockets:
    """All listening sockets, by listener name."""

    groups: dict[str, list[SocketGroup]] = field(default_factory=dict)
    bound: dict[str, BindAddress] = field(default_factory=dict)
    """addresses that were bound here, not by the service manager"""

    def add(self, name: str, bind: BindAddress, slots: int, mode: int = 0o660) -> None:
        """Bind an address."""
        self.groups[name] = _groups(bind, slots, mode)
        self.bound[name] = bind

    def rebind(
        self, wanted: Mapping[str, BindAddress], slots: int, fixed: Container[str]
    ) -> list[str]:
        """Listen at these addresses only; return the names that have other sockets than before.

        An address that moves to another name keeps its sockets, and the connections that wait
        there. The names in `fixed`, and sockets of the service manager that are still wanted, stay.
        Failure: UserError if an address cannot be bound; then nothing has changed.
        """
        before, same = self.bound, {name for name in self.groups if name in fixed}
        same |= {name for name in wanted if before.get(name, wanted[name]) == wanted[name]}
        same &= self.groups.keys()
        gone = {name: groups for name, groups in self.groups.items() if name not in same}
        free = {before[name]: name for name in gone if name in before}
        found, made = {}, []
        try:
            for name in wanted.keys() - same:
                if bind := free.pop(wanted[name], ""):
                    found[name] = gone.pop(bind)
                else:
                    found[name] = _groups(wanted[name], slots)
                    made += found[name]
        except BaseException:
            _close(made)
            raise
        for groups in gone.values():
            _close(groups)
        self.groups = {name: self.groups[name] for name in self.groups if name in same} | found
        self.bound = {name: before[name] for name in before if name in same}
        self.bound |= {name: wanted[name] for name in found}
        return list(found)

    def adopt(self, name: str, sockets: list[socket.socket]) -> None:
        """Use sockets that the service manager bound."""
        self.groups[name] = [SocketGroup((one,)) for one in sockets]

    def give(self, uid: int, gid: int) -> None:
        """Change the owner of the created unix sockets."""
        for group in self._all():
            if group.file is not None:
                # A compromised daemon could have put a link into its folder.
                os.chown(group.file[0], uid, gid, follow_symlinks=False)

    def of(self, name: str, slot: int) -> list[socket.socket]:
        """Return the sockets of a listener for a slot."""
        return [group.of(slot) for group in self.groups.get(name, [])]

    def close(self) -> None:
        """Close all sockets, and remove the created files."""
        _close(self._all())

    def _all(self) -> list[SocketGroup]:
        return [group for groups in self.groups.values() for group in groups]


def _close(groups: Iterable[SocketGroup]) -> None:
    for group in groups:
        group.close()


def _groups(bind: BindAddress, slots: int, mode: int = 0o660) -> list[SocketGroup]:
    if bind.path:
        path = Path(bind.path)
        one = _unix(path, mode)
        return [SocketGroup((one,), (path, path.stat().st_ino))]
    made: list[SocketGroup] = []
    try:
        for family, address in _resolved(bind):
            made.append(SocketGroup(_tcp(family, address, bind, slots)))
    except BaseException:
        _close(made)
        raise
    return made


def text_of(bound: socket.socket) -> str:
    """Return the address of a bound socket."""
    name = bound.getsockname()
    if bound.family == socket.AF_UNIX:
        return str(BindAddress(path=name))
    return str(BindAddress(host=name[0], port=name[1]))


def inherited(environment: Mapping[str, str]) -> dict[str, list[socket.socket]]:
    """Return the sockets of the service manager, by their names (sd_listen_fds(3))."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return {}
    try:
        count = int(environment.get("LISTEN_FDS", "0"))
    except ValueError as error:
        raise UserError(f"LISTEN_FDS is {environment['LISTEN_FDS']!r}, not a number") from error
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    found: dict[str, list[socket.socket]] = {}
    for index in range(count):
        name = names[index] if index < len(names) else ""
        try:
            one = socket.socket(fileno=_FIRST_FD + index)
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise UserError(
                f"descriptor {_FIRST_FD + index} of LISTEN_FDS is not a socket"
            ) from error
        if not listens or one.type != socket.SOCK_STREAM:
            raise UserError(
                f"descriptor {_FIRST_FD + index} ({name}) of LISTEN_FDS does not listen",
                hint="in the .socket unit, use ListenStream= and Accept=no",
            )
        one.set_inheritable(False)
        one.setblocking(False)
        found.setdefault(name, []).append(one)
    return found


def _resolved(bind: BindAddress) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(
            bind.host or None, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise UserError(
            f"cannot listen on {bind}: {error.strerror}", hint="check the host name"
        ) from error
    return list(dict.fromkeys((family, address[:2]) for family, _, _, _, address in found))  # type: ignore[misc]


def _tcp(
    family: socket.AddressFamily, address: tuple[str, int], bind: BindAddress, slots: int
) -> tuple[socket.socket, ...]:
    """Bind one socket per slot to an address."""
    if address[1]:
        # With SO_REUSEPORT a second daemon of the same user would silently share the port.
        _one(family, address, bind, shared=False).close()
    made = [_one(family, address, bind, shared=True)]
    address = made[0].getsockname()[:2]
    made += [_one(family, address, bind, shared=True) for _ in range(slots - 1)]
    for one in made:
        one.listen(BACKLOG)
    return tuple(made)


def _one(
    family: socket.AddressFamily, address: tuple[str, int], bind: BindAddress, *, shared: bool
) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.setblocking(False)
        one.bind(address)
        if not shared:
            one.listen(1)  # SO_REUSEADDR lets two sockets bind the port, but only one listen
    except OSError as error:
        one.close()
        raise _refused(str(bind), error) from error
    return one


def _unix(path: Path, mode: int) -> socket.socket:
    if len(os.fsencode(path)) > MOST_PATH_BYTES:
        raise UserError(
            f"unix:{path} is longer than {MOST_PATH_BYTES} bytes, the limit for unix sockets",
            hint="use a shorter path; for the control socket set serve.control",
        )
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _clear(path)
        # The umask sets the mode at bind: with a later chmod, other users could connect before it,
        # or replace the file.
        before = os.umask(0o777 & ~mode)
        try:
            one.bind(str(path))
        finally:
            os.umask(before)
        one.setblocking(False)
        one.listen(BACKLOG)
    except UserError:
        one.close()
        raise
    except OSError as error:
        one.close()
        raise _refused(f"unix:{path}", error, _UNIX_HINTS) from error
    return one


def _clear(path: Path) -> None:
    """Remove a socket file without a listening process."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UserError(
                f"{path} exists and is not a socket", hint="remove it, or choose another path"
            )
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another process listens there")


_HINTS = {
    errno.EADDRINUSE: "another program listens there: stop it, or choose another address",
    errno.EACCES: "ports below 1024 need root, or socket activation",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.ENOENT: "create the folder",
}
_UNIX_HINTS = _HINTS | {
    errno.EACCES: "the user that starts the daemon needs write permission for its folder"
}
_WORDS = {errno.EADDRINUSE: "is in use", errno.EACCES: "cannot be bound: permission denied"}


def _refused(where: str, error: OSError, hints: Mapping[int, str] = _HINTS) -> UserError:
    number = error.errno or 0
    what = _WORDS.get(number, f"cannot be bound: {error.strerror or error}")
    return UserError(f"{where} {what}", hint=hints.get(number, ""))
