"""`spamnb setup` on a machine with a real Sendmail and a real Dovecot."""

import os
import shutil
import subprocess

import pytest
from support.postfix import needs_rig
from support.sendmail import HOST, PROGRAM, Sendmail, needs_sendmail
from support.setup_site import Site, done_by
from support.waiting import until

from spamnb.setup import run as module
from spamnb.setup import sendmail
from spamnb.setup.edits import without_blocks

pytestmark = [needs_sendmail, needs_rig]

MAILERS = """MAILER_DEFINITIONS
Mdovecot, P=[IPC], F=mDFMuXz8, S=EnvFromSMTP/HdrFromSMTP, R=EnvToSMTP, E=\\r\\n, L=990,
\tT=DNS/RFC822/SMTP, A=TCP $h {lmtp}
"""
AS_HOST = f'hostname {HOST}; exec "$0" "$@"'
OTHER = "INPUT_MAIL_FILTER(`other', `S=inet:{port}@127.0.0.1')dnl\n"


class SendmailToDovecot(Sendmail):
    """A Sendmail that delivers to Dovecot and asks no milter."""

    def __init__(self, lmtp):
        super().__init__()
        self.filters = "define(`SMART_HOST', `dovecot:[127.0.0.1]')dnl\n"
        self.mailers = MAILERS.format(lmtp=lmtp)

    def recipe(self):
        """Nothing: setup adds the lines."""
        return ""


class SendmailSite(Site):
    """Sendmail in front of the Dovecot of the rig, whose Postfix gets no mail."""

    def __init__(self, folder):
        super().__init__(folder)
        self.sendmail = SendmailToDovecot(self.rig.port["lmtp"])

    def places(self):
        """The options that name its files and a free port."""
        return (
            "--sendmail", self.sendmail.root,
            "--dovecot", self.rig.root / "dovecot" / "dovecot.conf",
            "--listen", f"127.0.0.1:{self.rig.port['back']}",
        )  # fmt: skip

    def files(self):
        """All settings: path -> bytes."""
        paths = (self.sendmail.root / f"sendmail.{kind}" for kind in ("mc", "cf"))
        return super().files() | {path: path.read_bytes() for path in paths}

    def setup(self, *arguments, **more):
        """Run `spamnb setup`; if it changed Sendmail's settings, wait until they are read."""
        started = self.starts()
        before = self.files()
        result = super().setup(*arguments, **more)
        path = self.sendmail.root / "sendmail.cf"
        if self.files()[path] != before[path]:
            until(lambda: self.starts() != started, "Sendmail's new settings")
            until(self.sendmail.answers, "Sendmail")
        return result

    def starts(self):
        """What changes with each start: the time of its pid file."""
        try:
            return (self.sendmail.root / "sendmail.pid").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def submit(self, raw):
        """Send a message to Alice from outside."""
        self.sendmail.send(raw, ["alice@example.org"])

    def start(self):
        """Start all."""
        super().start()
        self.sendmail.start()

    def close(self):
        """End all."""
        super().close()
        self.sendmail.stop()


@pytest.fixture(scope="module", autouse=True)
def path_with_sendmail(tmp_path_factory):
    """A path of programs on which Sendmail is installed."""
    folder = tmp_path_factory.mktemp("programs")
    program = folder / "sendmail-mta"
    program.write_text(f"#!/bin/sh\nexec unshare --uts sh -c '{AS_HOST}' {PROGRAM} \"$@\"\n")
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = SendmailSite(tmp_path_factory.mktemp("sendmail"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_from_bare_to_filed_and_taught(site):
    """Mail is scanned and filed, a move teaches; removing leaves no byte."""
    before = site.files()
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))
    output = done_by(site.setup("--yes", "--answer", "act=file"))
    assert "Sendmail: " in output
    assert "INPUT_MAIL_FILTER" in output
    site.files_and_teaches()

    site.is_done_and_taken_out(before)
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))


def test_a_file_that_was_made_anew_is_made_anew_without_the_milter(site):
    """The administrator has run m4 since, so sendmail.cf has no blocks."""
    root = site.sendmail.root
    before = site.files()
    done_by(site.setup("--yes"))
    with (root / "sendmail.cf").open("wb") as cf:
        subprocess.run(["m4", root / "sendmail.mc"], stdout=cf, check=True)
    done_by(site.setup("--remove"))
    after = site.files()
    assert after[root / "sendmail.mc"] == before[root / "sendmail.mc"]
    assert b"Xspamnb" not in after[root / "sendmail.cf"]
    assert b"X-Spamnb" not in site.arrives(site.send("spam"))


@pytest.fixture
def folder(tmp_path):
    """The settings of a Sendmail that does not run."""
    server = SendmailToDovecot(1)
    folder = tmp_path / "mail"

    def made(filters="", mailers="", appended=""):
        server.filters, server.mailers = server.filters + filters, server.mailers + mailers
        server.write()
        with (server.root / "sendmail.cf").open("a") as cf:
            cf.write(appended)
        shutil.copytree(server.root, folder)
        return folder

    yield made
    server.stop()


@pytest.mark.parametrize(
    ("filters", "appended"),
    [
        ("", ""),
        ("", "### sendmail.mc ###\n# dnl the source\n"),
        (OTHER.format(port=1), ""),
        ("dnl a comment\n" + OTHER.format(port=11332), ""),
    ],
    ids=["no milter", "the source is appended", "another milter", "rspamd"],
)
def test_settings_of_sendmail(folder, filters, appended):
    """Its own check accepts them, the milter is the last, and taken out all is as before."""
    place = folder(filters, appended=appended)
    found = sendmail.find(place)
    assert found.problems == ()
    assert found.other == ("rspamd" if "11332" in filters else "")
    stage = found.stage("127.0.0.1:10025")
    for edit in stage.edits:
        edit.path.write_text(edit.after)
        assert without_blocks(edit.after) == edit.before
    (check,) = stage.checks
    assert module.run(check).code == 0
    assert stage.verify() == ""
    milters = sendmail._milters((place / "sendmail.cf").read_text())
    assert milters[-1] == "spamnb"
    assert (milters[0] == "other") == bool(filters)
    assert sendmail.find(place).stage("127.0.0.1:10025") is None
    moved = sendmail.find(place).stage("127.0.0.1:10026")
    assert [without_blocks(edit.after) for edit in moved.edits] == [
        edit.before for edit in stage.edits
    ]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"appended": "D{x}y\n"}, "is not what m4 makes of"),
        ({"filters": "INPUT_MAIL_FILTER(`spamnb', `S=inet:1@127.0.0.1')\n"}, "has a milter spamnb"),
        ({"filters": "DAEMON_OPTIONS(`Port=1, InputMailFilters=x')\n"}, "milters of its own"),
    ],
)
def test_a_sendmail_that_setup_leaves(folder, more, why):
    """Setup says why, and has no edit."""
    assert why in sendmail.find(folder(**more)).problems[0]


def test_settings_that_m4_does_not_read(folder):
    """The macros of Sendmail are not installed."""
    mc = folder() / "sendmail.mc"
    mc.write_text(mc.read_text().replace("include(`", "include(`/missing"))
    assert "m4 does not read" in sendmail.find(mc.parent).problems[0]
