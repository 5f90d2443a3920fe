"""OpenSMTPD: its settings are read, and its listeners get a filter.

`smtpd.conf` gets the filter `spamnb`, which `spamnb opensmtpd` is, at each listener that takes mail
from other servers: one that does not require a login and, if there are others, is not on loopback.
A listener that has a filter gets a chain of both. Actions that write Maildirs file marked mail into
the folder Junk.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from spamnb.setup.edits import with_block, without_blocks
from spamnb.setup.plan import Argv, FileEdit, MailServer, Stage, asked, domains_in, read

_FILES = (Path("/etc/smtpd.conf"), Path("/etc/mail/smtpd.conf"))
_LISTEN = re.compile(
    r'(?P<head>[ \t]*listen[ \t]+on[ \t]+"?(?P<where>[^\s"#]+)"?(?:[ \t]+inet[46])?)(?P<rest>.*)',
    re.DOTALL,
)
_FILTER = re.compile(r'(?<=\sfilter)[ \t]+"?([\w.-]+)"?')
_MAILDIR = re.compile(r'(?P<head>[ \t]*action\b[^#\n]*?\smaildir(?:[ \t]+"[^"]*"|[ \t]+[/~%]\S*)?)')
_FOR = re.compile(r'(?m)^[ \t]*match\b[^#\n]*\sfor[ \t]+domain[ \t]+("?[^\s<{]\S*|\{[^}]*\})')
_TO_DOVECOT = re.compile(r"(?m)^[ \t]*action\b[^#\n]*\s(lmtp|mda[ \t].*dovecot)")
_LOOPBACK = ("lo", "lo0", "localhost", "::1")


class _Statement(NamedTuple):
    """A statement with its lines."""

    first: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """Its text, with line feeds."""
        return "\n".join(self.lines)


def find(command: str, user: str, file: Path | None) -> MailServer | None:
    """The OpenSMTPD with this file of settings, by default that of the machine.

    `command` is `spamnb opensmtpd` as a shell runs it, `user` the user of the daemon.
    """
    smtpd = shutil.which("smtpd")
    path = file or next((one for one in _FILES if one.is_file()), None)
    if smtpd is None or shutil.which("smtpctl") is None or path is None or not path.is_file():
        return None
    text = without_blocks(read(path) or "")
    listeners = _outer(_statements(text))
    chains = set(re.findall(r'(?m)^[ \t]*filter[ \t]+"?([\w.-]+)"?[ \t]+chain\b', text))
    problems = []
    if not listeners:
        problems.append(f"{path} has no listener for mail of other servers")
    problems += [
        f"a listener has a chain of filters already: {found[1]}"
        for one in listeners
        if (found := _FILTER.search(one.text)) and found[1] in chains
    ]
    is_running = bool(asked("smtpctl", "show", "status"))
    return MailServer(
        name="OpenSMTPD",
        about=f"{path}, {'runs' if is_running else 'does not run'}",
        protocol="scanner",
        by_hand="docs/opensmtpd.md, with the address {}",
        stage=partial(_stage, _Program(smtpd, path, command, user, is_running)),
        host=(read(path.parent / "mailname") or "").strip(),
        domains=domains_in(" ".join(_FOR.findall(text)), r'[\s,{}"]+'),
        problems=tuple(problems),
        smtp=_smtp(listeners[0]) if listeners else "",
        is_running=is_running,
        by_socket=True,
        files_junk=bool(_TO_DOVECOT.search(text) or re.search(r"\smaildir\b", text)),
    )


def _statements(text: str) -> Iterable[_Statement]:
    lines: list[str] = []
    for number, line in enumerate(text.split("\n")):
        lines.append(line)
        if not line.endswith("\\"):
            yield _Statement(number - len(lines) + 1, tuple(lines))
            lines = []


def _outer(statements: Iterable[_Statement]) -> list[_Statement]:
    """The listeners for mail of other servers."""
    found = [
        (match["where"], one)
        for one in statements
        if (match := _LISTEN.match(one.text))
        and match["where"] != "socket"
        and not re.search(r"\sauth(?=\s|$)", match["rest"])
    ]
    outside = [one for where, one in found if not _is_local(where)]
    return outside or [one for _, one in found]


def _is_local(where: str) -> bool:
    return where in _LOOPBACK or where.startswith("127.")


def _smtp(listener: _Statement) -> str:
    """The address of a listener, if it is one of this machine that is known."""
    match = _LISTEN.match(listener.text)
    where = match["where"] if match else ""
    found = re.search(r"\sport[ \t]+(\S+)", listener.text)
    port = found[1] if found else "25"
    port = {"smtp": "25", "smtps": "465", "submission": "587"}.get(port, port)
    if _is_local(where) or where in ("all", "0.0.0.0"):  # noqa: S104 - a text of its settings
        return f"{where if where.startswith('127.') else '127.0.0.1'}:{port}"
    return f"{where}:{port}" if re.fullmatch(r"[\d.]+", where) else ""


class _Program(NamedTuple):
    """What a stage needs to know."""

    smtpd: str
    path: Path
    command: str
    user: str
    is_running: bool


def _stage(program: _Program, address: str) -> Stage | None:
    """What makes OpenSMTPD ask at this address; None if it does."""
    before = read(program.path) or ""
    asking = f"{program.command} {address.removeprefix('unix:')}"
    after = _with_filter(without_blocks(before), f'"{asking}" user {program.user}')
    if after == before:
        return None
    # It does not read its settings again.
    can_restart = program.is_running and Path("/run/systemd/system").is_dir()
    restart: tuple[Argv, ...] = (("systemctl", "restart", "opensmtpd"),) if can_restart else ()
    is_late = program.is_running and not can_restart
    return Stage(
        program="OpenSMTPD",
        edits=(FileEdit(program.path, before, after),),
        checks=((program.smtpd, "-n", "-f", str(program.path)),),
        activate=restart,
        reload=restart,
        notes=("OpenSMTPD asks spamnb after a restart",) if is_late else (),
    )


def _with_filter(text: str, program: str) -> str:
    """The settings with the filter; changed from the end, so that numbers of lines stay right."""
    listeners = _outer(_statements(text))
    changed: list[tuple[_Statement, list[str]]] = []
    defined = set[str]()
    for one in _statements(text):
        if one in listeners:
            needed = [f"filter spamnb proc-exec {program}", *_chain(one)]
            lines = [line for line in needed if line not in defined]
            defined |= set(lines)
            changed.append((one, lines + _asking(one)))
        elif (action := _MAILDIR.match(one.text)) and "junk" not in one.text:
            changed.append((one, f"{action['head']} junk{one.text[action.end() :]}".split("\n")))
    for number, (one, lines) in reversed(list(enumerate(changed, 1))):
        text = with_block(text, str(number), lines, range(one.first, one.first + len(one.lines)))
    return text


def _chain(listener: _Statement) -> list[str]:
    """The chain of the filter that a listener has and spamnb; nothing if it has none."""
    found = _FILTER.search(listener.text)
    return [f'filter "{found[1]}-and-spamnb" chain {{ "{found[1]}", spamnb }}'] if found else []


def _asking(listener: _Statement) -> list[str]:
    """The lines of a listener with the filter, or with the chain that ends with it."""
    text = listener.text
    if found := _FILTER.search(text):
        text = f'{text[: found.start()]} "{found[1]}-and-spamnb"{text[found.end() :]}'
    elif match := _LISTEN.match(text):
        text = f"{match['head']} filter spamnb{match['rest']}"
    return text.split("\n")
