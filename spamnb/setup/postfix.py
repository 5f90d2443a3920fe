"""Postfix: asked about its settings, and told to use spamnb.

`smtpd_milters` gets one more milter, the last, in `main.cf`. Other milters, content filters, maps
and virtual users stay. Where mail does not come to the milters of `main.cf` (a proxy filter, a
service with milters of its own), and on request, spamnb takes its place in front of the LMTP server
to which Postfix delivers. If Postfix does not deliver by LMTP, nothing is edited.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from spamnb.errors import UserError
from spamnb.setup.dovecot import Dovecot
from spamnb.setup.edits import with_block, without_blocks
from spamnb.setup.plan import (
    FileEdit,
    MailServer,
    Stage,
    asked,
    domains_in,
    is_alive,
    is_open_to_all,
    marking_filter,
    read,
    tcp_address,
)

_MILTERS = "smtpd_milters"
_TRANSPORTS = ("virtual_transport", "mailbox_transport")
_LIMIT = "lmtp_destination_recipient_limit"
_DELIVERY = (*_TRANSPORTS, "mailbox_command", "transport_maps")
_LMTP = re.compile(r"lmtp:(?:unix:(?P<path>\S+)|(?:inet:)?(?P<host>\S+?)(?::(?P<port>\d+))?)")
_LMTP_PORT = "24"
_OWN_MILTERS = re.compile(r"^(\S+)/inet/smtpd_milters\s*=\s*(.*)$", re.MULTILINE)
_PROXY = re.compile(r"^(\S+)/(?:inet|pass)/smtpd_proxy_filter\s*=\s*\S", re.MULTILINE)


def find(folder: Path | None, way: str = "", dovecot: Dovecot | None = None) -> MailServer | None:
    """The Postfix with this folder of settings, by default that of the machine.

    `way` is milter or lmtp; empty: that of an earlier run, else the milter if it sees all mail.
    """
    named = folder or Path(asked("postconf", "-h", "config_directory") or "/etc/postfix")
    raw = _settings(named) if (named / "main.cf").is_file() else {}
    if not raw:
        return None
    expanded = _settings(named, "-x")
    services = asked("postconf", "-c", str(named), "-P")
    problems = []
    if folder is None and raw["multi_instance_directories"]:
        problems.append("there are several instances: name one with --postfix FOLDER")
    unseen = []
    if raw["smtpd_proxy_filter"] or _PROXY.search(services):
        unseen.append("smtpd_proxy_filter is set, so milters see no mail")
    unseen += [
        f"master.cf gives the service {service} milters of its own: {value or 'none'}"
        for service, value in _OWN_MILTERS.findall(services)
        if service.rpartition(":")[2] in ("smtp", "25")
    ]
    milters = raw[_MILTERS]
    is_running = _is_running(named)
    uses_dovecot = any(re.search("dovecot|lmtp", raw[name]) for name in _DELIVERY)
    server = MailServer(
        name="Postfix",
        about=f"{named}, {'runs' if is_running else 'does not run'}; milters: {milters or 'none'}",
        protocol="milter",
        by_hand=f"{_MILTERS} = inet:{{}}",
        stage=partial(_milter_stage, named, milters),
        host=expanded["myhostname"],
        domains=domains_in(f"{expanded['mydestination']} {expanded['virtual_mailbox_domains']}"),
        problems=(*problems, *(() if way == "lmtp" else unseen)),
        other=marking_filter(milters),
        files_junk=uses_dovecot,
        is_running=is_running,
        smtp=_smtp(asked("postconf", "-c", str(named), "-M")),
    )
    last = _last_hop(named, expanded, dovecot)
    if way == "milter" or not (way or unseen or last.is_taken):
        return server
    if last.problem and not way:
        return server
    if last.problem:
        return server._replace(problems=(*problems, last.problem), by_hand="docs/postfix.md")
    return server._replace(
        protocol="lmtp",
        by_hand=f"{last.names[0]} = lmtp:inet:{{}}",
        stage=partial(_lmtp_stage, named, last.names),
        upstream=last.upstream,
        problems=tuple(problems),
    )


class _LastHop(NamedTuple):
    """The LMTP server to which Postfix delivers."""

    names: tuple[str, ...] = ()
    """the settings that name it"""
    upstream: str = ""
    """its address: host:port, or unix:/path"""
    is_taken: bool = False
    """an earlier run has put spamnb in front of it"""
    problem: str = ""
    """why spamnb cannot stand in front of it"""


def _last_hop(folder: Path, expanded: dict[str, str], dovecot: Dovecot | None) -> _LastHop:
    text = read(folder / "main.cf") or ""
    clean = without_blocks(text)
    taken = [name for name in _TRANSPORTS if _value(clean, name) != _value(text, name)]
    values = {
        name: _value(clean, name) if name in taken else expanded[name] for name in _TRANSPORTS
    }
    found = {name: hop for name, value in values.items() if (hop := _LMTP.fullmatch(value))}
    if not found:
        return _LastHop(problem="neither virtual_transport nor mailbox_transport is an LMTP server")
    hops = {hop[0] for hop in found.values()}
    if len(hops) > 1:
        return _LastHop(problem=f"there are several LMTP servers: {', '.join(sorted(hops))}")
    hop = next(iter(found.values()))
    upstream = f"{hop['host']}:{hop['port'] or _LMTP_PORT}"
    if hop["path"]:
        path = Path(expanded["queue_directory"], hop["path"])
        ways = [path]
        if dovecot is not None and str(path) in dovecot.settings:
            ways.append(Path(dovecot.value("base_dir") or "/run/dovecot", "lmtp"))
        upstream = next((f"unix:{one}" for one in ways if is_open_to_all(one)), "")
    if not upstream and taken:
        # Without its listener Postfix could not deliver, so nothing of an earlier run changes.
        raise UserError(
            f"the socket {hop['path']} of the LMTP server is not there, or is not for all users",
            hint="start the LMTP server, and run this command again",
        )
    if not upstream:
        return _LastHop(problem=f"only Postfix may use the socket {hop['path']} of the LMTP server")
    return _LastHop(tuple(taken or found), upstream, is_taken=bool(taken))


def _is_running(folder: Path) -> bool:
    queue = asked("postconf", "-c", str(folder), "-xh", "queue_directory")
    return is_alive(Path(queue, "pid", "master.pid"))


def _settings(folder: Path, *options: str) -> defaultdict[str, str]:
    """All settings, each in one line."""
    lines = asked("postconf", "-c", str(folder), *options).splitlines()
    pairs = (line.partition("=") for line in lines)
    return defaultdict(str, {name.strip(): value.strip() for name, _, value in pairs})


def _smtp(services: str) -> str:
    """The address of the service for other servers: that at port 25, else the first one."""
    found = []
    for line in services.splitlines():
        fields = line.split()
        if len(fields) > 7 and fields[1] == "inet" and fields[7] in ("smtpd", "postscreen"):
            host, _, port = fields[0].rpartition(":")
            found.append((host or "127.0.0.1", {"smtp": "25"}.get(port, port)))
    usual = [one for one in found if one[1] == "25"] or found
    return ":".join(usual[0]) if usual else ""


def _stage(folder: Path, text: str, after: str, fault: Callable[[], str]) -> Stage | None:
    """What makes Postfix read a changed main.cf; None if it does not change."""
    if after == text:
        return None
    control = ("postfix", "-c", str(folder))
    reload = ((*control, "reload"),) if _is_running(folder) else ()
    return Stage(
        program="Postfix",
        edits=(FileEdit(folder / "main.cf", text, after),),
        checks=((*control, "check"),),
        verify=fault,
        activate=reload,
        reload=reload,
    )


def _milter_stage(folder: Path, milters: str, address: str) -> Stage | None:
    """What makes Postfix ask the milter at this address (host:port); None if it does."""
    tcp_address(address, "docs/milter.md")
    milter = f"inet:{address}"
    text = read(folder / "main.cf") or ""
    clean = without_blocks(text)
    if text == clean and milter in re.split(r"[\s,]+", milters):
        return None
    # An earlier run may have added the own one.
    others = re.sub(rf"[\s,]*{re.escape(milter)}$", "", milters).strip()
    after = _with(clean, _MILTERS, f"{others}, {milter}" if others else milter)
    return _stage(folder, text, after, lambda: _fault(folder, _MILTERS, milter))


def _lmtp_stage(folder: Path, names: tuple[str, ...], address: str) -> Stage | None:
    """What makes Postfix deliver to spamnb, which passes the mail on to the LMTP server.

    One recipient at a time, so that each gets the own verdict.
    """
    tcp_address(address, "docs/postfix.md")
    wanted = f"lmtp:inet:{address}"
    text = read(folder / "main.cf") or ""
    after = without_blocks(text)
    for name, value in (*((name, wanted) for name in names), (_LIMIT, "1")):
        after = _with(after, name, value)
    return _stage(folder, text, after, lambda: _fault(folder, names[0], wanted))


def _fault(folder: Path, name: str, wanted: str) -> str:
    """Why Postfix would not use the new value."""
    value = asked("postconf", "-c", str(folder), "-h", name)
    return "" if value.endswith(wanted) else f"{name} is still {value!r}"


def _with(text: str, name: str, value: str) -> str:
    """The text with a block that sets this, in the place of the setting that is in force."""
    return with_block(text, name, [f"{name} = {value}"], _place(text, name))


def _value(text: str, name: str) -> str:
    place = _place(text, name)
    if place is None:
        return ""
    lines = text.split("\n")[place.start : place.stop]
    value = " ".join(line.strip() for line in lines if not line.lstrip().startswith("#"))
    return value.partition("=")[2].strip()


def _place(text: str, name: str) -> range | None:
    """The lines of a setting; Postfix uses the last one."""
    lines = text.split("\n")
    starts = [at for at, line in enumerate(lines) if re.match(rf"{name}\s*=", line)]
    if not starts:
        return None
    # Lines that begin with a blank continue it, comments do not end it.
    at = end = starts[-1]
    for number in range(at + 1, len(lines)):
        line = lines[number]
        if line[:1] in (" ", "\t") and line.strip() and not line.lstrip().startswith("#"):
            end = number
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return range(at, end + 1)
