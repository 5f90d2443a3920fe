"""What `spamnb setup` does: stages of edits and commands, and how programs are asked.

A stage belongs to one program. Its edits are made first. Then its checks run, and it is verified
that no other setting hides the new ones. Only then `activate` makes the program read them. A stage
is taken back by undoing its edits and running `reload`.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spamnb.errors import UserError

_SECONDS = 150.0
"""for one command of a mail server: Sendmail waits a minute where the host name has no domain"""
_ENCODING = "utf-8"
_ERRORS = "surrogateescape"
"""a file of another program may have any bytes"""


class Answers(NamedTuple):
    """What the administrator chose."""

    act: str = "observe"
    """observe: nothing is marked; file: junk is marked and filed"""
    teach: str = "moves"
    """moves: moves into and out of Junk are labels; none"""
    persons: str = "no"
    """whether labels of a person count for this person alone"""
    console: str = "no"
    """whether the console is on, on loopback"""


CHOICES = {
    "act": ("observe", "file"),
    "teach": ("moves", "none"),
    "persons": ("no", "yes"),
    "console": ("no", "yes"),
}
QUESTIONS = {
    "act": "Observe first (mail gets no marks), or mark junk and file it at once?",
    "teach": "May users teach by moving mail into and out of Junk?",
    "persons": "Do corrections of a person count for this person alone?",
    "console": "Serve the web console on 127.0.0.1:8025?",
}


EXECUTABLE = 0o755


class FileEdit(NamedTuple):
    """One file as it is and as it becomes."""

    path: Path
    before: str | None
    """None: there is no such file"""
    after: str
    mode: int = 0o644
    """of a new file; an old one keeps its own"""

    @property
    def is_script(self) -> bool:
        """Whether this is a program or a Sieve script of spamnb, not settings."""
        return self.mode == EXECUTABLE or self.path.suffix == ".sieve"

    @property
    def diff(self) -> str:
        """The change, as a unified diff."""
        name = str(self.path)
        lines = difflib.unified_diff(
            (self.before or "").splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            "/dev/null" if self.before is None else name,
            name,
            n=2,
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


Argv = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """The edits and commands for one program, in order."""

    program: str
    edits: tuple[FileEdit, ...] = ()
    folders: tuple[Path, ...] = ()
    """made before the edits; removed with them if they are empty"""
    checks: tuple[Argv, ...] = ()
    verify: Callable[[], str] = lambda: ""
    """returns why the new settings would not be in force; empty if they are"""
    activate: tuple[Argv, ...] = ()
    reload: tuple[Argv, ...] = ()
    """after the edits are taken back"""
    made: tuple[Path, ...] = ()
    """files that the checks write"""
    pid_file: Path | None = None
    """the program starts again with new settings, and writes this file after it listens"""
    listens: str = ""
    """an address at which the program answers afterwards: host:port, or unix:/path"""
    notes: tuple[str, ...] = ()
    """what the administrator does then"""

    @property
    def commands(self) -> tuple[Argv, ...]:
        """All commands, in order."""
        return (*self.checks, *self.activate)


class MailServer(NamedTuple):
    """A mail server of this machine that can ask spamnb about each message."""

    name: str
    about: str
    """where its settings are, and what it asks already"""
    protocol: str
    """of the listener that it asks: milter, scanner or lmtp"""
    by_hand: str
    """what the administrator adds if setup may not; `{}` is the address of spamnb"""
    stage: Callable[[str], Stage | None]
    """address of spamnb -> what makes the server ask there; None if it does already"""
    host: str = ""
    """its name in Received fields, if it is not that of the machine"""
    domains: tuple[str, ...] = ()
    """for which it accepts mail, as far as they stand in its settings"""
    problems: tuple[str, ...] = ()
    """why setup does not edit its settings"""
    other: str = ""
    """the spam filter that marks mail before spamnb sees it; empty if there is none"""
    smtp: str = ""
    """host:port at which it takes mail from other servers; empty if that is not known"""
    is_running: bool = True
    files_junk: bool = True
    """whether marked mail comes into the junk folder, through Dovecot or by the server itself"""
    by_socket: bool = False
    """whether it is asked at a unix socket: only there may its user say for whom a message is"""
    user: str = ""
    """the system user that asks at the socket, if it is not that of spamnb"""
    upstream: str = ""
    """the LMTP server to which spamnb passes mail on, with the protocol lmtp"""


@dataclass(frozen=True, slots=True)
class Plan:
    """All stages, and what the administrator should read."""

    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()
    """what was found and left alone, and lines to add by hand"""
    obstacle: str = ""
    """why it cannot be done now"""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be done."""
        return not any(stage.edits or stage.activate for stage in self.stages)


def read(path: Path) -> str | None:
    """The text of a file; None if there is none."""
    try:
        return path.read_bytes().decode(_ENCODING, _ERRORS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}", hint="run this command as root"
        ) from error


def to_bytes(text: str) -> bytes:
    """The bytes of a text that `read` returned, changed or not."""
    return text.encode(_ENCODING, _ERRORS)


class Done(NamedTuple):
    """How a command ended."""

    code: int
    text: str
    """its output and errors"""


def run(argv: Sequence[str], *, errors: bool = True, strip: bool = True) -> Done:
    """Run a command; its output, with what it wrote to standard error if `errors`."""
    try:
        done = subprocess.run(  # noqa: S603 - programs of the mail server, without a shell
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
            umask=0o022,  # users of the mail server read what `sievec` writes
        )
    except FileNotFoundError:
        return Done(127, f"{argv[0]}: not installed")
    except OSError as error:
        return Done(126, f"{argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Done(124, f"{argv[0]} did not end within {_SECONDS:.0f} s")
    text = done.stdout.decode(_ENCODING, "replace")
    return Done(done.returncode, text.strip() if strip else text)


def asked(*argv: str) -> str:
    """What a program says of its settings; empty if it fails."""
    done = run(argv, errors=False)
    return done.text if done.code == 0 else ""


def tcp_address(address: str, page: str) -> tuple[str, str]:
    """Host and port of the milter; a page tells how to use another address."""
    host, _, port = address.rpartition(":")
    if host == "unix" or not port.isdigit():
        raise UserError(
            f"the milter listens at {address}; setup uses host:port only",
            hint=f"change its address, or connect the mail server by hand ({page})",
        )
    return host, port


def marking_filter(milters: str) -> str:
    """The filter among these milters that marks spam, by socket and usual port; empty if none."""
    known = {"rspamd": r"rspamd|:11332\b", "spamassassin": "spamass"}
    return next((name for name, pattern in known.items() if re.search(pattern, milters)), "")


_DOMAIN = re.compile(r"(?i)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9-]+)+")


def domains_in(listed: str, separators: str = r"[\s,]+") -> tuple[str, ...]:
    """The domains of a list of a mail server; tables and names of this machine are left out."""
    names = [one.strip() for one in re.split(separators, listed)]
    real = [one.lower() for one in names if _DOMAIN.fullmatch(one)]
    return tuple(dict.fromkeys(one for one in real if not one.startswith("localhost.")))


def is_open_to_all(path: Path) -> bool:
    """Whether every user of the system may connect to a socket."""
    try:
        folders = all(parent.stat().st_mode & 0o001 for parent in path.parents)
        mode = path.stat().st_mode
    except OSError:
        return False
    return folders and stat.S_ISSOCK(mode) and bool(mode & 0o002)


def is_alive(pid_file: Path, name: str = "") -> bool:
    """Whether the process lives whose number begins a file, and has a name that begins so."""
    try:
        pid = int(pid_file.read_text().partition("\n")[0])
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/comm").read_text().startswith(name)
    except (OSError, ValueError):
        return False
