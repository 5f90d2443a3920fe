"""Persons with a real Postfix and a real Dovecot: one newsletter, two readers, two stations."""

import json
import shutil
import smtplib
from socket import gethostname

import pytest
from support.docs_snippets import changed, snippet
from support.doctor import DoctorResult
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
PASSED = """
smtpd_sender_restrictions = check_sender_access inline:{{ shop.example =
    PREPEND Authentication-Results: mx.example.org; spf=pass smtp.mailfrom=shop.example }}
"""
"""Postfix in place of a program that checks SPF"""
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
        port, (self.second,) = rig.port, free_ports(1)
        self.password = folder / "password"
        self.password.write_text("pw-alice\n")
        self.spool = rig.root / "spool"
        with_teaching(rig, self.spool)
        places = {
            "127.0.0.1:10026": f"127.0.0.1:{port['back']}",
            "127.0.0.1:10025": f"127.0.0.1:{port['filter']}",
            "127.0.0.1:10028": f"127.0.0.1:{self.second}",
            "127.0.0.1:24": f"127.0.0.1:{port['lmtp']}",
        }
        back, front, mailboxes, _ = ({one: places[one]} for one in places)
        rig.master = changed(snippet("postfix.md", "The return listener", "master.cf"), back)
        mine = {"smtp            inet": f"127.0.0.1:{port['mx']} inet"} | front
        rig.master += changed(snippet("postfix.md", "Before the queue", "master.cf"), mine)
        rig.main += changed(snippet("persons.md", "Two stations", "main.cf"), mailboxes)
        rig.main += PASSED
        toml = changed(snippet("persons.md", "Two stations", "spamnb.toml"), places)
        names = f'authserv_ids = ["mx.example.org"]\nhosts = ["mx.example.org", "{gethostname()}"]'
        toml = toml.replace("[local]", f"[local]\n{names}")
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

    def doctor(self):
        """`spamnb doctor` for the mailbox of alice."""
        port = self.rig.port
        place = ["--smtp", f"127.0.0.1:{port['mx']}", "--imap", f"127.0.0.1:{port['imap']}"]
        alice = ["--rcpt", "alice@example.org", "--user", "alice", "--wait", "10"]
        secret = ["--password-file", self.password]
        return DoctorResult(*self.daemon.command("doctor", "--json", *place, *alice, *secret))

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
    assert sorted(_persons(site)) == ["alice", "bob"]


def _persons(site):
    """What the model has of each person."""
    lines = site.daemon.spamnb("persons", "list", "--json").splitlines()
    return {one["name"]: (one["labels"], one["places"]) for one in map(json.loads, lines)}


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


def test_a_wanted_sender_reaches_the_one_who_wants_it(site):
    """Spam of a listed sender: delivered to the reader who always wants it, filed for the other."""
    raw = (SAMPLE / "spam" / "0119.eml").read_bytes()
    ident = header(raw, "Message-ID")

    def arrived(sender, mark):
        """The flag, verdict and folder of each copy."""
        marked = raw.replace(ident.encode(), f"<{mark}@shop.example>".encode())
        site.rig.send(marked, READERS, sender)
        found = {}
        for name in ("alice", "bob"):
            places = [(name, f"{mark}@shop.example", one) for one in ("", ".Junk")]
            (copy, folder) = until(
                lambda places=places: [
                    (one, at[2]) for at in places for one in site.rig.delivered(*at)
                ],
                f"{mark} for {name}",
            )[0]
            said = "".join(header(copy, "X-Spamnb-Verdict").split())
            found[name] = header(copy, "X-Spam-Flag"), "reason=wanted-by-person" in said, folder
        return found

    filed = ("YES", False, ".Junk")
    assert arrived("news@shop.example", "before") == {"alice": filed, "bob": filed}
    site.daemon.spamnb("senders", "add", "--person", "alice@example.org", "wanted", "shop.example")
    kept = ("NO", True, "")
    assert arrived("news@shop.example", "wanted") == {"alice": kept, "bob": filed}
    forged = {"alice": filed, "bob": filed}
    assert arrived("news@mail.shop.example.net", "forged") == forged
    site.daemon.spamnb("senders", "remove", "--person", "alice", "shop.example")
    assert arrived("news@shop.example", "after") == {"alice": filed, "bob": filed}


def test_the_doctor_finds_address_and_login_to_be_one_person(site):
    """With the right names every check is ok, and the labels of the person leave no trace."""
    before = _persons(site)
    result = site.doctor()
    assert result.names("skipped") == [], result.whole
    assert result.names("broken") == [], result.whole
    assert result.checks["person"]["what"] == "recipient and login are alice"
    assert _persons(site) == before


def test_the_doctor_finds_address_and_login_to_be_two_persons(site):
    """With a second domain and no `feedback.domains` the login is not the address: both say so."""
    config = site.daemon.config
    right = config.read_text()
    wrong = right.replace('["example.org"]', '["example.org", "example.com"]')
    assert wrong != right
    try:
        config.write_text(wrong)
        site.daemon.spamnb("reload")
        result = site.doctor()
    finally:
        config.write_text(right)
        site.daemon.spamnb("reload")
    assert result.names("broken") == ["persons", "person"], result.whole
    assert "no address here belongs to this person" in result.checks["persons"]["what"]
    assert (
        "alice labels for alice, mail to alice@example.org is for alice@example.org"
        in (result.checks["person"]["what"])
    )
    assert "feedback.domains" in result.checks["person"]["todo"]
    assert site.doctor().names("broken") == []


def test_missing_recipient_limit_is_reported(site):
    """If a message comes to the mailboxes for several recipients, status and doctor say so."""
    with smtplib.LMTP("127.0.0.1", site.second) as client:
        client.ehlo()
        client.mail("news@letters.example.net")
        assert [client.rcpt(reader)[0] for reader in READERS] == [250, 250]
        assert [client.data(newsletter(200))[0], client.getreply()[0]] == [250, 250]

    def status():
        return json.loads(site.daemon.spamnb("status", "--json"))

    until(lambda: status()["counters"]["mailboxes_together"] == 1, "the worker's report")
    assert any("lmtp_destination_recipient_limit" in one for one in status()["warnings"])
    result = site.doctor()
    assert result.names("broken") == ["persons"]
    assert "lmtp_destination_recipient_limit = 1" in result.checks["persons"]["todo"]
