"""Persons with a real Postfix and a real Dovecot: one newsletter, two readers, two stations."""

import json
import shutil

import pytest
from support.docs_snippets import changed, snippet
from support.dovecot import Person, move, with_teaching
from support.postfix import Daemon, Rig, free_ports, needs_rig
from support.waiting import until
from test_postfix import SAMPLE, header

pytestmark = needs_rig

TEACHING = """
[serve]
delegates = ["mail"]
[feedback]
spool = "{spool}"
"""
READERS = ["alice@example.org", "bob@example.org"]
ISSUES = 6


def newsletter(number):
    """An issue of a newsletter; it names no reader."""
    return (
        "From: Weekly <news@letters.example.net>\r\nTo: readers@letters.example.net\r\n"
        f"Subject: Letter of the week {number}\r\n"
        f"Message-ID: <letter{number}@letters.example.net>\r\n"
        "List-Id: <letters.letters.example.net>\r\n\r\n"
        "Offers for our readers, the notes of the meeting, and a prize for the best photo.\r\n"
        f"This is issue {number} of the letter.\r\n"
    ).encode()


class TwoStations:
    """Postfix before the queue, and in front of Dovecot, with one daemon."""

    def __init__(self, folder):
        self.rig = rig = Rig()
        port, (second,) = rig.port, free_ports(1)
        self.spool = rig.root / "spool"
        with_teaching(rig, self.spool)
        places = {
            "127.0.0.1:10026": f"127.0.0.1:{port['back']}",
            "127.0.0.1:10025": f"127.0.0.1:{port['filter']}",
            "127.0.0.1:10028": f"127.0.0.1:{second}",
            "127.0.0.1:24": f"127.0.0.1:{port['lmtp']}",
        }
        back, front, mailboxes, _ = ({one: places[one]} for one in places)
        rig.master = changed(snippet("postfix.md", "The return listener", "master.cf"), back)
        mine = {"smtp            inet": f"127.0.0.1:{port['mx']} inet"} | front
        rig.master += changed(snippet("postfix.md", "Before the queue", "master.cf"), mine)
        rig.main += changed(snippet("persons.md", "Two stations", "main.cf"), mailboxes)
        toml = changed(snippet("persons.md", "Two stations", "spamnb.toml"), places)
        self.daemon = Daemon(folder, toml + TEACHING.format(spool=self.spool))
        self.daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
        self.daemon.start()
        rig.start()
        self.readers = {name: Person(rig, name) for name in ("alice", "bob")}

    def folder_of(self, name, number):
        """Where an issue has arrived for a reader."""
        tag = f"issue {number} of"

        def found():
            return [one for one in ("", ".Junk") if self.rig.delivered(name, tag, one)]

        return until(found, f"issue {number} for {name}")[0]

    def label(self, name, number, label):
        """Label an issue as a mail program does: move it, or flag it where it is."""
        reader, folder = self.readers[name], self.folder_of(name, number)
        at = reader.select("Junk" if folder else "INBOX", f"Letter of the week {number}")
        if label == "spam" and not folder:
            move(reader.imap, at, "Junk")
        elif label == "ham" and folder:
            move(reader.imap, at, "INBOX")
        else:
            reader.imap.store(at, "+FLAGS", f"({'$Junk' if folder else '$NotJunk'})")
        until(lambda: self.labels(name, number)[:1] == [label], f"the label of {name}")

    def labels(self, name, number):
        """The labels that a reader gave an issue, the newest first."""
        lines = self.daemon.spamnb("journal", "--limit", "0", "--user", name, "--json").splitlines()
        mine = f"letter{number}@letters.example.net"
        return [one["after"] for one in map(json.loads, lines) if one["message_id"] == mine]

    def close(self):
        for reader in self.readers.values():
            reader.imap.logout()
        self.daemon.stop()
        self.rig.stop()
        shutil.rmtree(self.daemon.home, ignore_errors=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = TwoStations(tmp_path_factory.mktemp("persons"))
    yield made
    made.close()


def test_a_newsletter_is_kept_by_one_reader_and_filed_by_another(site):
    """Both get it in one transaction; each finds it where their labels say, and keeps doing so."""
    wanted = {"alice": ("", "ham"), "bob": (".Junk", "spam")}
    taught = 0
    for number in range(1, ISSUES + 1):
        site.rig.send(newsletter(number), READERS)
        wrong = [name for name in wanted if site.folder_of(name, number) != wanted[name][0]]
        for name in wanted if number == 1 else wrong:
            site.label(name, number, wanted[name][1])
            taught += 1
    assert wrong == []
    assert taught < 2 * ISSUES - 2
    names = [json.loads(line)["name"] for line in _persons(site)]
    assert sorted(names) == ["alice", "bob"]


def _persons(site):
    return site.daemon.spamnb("persons", "list", "--json").splitlines()


def test_no_copy_names_another_recipient(site):
    """A hidden recipient is in no header that another recipient gets."""
    site.rig.send(newsletter(100), READERS)
    site.folder_of("bob", 100)
    copies = {}
    for name in ("alice", "bob"):
        folder = site.folder_of(name, 100)
        (copies[name],) = site.rig.delivered(name, "issue 100 of", folder)
    assert b"bob" not in copies["alice"].lower()
    assert b"alice" not in copies["bob"].lower()
    assert header(copies["alice"], "X-Spam-Flag") == "NO"
    assert header(copies["bob"], "X-Spam-Flag") == "YES"
