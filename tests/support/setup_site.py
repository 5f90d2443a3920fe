"""A machine on which `spamnb setup` connects a mail server, a Dovecot and the daemon."""

import contextlib
import json
import re
from pathlib import Path

from support.dovecot import Person, move
from support.postfix import PEOPLE, PROJECT, Daemon, Rig
from support.waiting import until

SAMPLE = PROJECT / "corpora" / "sample"
CHANGING = {"run", "mail", "auth", "auth-token-secret.dat"}
"""what Dovecot itself writes"""


def done_by(result):
    """The output of a command that succeeded."""
    assert result.code == 0, result.out + result.err
    return result.out


class Site:
    """A mail server as its administrator has left it, here Postfix, and the daemon beside it."""

    number = 0
    """of the messages that were sent"""

    def __init__(self, folder):
        self.rig = Rig()
        port = self.rig.port["mx"]
        self.rig.master = f"127.0.0.1:{port} inet n - n - - smtpd\n"
        self.spool = self.rig.root / "spool"
        self.spool.mkdir()
        self.spool.chmod(0o1733)
        # A listener of its own: the usual ones have fixed ports.
        toml = '[feedback]\nspool = "{}"\n[listener.front]\naddress = "127.0.0.1:{}"\n'
        toml += 'upstream = "lmtp:127.0.0.1:{}"\n'
        port = self.rig.port
        self.daemon = Daemon(folder, toml.format(self.spool, port["filter"], port["lmtp"]))
        self.train()

    def train(self):
        """Teach the daemon the sample, and choose mail of which it is sure."""
        self.daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
        # Some spam of the sample is only unsure, and some only just junk.
        scores = self.daemon.spamnb("score", SAMPLE / "spam", "--json").splitlines()
        sure = [one["path"] for one in map(json.loads, scores) if one["probability"] > 0.9999]
        ham = sorted((SAMPLE / "ham").iterdir())
        self.mail = {"spam": [Path(path) for path in sorted(sure)], "ham": ham}

    def setup(self, *arguments, **more):
        """Run `spamnb setup` for this machine."""
        return self.daemon.command("setup", *arguments, *self.places(), **more)

    def places(self):
        """The options that name its files and a free port."""
        return (
            "--postfix", self.rig.root / "postfix",
            "--dovecot", self.rig.root / "dovecot" / "dovecot.conf",
            "--listen", f"127.0.0.1:{self.rig.port['back']}",
        )  # fmt: skip

    def folders(self):
        """Where the settings of the mail server are."""
        return self.rig.root / "postfix", self.rig.root / "dovecot"

    def files(self):
        """All settings of the mail server and of spamnb: path -> bytes."""
        config = self.daemon.config
        found = {config: config.read_bytes()}
        record = config.with_name("setup.json")
        found |= {record: b""} if record.exists() else {}
        for folder in self.folders():
            for path in folder.rglob("*"):
                parts = path.relative_to(self.rig.root).parts
                if path.is_file() and not CHANGING & set(parts):
                    found[path] = path.read_bytes()
        return found

    def send(self, kind):
        """Send a message of the sample from outside; return its Message-ID."""
        self.number += 1
        raw = self.mail[kind][self.number].read_bytes()
        name = f"<{self.number}@setup.test>"
        head = f"Message-ID: {name}\r\n".encode()
        self.submit(head + re.sub(rb"(?im)^message-id:.*\r?\n", b"", raw))
        return name

    def submit(self, raw):
        """Send a message to Alice from outside."""
        self.rig.send(raw, "alice@example.org")

    def arrives(self, message_id, folder=""):
        """Wait for a message of Alice; return it."""
        until(lambda: self.rig.delivered("alice", message_id, folder), f"mail in {folder}")
        return self.rig.delivered("alice", message_id, folder)[0]

    def files_spam(self):
        """Send spam; return its Message-ID if it came into Junk, with the mark."""
        name = self.send("spam")

        def arrived():
            found = {one: self.rig.delivered("alice", name, one) for one in ("", ".Junk")}
            return found if any(found.values()) else None

        in_junk = until(arrived, "the message")[".Junk"]
        return name if in_junk and b"X-Spam-Flag: YES" in in_junk[0] else ""

    def moves_out_of_junk(self, message_id):
        """Alice moves a message from Junk to the inbox; wait for the label."""
        alice = Person(self.rig, PEOPLE[0])
        with alice.imap as imap:
            imap.select("Junk")
            found = imap.search(None, "HEADER", "Message-ID", message_id)[1][0].split()
            move(imap, found[-1].decode(), "INBOX")
        until(lambda: '"ham"' in self.daemon.spamnb("journal", "--channel", "imap", "--json"),
              what="the label of the move")  # fmt: skip

    def files_and_teaches(self):
        """Check that junk is filed, ham is not, and a move out of Junk is a label."""
        spam = until(self.files_spam, what="the new settings in the worker")
        assert b"label=ham" in self.arrives(self.send("ham"))
        self.moves_out_of_junk(spam)

    def is_done_and_taken_out(self, before):
        """Check that setup has nothing to do, and that its removal leaves the files as before."""
        assert "nothing to do" in done_by(self.setup("--yes"))
        assert "Everything was taken out" in done_by(self.setup("--remove"))
        assert self.files() == before

    def start(self):
        """Start the daemon and the mail server."""
        self.daemon.start()
        self.rig.start()

    def close(self):
        """End both."""
        self.daemon.stop()
        with contextlib.suppress(FileNotFoundError):
            self.rig.stop()
