"""One mailbox on an IMAP server, for a user without root: settings, password file, service.

The settings go to `~/.config/spamnb`, the service to the user's systemd, if there is one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from spamnb.settings.values import is_here
from spamnb.setup import own_settings
from spamnb.setup.plan import Answers, Argv, FileEdit, Plan, Stage, read, run

IMAPS = 993
_UNIT = "spamnb-imap.service"


class MailboxLogin(NamedTuple):
    """Where a mailbox is, and who may read it."""

    host: str
    port: int
    user: str
    password_file: Path

    @property
    def name(self) -> str:
        """The name of its section in the settings."""
        return re.sub(r"[^a-z0-9]+", "-", self.user.partition("@")[0].lower()).strip("-") or "box"


def user_config() -> Path:
    """The settings of this user."""
    return Path.home() / ".config" / "spamnb" / "spamnb.toml"


def plan_of_mailbox(
    config: Path, own: Argv, login: MailboxLogin, answers: Answers, *, has_model: bool
) -> Plan:
    """The stage that reads this mailbox; `own` is the command of spamnb with its options."""
    keys: dict[str, Any] = {"host": login.host}
    if login.port != IMAPS:
        tls = "none" if is_here(login.host) else "starttls"
        keys |= {"port": login.port, "tls": tls}
    keys |= {"user": login.user, "password_file": str(login.password_file)}
    if answers.act == "observe":
        keys["act"] = "nothing"
    made = own_settings.wanted(config, {f"imap.{login.name}": keys})
    unit = Path.home() / ".config" / "systemd" / "user" / _UNIT
    edits = [made.edit] if made.edit else []
    activate: list[Argv] = []
    reload: tuple[Argv, ...] = ()
    notes = list(made.notes)
    if not has_model:
        activate.append((*own, "train", "--imap", login.name))
    if run(("systemctl", "--user", "show-environment")).code == 0:
        edits.append(FileEdit(unit, read(unit), _service(own)))
        control = ("systemctl", "--user")
        activate += [(*control, "daemon-reload"), (*control, "enable", "--now", _UNIT)]
        activate.append((*control, "restart", _UNIT))
        reload = ((*control, "disable", "--now", _UNIT), (*control, "daemon-reload"))
    else:
        notes.append("there is no systemd of this user: start `spamnb imap` yourself")
    changed = tuple(edit for edit in edits if edit.before != edit.after)
    stage = Stage(
        program="spamnb",
        edits=changed,
        folders=tuple(dict.fromkeys(edit.path.parent for edit in changed)),
        # `config check` would also check the listeners of a daemon, which this user does not run.
        checks=((*own, "config", "show"),),
        activate=tuple(activate),
        reload=reload,
        made=(login.password_file,) if login.password_file.parent == config.parent else (),
    )
    return Plan((stage,) if changed else (), tuple(notes))


def _service(own: Argv) -> str:
    command = " ".join(f'"{word}"' if " " in word else word for word in own)
    return (
        "# Written by `spamnb setup`.\n[Unit]\nDescription=spamnb: filter a mailbox\n\n"
        f"[Service]\nExecStart={command} imap\nRestart=on-failure\nRestartSec=30\n\n"
        "[Install]\nWantedBy=default.target\n"
    )
