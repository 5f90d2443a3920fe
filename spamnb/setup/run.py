"""Look, plan, do, check, and take back.

    found = look(...)                what is on this machine
    plan = plan_of(found, answers)   the edits and commands: spamnb, Dovecot, the mail server
    Setup(record).apply(plan)        does them; goes back if one fails
    Setup(record).remove()           takes everything out

A record beside the settings, `setup.json`, is on disk before the first edit:

    killed while it applies   the next run first restores the files as they were before
    a command fails           the same at once; the programs are reloaded
    killed while it removes   the next `--remove` completes it
    a file was edited since   blocks are taken out by their markers; the rest of the file stays
    a block was edited since  nothing is removed; the error names the file

The mail server is the last stage, so it asks only after the daemon listens, and it is the first one
to be taken back. Failure: UserError, with what to do.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.errors import UserError
from spamnb.net.address import Address
from spamnb.operations.request import is_on
from spamnb.settings import home_of
from spamnb.settings.schema import Settings
from spamnb.setup import dovecot as dovecot_part
from spamnb.setup import exim as exim_part
from spamnb.setup import old_filters, own_settings
from spamnb.setup import opensmtpd as opensmtpd_part
from spamnb.setup import postfix as postfix_part
from spamnb.setup import sendmail as sendmail_part
from spamnb.setup.dovecot import DEFAULT_SPOOL, Dovecot
from spamnb.setup.edits import Block, blocks, has_torn_block, without_blocks
from spamnb.setup.plan import (
    Answers,
    Argv,
    FileEdit,
    MailServer,
    Plan,
    Stage,
    read,
    run,
    to_bytes,
)
from spamnb.store.files import durable_file, sync_folder

OWN: Argv = (sys.executable, "-P", "-m", "spamnb")
"""this program, also if no `spamnb` is on the path"""
_PORTS = range(10025, 10100)
_SOCKETS = Path("/run/spamnb")
"""of the shipped unit"""
_START_S = 90.0
"""until a program reads new settings: Sendmail starts a minute late where the host name has no
domain"""
_CONSOLE = "127.0.0.1:8025"
_VERSION = 1


class Places(NamedTuple):
    """Settings that the administrator names; None is the usual place."""

    postfix: Path | None = None
    exim: Path | None = None
    opensmtpd: Path | None = None
    sendmail: Path | None = None
    dovecot: Path | None = None
    way: str = ""
    """into Postfix: milter or lmtp; empty: what an earlier run chose, or what fits"""


class Found(NamedTuple):
    """What is on this machine."""

    config: Path
    settings: Settings
    options: Argv
    """of the command line: --config, --home"""
    server: MailServer | None
    dovecot: Dovecot | None
    notes: tuple[str, ...]
    """mail servers that setup does not edit"""
    is_served: bool
    """a daemon answers"""
    has_systemd: bool
    is_live: bool
    """listeners that observe mark mail, by order of the administrator"""
    listen: str = ""
    """the address that the administrator wants for spamnb; empty: a free port, or a socket"""


def usual(found: Found) -> Answers:
    """The answers that keep what is set already, and are careful otherwise."""
    settings = found.settings
    protocol = found.server.protocol if found.server is not None else ""
    listening = [one for one in settings.listener.values() if _is_for(protocol, one)]
    scripts = found.dovecot.settings if found.dovecot is not None else ""
    has_no_moves = "spamnb-junk.sieve" in scripts and "spamnb-to-junk.sieve" not in scripts
    return Answers(
        teach="none" if has_no_moves else "moves",
        act="file" if found.is_live or any(not one.observe for one in listening) else "observe",
        persons="yes" if settings.persons.enabled else "no",
        console="yes" if settings.console.address else "no",
    )


def _is_for(protocol: str, listener: Any) -> bool:
    """Whether a mail server asks at this listener."""
    if protocol == "lmtp":
        return listener.protocol == "smtp" and Address.parse(listener.address).protocol == "lmtp"
    return bool(listener.protocol == protocol and not listener.border)


def look(config: Path, settings: Settings, options: Argv, places: Places) -> Found:
    """Ask the programs of this machine about their settings."""
    boxes = dovecot_part.find(places.dovecot)
    if places.dovecot is not None and boxes is None:
        raise UserError(f"{places.dovecot} is no file of settings that Dovecot can read")
    program = shutil.which("spamnb")
    command = shlex.join((program,) if program else OWN) + " opensmtpd"
    servers: dict[str, Callable[[Path | None], MailServer | None]] = {
        "Postfix": partial(postfix_part.find, way=places.way, dovecot=boxes),
        "Exim": exim_part.find,
        "OpenSMTPD": partial(opensmtpd_part.find, command, _user(settings)),
        "Sendmail": sendmail_part.find,
    }
    named = dict(zip(servers, places[:4], strict=True))
    there = []
    for name in [name for name, place in named.items() if place] or servers:
        server = servers[name](named[name])
        if server is not None:
            there.append(server)
        elif named[name] is not None:
            raise UserError(f"{named[name]} has no settings of {name} that it can read")
    there.sort(key=lambda one: not one.is_running)
    if places.way and not (there and there[0].name == "Postfix"):
        raise UserError("only Postfix has several ways", hint="leave out --way")
    notes = [f"{one.name} is here, too, and is left as it is ({one.about})" for one in there[1:]]
    notes += old_filters.notes(old_filters.homes_of_users())
    return Found(
        config=config,
        settings=settings,
        options=options,
        server=there[0] if there else None,
        dovecot=boxes,
        notes=tuple(notes),
        is_served=run((*OWN, *options, "status", "--json")).code == 0,
        has_systemd=Path("/run/systemd/system").is_dir(),
        is_live=is_on(home_of(settings), "live", before=False),
    )


def _user(settings: Settings) -> str:
    """The user of the daemon: the owner of its home, or that of the package."""
    try:
        return home_of(settings).owner()
    except (OSError, KeyError):
        return "spamnb"


# --- the plan ---


def plan_of(found: Found, answers: Answers) -> Plan:
    """The stages for what was found."""
    notes: list[str] = []
    address = _address(found)
    lines = found.server.by_hand.format(address) if found.server is not None else ""
    server = _fit(found.server, found.server.name if found.server else "", lines, notes)
    dovecot = _fit(found.dovecot, "Dovecot", "docs/dovecot.md", notes)
    notes += found.notes
    if server is None and dovecot is None:
        notes.append("no mail server was found that setup can edit: see docs/install.md")
        return Plan((), tuple(notes))
    stages = [_own_stage(found, answers, address if server else "", notes)]
    if dovecot is not None:
        spool = found.settings.feedback.spool or DEFAULT_SPOOL
        moves = answers.teach == "moves"
        if moves and not Path(spool).is_dir():
            notes.append(f"the spool {spool} is missing, so moves teach nothing: make it first")
        stages.append(dovecot_part.stage(dovecot, moves=moves, spool=spool))
    if server is not None:
        stages.append(server.stage(address))
        notes += _notes_of(server, answers, address, has_dovecot=dovecot is not None)
    notes += [note for stage in stages if stage is not None for note in stage.notes]
    can_start = found.is_served or found.has_systemd
    return Plan(
        tuple(stage for stage in stages if stage is not None),
        tuple(notes),
        "" if can_start else "no daemon is running, and there is no systemd to start it",
    )


def _notes_of(
    server: MailServer, answers: Answers, address: str, *, has_dovecot: bool
) -> Iterable[str]:
    if not server.files_junk:
        yield (
            f"{server.name} does not seem to deliver through Dovecot, so marked mail stays in the "
            "inbox"
        )
    if server.other and answers.act == "observe":
        yield f"{server.other} goes on marking mail: `spamnb trial report` compares both filters"
    elif server.other:
        yield f"{server.other} marks mail, too: take it out of {server.name} (docs/switching.md)"
    if not server.is_running:
        yield f"{server.name} does not run: it asks spamnb after its start"
    if answers.teach == "moves" and not has_dovecot:
        yield "there is no Dovecot: `spamnb watch MAILDIR` learns from moves (docs/commands.md)"
    if server.by_socket and not address.startswith("unix:"):
        yield (
            f"{server.name} may not say over TCP for whom a message is, so corrections of system "
            "users wait for review, and one model decides for all"
        )


def _fit(server: Any, name: str, lines: str, notes: list[str]) -> Any:
    """The server, if it can be edited; else a note says why not, and which lines to add."""
    if server is None:
        return None
    notes += [
        f"{name} is left as it is: {why} (to do it by hand: {lines})" for why in server.problems
    ]
    return None if server.problems else server


def _address(found: Found) -> str:
    """Where spamnb listens for the mail server, or shall listen."""
    protocol = found.server.protocol if found.server is not None else "milter"
    there = [one.address for one in found.settings.listener.values() if _is_for(protocol, one)]
    addresses = [one.removeprefix("lmtp:").removeprefix("//") for one in there] or [found.listen]
    if not addresses[0] and found.server is not None and found.server.by_socket:
        is_usual = found.has_systemd or _SOCKETS.is_dir()
        # Another user of the system cannot reach a socket in the home.
        if is_usual or not found.server.user:
            return f"unix:{_SOCKETS if is_usual else home_of(found.settings)}/scan.sock"
    address = addresses[0] or f"127.0.0.1:{next(port for port in _PORTS if _is_free(port))}"
    host, colon, port = address.rpartition(":")
    if host == "unix" or not (colon and port.isdigit()):
        return address
    return f"{host or '127.0.0.1'}:{port}"


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _own_stage(found: Found, answers: Answers, address: str, notes: list[str]) -> Stage | None:
    """The settings of spamnb; without an address no mail server asks it."""
    tables: dict[str, dict[str, Any]] = {}
    hosts = [socket.gethostname()]
    domains = list[str]()
    if found.server is not None and address:
        hosts = list(dict.fromkeys(filter(None, [found.server.host, *hosts])))
        domains += found.server.domains
        tables |= _listener(found, found.server, answers, address)
    # A domain that only this machine has, such as its host name, is no domain of addresses.
    domains = [one for one in domains if one not in hosts]
    tables["local"] = {"hosts": hosts} | ({"domains": domains} if domains else {})
    delegates = []
    if answers.teach == "moves" and found.dovecot is not None and found.dovecot.owner:
        delegates.append(found.dovecot.owner)
    if found.server is not None and address.startswith("unix:") and found.server.user:
        delegates.append(found.server.user)
    if delegates:
        tables["serve"] = {"delegates": delegates}
    if answers.persons == "yes":
        tables["persons"] = {"enabled": True}
    if answers.console == "yes":
        tables["console"] = {"address": _CONSOLE}
    made = own_settings.wanted(found.config, tables)
    notes += made.notes
    own = (*OWN, *found.options)
    observe = ((*own, "live", "off"),) if found.is_live and answers.act == "observe" else ()
    if made.edit is None:
        return Stage("spamnb", activate=observe) if observe else None
    reload = ((*own, "reload"),)
    activate = (*observe, *reload)
    if not found.is_served and found.has_systemd:
        activate = (("systemctl", "enable", "--now", "spamnb"),)
        reload = (("systemctl", "disable", "--now", "spamnb"),)
    return Stage(
        program="spamnb",
        edits=(made.edit,),
        folders=(found.config.parent,),
        checks=((*own, "config", "check"),),
        activate=activate,
        reload=reload,
        listens=address,
    )


def _listener(
    found: Found, server: MailServer, answers: Answers, address: str
) -> dict[str, dict[str, Any]]:
    """The table of the listener: that of the administrator, or a new one."""
    by_hand = own_settings.given(found.config).get("listener", {})
    there = (found.settings.listener[name] for name in by_hand if name in found.settings.listener)
    if any(_is_for(server.protocol, one) for one in there):
        return {}
    keys: dict[str, Any] = {"protocol": server.protocol, "address": address}
    if server.protocol == "lmtp":
        keys = {
            "address": f"lmtp:{address}",
            "upstream": f"lmtp:{server.upstream}",
            "queue": "after",
        }
    if answers.act == "observe":
        keys["observe"] = True
        if server.other:
            keys["other"] = server.other
    return {f"listener.{server.protocol}": keys}


def test_command(found: Found, address: str) -> Argv:
    """The command that sends a test message to a mailbox, and moves it as its user would."""
    command = [*OWN, *found.options, "doctor", "--rcpt", address]
    if found.server is not None and found.server.smtp:
        command += ["--smtp", found.server.smtp]
    if found.dovecot is not None:
        user, program = dovecot_part.mailbox_program(found.dovecot, address)
        command += ["--user", user, "--imap-program", program] if user else []
    return tuple(command)


# --- doing it ---


class Setup:
    """The record of one machine, and what is done by it."""

    def __init__(self, record: Path, say: Callable[[str], None]) -> None:
        self._path = record
        self._say = say

    # A record: {"version", "phase", "stages": [...], "before": a record or null}. A stage has
    # "program", "edits", "folders", "made" and "reload"; an edit "path", "before", "after".

    def recover(self) -> bool:
        """Take back a run that was killed; False if there is none."""
        record = self._read()
        if record is None or record["phase"] != "begun":
            return False
        self._say("An earlier run did not end: its changes are taken back.")
        self._take_back(record)
        return True

    def apply(self, plan: Plan) -> None:
        """Do all stages; if one fails, take all back and raise a UserError."""
        if plan.obstacle:
            raise UserError(
                plan.obstacle, hint="start `spamnb serve --create`, and run this command again"
            )
        old = self._read()
        record = {
            "version": _VERSION,
            "phase": "begun",
            "stages": [_recorded(stage) for stage in plan.stages if stage.edits],
            "before": old,
        }
        self._write(record)
        try:
            for stage in plan.stages:
                self._do(stage)
        except UserError as error:
            self._say(f"failed: {error}")
            self._take_back(record)
            raise UserError(
                f"{error}; all changes were taken back", hint=error.hint or "see the lines above"
            ) from error
        except KeyboardInterrupt:
            self._take_back(record)
            raise
        self._write({**record, "phase": "done", "before": None, "stages": _merged(old, record)})

    def _do(self, stage: Stage) -> None:
        for folder in (one for one in stage.folders if not one.exists()):
            try:
                folder.mkdir(parents=True)
                folder.chmod(0o755)  # whatever the umask is: users of the mail server read it
            except OSError as error:
                raise _denied(folder, error) from error
        for edit in stage.edits:
            self._say(f"{stage.program}: {edit.path}")
            _replace(edit)
        self._run(stage.program, stage.checks)
        if fault := stage.verify():
            raise UserError(fault)
        started = _written(stage.pid_file)
        self._run(stage.program, stage.activate)
        if stage.activate and stage.pid_file is not None:
            _wait(lambda: _written(stage.pid_file) not in (None, started),
                  f"{stage.program} has not started again")  # fmt: skip
        if stage.listens:
            _wait(lambda: _answers(stage.listens),
                  f"{stage.program} does not listen at {stage.listens}")  # fmt: skip

    def _run(self, program: str, commands: Sequence[Argv]) -> None:
        for command in commands:
            self._say(f"{program}: {shown(command)}")
            done = run(command)
            if done.code != 0:
                raise UserError(f"`{shown(command)}` failed: {_last_lines(done.text)}")

    def _take_back(self, record: dict[str, Any]) -> None:
        """Restore the files as they were before a run that did not end."""
        for stage in reversed(record["stages"]):
            changed = False
            for edit in stage["edits"]:
                path = Path(edit["path"])
                _sweep(path)
                now = read(path)
                if now == edit["after"] and now != edit["before"]:
                    _put(path, edit["before"])
                    changed = True
                elif now not in (edit["before"], edit["after"]):
                    self._say(f"{path} was changed meanwhile and is left as it is")
            _clean(stage)
            if changed:
                self._reload(stage)
        if record["before"] is None:
            self._forget(record)
        else:
            self._write(record["before"])

    def remove(self) -> bool:
        """Take out all that was done; False if nothing was. Refuses if a block was changed."""
        self.recover()
        record = self._read()
        if record is None:
            return False
        found = [(stage, _removals(stage)) for stage in record["stages"]]
        faults = [fault for _, (_, stage_faults) in found for fault in stage_faults]
        if faults:
            raise UserError(
                f"nothing was removed: {'; '.join(faults)}",
                hint="undo that change, or remove the lines by hand and delete " + str(self._path),
            )
        self._write({**record, "phase": "removing"})
        for stage, (removals, _) in reversed(found):
            for path, text in removals:
                self._say(f"{stage['program']}: {path}")
                _put(path, text)
            _clean(stage)
            self._reload(stage)
        self._forget(record)
        return True

    def _reload(self, stage: dict[str, Any]) -> None:
        for command in stage["reload"]:
            self._say(f"{stage['program']}: {shown(command)}")
            done = run(command)
            if done.code != 0:
                self._say(f"`{shown(command)}` failed: {_last_lines(done.text)}")

    def _read(self) -> dict[str, Any] | None:
        text = read(self._path)
        if text is None:
            return None
        try:
            record: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise UserError(f"{self._path} is not a record of setup: {error}") from error
        if record.get("version") != _VERSION:
            raise UserError(f"{self._path} was written by another version of spamnb")
        return record

    def _write(self, record: dict[str, Any]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with durable_file(self._path) as file:
                file.write(json.dumps(record, indent=1).encode())
        except OSError as error:
            raise _denied(self._path, error) from error

    def _forget(self, record: dict[str, Any]) -> None:
        self._path.unlink(missing_ok=True)
        for stage in record["stages"]:
            _clean(stage)


def shown(command: Sequence[str]) -> str:
    """A command as an administrator writes it."""
    words = ["spamnb", *command[len(OWN) :]] if tuple(command[: len(OWN)]) == OWN else command
    return shlex.join(words)


def _last_lines(text: str) -> str:
    return " / ".join(text.splitlines()[-3:]) or "no output"


def _recorded(stage: Stage) -> dict[str, Any]:
    return {
        "program": stage.program,
        "edits": [
            {"path": str(edit.path), "before": edit.before, "after": edit.after}
            for edit in stage.edits
        ],
        "folders": [str(one) for one in stage.folders if not one.exists()],
        "made": [str(one) for one in stage.made],
        "reload": [list(command) for command in stage.reload],
    }


def _merged(old: dict[str, Any] | None, new: dict[str, Any]) -> list[dict[str, Any]]:
    """The stages of both runs: of a file that both edited, the first state and the last."""
    stages = {stage["program"]: stage for stage in (old or {"stages": []})["stages"]}
    for stage in new["stages"]:
        first = stages.get(stage["program"])
        if first is None:
            stages[stage["program"]] = stage
            continue
        edits = {edit["path"]: edit for edit in first["edits"]}
        for edit in stage["edits"]:
            before = edits.get(edit["path"], edit)["before"]
            edits[edit["path"]] = {**edit, "before": before}
        stages[stage["program"]] = {
            **stage,
            "edits": list(edits.values()),
            "folders": list(dict.fromkeys([*first["folders"], *stage["folders"]])),
            "made": list(dict.fromkeys([*first["made"], *stage["made"]])),
            "reload": first["reload"] or stage["reload"],
        }
    order = {"spamnb": 0, "Dovecot": 1}  # then the mail server
    return sorted(stages.values(), key=lambda stage: order.get(stage["program"], len(order)))


_Removal = tuple[Path, str | None]


def _removals(stage: dict[str, Any]) -> tuple[list[_Removal], list[str]]:
    """The files of a stage without what setup has put in, and what stands against it."""
    removals: list[_Removal] = []
    faults = []
    for edit in stage["edits"]:
        path = Path(edit["path"])
        now, after = read(path), edit["after"]
        wrote: list[Block] = blocks(after)
        if now is None:
            continue
        if not wrote:
            if now == after:
                removals.append((path, edit["before"]))
            elif now != edit["before"]:
                faults.append(f"{path} was changed")
            continue
        there = blocks(now)
        if any(one not in wrote for one in there) or has_torn_block(now):
            faults.append(f"a block of setup in {path} was changed")
        if there:
            text = without_blocks(now)
            is_new = edit["before"] is None and not text
            removals.append((path, None if is_new else text))
    return removals, faults


def _clean(stage: dict[str, Any]) -> None:
    """Delete the files that commands made, and the folders that setup made."""
    for name in stage["made"]:
        if read(Path(name).with_suffix(".sieve")) is None:
            Path(name).unlink(missing_ok=True)
    for name in reversed(stage["folders"]):
        with suppress(OSError):
            Path(name).rmdir()


def _sweep(path: Path) -> None:
    """Delete what a killed run left beside a file."""
    for left in path.resolve().parent.glob(f".{path.resolve().name}.*.tmp"):
        left.unlink(missing_ok=True)


def _replace(edit: FileEdit) -> None:
    if read(edit.path) != edit.before:
        raise UserError(f"{edit.path} was changed meanwhile", hint="run this command again")
    _put(edit.path, edit.after, edit.mode)


def _put(path: Path, text: str | None, mode: int = 0o644) -> None:
    """Replace a file, durably, with the owner and the mode of the old one; None deletes it."""
    real = path.resolve()
    try:
        if text is None:
            real.unlink(missing_ok=True)
            sync_folder(real.parent)
            return
        old = real.stat() if real.exists() else None
        with durable_file(real, mode=0o600) as file:
            file.write(to_bytes(text))
            if old is not None:
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), old.st_mode & 0o7777 if old is not None else mode)
    except OSError as error:
        raise _denied(path, error) from error


def _denied(path: Path, error: OSError) -> UserError:
    hint = "run this command as root" if isinstance(error, PermissionError) else ""
    return UserError(f"{path} cannot be written: {error.strerror}", hint=hint)


def _wait(condition: Callable[[], bool], fault: str) -> None:
    end = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > end:
            raise UserError(fault, hint="see its log")
        time.sleep(0.05)


def _written(path: Path | None) -> int | None:
    """When a file was written; None if there is none."""
    try:
        return path.stat().st_mtime_ns if path is not None else None
    except OSError:
        return None


def _answers(address: str) -> bool:
    is_path = address.startswith("unix:")
    host, _, port = address.rpartition(":")
    try:
        if is_path:
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(address.removeprefix("unix:"))
        else:
            socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def faults_of(stages: Iterable[Stage]) -> list[str]:
    """Files that this process may not write."""
    return [
        str(edit.path)
        for stage in stages
        for edit in stage.edits
        if not os.access(_existing(edit.path), os.W_OK)
    ]


def _existing(path: Path) -> Path:
    return next(one for one in (path, *path.parents) if one.exists())
