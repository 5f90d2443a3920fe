"""Start the daemon: bind sockets, drop privileges, plan the processes, run the supervisor.

The order matters: sockets are bound and the home is created with the rights of the caller, then
privileges are dropped, before anything else happens. Must not know how a process works. Failure:
UserError for what the settings or the machine do not allow, StoreError for a missing model.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from spamnb.daemon.processes import privileges
from spamnb.daemon.processes.channel import StartParams
from spamnb.daemon.processes.logs import Log, take_over
from spamnb.daemon.processes.shared_state import SharedState
from spamnb.daemon.processes.sockets import BindAddress, Sockets, inherited
from spamnb.daemon.processes.supervisor import ProcessPlan, Supervisor
from spamnb.daemon.processes.systemd import Notifier
from spamnb.daemon.processes.verdict_feed import create_feed
from spamnb.endpoints.net.address import Address
from spamnb.endpoints.net.networks import UNIX
from spamnb.errors import StoreMissingError, UserError
from spamnb.service.scanning.access_lists import AccessLists, RuleFiles
from spamnb.settings import Settings, control_of
from spamnb.settings.persons import person_names
from spamnb.settings.schema import DELIVERY_ADDRESS, ListenerSettings

ENTRIES: Mapping[str, str] = {
    "learner": "spamnb.daemon.roles.learner_main:main",
    "delivery": "spamnb.daemon.roles.delivery:main",
    "imap": "spamnb.daemon.roles.imap:main",
    "console": "spamnb.daemon.roles.console:main",
    "worker": "spamnb.daemon.roles.worker:main",
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
    identity = privileges.identity(settings.serve.user, settings.serve.group, home)
    if not home.exists():
        if serve_request.create is None:
            raise _missing(home)
        privileges.make_home(home, identity)
    sockets = bound(serve_request)
    try:
        log = Log(settings.log, "supervisor")
        if identity is not None:
            sockets.give(identity.uid, identity.gid)
            log.give(identity.uid, identity.gid)
            privileges.drop(identity)
        privileges.harden()
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
    for name, text in addresses_of(settings).items():
        if name in given:
            sockets.adopt(name, given.pop(name))
            continue
        slots = 1 if name in RESERVED else workers_of(settings)
        # As at the control socket, the kernel reports the users that connect. A proxy names users
        # itself, so not every local user may connect as the proxy.
        by_proxy = UNIX in settings.console.proxies
        mode = 0o666 if name == CONSOLE and not by_proxy else 0o660
        sockets.add(name, _bind_address(text), slots, mode)
    if CONTROL in given:
        sockets.adopt(CONTROL, given.pop(CONTROL))
    else:
        # All users that can reach it may connect: the kernel reports their user id, and the
        # permissions of the folder decide which users can reach it.
        control = control_of(settings, serve_request.home, serve_request.environment)
        sockets.add(CONTROL, BindAddress(path=str(control)), 1, mode=0o666)
    if given:
        raise UserError(
            f"the service manager passed sockets for unknown listeners: "
            f"{', '.join(map(repr, given))}",
            hint="FileDescriptorName= in the .socket unit must name a listener of the settings",
        )


def _bind_address(text: str) -> BindAddress:
    address = Address.parse(text)
    return BindAddress(address.host, address.port, address.path)


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


def _process_plan(serve_request: ServeRequest, sockets: Sockets, log: Log) -> ProcessPlan:
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
    _log: Log

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
        wanted = {name: _bind_address(one.address) for name, one in new.items()}
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
