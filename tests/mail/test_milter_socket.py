"""A real Postfix asks the milter on a unix socket, as docs/milter.md says."""

import shutil

import pytest
from support.docs_snippets import changed, snippet
from support.dovecot import SAMPLE
from support.postfix import Daemon, Rig, needs_rig
from support.waiting import until

pytestmark = needs_rig

SECTION = "A unix socket"
FOLDER = "/var/spool/postfix/spamnb"


@pytest.fixture
def rig():
    made = Rig()
    made.master = f"127.0.0.1:{made.port['mx']} inet n - n - - smtpd\n"
    made.main += snippet("milter.md", SECTION, "main.cf")
    made.start()
    yield made
    made.stop()


def test_postfix_may_use_the_socket_by_its_group(rig, tmp_path):
    """The folder gives the socket to Postfix's group; other users cannot connect."""
    folder = rig.root / "queue" / "spamnb"
    text = snippet("milter.md", SECTION, "shell")
    assert f"-g postfix -m 2750 {FOLDER}\n" in text
    folder.mkdir()
    shutil.chown(folder, group="postfix")
    folder.chmod(0o2750)
    toml = changed(snippet("milter.md", SECTION, "spamnb.toml"), {FOLDER: str(folder)})
    daemon = Daemon(tmp_path, toml)
    daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
    daemon.start()
    try:
        about = (folder / "milter.sock").stat()
        assert about.st_mode & 0o777 == 0o660
        assert about.st_gid == folder.stat().st_gid
        rig.send(sorted((SAMPLE / "ham").iterdir())[3].read_bytes(), ["alice@example.org"])
        until(lambda: rig.delivered("alice", "X-Spam-Flag: NO"), what="the marked message")
    finally:
        daemon.stop()
