"""Start the daemon: bind sockets, drop privileges, plan the processes, run the supervisor.

The order matters: sockets are bound and the home is created with the rights of the caller, then
privileges are dropped, before anything else happens. Must not know how a process works. Failure:
UserError with a hint for what the settings or the machine do not allow.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import grp
import os
import pwd
import resource
import socket
import stat
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from spamnb.daemon.logs import DaemonLog, take_over
from spamnb.daemon.shared import SharedState, create_feed
from spamnb.daemon.supervisor import Notifier, ProcessPlan, StartParams, Supervisor, prctl
from spamnb.errors import StoreMissingError, UserError
from spamnb.net.address import MOST_PATH_BYTES, UNIX, Address
from spamnb.operations.request import login_of
from spamnb.scan.access_lists import AccessLists, RuleFiles
from spamnb.settings import Settings, control_of
from spamnb.settings.persons import person_names
from spamnb.settings.schema import DELIVERY_ADDRESS, ListenerSettings

USER = "spamnb"
"""the default user"""

_PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True, slots=True)
class Identity:
    """User and group to run as."""

    name: str
    uid: int
    gid: int


def identity_of(user: str, group: str, home: Path) -> Identity | None:
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
    """Change user and group permanently.

    Applied once, after the sockets are bound and before mail is read. The daemon runs as root only
    if serve.user is root.
    """
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
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


BACKLOG = 1024
"""connections that may wait while all workers are busy or one is restarted"""
_FIRST_FD = 3


@dataclass(frozen=True, slots=True)
class BindAddress:
    """A host and port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    mode: int = field(default=0o660, compare=False)
    """of a unix socket; a socket that is bound keeps its mode"""

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
    """All listening sockets, by listener name.

    A TCP address gets one SO_REUSEPORT socket per worker slot, so that the kernel distributes the
    connections, and the death of a worker does not affect the queues of others. The process that
    replaces a worker inherits the sockets of the slot with the waiting connections, because the
    supervisor keeps them open. All workers share a unix socket, or a socket from the service
    manager. Must not know the protocol. Failure: UserError, one line with the address.
    """

    groups: dict[str, list[SocketGroup]] = field(default_factory=dict)
    bound: dict[str, BindAddress] = field(default_factory=dict)
    """addresses that were bound here, not by the service manager"""

    def add(self, name: str, bind: BindAddress, slots: int) -> None:
        """Bind an address."""
        self.groups[name] = _groups(bind, slots)
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


def _groups(bind: BindAddress, slots: int) -> list[SocketGroup]:
    if bind.path:
        path = Path(bind.path)
        one = _unix(path, bind.mode)
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


ENTRIES: Mapping[str, str] = {
    "learner": "spamnb.daemon.learner:main",
    "delivery": "spamnb.daemon.delivery:main",
    "imap": "spamnb.daemon.imap:main",
    "console": "spamnb.daemon.console:main",
    "worker": "spamnb.daemon.worker:main",
}
LOCK = "serve.lock"
RESERVED = CONTROL, DELIVERY, CONSOLE = "control", "delivery", "console"
"""names of sockets that no listener may have"""
_SOCKETS: Mapping[str, list[str]] = {
    "learner": [CONTROL], DELIVERY: [DELIVERY], CONSOLE: [CONSOLE], "imap": []
}  # fmt: skip
"""names of the sockets of each process that is not a worker"""


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """Arguments of `serve`."""

    settings: Settings
    home: Path
    load: Callable[[], Settings]
    """rereads the settings"""
    create: Callable[[], None] | None = None
    """creates an empty model (`--create`)"""
    entries: Mapping[str, str] = field(default_factory=lambda: ENTRIES)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


def serve(serve_request: ServeRequest) -> None:
    """Run the daemon until it is told to stop."""
    settings, home = checked(serve_request.settings), serve_request.home
    notifier = Notifier(serve_request.environment)
    identity = identity_of(settings.serve.user, settings.serve.group, home)
    if not home.exists():
        if serve_request.create is None:
            raise _missing(home)
        make_home(home, identity)
    sockets = bound(serve_request)
    try:
        log = DaemonLog(settings.log, "supervisor")
        if identity is not None:
            sockets.give(identity.uid, identity.gid)
            log.give(identity.uid, identity.gid)
            drop(identity)
        harden()
        with _locked(home):
            _require_model(serve_request)
            take_over(log)
            process_plan = _process_plan(serve_request, sockets, log)
            asyncio.run(Supervisor(process_plan, log, notifier).run())
    finally:
        sockets.close()
        notifier.close()


def checked(settings: Settings) -> Settings:
    """Return the settings; raise if a listener or an access list is invalid."""
    for problem in (*release_problems(settings), *console_problems(settings)):
        raise problem
    AccessLists.load(RuleFiles(settings.rules.allow, settings.rules.block))
    person_names(settings)
    return settings


def release_problems(settings: Settings) -> Iterator[UserError]:
    """Yield an error for each milter that would keep messages and could not release them."""
    maps = (settings.actions, *settings.domain.values())
    if not any("quarantine" in one.chosen() for one in maps):
        return
    for name, listener in listeners_of(settings).items():
        if listener.protocol == "milter" and not listener.upstream:
            yield UserError(
                f"listener.{name} cannot put messages into quarantine: it has no upstream",
                hint="set its upstream to the server that released messages are sent to",
            )


def console_problems(settings: Settings) -> Iterator[UserError]:
    """Yield an error if the console is wanted and its packages are not installed."""
    if settings.digest.at and not (settings.console.address and settings.console.url):
        yield UserError(
            "digest.at needs console.address and console.url",
            hint="links of the mails lead to console.url",
        )
    if settings.webhook and not settings.console.address:
        yield UserError(
            f"webhook.{next(iter(settings.webhook))} needs console.address",
            hint="the process of the console sends webhooks",
        )
    wanted = ("starlette", "uvicorn", "jinja2", "nh3")
    missing = [name for name in wanted if find_spec(name) is None]
    if settings.console.address and missing:
        yield UserError(
            f"console.address needs {' and '.join(missing)}, which is not installed",
            hint="pip install 'spamnb[console]'",
        )


def listeners_of(settings: Settings) -> dict[str, ListenerSettings]:
    """Return the listeners of the settings, else the default listener."""
    found = dict(settings.listener) or {"mail": ListenerSettings()}
    for name in RESERVED:
        if name in found:
            raise UserError(
                f"no listener can be named {name}: the name is reserved",
                hint="choose another name",
            )
    return found


def wants_delivery(settings: Settings) -> bool:
    """Return True if the delivery agent is needed: as a next hop, or by `delivery.address`."""
    no_hop = any(
        listener.protocol == "smtp" and not listener.upstream
        for listener in listeners_of(settings).values()
    )
    return no_hop or bool(settings.delivery.address)


def addresses_of(settings: Settings) -> dict[str, str]:
    """Return the addresses of listeners, and of delivery agent and console if there is one."""
    addresses = {name: one.address for name, one in listeners_of(settings).items()}
    if wants_delivery(settings):
        addresses[DELIVERY] = settings.delivery.address or DELIVERY_ADDRESS
    if settings.console.address:
        addresses[CONSOLE] = settings.console.address
    return addresses


def bound(serve_request: ServeRequest) -> Sockets:
    """Bind all listening sockets."""
    sockets = Sockets()
    try:
        _bind(sockets, serve_request, inherited(serve_request.environment))
    except BaseException:
        sockets.close()
        raise
    return sockets


def _bind(
    sockets: Sockets, serve_request: ServeRequest, given: dict[str, list[socket.socket]]
) -> None:
    """Adopt the sockets that were handed over by name, bind the rest."""
    settings = serve_request.settings
    for name in addresses_of(settings):
        if name in given:
            sockets.adopt(name, given.pop(name))
            continue
        slots = 1 if name in RESERVED else workers_of(settings)
        sockets.add(name, bind_address_of(settings, name), slots)
    if CONTROL in given:
        sockets.adopt(CONTROL, given.pop(CONTROL))
    else:
        control = control_of(settings, serve_request.home, serve_request.environment)
        sockets.add(CONTROL, BindAddress(path=str(control), mode=FOR_ALL), 1)
    if given:
        raise UserError(
            f"the service manager passed sockets for unknown listeners: "
            f"{', '.join(map(repr, given))}",
            hint="FileDescriptorName= in the .socket unit must name a listener of the settings",
        )


FOR_ALL = 0o666
"""mode of the sockets at which the kernel reports the users that connect: they have their own
rights there, and the permissions of the folder decide which users can reach it"""


def bind_address_of(settings: Settings, name: str) -> BindAddress:
    """Return where to bind a listener, the delivery agent or the console."""
    address = Address.parse(addresses_of(settings)[name])
    if name == CONSOLE:
        # A proxy names users itself, so not every local user may connect as the proxy.
        asks_kernel = UNIX not in settings.console.proxies
    else:
        listener = listeners_of(settings).get(name)
        asks_kernel = listener is not None and listener.protocol == "scanner"
    mode = FOR_ALL if asks_kernel else 0o660
    return BindAddress(address.host, address.port, address.path, mode)


def workers_of(settings: Settings) -> int:
    """Return the number of workers."""
    return settings.serve.workers or cores()


def cores() -> int:
    """Return the number of cores that the daemon may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Lock the home while the daemon runs: two learners must not write the same model.

    A home that cannot be written needs no lock, because no process trains there.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(home / LOCK, flags, 0o600)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another daemon serves {home}", hint="stop it first") from error
        yield
    finally:
        os.close(handle)


def _require_model(serve_request: ServeRequest) -> None:
    """Create a missing model, or raise; the other processes handle a damaged one."""
    try:
        if (serve_request.home / "data.mdb").exists():
            return
    except OSError as error:
        raise UserError(
            f"{serve_request.home} cannot be read: {error.strerror}",
            hint="it must belong to the user that the daemon runs as",
        ) from error
    if serve_request.create is None:
        raise _missing(serve_request.home)
    serve_request.create()


def _missing(home: Path) -> StoreMissingError:
    return StoreMissingError(
        f"there is no model in {home}",
        hint="train one, or use --create for an empty one that learns from corrections",
    )


def _process_plan(serve_request: ServeRequest, sockets: Sockets, log: DaemonLog) -> ProcessPlan:
    settings = serve_request.settings
    roles = ["learner", *(name for name in (DELIVERY, CONSOLE) if name in sockets.groups)]
    roles += ["imap"] if settings.imap else []
    roles += ["worker"] * workers_of(settings)
    # Each scan process has its own slot, for its counters and the messages that crash it.
    scans = scan_slots_of(1 + len(roles), workers_of(settings), cores())
    shared = SharedState.create(["supervisor", *roles, *["scan"] * sum(map(len, scans))])
    start = StartParams(
        role="",
        entry="",
        slot=0,
        shared_fd=shared.fd,
        home=str(serve_request.home),
        parent=os.getpid(),
        settings_file=settings.file,
        control=str(control_of(settings, serve_request.home, serve_request.environment)),
        delivery=_delivery_address(sockets),
        feed_fd=create_feed(workers_of(settings)) if CONSOLE in roles else -1,
    )
    starts, first_worker = [], 1 + roles.index("worker")
    for slot, role in enumerate(roles, 1):
        own = scans[slot - first_worker] if role == "worker" else []
        entry = serve_request.entries[role]
        ring = max(0, slot - first_worker)
        start = replace(start, role=role, entry=entry, slot=slot, feed_ring=ring)
        starts.append(replace(start, scan_slots=own))
    listening = DaemonSockets(sockets, first_worker, log)
    listening.log_listening(sockets.groups)
    return ProcessPlan(
        serve_request.home,
        settings,
        listening,
        tuple(starts),
        shared,
        lambda: checked(serve_request.load()),
    )


def scan_slots_of(first: int, workers: int, helpers: int) -> list[list[int]]:
    """Return each worker's slots for scan processes: at least one, in total one per core."""
    slots = range(first, first + max(workers, helpers))
    return [list(slots[worker::workers]) for worker in range(workers)]


@dataclass(frozen=True, slots=True)
class DaemonSockets:
    """The sockets of the daemon's processes: workers have those of all listeners."""

    _sockets: Sockets
    _first_worker: int
    """the slot of the first worker"""
    _log: DaemonLog

    def of(self, start: StartParams) -> dict[str, list[int]]:
        """Return the descriptors of a process, by listener."""
        found = self._sockets
        listeners = [name for name in found.groups if name not in RESERVED]
        index = max(0, start.slot - self._first_worker)
        return {
            name: [one.fileno() for one in found.of(name, index)]
            for name in _SOCKETS.get(start.role, listeners)
        }

    def apply_settings(self, before: Settings, after: Settings) -> set[str]:
        """Bind new addresses; return the listeners with a new address or another protocol."""
        old, new = listeners_of(before), listeners_of(after)
        wanted = {name: bind_address_of(after, name) for name in new}
        moved = set(self._sockets.rebind(wanted, workers_of(after), RESERVED))
        for name in old.keys() - new.keys():
            self._log({"event": "listener removed", "listener": name})
        self.log_listening(moved)
        return moved | {
            name for name in old.keys() & new.keys() if old[name].protocol != new[name].protocol
        }

    def log_listening(self, names: Iterable[str]) -> None:
        """Log the addresses of listeners."""
        for name in names:
            for group in self._sockets.groups[name]:
                self._log({"event": "listening", "listener": name, "address": group.bound})

    def close(self) -> None:
        """Close all."""
        self._sockets.close()


def _delivery_address(sockets: Sockets) -> str:
    return sockets.groups[DELIVERY][0].bound if DELIVERY in sockets.groups else ""
