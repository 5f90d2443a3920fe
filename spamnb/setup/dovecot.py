"""Dovecot: asked about its settings, and told to file junk and to teach by moves.

The settings go to `conf.d/99-spamnb.conf` where the main file includes `conf.d`, else into a block
at its end. Plugins, Sieve scripts and rules of others stay: their lists are continued.
"""

from __future__ import annotations

import pwd
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from spamnb.errors import UserError
from spamnb.setup.edits import blocks, with_block, without_blocks
from spamnb.setup.plan import EXECUTABLE, Argv, FileEdit, Stage, asked, is_alive, read

_BLOCK = "dovecot"
DEFAULT_FILE = Path("/etc/dovecot/dovecot.conf")
_OWN_FILE = "99-spamnb.conf"
_INCLUDES = re.compile(r"(?m)^\s*!include(?:_try)?\s+conf\.d/\*\.conf\s*$")
_VERSION = re.compile(r"\d+\.\d+")
_PLACES = (Path("/usr/local/lib/spamnb"), Path("/usr/lib/spamnb"))
"""where `scripts/install` and the package put the scripts"""
_TEACH = "spamnb-teach"
_MOVES = ("spamnb-to-junk", "spamnb-from-junk", "spamnb-flag")
_EXTENSIONS = ("vnd.dovecot.pipe", "vnd.dovecot.environment")
_JUNK_SIEVE = """\
require ["fileinto", "mailbox"];
if header :is "X-Spam-Flag" "YES" {
  fileinto :create "Junk";
  stop;
}
"""
DEFAULT_SPOOL = "/var/spool/spamnb"


class Dovecot(NamedTuple):
    """A Dovecot with its settings."""

    file: Path
    version: str
    """such as 2.3"""
    settings: str
    """those that differ from the defaults, as `doveconf -n` prints them"""
    junk: str
    """the folder that is marked as the junk folder"""
    separator: str
    owner: str
    """the user that owns all mailboxes; empty if each user owns the own one"""
    problems: tuple[str, ...]
    is_running: bool

    def value(self, name: str, protocol: str = "") -> str:
        """A setting, in a protocol."""
        of = ("-f", f"protocol={protocol}") if protocol else ()
        return asked("doveconf", "-c", str(self.file), *of, "-h", name)


def find(file: Path | None) -> Dovecot | None:
    """The Dovecot with this file of settings, by default that of the machine."""
    named = file or DEFAULT_FILE
    if not named.is_file():
        return None
    settings = asked("doveconf", "-c", str(named), "-n")
    version = _VERSION.match(asked("dovecot", "--version"))
    if not settings or version is None:
        return None
    bare = Dovecot(named, version[0], settings, "Junk", "/", "", (), is_running=False)
    marked = re.search(r'mailbox "?([^"{\n]+?)"? \{[^{}]*special_use = \\Junk', settings)
    plugins = Path(bare.value("mail_plugin_dir") or "/usr/lib/dovecot/modules")
    problems = []
    if version[0] not in ("2.3", "2.4"):
        problems.append(f"version {version[0]} is not known")
    if not any(plugins.glob("*imap_sieve_plugin.so")):
        problems.append("Pigeonhole is not installed (the package dovecot-sieve)")
    return bare._replace(
        junk=marked[1] if marked else "Junk",
        separator=bare.value("namespace/inbox/separator") or "/",
        owner=_owner(settings),
        problems=tuple(problems),
        is_running=is_alive(Path(bare.value("base_dir") or "/run/dovecot", "master.pid")),
    )


def _owner(settings: str) -> str:
    found = re.search(r"(?m)^\s*mail_uid = (\S+)|^\s*args = .*?\buid=(\S+)", settings)
    name = (found[1] or found[2]) if found else ""
    if name.isdigit():
        try:
            return pwd.getpwuid(int(name)).pw_name
        except KeyError:
            return ""
    return name


def mailbox_program(dovecot: Dovecot, address: str) -> tuple[str, str]:
    """The user who has an address, and the command that opens the mailbox; empty if none has.

    The program is started itself: `doveadm exec` gives it the plugins of doveadm, so a move would
    not teach.
    """
    config = ("-c", str(dovecot.file))
    program = f"{dovecot.value('libexec_dir') or '/usr/lib/dovecot'}/imap"
    for user in (address, address.rpartition("@")[0]):
        if user and asked("doveadm", *config, "user", "-f", "home", user):
            return user, shlex.join((program, *config, "-u", user))
    return "", ""


def script_folder() -> Path:
    """The folder with the scripts of Dovecot: an installed one, or that of the clone."""
    clone = Path(__file__).parents[2] / "scripts" / "dovecot"
    found = next((one for one in (*_PLACES, clone) if (one / _TEACH).is_file()), None)
    if found is None:
        raise UserError(
            "the scripts for Dovecot are not installed",
            hint="run scripts/install of the clone, or choose teach=none",
        )
    return found


def stage(dovecot: Dovecot, *, moves: bool, spool: str) -> Stage | None:
    """What makes Dovecot file junk, and teach by moves; None if it is done already."""
    sieve = dovecot.file.parent / "sieve"
    scripts = {"spamnb-junk": _JUNK_SIEVE}
    edits, pipe = list[FileEdit](), Path()
    if moves:
        source = script_folder()
        scripts |= {name: (source / f"{name}.sieve").read_text() for name in _MOVES}
        pipe, edits = _pipe(dovecot, source, spool)
    texts = {
        sieve / f"{name}.sieve": _for_site(name, text, dovecot) for name, text in scripts.items()
    }
    edits += [FileEdit(path, read(path), text) for path, text in texts.items()]
    edits.append(_settings_edit(dovecot, sieve, list(scripts), pipe))
    changed = [one for one in edits if one.before != one.after]
    if not changed:
        return None
    config = ("-c", str(dovecot.file))
    reload = (("doveadm", *config, "reload"),) if dovecot.is_running else ()
    compiled: tuple[Argv, ...] = tuple(("sievec", *config, str(path)) for path in texts)
    return Stage(
        program="Dovecot",
        edits=tuple(changed),
        folders=tuple(dict.fromkeys(one.path.parent for one in changed)),
        checks=(("doveconf", *config, "-n"), *compiled),
        verify=lambda: _fault(dovecot, texts, sieve),
        activate=reload,
        reload=reload,
        made=tuple(path.with_suffix(".svbin") for path in texts),
    )


def _fault(dovecot: Dovecot, scripts: Collection[Path], sieve: Path) -> str:
    """Why Dovecot would not use one of the scripts: a later file may set the same again."""
    settings = asked("doveconf", "-c", str(dovecot.file), "-n")
    unused = [str(one) for one in scripts if f"{sieve}/{one.name}" not in settings]
    if "sieve" not in dovecot.value("mail_plugins", "lmtp"):
        unused.append("the plugin sieve")
    teaches = any(one.stem in _MOVES for one in scripts)
    if teaches and "imap_sieve" not in dovecot.value("mail_plugins", "imap"):
        unused.append("the plugin imap_sieve")
    return f"a later setting of Dovecot leaves out {unused[0]}" if unused else ""


def _for_site(name: str, text: str, dovecot: Dovecot) -> str:
    """A script for the name of the junk folder; a keyword of that name stays."""
    if name == "spamnb-flag" or dovecot.junk == "Junk":
        return text
    return re.sub(r'"Junk(?=["/.])', f'"{dovecot.junk}', text)


def _pipe(dovecot: Dovecot, source: Path, spool: str) -> tuple[Path, list[FileEdit]]:
    """The folder with `spamnb-teach`, and the edits that put it there.

    Dovecot has one such folder, so that of another filter is used as it is.
    """
    name = "sieve_pipe_bin_dir" if dovecot.version == "2.4" else "plugin/sieve_pipe_bin_dir"
    taken = dovecot.value(name)
    installed = source if source in _PLACES else dovecot.file.parent / "sieve-pipe"
    folder = Path(taken) if taken else installed
    edits = []
    if folder != source:
        text = (source / _TEACH).read_text()
        edits.append(FileEdit(folder / _TEACH, read(folder / _TEACH), text, mode=EXECUTABLE))
    if spool != DEFAULT_SPOOL:
        edits.append(FileEdit(folder / "spool", read(folder / "spool"), f"{spool}\n"))
    return folder, edits


def _settings_edit(dovecot: Dovecot, sieve: Path, scripts: Sequence[str], pipe: Path) -> FileEdit:
    main = read(dovecot.file) or ""
    in_folder = _INCLUDES.search(main) is not None
    path = dovecot.file.parent / "conf.d" / _OWN_FILE if in_folder else dovecot.file
    before = read(path)
    own = (
        before or ""
        if in_folder
        else "\n".join(line for one in blocks(main) if one.name == _BLOCK for line in one.lines)
    )
    write = _lines_23 if dovecot.version == "2.3" else _lines_24
    lines = list(write(dovecot, own, sieve, scripts, pipe))
    if in_folder:
        head = ["# spamnb: junk mail, and learning from moves. Written by `spamnb setup`."]
        return FileEdit(path, before, "\n".join([*head, *lines, ""]))
    return FileEdit(path, before, with_block(without_blocks(main), _BLOCK, lines))


def _joined(old: str, *new: str) -> str:
    return " ".join(dict.fromkeys([*old.split(), *new]))


def _lines_23(
    dovecot: Dovecot, own: str, sieve: Path, scripts: Sequence[str], pipe: Path
) -> Iterable[str]:
    """Settings of Dovecot 2.3; those that `own` has are from an earlier run."""
    plugin = dovecot.value("plugin")
    for protocol in ("lmtp", "lda"):
        value = _joined(dovecot.value("mail_plugins", protocol), "sieve")
        yield from (f"protocol {protocol} {{", f"  mail_plugins = {value}", "}")
    taken = set(re.findall(r"\b(sieve_before\d*) =", plugin))
    taken -= set(re.findall(r"\b(sieve_before\d*) =", own))
    names = ["sieve_before", *(f"sieve_before{number}" for number in range(2, 100))]
    free = next(name for name in names if name not in taken)
    wanted = [f"{free} = {sieve}/spamnb-junk.sieve"]
    if "spamnb-flag" in scripts:
        value = _joined(dovecot.value("mail_plugins", "imap"), "imap_sieve")
        yield from ("protocol imap {", f"  mail_plugins = {value}", "}")
        wanted += _moves_23(dovecot, plugin, own, sieve, pipe)
    yield from ("plugin {", *(f"  {line}" for line in wanted), "}")


def _moves_23(dovecot: Dovecot, plugin: str, own: str, sieve: Path, pipe: Path) -> Iterable[str]:
    plugins = _joined(dovecot.value("plugin/sieve_plugins"), "sieve_imapsieve", "sieve_extprograms")
    extensions = _joined(
        dovecot.value("plugin/sieve_global_extensions"), *(f"+{one}" for one in _EXTENSIONS)
    )
    yield f"sieve_plugins = {plugins}"
    yield f"sieve_global_extensions = {extensions}"
    yield f"sieve_pipe_bin_dir = {pipe}"
    if "sieve_pipe_exec_timeout" in own or not dovecot.value("plugin/sieve_pipe_exec_timeout"):
        yield "sieve_pipe_exec_timeout = 10s"
    numbers = re.compile(r"\bimapsieve_mailbox(\d+)_")
    others = set(numbers.findall(plugin)) - set(numbers.findall(own))
    first = 1 + max(map(int, others), default=0)
    junk, below = dovecot.junk, f"{dovecot.junk}{dovecot.separator}*"
    rules = (
        (junk, "", "COPY APPEND", "to-junk"),
        (below, "", "COPY APPEND", "to-junk"),
        ("*", junk, "COPY", "from-junk"),
        ("*", below, "COPY", "from-junk"),
        ("*", "", "FLAG", "flag"),
    )
    for number, (name, source, causes, script) in enumerate(rules, first):
        yield f"imapsieve_mailbox{number}_name = {name}"
        if source:
            yield f"imapsieve_mailbox{number}_from = {source}"
        yield f"imapsieve_mailbox{number}_causes = {causes}"
        yield f"imapsieve_mailbox{number}_before = file:{sieve}/spamnb-{script}.sieve"


def _lines_24(
    dovecot: Dovecot, own: str, sieve: Path, scripts: Sequence[str], pipe: Path
) -> Iterable[str]:
    """Settings of Dovecot 2.4, whose lists are continued by name."""
    yield from ("protocol lmtp {", "  mail_plugins {", "    sieve = yes", "  }", "}")
    yield from _script("spamnb-junk", "type = before", f"path = {sieve}/spamnb-junk.sieve")
    if "spamnb-flag" not in scripts:
        return
    yield from ("protocol imap {", "  mail_plugins {", "    imap_sieve = yes", "  }", "}")
    yield from ("sieve_plugins {", "  sieve_imapsieve = yes", "  sieve_extprograms = yes", "}")
    yield "sieve_global_extensions {"
    yield from (f"  {one} = yes" for one in _EXTENSIONS)
    yield "}"
    yield f"sieve_pipe_bin_dir = {pipe}"
    if "sieve_pipe_exec_timeout" in own or not dovecot.value("sieve_pipe_exec_timeout"):
        yield "sieve_pipe_exec_timeout = 10s"
    for name in (dovecot.junk, f'"{dovecot.junk}{dovecot.separator}*"'):
        inner = _script(
            "spamnb-to-junk",
            "type = before",
            "cause = copy append",
            f"path = {sieve}/spamnb-to-junk.sieve",
        )
        yield from (f"mailbox {name} {{", *(f"  {line}" for line in inner), "}")
    for name, cause in (("from-junk", "copy"), ("flag", "flag")):
        yield from _script(
            f"spamnb-{name}",
            "type = before",
            f"cause = {cause}",
            f"path = {sieve}/spamnb-{name}.sieve",
        )


def _script(name: str, *settings: str) -> Iterable[str]:
    return (f"sieve_script {name} {{", *(f"  {one}" for one in settings), "}")
