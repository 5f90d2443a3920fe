"""Sendmail: its settings are read, and it gets the milter.

`sendmail.mc` gets one more INPUT_MAIL_FILTER, the last. `sendmail.cf`, which m4 makes of it, gets
the lines that this adds, each in a marked block, so other lines stay as they are. If `sendmail.cf`
is not what m4 makes of `sendmail.mc`, nothing is edited.
"""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from spamnb.setup.edits import with_block, without_blocks
from spamnb.setup.plan import (
    Argv,
    FileEdit,
    MailServer,
    Stage,
    asked,
    domains_in,
    is_alive,
    marking_filter,
    read,
    run,
    tcp_address,
    to_bytes,
)

_FOLDER = Path("/etc/mail")
_PROGRAMS = ("sendmail-mta", "sendmail.sendmail", "/usr/libexec/sendmail/sendmail")
"""of Debian and of Red Hat; `sendmail` itself may be that of another mail server"""
_NAME = "spamnb"
_FILTER = "INPUT_MAIL_FILTER(`{}', `S=inet:{}@{}, F=T, T=C:30s;S:30s;R:30s;E:2m')dnl"
_MAILERS = re.compile(r"(?m)^[ \t]*MAILER(?:_DEFINITIONS\b|\()")
_BUILT = re.compile(r"##### (?:built by|in) ")
"""lines of m4 that differ each time"""
_MILTERS = re.compile(r"(?m)^O InputMailFilters=[ \t]*(.*)$")
_MILTER = re.compile(r"(?m)^X(\w+),(.*)$")
_PORT = re.compile(r"(?m)^O DaemonPortOptions=(.*)$")
_NAMES = re.compile(r"(?m)^Fw(?:-o[ \t]*)?(/\S+)")
_PID_FILE = re.compile(r"(?m)^O PidFile=(\S+)")


class _Settings(NamedTuple):
    """The two files, and both without the blocks of setup."""

    mc: Path
    cf: Path
    bare_mc: str
    bare_cf: str


def find(folder: Path | None) -> MailServer | None:
    """The Sendmail with this folder of settings, by default that of the machine."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    mc, cf = (Path(folder or _FOLDER, f"sendmail.{kind}") for kind in ("mc", "cf"))
    if program is None or not (mc.is_file() and cf.is_file()):
        return None
    settings = _Settings(mc, cf, *(without_blocks(read(path) or "") for path in (mc, cf)))
    check: Argv = (program, "-C", str(cf), "-bt", "-d0.4")
    about = asked(*check)
    ports = [_keys(one) for one in _PORT.findall(settings.bare_cf)]
    problems = []
    if about and " MILTER" not in about:
        problems.append("it is built without milters")
    if any("I" in one for one in ports):
        problems.append("DAEMON_OPTIONS gives a port milters of its own")
    if fault := _fault_of(settings):
        problems.append(fault)
    milters = [*_milters(settings.bare_cf)]
    pid_file = Path(found[1]) if (found := _PID_FILE.search(settings.bare_cf)) else Path()
    is_running = is_alive(pid_file, "sendmail")
    host = re.search(r"\$j = (\S+)", about)
    lists = [read(Path(name)) or "" for name in _NAMES.findall(settings.bare_cf)]
    state = "runs" if is_running else "does not run"
    sockets = " ".join(value for _, value in _MILTER.findall(settings.bare_cf))
    return MailServer(
        name="Sendmail",
        about=f"{mc.parent}, {state}; milters: {', '.join(milters) or 'none'}",
        protocol="milter",
        by_hand="docs/milter.md, Sendmail, with the address {}",
        stage=partial(_stage, settings, check, pid_file),
        host=host[1] if host else "",
        domains=domains_in(" ".join(lists)),
        problems=tuple(problems),
        other=marking_filter(sockets),
        files_junk="dovecot" in settings.bare_mc.lower(),
        is_running=is_running,
        smtp=_smtp(ports),
    )


def _keys(options: str) -> dict[str, str]:
    """Options of a port by the first letter of their keys, as Sendmail reads them."""
    pairs = (one.partition("=") for one in options.split(","))
    return {name.strip()[:1].upper(): value.strip() for name, _, value in pairs}


def _smtp(ports: Sequence[dict[str, str]]) -> str:
    """The address for other servers: that at port 25, else the first one."""
    found = [
        (one.get("A", "127.0.0.1"), {"smtp": "25"}.get(one.get("P", "25").lower(), one.get("P")))
        for one in ports
        if one.get("F", "inet") == "inet" and one.get("P") not in ("submission", "587")
    ]
    usual = [one for one in found if one[1] == "25"] or found
    return f"{usual[0][0]}:{usual[0][1]}" if usual else ""


def _milters(cf: str) -> list[str]:
    found = _MILTERS.findall(cf)
    return [one.strip() for one in re.split("[,;]", found[-1])] if found else []


def _fault_of(settings: _Settings) -> str:
    """Why the settings are not understood."""
    if re.search(rf"\(`{_NAME}'", settings.bare_mc):
        return f"{settings.mc} has a milter {_NAME} already"
    if _MAILERS.search(settings.bare_mc) is None:
        return f"{settings.mc} has no line MAILER"
    made = _made(settings.bare_mc)
    if made is None:
        return f"m4 does not read {settings.mc} (Debian: the packages m4 and sendmail-cf)"
    wanted, there = (
        [line for line in text.split("\n") if not _BUILT.match(line)]
        for text in (made.rstrip(), settings.bare_cf)
    )
    # Debian appends the source, as comments.
    rest = "\n".join(there[len(wanted) :])
    if there[: len(wanted)] != wanted or re.search(r"(?m)^[^#\s]", rest):
        return f"{settings.cf} is not what m4 makes of {settings.mc}"
    return ""


def _made(mc: str) -> str | None:
    """What m4 makes of a text; None if it fails."""
    with tempfile.NamedTemporaryFile(suffix=".mc") as file:
        file.write(to_bytes(mc))
        file.flush()
        done = run(("m4", file.name), errors=False, strip=False)
    return done.text if done.code == 0 else None


def _stage(settings: _Settings, check: Argv, pid_file: Path, address: str) -> Stage | None:
    """What makes Sendmail ask the milter at this address (host:port); None if it does."""
    host, port = tcp_address(address, "docs/milter.md")
    at = settings.bare_mc.count("\n", 0, _found(_MAILERS, settings.bare_mc).start())
    lines = [_FILTER.format(_NAME, port, host)]
    after_mc = with_block(settings.bare_mc, "milter", lines, range(at, at), prefix="dnl ")
    edits = [
        FileEdit(settings.mc, read(settings.mc), after_mc),
        FileEdit(settings.cf, read(settings.cf), _cf(settings, after_mc)),
    ]
    changed = tuple(one for one in edits if one.before != one.after)
    if not changed:
        return None
    # Sendmail ends at this signal if it was started without its path, which the second line shows.
    hangup = f"kill -HUP $(head -n 1 {shlex.quote(str(pid_file))})"
    is_running = is_alive(pid_file, "sendmail")
    can_reload = is_running and "\n/" in (read(pid_file) or "")
    activate = (("sh", "-c", hangup),) if can_reload else ()
    waits = is_running and not can_reload
    notes = ("Sendmail reads its settings after a restart",) if waits else ()
    # The administrator may have made the file anew since, without blocks.
    mc, cf = (shlex.quote(str(path)) for path in (settings.mc, settings.cf))
    make = f"m4 {mc} > {cf}.new && cat {cf}.new > {cf}; rm -f {cf}.new"
    again = f"if grep -q '^X{_NAME},' {cf}; then {make}; fi"
    return Stage(
        program="Sendmail",
        edits=changed,
        checks=(check,),
        verify=lambda: _fault(settings.cf, address),
        activate=activate,
        reload=(("sh", "-c", again), *activate),
        pid_file=pid_file,
        notes=notes,
    )


def _found(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.search(text)
    assert found is not None, pattern.pattern  # `_fault_of` has looked
    return found


def _cf(settings: _Settings, after_mc: str) -> str:
    """`sendmail.cf` with the lines that m4 adds for the milter, in blocks."""
    old, new = ((_made(text) or "").split("\n") for text in (settings.bare_mc, after_mc))
    text = settings.bare_cf
    steps = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = [
        (start, end, new[first:last])
        for kind, start, end, first, last in steps
        if kind != "equal" and any(new[first:last]) and not _BUILT.match(old[start])
    ]
    for number, (start, end, lines) in reversed([*enumerate(changes, 1)]):
        text = with_block(text, f"milter {number}", lines, range(start, end))
    return text


def _fault(cf: Path, address: str) -> str:
    """Why Sendmail would not ask the milter, or not as the last one."""
    text = read(cf) or ""
    host, _, port = address.rpartition(":")
    is_there = f"S=inet:{port}@{host}," in dict(_MILTER.findall(text)).get(_NAME, "")
    milters = _milters(text)
    return "" if is_there and milters[-1:] == [_NAME] else f"InputMailFilters is still {milters}"
