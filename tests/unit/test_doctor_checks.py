"""The doctor's checks, with a real model and a mailbox in memory that can be made to fail."""

import itertools
from pathlib import Path

import pytest
from support.history import recent

from spamnb.engine.filter import Filter
from spamnb.errors import PeerError, UserError
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Feedback
from spamnb.mail.envelope import LocalHosts
from spamnb.maintenance.doctor import (
    CHECKS,
    CLEANING,
    LABEL,
    Doctor,
    DoctorPorts,
    FoundMessage,
    ModelRecords,
    checked_recipient,
    same_person,
)
from spamnb.model.verdict import signature_text
from spamnb.policy.headers import asks_for_junk

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
NAMES = [check.name for check in CHECKS if not check.of_persons] + [CLEANING]
WELL = {"fault": "", "bypass": False, "processes": [{}]}


class Box:
    """A mailbox in which moves are learnt."""

    user, about, advice, channels = "ann", "a box", "check the mailbox", frozenset(("maildir",))

    def __init__(self, site):
        self.local = site
        self.side, self.raw = "inbox", b""
        self.marked = b""
        """the message that asked for the mark of junk"""

    def find(self, ident):
        if ident.encode() in self.marked:
            return FoundMessage(self.local.marked_side, self.marked)
        return FoundMessage(self.side, self.raw) if ident.encode() in self.raw else None

    def move(self, ident, source, target):
        assert (source, self.find(ident).side) == (self.side, source)
        self.side = target
        self.local.word(LABEL[target], self.raw)
        return "hand"

    def purge(self, ident):
        count = int(self.find(ident) is not None)
        if ident.encode() in self.marked:
            self.marked = b""
        else:
            self.raw = b""
        return count

    def close(self):
        pass


class Site:
    """A model, a feedback service, and a transport that adds the headers and fills the mailbox."""

    flag, verdict, signed = "NO", "deliver; label=ham; p=0.1000", True
    local = LocalHosts()
    marked_side = "junk"
    above = ""
    """what the MTA and its verifier put above the message"""
    below = ""
    """a hop that an MTA writes below the first field of the client"""

    def __init__(self, home):
        self.home = home
        self.box = Box(self)
        self.status = WELL
        self.user, self.channel, self.label = "ann", "maildir", ""
        self.model = Filter.open(home)
        self.feedback_service = FeedbackService(self.model, ReviewQueue(home / "review"))

    def word(self, label, raw):
        self.feedback_service.teach(
            Feedback(self.label or label, raw, (), self.user, self.channel, "admin")
        )

    def forget(self, feedback):
        return self.feedback_service.teach(Feedback("", b"", feedback.refs, "root", "cli", "admin"))

    def submit(self, raw, _):
        signature = self.model.score(raw).signature if self.signed else ""
        is_marked = asks_for_junk(raw, self.model.reader.local.test_key)
        flag = "YES" if is_marked and self.flag else self.flag
        lines = {"X-Spam-Flag": flag, "X-Spamnb-Verdict": self.verdict,
                 "X-Spamnb-Signature": signature}  # fmt: skip
        block = "".join(f"{name}: {text}\r\n" for name, text in lines.items() if text)
        first, rest = raw.split(b"\r\n", 1)
        hop = self.below.encode()
        delivered = self.above.encode() + block.encode() + first + b"\r\n" + hop + rest
        if is_marked:
            self.box.marked = delivered
        else:
            self.box.raw = delivered
        return "taken"

    def findings(self, **more):
        """Name -> finding, of a whole walk."""
        given = {
            "status": lambda: self.status,
            "open_records": lambda: ModelRecords(
                lambda: Filter.open(self.home, local=self.local), self.home, self.forget
            ),
            "open_mailbox": lambda: self.box,
            "submit": self.submit,
            "rcpt": "ann@example.org",
            "wait_s": 0.3,
        }
        doctor = Doctor(DoctorPorts(**given | more))
        found = [*doctor.walk(), doctor.clean()]
        return {finding.check: finding for finding in found}

    def sums(self):
        with self.model.store.read() as view:
            totals = view.totals()
        return totals.messages.tolist(), totals.bias.tolist(), totals.known


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A model, made once; every run of the doctor must leave it unchanged."""
    home = tmp_path_factory.mktemp("doctor") / "home"
    Filter.open(home, create=True).close()
    with Filter.open(home) as model:
        for label in ("ham", "spam"):
            for path in itertools.islice(sorted((SAMPLE / label).iterdir()), 25):
                model.learn(path.read_bytes(), label)
    return home


@pytest.fixture
def site(shared):
    made = Site(shared)
    before = made.sums()
    yield made
    assert made.sums() == before
    assert made.box.raw == made.box.marked == b""
    made.model.close()


def states(findings, state):
    return [name for name, finding in findings.items() if finding.state == state]


def broken(findings, name, what):
    assert what in findings[name].what, findings
    assert findings[name].todo
    return states(findings, "broken")


def test_all_is_well(site):
    """All checks run in order, and everything is removed."""
    found = site.findings()
    assert list(found) == NAMES
    assert states(found, "ok") == NAMES, found


@pytest.mark.parametrize(
    ("change", "check", "what"),
    [
        ({"status": WELL | {"fault": "torn"}}, "daemon", "the daemon cannot use the model: torn"),
        ({"status": WELL | {"bypass": True}}, "daemon", "bypass is on"),
        ({"status": None}, "daemon", "no daemon"),
        ({"verdict": "unscanned; reason=model", "flag": ""}, "headers", "unscanned: model"),
        ({"verdict": "", "flag": "", "signed": False}, "headers", "did not pass through spamnb"),
        ({"signed": False}, "headers", "no signature"),
        ({"flag": "YES"}, "filing", "is in the inbox"),
        ({"marked_side": "inbox"}, "marked mail", "is in the inbox, not in Junk"),
        ({"channel": "imap"}, "learning", "the channel imap"),
        ({"user": "eve"}, "learning", "from eve, not from ann"),
        ({"label": "ham"}, "learning", "ham was learnt, not spam"),
    ],
)
def test_one_thing_is_wrong(site, change, check, what):
    """Only the failed check is broken, with a hint."""
    for name, value in change.items():
        setattr(site, name, value)
    assert broken(site.findings(), check, what) == [check]


HOP = "Received: from localhost by mx.example.org with ESMTP id 4A; now\r\n"
TRUE = "Authentication-Results: mx.example.org; dkim=none\r\n"


@pytest.mark.parametrize(
    ("above", "below", "state", "what"),
    [
        (HOP, "", "ok", "the forged result was ignored; no other is believed"),
        (TRUE + HOP, "", "ok", "are believed, after the scan: put the verifier in front of spamnb"),
        ("", HOP, "broken", "a forged result of mx.example.org is believed"),
    ],
)
def test_a_forged_result_is_sent_and_its_fate_told(site, above, below, state, what):
    """The test message claims a pass; only where an MTA's hop is too low it is believed."""
    site.local = LocalHosts(hosts=("mx.example.org",), authserv_ids=("mx.example.org",))
    site.above, site.below = above, below
    found = site.findings()["results"]
    assert found.state == state, found
    assert what in found.what
    assert bool(found.todo) == (state == "broken")


def test_a_message_filed_without_the_flag_is_reported(site):
    """A message in Junk without the junk flag breaks the filing check."""
    site.box.side = "junk"
    assert broken(site.findings(), "filing", "is in Junk") == ["filing"]


def test_observed_mail_has_the_signature_alone(site):
    """Observed mail has the signature only, which is enough to learn."""
    site.flag = site.verdict = ""
    found = site.findings()
    assert states(found, "ok") == NAMES
    assert "observe" in found["headers"].what
    assert "no mail is marked" in found["marked mail"].what


def test_another_model_signed_it(site, tmp_path):
    """A signature of another model is not in the history."""
    with Filter.open(tmp_path / "other", create=True) as other:
        foreign = other.score(b"Subject: x\n\nx\n").signature
    submit = site.submit

    def submitted(raw, rcpt):
        submit(raw, rcpt)
        own = signature_text(recent(site.model.history, 1)[0].signature)
        site.box.raw = site.box.raw.replace(own.encode(), foreign.encode())
        return "taken"

    assert broken(site.findings(submit=submitted), "verdict", "does not know") == ["verdict"]


def test_unreported_moves_are_reported(site):
    """The hint for unreported moves comes from the mailbox."""
    site.word = lambda *_: None
    found = site.findings()
    assert broken(found, "learning", "nothing was learnt") == ["learning"]
    assert found["learning"].todo == "check the mailbox"
    assert "spamnb forget" in found[CLEANING].todo


def test_a_queued_label_is_found_and_removed(site):
    """Feedback in review is reported with its reason and removed."""
    site.word = lambda label, raw: site.feedback_service.teach(
        Feedback(label, raw, (), "ann", "arf", "stranger")
    )
    assert broken(site.findings(), "learning", "waits for review") == ["learning"]
    assert list(site.feedback_service.review_queue.entries()) == []


def test_a_connection_that_breaks_is_made_anew_to_clean_up(site):
    """After a lost connection, a new one deletes the message."""

    class Fickle(Box):
        def move(self, *_):
            raise PeerError("the IMAP server: gone")

        def purge(self, _):
            raise PeerError("the IMAP server: gone")

    fickle = Fickle(site)
    boxes = iter([fickle, site.box])

    def submitted(raw, rcpt):
        site.submit(raw, rcpt)
        fickle.raw, fickle.marked = site.box.raw, site.box.marked
        return "taken"

    found = site.findings(submit=submitted, open_mailbox=lambda: next(boxes))
    assert broken(found, "move", "gone") == ["move"]
    assert found[CLEANING].state == "ok"


def test_what_cannot_be_deleted_is_reported(site):
    """A failed deletion names the message and the remedy."""
    real = site.box.purge

    def refused(ident):
        real(ident)
        raise PeerError("read-only")

    site.box.purge = refused
    found = site.findings()
    assert broken(found, CLEANING, "was not deleted: read-only") == [CLEANING]
    assert "spamnb forget" in found[CLEANING].todo


def test_what_cannot_be_forgotten_is_reported(site):
    """If forgetting is refused, the result says that the message is still learnt."""
    real = site.forget

    def refused(_):
        raise PeerError("the socket is closed")

    site.forget = refused
    found = site.findings()
    assert "the socket is closed; the message is still learnt" in found[CLEANING].what
    with site.model.store.read() as view:
        event = next(view.events(newest_first=True))
    real(Feedback("", refs=(event.digest.hex(),)))


def test_an_interrupt_is_cleaned_up(site):
    """An interrupt is cleaned up."""
    taught = site.word

    def word(label, raw):
        taught(label, raw)
        raise KeyboardInterrupt

    site.word = word
    means = DoctorPorts(
        lambda: WELL,
        lambda: ModelRecords(lambda: Filter.open(site.home), site.home, site.forget),
        lambda: site.box,
        site.submit,
        "ann@example.org",
        0.3,
    )
    doctor = Doctor(means)
    with pytest.raises(KeyboardInterrupt):
        list(doctor.walk())
    assert doctor.clean().state == "ok"


def test_a_label_that_was_never_learnt(tmp_path):
    """The way of mail is checked before the first training, too."""
    Filter.open(tmp_path / "home", create=True).close()
    site = Site(tmp_path / "home")
    site.model.learn(b"Subject: x\n\nx\n", "ham")
    found = site.findings()
    assert "1 ham, 0 spam; no message is marked as junk below 3 of each" in found["model"].what
    assert "delivery" in states(found, "ok")
    site.model.close()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ann", "Ann", True),
        ("ann", "ann@example.org", True),
        ("ann@example.org", "ann", True),
        ("ann@example.org", "ann@example.com", False),
        ("ann", "anna@example.org", False),
    ],
)
def test_a_login_is_the_beginning_of_an_address(one, other, same):
    """A login and an address that begins with it are one person."""
    assert same_person(one, other) is same


@pytest.mark.parametrize("text", ["", "ann", "@x", "a@", "a b@x", "a@x>\r\nDATA", "a@x,b@y", "ä@x"])
def test_what_is_no_address_is_refused(text):
    """An invalid recipient is refused."""
    with pytest.raises(UserError):
        checked_recipient(text)
