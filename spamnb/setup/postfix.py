"""Postfix: asked about its settings, and told to use the milter.

`smtpd_milters` gets one more milter, the last, in `main.cf`. Other milters, content filters, maps
and virtual users stay. Where mail does not come to the milters of `main.cf` (a proxy filter, a
service with milters of its own, several instances), nothing is edited.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from spamnb.setup.edits import with_block, without_blocks
from spamnb.setup.plan import FileEdit, Stage, asked, is_alive, read

_BLOCK = "smtpd_milters"
_DELIVERY = ("virtual_transport", "mailbox_transport", "mailbox_command", "transport_maps")
_DOMAIN = re.compile(r"(?i)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9-]+)+")
_OWN_MILTERS = re.compile(r"^(\S+)/inet/smtpd_milters\s*=\s*(.*)$", re.MULTILINE)
_PROXY = re.compile(r"^(\S+)/(?:inet|pass)/smtpd_proxy_filter\s*=\s*\S", re.MULTILINE)


class Postfix(NamedTuple):
    """An instance of Postfix."""

    folder: Path
    milters: str
    """the value of smtpd_milters"""
    host: str
    domains: tuple[str, ...]
    """for which it accepts mail, as far as they stand in its settings"""
    problems: tuple[str, ...]
    """why a milter in main.cf would not do"""
    is_running: bool
    smtp: str
    """host:port at which it takes mail from other servers; empty if it does not"""
    uses_dovecot: bool
    """whether Dovecot delivers its mail, as far as the settings say"""


def find(folder: Path | None) -> Postfix | None:
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
    return Postfix(
        folder=named,
        milters=raw["smtpd_milters"],
        host=expanded["myhostname"],
        domains=_domains(f"{expanded['mydestination']} {expanded['virtual_mailbox_domains']}"),
        problems=tuple(problems),
        is_running=is_alive(Path(expanded["queue_directory"], "pid", "master.pid")),
        smtp=_smtp(asked("postconf", "-c", str(named), "-M")),
        uses_dovecot=any(re.search("dovecot|lmtp", raw[name]) for name in _DELIVERY),
    )


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


def _domains(listed: str) -> tuple[str, ...]:
    names = [one for one in re.split(r"[\s,]+", listed) if _DOMAIN.fullmatch(one)]
    real = [one.lower() for one in names if not one.startswith("localhost.")]
    return tuple(dict.fromkeys(real))


def stage(postfix: Postfix, milter: str) -> Stage | None:
    """What makes Postfix ask the milter at this address (`inet:HOST:PORT`); None if it does."""
    path = postfix.folder / "main.cf"
    text = read(path) or ""
    clean = without_blocks(text)
    if text == clean and milter in re.split(r"[\s,]+", postfix.milters):
        return None
    after = _with_milter(clean, _others(postfix.milters, milter), milter)
    control = ("postfix", "-c", str(postfix.folder))
    reload = ((*control, "reload"),) if postfix.is_running else ()
    return Stage(
        program="Postfix",
        edits=(FileEdit(path, text, after),) if after != text else (),
        checks=((*control, "check"),),
        verify=lambda: _fault(postfix.folder, milter),
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
    return with_block(text, _BLOCK, [wanted], at, end - at + 1)
