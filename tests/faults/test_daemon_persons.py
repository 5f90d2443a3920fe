"""Persons in the whole daemon: mail, labels over the control socket, aliases, a reload."""

import email
import signal
import smtplib

from support.cli import HAM, SAMPLE, SPAM
from support.cli import forked as spamnb
from support.daemon import delivered, serve, settings_in
from support.waiting import LIMIT_S, until

from spamnb.operations.protocol import ControlClient

MORE = """
[local]
domains = ["example.org"]
[persons]
enabled = true
aliases = "{aliases}"
"""
RAW = (SAMPLE / "spam" / "0119.eml").read_bytes()
IDENT = email.message_from_bytes(RAW)["Message-ID"]


def flags(daemon, folder, *recipients):
    """Send one message; return the flag of the newest copy of each user."""
    before = {one: len(delivered(folder, IDENT, one)) for one in ("ann", "bob")}
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
        client.sendmail("x@example.com", [f"{one}@example.org" for one in recipients], RAW)
    found = {}
    for name in recipients:
        until(lambda name=name: len(delivered(folder, IDENT, name)) > before[name], f"mail {name}")
        place = (folder / "home" / "mail" / name).rglob("new/*")
        newest = max(place, key=lambda path: path.stat().st_mtime_ns)
        found[name] = email.message_from_bytes(newest.read_bytes())["X-Spam-Flag"]
    return found


def test_a_daemon_serves_persons(tmp_path):
    """A user's label holds for that user under all names, also beside other recipients."""
    home, aliases = tmp_path / "home", tmp_path / "virtual"
    aliases.write_text("# none yet\n")
    assert spamnb(home, "train", HAM, SPAM).code == 0
    config = settings_in(tmp_path, more=MORE.format(aliases=aliases))
    with serve(tmp_path, config=config).ready() as daemon:
        assert flags(daemon, tmp_path, "bob") == {"bob": "YES"}
        with ControlClient(home / "control.sock", LIMIT_S) as caller:
            answer = caller.ask("teach", RAW, label="ham", channel="imap", **{"for": "bob"})
            assert answer.header["state"] == "learnt"
        shared = flags(daemon, tmp_path, "ann")["ann"]
        assert flags(daemon, tmp_path, "bob") == {"bob": "NO"}
        assert flags(daemon, tmp_path, "bob", "ann") == {"bob": "NO", "ann": shared}
        done = spamnb(home, "--config", config, "correct", "--person", "bob", "spam", IDENT)
        assert done.code == 0, done.err
        assert flags(daemon, tmp_path, "bob") == {"bob": "YES"}
        aliases.write_text("broken@example.org\n")
        daemon.signal(signal.SIGHUP)
        refused = daemon.wait_for("settings not reloaded")
        assert "virtual:1" in str(refused)
        assert flags(daemon, tmp_path, "bob") == {"bob": "YES"}
        assert daemon.stop() == 0
    assert spamnb(home, "check").code == 0


COSTS = """
[local]
domains = ["example.org"]
[persons]
enabled = true
[person."ann@example.org"]
junk_costs = [1e9, 0.05]
reject_costs = [1e9, 0]
"""


def test_a_daemon_decides_by_the_costs_of_a_recipient(tmp_path):
    """A message is filed for one recipient, and not for another with higher costs."""
    assert spamnb(tmp_path / "home", "train", HAM, SPAM).code == 0
    config = settings_in(tmp_path, more=COSTS)
    with serve(tmp_path, config=config).ready() as daemon:
        assert flags(daemon, tmp_path, "bob") == {"bob": "YES"}
        assert flags(daemon, tmp_path, "ann") == {"ann": "NO"}
        assert flags(daemon, tmp_path, "ann", "bob") == {"ann": "NO", "bob": "YES"}
