"""Postfix: asked about its settings, and told to use the milter.

`smtpd_milters` gets one more milter, the last, in `main.cf`. Other milters, content filters, maps
and virtual users stay. Where mail does not come to the milters of `main.cf` (a proxy filter, a
service with milters of its own, several instances), nothing is edited.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from pathlib import Path

from spamnb.setup.edits import with_block, without_blocks
from spamnb.setup.plan import (
    FileEdit,
    MailServer,
    Stage,
    asked,
    domains_in,
    is_alive,
    marking_filter,
    read,
    tcp_address,
)

_BLOCK = "smtpd_milters"
_DELIVERY = ("virtual_transport", "mailbox_transport", "mailbox_command", "transport_maps")
_OWN_MILTERS = re.compile(r"^(\S+)/inet/smtpd_milters\s*=\s*(.*)$", re.MULTILINE)
_PROXY = re.compile(r"^(\S+)/(?:inet|pass)/smtpd_proxy_filter\s*=\s*\S", re.MULTILINE)


def find(folder: Path | None) -> MailServer | None:
    """The Postfix with this folder of settings, by default that of the machine."""
    named = folder or Path(asked("postconf", "-h", "config_directory") or "/etc/postfix")
    raw = _settings(named) if (named / "main.cf").is_file() else {}
    if not raw:
        return None
    expanded = _settings(named, "-x")
    services = asked("postconf", "-c", str(named), "-P")
    problems = []
    if folder is None and raw["multi_instance_directories"]:
        problems.append("there are several instances: name one with --postfix FOLDER")
    if raw["smtpd_proxy_filter"] or _PROXY.search(services):
        problems.append("smtpd_proxy_filter is set, so milters see no mail")
    problems += [
        f"master.cf gives the service {service} milters of its own: {value or 'none'}"
        for service, value in _OWN_MILTERS.findall(services)
        if service.rpartition(":")[2] in ("smtp", "25")
    ]
    milters = raw["smtpd_milters"]
    is_running = _is_running(named)
    uses_dovecot = any(re.search("dovecot|lmtp", raw[name]) for name in _DELIVERY)
    return MailServer(
        name="Postfix",
        about=f"{named}, {'runs' if is_running else 'does not run'}; milters: {milters or 'none'}",
        protocol="milter",
        by_hand="smtpd_milters = inet:{}",
        stage=partial(_stage, named, milters),
        host=expanded["myhostname"],
        domains=domains_in(f"{expanded['mydestination']} {expanded['virtual_mailbox_domains']}"),
        problems=tuple(problems),
        other=marking_filter(milters),
        files_junk=uses_dovecot,
        is_running=is_running,
        smtp=_smtp(asked("postconf", "-c", str(named), "-M")),
    )


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


def _stage(folder: Path, milters: str, address: str) -> Stage | None:
    """What makes Postfix ask the milter at this address (host:port); None if it does."""
    tcp_address(address, "docs/milter.md")
    milter = f"inet:{address}"
    path = folder / "main.cf"
    text = read(path) or ""
    clean = without_blocks(text)
    if text == clean and milter in re.split(r"[\s,]+", milters):
        return None
    after = _with_milter(clean, _others(milters, milter), milter)
    if after == text:
        return None
    control = ("postfix", "-c", str(folder))
    reload = ((*control, "reload"),) if _is_running(folder) else ()
    return Stage(
        program="Postfix",
        edits=(FileEdit(path, text, after),),
        checks=((*control, "check"),),
        verify=lambda: _fault(folder, milter),
        activate=reload,
        reload=reload,
    )


def _fault(folder: Path, milter: str) -> str:
    """Why Postfix would not ask the milter."""
    value = asked("postconf", "-c", str(folder), "-h", "smtpd_milters")
    return "" if value.endswith(milter) else f"smtpd_milters is still {value!r}"


def _others(milters: str, own: str) -> str:
    """The milters without the own one, which an earlier run may have added."""
    return re.sub(rf"[\s,]*{re.escape(own)}$", "", milters).strip()


def _with_milter(text: str, others: str, milter: str) -> str:
    wanted = f"smtpd_milters = {others}, {milter}" if others else f"smtpd_milters = {milter}"
    lines = text.split("\n")
    starts = [at for at, line in enumerate(lines) if re.match(r"smtpd_milters\s*=", line)]
    if not starts:
        return with_block(text, _BLOCK, [wanted])
    # Postfix uses the last one; lines that begin with a blank continue it, comments do not end it.
    at = end = starts[-1]
    for number in range(at + 1, len(lines)):
        line = lines[number]
        if line[:1] in (" ", "\t") and line.strip() and not line.lstrip().startswith("#"):
            end = number
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return with_block(text, _BLOCK, [wanted], range(at, end + 1))
