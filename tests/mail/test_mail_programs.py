"""What mail programs send when a user clicks Junk: each gives one label, by a real Dovecot."""

import contextlib
import os
import pty
import re
import select
import shutil
from itertools import groupby

import pytest
from support.docs_snippets import snippet
from support.dovecot import Site
from support.postfix import PROJECT, needs_rig
from support.thunderbird import Thunderbird, needs_thunderbird
from support.waiting import LIMIT_S, until

pytestmark = needs_rig
PAGE = "mail-programs.md"
_LINES = re.findall(
    r"^(.+?), ((?:not )?junk): (.+)$", (PROJECT / "docs" / PAGE).read_text(), re.MULTILINE
)
DIALOGUES = {
    key: [command for _, _, command in lines]
    for key, lines in groupby(_LINES, key=lambda line: line[:2])
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("programs"))
    yield made
    made.close()


def test_the_page_has_the_programs():
    """Each has a dialogue for junk, and most one for the way back."""
    programs = {program for program, _ in DIALOGUES}
    assert programs > {"Thunderbird", "Roundcube", "Apple Mail", "Outlook", "K-9"}
    assert all((program, "junk") in DIALOGUES for program in programs)


@pytest.mark.parametrize(("program", "button"), DIALOGUES, ids=map(" ".join, DIALOGUES))
def test_the_button_teaches_once(site, program, button):
    """Junk is spam, once; not junk is ham, once; and the message is where the program puts it."""
    source, target, label = {
        "junk": ("INBOX", "Junk", "spam"),
        "not junk": ("Junk", "INBOX", "ham"),
    }[button]
    before = ["spam"] if source == "Junk" else []
    name = site.append(source)
    assert site.learnt(name) == before
    imap = site.alice.imap
    imap.select(source)
    uid = imap.uid("SEARCH", None, f'SUBJECT "{name}"')[1][0].decode()
    for command in DIALOGUES[program, button]:
        verb, *rest = re.sub(r"(?i)^(UID \w+) 1", rf"\1 {uid}", command).split(" ", 1)
        assert raw(imap, verb, *rest) == "OK"
    site.learnt(name)
    print(*(one for one in site.journal() if one["message_id"] == f"{name}@x"), sep="\n")
    assert site.learnt(name) == [*before, label]
    site.alice.select(target, name)


def raw(imap, verb, *rest):
    """Send a command as it is written."""
    tag = imap._new_tag()
    imap.send(b" ".join([tag, verb.encode(), *(one.encode() for one in rest)]) + b"\r\n")
    while True:
        line = imap.readline()
        if line.startswith(tag):
            return line.split()[1].decode()


@pytest.mark.skipif(not shutil.which("mutt"), reason="there is no program mutt")
@pytest.mark.parametrize(
    ("key", "source", "target", "label"),
    [("S", "INBOX", "Junk", "spam"), ("H", "Junk", "INBOX", "ham")],
)
def test_mutt_itself(site, tmp_path, key, source, target, label):
    """With the macros of the page, on a terminal."""
    name = site.append(source)
    before = site.learnt(name)
    server = f"imap://alice@127.0.0.1:{site.rig.port['imap']}"
    rc = tmp_path / "muttrc"
    rc.write_text(
        f'set folder = "{server}/"\nset imap_pass = "pw-alice"\nset ssl_starttls = no\n'
        'set ssl_force_tls = no\nset imap_authenticators = "login"\n'
        f"set header_cache = \nset move = no\n{snippet(PAGE, 'mutt', '~/.muttrc')}"
    )
    keys = f"push <limit>{name}<enter>{key}<quit>"
    command = ["mutt", "-n", "-F", str(rc), "-f", f"{server}/{source}", "-e", keys]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("mutt", command, os.environ | {"TERM": "xterm", "HOME": str(tmp_path)})
    shown = b""
    with contextlib.suppress(OSError):  # the terminal ends with the program
        while select.select([terminal], [], [], LIMIT_S)[0]:
            shown += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    assert site.learnt(name) == [*before, label]
    site.alice.select(target, name)


@pytest.mark.full
@needs_thunderbird
def test_thunderbird_itself(site, tmp_path):
    """Its button Junk teaches spam and moves the message; Not Junk teaches ham."""
    thunderbird = Thunderbird(tmp_path, site.rig.port["imap"], "alice", "pw-alice")

    def is_in(folder):
        site.alice.imap.select(folder)
        return site.alice.imap.search(None, "SUBJECT", f'"{name}"')[1][0]

    try:
        name = site.append("INBOX")
        thunderbird.click("junk", "INBOX", name)
        until(lambda: is_in("Junk"), "the move to Junk")
        assert site.learnt(name) == ["spam"]
        thunderbird.click("not junk", "Junk", name)
        until(lambda: is_in("INBOX"), "the move back")
        assert site.learnt(name) == ["spam", "ham"]
    finally:
        thunderbird.close()
