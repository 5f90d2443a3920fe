"""The recipes of docs/suites.md, with the real programs as far as they are installed."""

import contextlib
import email
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from support.clients import needs_curl, needs_spamc, run_line
from support.docs_snippets import DOCS, changed, snippet
from support.dovecot import Person, with_junk, with_teaching
from support.postfix import PROJECT, Daemon, Rig, free_ports, needs_rig
from support.waiting import until

PAGE = "suites.md"
SAMPLE = PROJECT / "corpora" / "sample"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the daemon's socket belongs to root")
ORDERS = {
    "mailcow": ("data/conf/postfix/extra.cf", "inet:spamnb:11332", "inet:rspamd:9900"),
    "docker-mailserver": (
        *("docker-data/dms/config/postfix-main.cf", "inet:localhost:11342"),
        "inet:localhost:11332",
    ),
    "Mailu": ("overrides/postfix.cf", "inet:spamnb:11332", "inet:antispam:11332"),
}
"""suite -> its file, address of spamnb, address of its own filter"""


def trained(folder, toml):
    """Return a daemon with these settings and a model of the sample."""
    daemon = Daemon(folder, toml)
    daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
    return daemon


@contextlib.contextmanager
def running(*parts):
    """Start the parts; stop them again, and show what they logged if the test fails."""
    try:
        for part in parts:
            part.start()
        yield
    finally:
        for part in parts[::-1]:
            with contextlib.suppress(OSError):
                print(part.log()[-4000:] if callable(part.log) else part.log.read_text()[-4000:])
            part.stop()


def message(label, number):
    return sorted((SAMPLE / label).iterdir())[number]


def test_every_settings_file_is_valid(tmp_path):
    """Each block of TOML passes the check of the settings, after the model is trained."""
    blocks = re.findall(r"^```toml\n(.*?)^```", (DOCS / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    trained(tmp_path, "")
    for number, block in enumerate(blocks):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "home").symlink_to(tmp_path / "home")
        fixed = sorted(set(re.findall(r":(\d{5})\b", block)))
        for port, free in zip(fixed, free_ports(len(fixed)), strict=True):
            block = block.replace(f":{port}", f":{free}")  # noqa: PLW2901
        code, out, err = Daemon(folder, block).command("config", "check")
        assert code == 0, block + out + err


@needs_rig
@pytest.mark.parametrize("suite", ORDERS)
def test_an_observer_before_the_filter_of_the_suite_keeps_its_marks(suite, tmp_path):
    """Postfix asks both in the order of the page; spam is filed by the marks of the second.

    The suite's own filter is a second listener, which marks.
    """
    file, ours, theirs = ORDERS[suite]
    first, second = free_ports(2)
    rig = Rig()
    with_junk(rig)
    rig.master = f"127.0.0.1:{rig.port['mx']} inet n - n - - smtpd\n"
    lines = changed(
        snippet(PAGE, suite, file),
        {ours: f"inet:127.0.0.1:{first}", theirs: f"inet:127.0.0.1:{second}"},
    )
    rig.main += "milter_default_action = tempfail\nsmtpd_milters = $rspamd_milter\n" + lines
    observed = changed(
        snippet(PAGE, "The trial comes first", "spamnb.toml"),
        {"0.0.0.0:11332": f"127.0.0.1:{first}", "172.22.1.0/24": "127.0.0.1"},
    )
    marking = f'[listener.suite]\nprotocol = "milter"\naddress = "127.0.0.1:{second}"\n'
    daemon = trained(tmp_path, observed + marking)
    with running(daemon, rig):
        rig.send(message("spam", 5).read_bytes(), ["bob@example.org"])
        [junk] = until(lambda: rig.delivered("bob", "X-Spam-Flag: YES", ".Junk"), "the message")
        assert email.message_from_bytes(junk)["X-Spamnb-Verdict"].startswith("junk")

        def observed_lines():
            """Whether each message line is of the observer; a line may come after the delivery."""
            lines = daemon.log.read_text().splitlines()
            return sorted("observed=" in line for line in lines if " message " in line)

        until(lambda: len(observed_lines()) == 2, "two lines in the log")
        assert observed_lines() == [False, True]


@needs_rig
@needs_curl
def test_teaching_from_another_container(tmp_path):
    """A move that Dovecot passes by curl is learnt for the user of the mailbox."""
    [port] = free_ports(1)
    rig = Rig()
    with_teaching(rig, rig.root / "spool")
    place = {"http://spamnb:11334/": f"http://127.0.0.1:{port}/"}
    section = "Teaching from another container"
    rig.files["bin/spamnb-teach"] = changed(snippet(PAGE, section, "spamnb-teach"), place)
    toml = changed(
        snippet(PAGE, section, "spamnb.toml: teaching"),
        {"0.0.0.0:11334": f"127.0.0.1:{port}", "172.22.1.0/24": "127.0.0.1"},
    )
    daemon = trained(tmp_path, toml)
    with running(daemon, rig):
        alice = Person(rig, "alice")
        with alice.imap:
            alice.append("once")
            number = alice.select("INBOX", "once")
            assert alice.imap._simple_command("MOVE", number, "Junk")[0] == "OK"
        [event] = until(lambda: events(daemon), "the training")
        assert event["message_id"] == "once@x"
        assert event["user"].startswith("alice")
        assert event["after"] == "spam"


def events(daemon):
    """Return the trainings by users."""
    lines = daemon.spamnb("journal", "--limit", "0", "--channel", "imap", "--json").splitlines()
    return [json.loads(line) for line in lines]


@needs_root
@needs_spamc
def test_the_commands_of_roundcube():
    """Each command teaches the message in the name of the user."""
    folder = Path(tempfile.mkdtemp(prefix="spamnb-suite-"))  # the names of sockets are short
    try:
        toml = changed(
            snippet("spamc.md", "The listener", "spamnb.toml").partition("[listener.local]")[2],
            {"/run/spamnb/scan.sock": f"{folder}/scan.sock"},
        )
        daemon = trained(folder, f'[listener.local]{toml}\n[serve]\ndelegates = ["root"]\n')
        (folder / "message").write_bytes(b"Subject: new\nMessage-ID: <new@x>\n\nnew words\n")
        shown = snippet(PAGE, "Roundcube", "plugins/markasjunk/config.inc.php")
        commands = re.findall(r"_(?:spam|ham)_cmd'\] = '(.*)';", shown)
        assert len(commands) == 2
        with running(daemon):
            for command in commands:
                line = changed(
                    command,
                    {
                        "/run/spamnb/scan.sock": f"{folder}/scan.sock",
                        "%u": "alice@example.org",
                        "%f": "message",
                    },
                )
                done = run_line(line, folder / "message")
                assert b"successfully un/learned" in done.stdout, done
            found = [(event["after"], event["user"]) for event in events(daemon)[::-1]]
            assert found == [("spam", "alice@example.org"), ("ham", "alice@example.org")]
    finally:
        shutil.rmtree(folder)
