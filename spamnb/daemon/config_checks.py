"""Checks of `spamnb config check`: find the problems that would stop `serve` or make it useless.

Each check does what a process of the daemon does with the same setting, as the daemon's user, and
reports the same error. Nothing is written; addresses are bound briefly and released. Addresses in
use by the running daemon of this home are not a problem. Failure: problems are returned as
UserError values, not raised.

Two checks find settings with which the daemon starts, but does not serve. A forged result of
authentication and a true one go through the code that each listener runs before a scan (removal,
place, parser): if nothing is ever believed, this is reported. The next hop of each listener is
asked for its greeting: with a wrong port, each message would be deferred (`spamnb doctor` asks the
same).
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

from spamnb.daemon import start
from spamnb.daemon.delivery import delivery_params
from spamnb.daemon.learner import SYSTEM_SPOOL
from spamnb.daemon.start import (
    CONSOLE,
    CONTROL,
    DELIVERY,
    LOCK,
    BindAddress,
    Sockets,
    addresses_of,
    console_problems,
    release_problems,
    wants_delivery,
)
from spamnb.errors import UserError
from spamnb.feedback import spool
from spamnb.imap.client import account_problems
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import parted
from spamnb.mail.site_results import BORDER, border_mark
from spamnb.milter.session import MilterMessage
from spamnb.net.address import MOST_PATH_BYTES, Address
from spamnb.net.clients import socket_to
from spamnb.net.credentials import server_tls
from spamnb.operations.logins import Passwords
from spamnb.operations.request import user_id
from spamnb.policy.headers import placed, remove_claims
from spamnb.policy.senders import evidence_of
from spamnb.scan.access_lists import AccessLists, RuleFiles
from spamnb.settings import Settings, control_of
from spamnb.settings.persons import person_names
from spamnb.settings.schema import ListenerSettings
from spamnb.settings.values import webhook_problems
from spamnb.smtp.delivery_values import Recipients

_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound


class Checked(NamedTuple):
    """Input of the checks."""

    settings: Settings
    home: Path
    environment: Mapping[str, str]


Problems = Iterator[UserError]


def problems(checked: Checked) -> list[UserError]:
    """Return all problems, in the order in which `serve` would meet them."""
    found = [*_collected(_AT_THE_START, checked)]
    identity = None
    try:
        settings = checked.settings.serve
        identity = start.identity_of(settings.user, settings.group, checked.home)
    except UserError as error:
        found.append(error)
    with _acting_as(identity):
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
def _acting_as(identity: start.Identity | None) -> Iterator[None]:
    """Use the user id of the daemon inside the block; None changes nothing."""
    if identity is None:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    try:
        os.initgroups(identity.name, identity.gid)
        os.setegid(identity.gid)
        os.seteuid(identity.uid)
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(gid)
        os.setgroups(groups)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


# -- as the user that starts the daemon -----------------------------------------------------------


def _addresses(checked: Checked) -> Problems:
    """Report listeners with the same address, and addresses that cannot be bound."""
    addresses = addresses_of(checked.settings)
    places = {name: _ListenAddress.of(address) for name, address in addresses.items()}
    control = control_of(checked.settings, checked.home, checked.environment)
    places[CONTROL] = _ListenAddress.at(str(control))
    for (one, first), (other, second) in combinations(places.items(), 2):
        if first.overlaps(second):
            yield UserError(
                f"{_named(one)} and {_named(other)} both listen on {second.text}",
                hint="give each its own address",
            )
    for name, listen in places.items():
        try:
            _bindable(listen, served=_is_served(checked.home))
        except UserError as error:
            yield UserError(f"{_named(name)}: {error}", hint=error.hint)
        except OSError as error:
            yield UserError(f"{_named(name)}: {listen.text}: {error.strerror}")


def _named(name: str) -> str:
    known = {CONTROL: "the control socket", DELIVERY: "the delivery agent"}
    return (known | {CONSOLE: "the console"}).get(name, f"listener.{name}")


class _ListenAddress(NamedTuple):
    """The resolved address of a listener."""

    text: str
    bind: BindAddress
    ends: frozenset[tuple[str, int]]
    """TCP addresses and ports; a unix path has port 0"""

    @classmethod
    def of(cls, text: str) -> _ListenAddress:
        """Return the address of a setting."""
        address = Address.parse(text)
        if address.path:
            return cls.at(address.path)
        return cls(address.socket_name, BindAddress(address.host, address.port), _resolved(address))

    @classmethod
    def at(cls, path: str) -> _ListenAddress:
        """Return the address of a unix socket."""
        return cls(f"unix:{path}", BindAddress(path=path), frozenset({(os.path.realpath(path), 0)}))

    def overlaps(self, other: _ListenAddress) -> bool:
        """Return True if only one of the two can be bound; port 0 never conflicts."""
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
    """Return the numeric addresses; none for an unknown name, which binding reports."""
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return frozenset((str(end[0]), int(end[1])) for *_, end in found)
    return frozenset()


def _bindable(listen: _ListenAddress, *, served: bool) -> None:
    """Raise the error that binding would raise."""
    if listen.bind.path:
        _unix_bindable(Path(listen.bind.path))
        return
    sockets = Sockets()
    try:
        sockets.add("", listen.bind, 1)
    except UserError as error:
        cause = error.__cause__
        used = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
        if not (used and served):
            raise
    finally:
        sockets.close()


def _unix_bindable(path: Path) -> None:
    """Raise the error that binding a unix socket would raise, without creating its file."""
    if len(os.fsencode(path)) > MOST_PATH_BYTES:
        raise UserError(
            f"unix:{path} is longer than {MOST_PATH_BYTES} bytes, the limit for unix sockets",
            hint="use a shorter path; for the control socket set serve.control",
        )
    if not path.parent.exists() and path.name == "control.sock":
        return  # in the home, which `serve --create` creates
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is not a folder", hint="create the folder")
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise UserError(
            f"{path} exists and is not a socket", hint="remove it, or choose another path"
        )
    if not _may(path.parent, os.W_OK | os.X_OK):
        raise UserError(
            f"unix:{path} cannot be created: permission denied",
            hint="the user that starts the daemon needs write permission for its folder",
        )


def _is_served(home: Path) -> bool:
    """Return True if a daemon serves this home, which means that it holds the lock."""
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
    """Report listeners with a listener of the same daemon as next hop: mail would loop."""
    addresses = addresses_of(checked.settings)
    listeners = {
        name: _ListenAddress.of(addresses[name])
        for name in addresses
        if name not in (DELIVERY, CONSOLE)
    }
    for name, listener in checked.settings.listener.items():
        if not listener.upstream:
            continue
        upstream = _ListenAddress.of(listener.upstream)
        for other, listen in listeners.items():
            if upstream.overlaps(listen):
                yield UserError(
                    f"the upstream of listener.{name}, {upstream.text}, is listener.{other} itself",
                    hint="set upstream to the server that receives the mail from spamnb",
                )


def _log_file(checked: Checked) -> Problems:
    """Report a log file that cannot be opened by the user that starts the daemon."""
    file = checked.settings.log.file
    if file and (why := _unwritable(Path(file))):
        yield UserError(f"the log file {file} cannot be written: {why}", hint="see log.file")


def _unwritable(path: Path) -> str:
    """Return why a file cannot be written or created; empty if it can be."""
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
            hint="install Python where all users can read it, or set serve.user",
        )


def _log_again(checked: Checked) -> Problems:
    """Report a log file that the daemon's user cannot reach: its processes reopen the file."""
    file = checked.settings.log.file
    folder = _existing(Path(file).absolute().parent)
    if file and folder.is_dir() and not _may(folder, os.X_OK):
        yield UserError(
            f"the log file {file} cannot be reached by the daemon's user",
            hint="the user that the daemon runs as needs execute permission for its folder",
        )


def _home(checked: Checked) -> Problems:
    """Report a home that the daemon cannot read, write or create."""
    home, hint = checked.home, "it must belong to the user that the daemon runs as"
    there = _existing(home)
    if not there.is_dir():
        yield UserError(f"the home {home} is not a folder", hint="set home to a folder")
    elif there == home and not _may(home, os.R_OK | os.W_OK | os.X_OK):
        yield UserError(f"the home {home} cannot be read and written", hint=hint)
    elif there == home:
        for name in ("data.mdb", "lock.mdb"):
            if (home / name).exists() and not _may(home / name, os.R_OK | os.W_OK):
                yield UserError(f"{home / name} cannot be read and written", hint=hint)


def _existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent folder."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def _releases(checked: Checked) -> Problems:
    yield from release_problems(checked.settings)
    yield from console_problems(checked.settings)


def _lists(checked: Checked) -> Problems:
    rules = checked.settings.rules
    for files in (RuleFiles(allow=rules.allow), RuleFiles(block=rules.block)):
        try:
            AccessLists.load(files)
        except UserError as error:
            yield error
    person_names(checked.settings)


def _delivery_agent(checked: Checked) -> Problems:
    """Check what the delivery agent reads at its start: certificate, users and logins."""
    agent = delivery_params(checked.settings, checked.home)
    for step in (
        lambda: server_tls(agent.certificate, agent.key),
        lambda: Recipients(agent),
        lambda: Passwords(agent.passwords) if agent.passwords else None,
    ):
        try:
            step()
        except UserError as error:
            yield error
    root = Path(checked.settings.delivery.root)
    if checked.settings.delivery.root and wants_delivery(checked.settings):
        there = _existing(root)
        if not there.is_dir() or not _may(there, os.W_OK | os.X_OK):
            yield UserError(
                f"delivery.root {root} cannot be written",
                hint="it must belong to the user that the daemon runs as",
            )


def _console(checked: Checked) -> Problems:
    """Check what the console reads at its start: certificate and logins."""
    console = checked.settings.console
    for step in (
        lambda: server_tls(console.certificate, console.key),
        lambda: Passwords(console.passwords) if console.passwords else None,
    ):
        try:
            step()
        except UserError as error:
            yield error


def _delegates(checked: Checked) -> Problems:
    for name in checked.settings.serve.delegates:
        if user_id(name) is None:
            yield UserError(
                f"serve.delegates: there is no user {name!r}", hint="see `getent passwd`"
            )


def _spools(checked: Checked) -> Problems:
    """Report spools that the daemon cannot empty, or that programs cannot write into."""
    named = checked.settings.feedback.spool
    folder = Path(named) if named else SYSTEM_SPOOL
    there = _existing(folder)
    if there == folder:
        found = spool.problem(folder)
        # Without a setting, the system's spool is used if it belongs to the daemon's user.
        if found and (named or folder.stat().st_uid == os.geteuid()):
            yield found
    elif named and not (there.is_dir() and _may(there, os.W_OK | os.X_OK)):
        yield UserError(
            f"the spool {folder} does not exist and cannot be created",
            hint=f"create it: install -d -m {spool.MODE:o} -o USER {folder}",
        )


def _mailboxes(checked: Checked) -> Problems:
    """Report mailboxes without a server or a password; nothing is connected or run."""
    for name, params in checked.settings.imap.items():
        for problem in account_problems(params):
            yield UserError(f"imap.{name}: {problem}", hint=problem.hint)


def _webhooks(checked: Checked) -> Problems:
    """Report webhooks without a receiver or a secret; nothing is connected or run."""
    for name, params in checked.settings.webhook.items():
        for problem in webhook_problems(params):
            yield UserError(f"webhook.{name}: {problem}", hint=problem.hint)


_AT_THE_START = (_addresses, _upstreams, _releases, _log_file)
_AS_THE_DAEMON = (
    _program,
    _home,
    _log_again,
    _lists,
    _delivery_agent,
    _console,
    _delegates,
    _spools,
    _mailboxes,
    _webhooks,
)


_QUEUE = "4TEST"
_MAIL = b"From: a <a@example.net>\r\nSubject: x\r\nMessage-ID: <x@example.net>\r\n\r\ntext\r\n"
_BORDER_ADVICE = (
    "add a milter listener with border = true, and name it first in the MTA's list of milters, see"
    " docs/milter.md"
)


class ResultsFate(NamedTuple):
    """What one listener does with results of authentication."""

    text: str
    remedy: str = ""
    """what to change; empty if results can be believed, and forged ones cannot"""


def outcomes(settings: Settings) -> Iterator[ResultsFate]:
    """One sentence for each listener; none without names of servers."""
    if not settings.site.authserv_ids:
        return
    local = settings.site.keyed(b"check")
    has_border = any(one.border for one in settings.listener.values())
    for name, listener in settings.listener.items():
        if listener.border:
            yield ResultsFate(f"listener.{name}: {_at_border(local)}")
        else:
            found = _outcome(listener, local, has_border=has_border)
            yield found._replace(text=f"listener.{name}: {found.text}")


def _at_border(local: LocalHosts) -> str:
    message = MilterMessage([b"<>"], 1 << 16, 0.0, site=local.authserv_ids)
    for line in _forged(local).split(b"\r\n")[:2]:
        name, _, value = line.partition(b":")
        message.add_field(name, value)
    count = len(message.claims)
    return f"a forged result of a stranger is {'removed' if count else 'passed on'}"


def _outcome(listener: ListenerSettings, local: LocalHosts, *, has_border: bool) -> ResultsFate:
    hop = _received(local)
    forged, true = _forged(local), _result(local)
    marked = true + _marked(_MAIL, local) + _MAIL
    if listener.protocol == "milter":
        seen, proven = _in_milter(forged), has_border and _is_believed(_in_milter(marked), local)
        where, remedy = f"above {BORDER}", _BORDER_ADVICE
    else:
        before = listener.protocol == "smtp" and listener.queue == "before"
        seen = remove_claims(hop + forged, local, received=True, sent=False) if before else b""
        seen = seen or hop + forged
        proven = _is_believed(true + hop + _MAIL, local)
        where = f"above the first Received field by {', '.join(local.hosts)}"
        where += f", and above {BORDER}" if has_border else ""
        remedy = "set local.hosts to the names after `by` in your servers' Received fields"
    fate = "ignored" if forged.partition(b"\r\n")[0] in seen else "removed"
    fate = "BELIEVED" if _is_believed(seen, local) else fate
    text = f"a forged result of a stranger is {fate}"
    if not proven:
        return ResultsFate(f"{text}; no result is ever believed here", remedy)
    return ResultsFate(f"{text}; a result is believed {where}")


def _is_believed(raw: bytes, local: LocalHosts) -> bool:
    return evidence_of(raw, local).is_authentic("a@example.net")


def _result(local: LocalHosts) -> bytes:
    name = local.authserv_ids[0].encode("ascii", "replace")
    return b"Authentication-Results: %b; spf=pass smtp.mailfrom=a@example.net\r\n" % name


def _received(local: LocalHosts) -> bytes:
    name = (local.hosts or ("localhost",))[0].encode("ascii", "replace")
    return b"Received: from x ([192.0.2.1]) by %b with ESMTP id %b; now\r\n" % (
        name,
        _QUEUE.encode("ascii"),
    )


def _forged(local: LocalHosts) -> bytes:
    """A message in which a stranger claims both a result and a hop of the site."""
    return _result(local) + _received(local) + _MAIL


def _in_milter(raw: bytes) -> bytes:
    return placed(raw, raw.index(b"\r\n\r\n") + 4, _QUEUE)[0]


def _marked(raw: bytes, local: LocalHosts) -> bytes:
    mark = border_mark(*parted(raw, local, set()), local, _QUEUE.encode("ascii"))
    return f"{BORDER}: {mark}\r\n".encode("ascii")


_WAIT_S = 5.0
_MOST_BYTES = 512
_REMEDY = (
    "set it to the address where the mail server takes mail back from spamnb, and check that the "
    "mail server listens there: `ss -ltn`; until then all mail of this listener is deferred"
)


class NextHopFault(NamedTuple):
    """A next hop that does not answer."""

    text: str
    remedy: str = _REMEDY


def next_hop_faults(settings: Settings) -> Iterator[NextHopFault]:
    """Yield the faults of the next hops; the delivery agent of the daemon itself is not asked."""
    for name, listener in settings.listener.items():
        if listener.upstream and listener.upstream != settings.delivery.address:
            address = Address.parse(listener.upstream)
            if fault := _fault(address):
                yield NextHopFault(
                    f"the upstream of listener.{name}, {address.socket_name}, {fault}"
                )


def _fault(address: Address) -> str:
    """Return what is wrong with a next hop; empty if it greets as a mail server does."""
    try:
        with socket_to(address, _WAIT_S) as wire:
            greeting = wire.recv(_MOST_BYTES)
            if not greeting.startswith(b"220"):
                return "does not greet as a mail server does"
            wire.sendall(b"QUIT\r\n")
            wire.recv(_MOST_BYTES)
    except OSError as error:
        return f"does not answer: {error.strerror or error}"
    return ""
