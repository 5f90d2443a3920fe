"""The commands of docs/imap.md, word for word, with a real Dovecot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import SAMPLE, environment
from support.docs_snippets import changed, snippet
from support.imap_rig import ImapRig, sample
from support.postfix import needs_rig
from support.waiting import LIMIT_S, until

pytestmark = needs_rig
ALICE = "alice@example.org"
PASSWORD = "/home/alice/.config/spamnb/alice.password"


@pytest.fixture
def box():
    rig = ImapRig()
    made = rig.mailbox()
    yield made
    made.imap.logout()
    rig.stop()


class Shell:
    """A user's shell in a folder with sorted mail."""

    def __init__(self, folder, box):
        self.folder = folder
        (folder / "bin").mkdir()
        editor = folder / "bin" / "editor"
        editor.write_text(f'#!/bin/sh\nprintf "pw-{box.user}\\n" > "$1"\n')
        editor.chmod(0o755)
        for label in ("ham", "spam"):
            (folder / label).symlink_to(SAMPLE / label)
        path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = environment(PATH=path, SPAMNB_HOME=str(folder / "home"))
        self.environment["SPAMNB_SERVE_USER"] = "root"  # as the tests of Dovecot need root

    def start(self, command):
        """Start commands of the page."""
        where = {"cwd": self.folder, "env": self.environment}
        text = command.replace(PASSWORD, str(self.folder / "password"))
        return subprocess.Popen(["sh", "-ec", text], stdout=-1, stderr=-1, text=True, **where)

    def run(self, command):
        """Run commands of the page; returns their output."""
        running = self.start(command)
        out, err = running.communicate(timeout=LIMIT_S)
        assert (running.returncode, err) == (0, ""), (command, out, err)
        return out


def page(name, section="Start"):
    return snippet("imap.md", section, name)


def test_the_page_and_the_way_back(tmp_path, box):
    """Look at verdicts, let it run, take a training back, and leave nothing behind."""
    shell = Shell(tmp_path, box)
    server = {"imap.example.org": "127.0.0.1", ALICE: box.user, PASSWORD: tmp_path / "password"}
    toml = changed(page("spamnb.toml"), server) + f'port = {box.port}\ntls = "none"\n'
    # Instead of the relay and the delivery agent at their default ports.
    toml += f'[listener.free]\nprotocol = "milter"\naddress = "unix:{tmp_path}/milter"\n'
    config = tmp_path / "spamnb.toml"
    config.write_text(toml)
    shell.run(page("shell: a password file that only you can read"))
    shell.run(page("shell: a model, from sorted mail"))
    (spam, spam_id), (ham, ham_id) = sample("spam", 1), sample("ham", 1)
    box.append(spam)
    box.append(ham)
    shown = shell.run(page("shell: look at the verdicts"))
    assert "no problems found" in shown
    assert shown.count(": judged") == 2
    assert (box.messages(), box.messages("Junk")) == ([spam_id, ham_id], [])

    config.write_text(changed(toml, {'act = "nothing"\n': ""}))
    running = shell.start(
        "exec " + changed(page("shell: until Ctrl-C"), {"# shell: until Ctrl-C\n": ""})
    )
    try:
        state = tmp_path / "home" / "imap" / "alice.sqlite-journal"
        until(lambda: running.poll() is not None or state.parent.exists(), what="its start")
        spam, filed_id = sample("spam", 2)
        box.append(spam)
        until(lambda: filed_id in box.messages("Junk"), what="the move")
        box.move(ham_id, "INBOX", "Junk")
        until(lambda: "imap" in shell.run("spamnb journal --channel imap"), what="the label")
    finally:
        running.terminate()
        assert running.communicate(timeout=LIMIT_S)[1] == ""
    assert running.returncode == 0

    back = page("shell: undo the last training", "What your moves teach")
    number = shell.run("spamnb journal --channel imap --json").partition('"event": ')[2]
    shell.run(changed(back, {"402": number.partition(",")[0]}))
    before = shell.run("spamnb stats")
    shell.run(page("shell: undo what was learnt from moves", "The way back"))
    assert shell.run("spamnb stats") == before
    assert sorted(box.messages() + box.messages("Junk")) == sorted([spam_id, ham_id, filed_id])
