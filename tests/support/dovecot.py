"""A daemon and a real Dovecot that learn from filing, by the documentation's recipe."""

import imaplib
import json
import shutil
import socket

from support import dovecot_versions
from support.docs_snippets import changed, snippet
from support.postfix import PEOPLE, PROJECT, Daemon, Rig
from support.waiting import until

imaplib.Commands.setdefault("MOVE", ("SELECTED",))
SCRIPTS = PROJECT / "scripts" / "dovecot"
SAMPLE = PROJECT / "corpora" / "sample"
TOML = """
[serve]
delegates = ["mail"]
[feedback]
spool = "{spool}"
[listener.front]
address = "127.0.0.1:{filter}"
upstream = "lmtp:127.0.0.1:{lmtp}"
"""


def with_junk(rig):
    """Dovecot files junk."""
    place = {"/etc/dovecot/": f"{rig.root}/dovecot/"}
    rig.dovecot += changed(_conf("File spam into Junk"), place)
    sieve = snippet("dovecot.md", "File spam into Junk", "spamnb-junk.sieve")
    rig.files["dovecot/sieve/spamnb-junk.sieve"] = sieve


def with_teaching(rig, spool):
    """Dovecot's recipe, whole."""
    with_junk(rig)
    place = {"/etc/dovecot/": f"{rig.root}/dovecot/", "/usr/local/lib/spamnb": f"{rig.root}/bin"}
    rig.dovecot += changed(_conf("Learn from moves"), place)
    for path in SCRIPTS.glob("*.sieve"):
        rig.files[f"dovecot/sieve/{path.name}"] = path.read_text()
    rig.files["bin/spamnb-teach"] = (SCRIPTS / "spamnb-teach").read_text()
    rig.files["bin/spool"] = f"{spool}\n"


def _conf(section):
    """Return the documentation's settings for the installed version of Dovecot."""
    return snippet("dovecot.md", section, f"dovecot.conf ({dovecot_versions.version()})")


class Person:
    """A user with a mail program."""

    def __init__(self, rig, name):
        self.name = name
        self.imap = imaplib.IMAP4("127.0.0.1", rig.port["imap"])
        self.imap.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.imap.login(name, f"pw-{name}")
        for folder in ("Junk/old", "Work", "Trash/old"):
            self.imap.create(folder)

    def append(self, name, folder="INBOX"):
        """Append a message to a folder; only an append to Junk gives a label."""
        text = f"Subject: {name}\r\nMessage-ID: <{name}@x>\r\n\r\nwords of {name}\r\n".encode()
        assert self.imap.append(folder, None, None, text)[0] == "OK"

    def select(self, folder, name):
        """Open a folder and find a message in it."""
        self.imap.select(folder)
        found = self.imap.search(None, "SUBJECT", f'"{name}"')[1][0].split()
        assert found, f"{name} is not in {folder}"
        return found[-1].decode()


class Site:
    """The daemon and Dovecot; Postfix is not needed here."""

    def __init__(self, folder):
        self.rig = Rig()
        self.spool = self.rig.root / "spool"
        with_teaching(self.rig, self.spool)
        toml = TOML.format(spool=self.spool, **self.rig.port)
        self.daemon = Daemon(folder, toml)
        self.daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
        self.daemon.start()
        self.rig.start()
        self.alice, self.bob = (Person(self.rig, name) for name in PEOPLE)
        self.number = 0

    def journal(self):
        """Events of the users' labels, oldest first."""
        output = self.daemon.spamnb("journal", "--limit", "0", "--channel", "imap", "--json")
        return [json.loads(line) for line in output.splitlines()][::-1]

    def append(self, folder="INBOX"):
        """Append a new message to a folder of alice; return its name."""
        self.number += 1
        name = f"m{self.number}"
        self.alice.append(name, folder)
        return name

    def waiting(self):
        """Number of files in the spool."""
        return len(list(self.spool.glob("[!.]*")))

    def learnt(self, name):
        """Wait until the spool is empty; return the labels learnt of a message, oldest first."""
        until(lambda: not self.waiting(), what="the spool's end")
        mine = [event for event in self.journal() if event["message_id"] == f"{name}@x"]
        assert all(event["user"].startswith("alice") for event in mine)
        return [event["after"] for event in mine]

    def close(self):
        for person in (self.alice, self.bob):
            person.imap.logout()
        self.daemon.stop()
        self.rig.stop()
        shutil.rmtree(self.daemon.home, ignore_errors=True)


def move(imap, at, to):
    assert imap._simple_command("MOVE", at, to)[0] == "OK"


def copy_and_delete(imap, at, to):
    imap.copy(at, to)
    imap.store(at, "+FLAGS", r"(\Deleted)")
    imap.expunge()


def fetch_and_append(imap, at, to):
    raw = imap.fetch(at, "(RFC822)")[1][0][1]
    imap.append(to, None, None, raw)
    imap.store(at, "+FLAGS", r"(\Deleted)")
    imap.expunge()
