"""The mail about new messages in quarantine: what it says, who gets it, and when."""

import email
import email.policy
import os
import re
import signal
import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from support.browser import pages
from support.console import trained_home
from support.sink import Sink
from support.waiting import LIMIT_S, until

from spamnb.console.digest import (
    MOST,
    MOST_TRIES,
    RETRY_S,
    AdminMail,
    DigestEntry,
    DigestHead,
    Digests,
    DigestSending,
    digest_mail,
)
from spamnb.console.site import DigestOptOuts, SignedLinks
from spamnb.errors import PeerError, SettingsError
from spamnb.mail.envelope import Envelope
from spamnb.scan.quarantine import Quarantine
from spamnb.settings.values import DigestPlan, TeachingRules, digest_plan

ALICE, BOB, EVE = "alice@example.org", "bob@example.org", "eve@elsewhere.example"
DAY_S = 86_400
URL = "https://console.example.org/"


@pytest.fixture
def sink():
    found = Sink()
    yield found
    found.close()


class Mailer:
    """A quarantine, and the digests of it."""

    def __init__(self, home, smtp):
        self.home = home
        self.now = time.mktime((*time.localtime()[:3], 12, 0, 0, 0, 0, -1))
        self.links = SignedLinks(home)
        self.quarantine = Quarantine(home / "quarantine")
        self.logged = []
        site = SimpleNamespace(
            config=SimpleNamespace(teaching=TeachingRules(served=frozenset({"example.org"}))),
            quarantine=self.quarantine,
            links=self.links,
            opt_outs=DigestOptOuts(home),
        )
        self.at = time.strftime("%H:%M", time.localtime(self.now))
        plan = DigestPlan(self.at, smtp, "postmaster@example.org")
        self.sending = DigestSending(site, plan, URL, ())

    def keep(self, *to, subject="offer", probability=0.9):
        rcpts = tuple(f"RCPT TO:<{one}>".encode() for one in to)
        envelope = Envelope("x@x.example", to, mail_line=b"MAIL FROM:<x@x.example>",
                            rcpt_lines=rcpts)  # fmt: skip
        raw = f"Subject: {subject}\r\n\r\nx\r\n".encode()
        return self.quarantine.keep(raw, envelope, {"probability": probability})

    def send(self, days=0, **more):
        digests = Digests(self.home, self.logged.append)
        return digests.send_due(self.sending._replace(**more), self.now + days * DAY_S)


@pytest.fixture
def mailer(tmp_path, sink):
    return Mailer(tmp_path / "home", sink.address)


def parsed(raw):
    mail = email.message_from_bytes(raw, policy=email.policy.default)
    plain = mail.get_body(("plain",)).get_content()
    return mail, plain, mail.get_body(("html",)).get_content()


# --- the mail ------------------------------------------------------------------------------------

HEAD = DigestHead(
    "p@example.org",
    ALICE,
    datetime(2026, 5, 1, tzinfo=UTC),
    "<1@example.org>",
    URL + "digest/" + "x" * 200,
)


def entry(subject="offer", probability=0.9, sender="x@x.example"):
    return DigestEntry(sender, subject, HEAD.time, probability, "https://c.example/d/TOKEN")


def test_a_digest_names_each_message_with_a_link():
    """Text and HTML say the same; it is marked as automatic, and loads nothing."""
    raw = digest_mail(HEAD, [entry("bulk", 0.99), entry("grün", 0.2), entry("?", None)], "the foot")
    mail, plain, html = parsed(raw)
    assert raw.isascii()
    assert (mail["To"], mail["Subject"]) == (ALICE, "3 messages in quarantine")
    assert mail["Auto-Submitted"] == "auto-generated"
    assert f"\r\nList-Unsubscribe: <{HEAD.off_url}>\r\n".encode() in raw
    assert mail["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    for found in (plain, html):
        assert found.index("grün") < found.index("bulk")
        assert found.count("https://c.example/d/TOKEN") == 3
        assert "probability of spam: 20.0%" in found
        assert "the foot" in found
    assert not re.search(r"src=|url\(|<link|<script|@import", html)


def test_hostile_values_stay_text():
    """A subject or a sender adds no field, no line, no tag, and no hidden direction of text."""
    bad = "a\r\nBcc: eve@example.org\r\n\r\n<script>1</script>\u202e\ud800\0\"'"
    raw = digest_mail(HEAD, [entry(bad, sender=bad), entry("x" * 9_000)], "foot")
    mail, plain, html = parsed(raw)
    assert mail["Bcc"] is None
    assert "\nBcc" not in plain
    assert "<script" not in html
    assert not re.search("[\u202e\ud800\0]", plain + html)
    assert len(raw) < 6_000


def test_a_long_digest_is_cut():
    """The messages that are most likely to be ham are named, and the number of the others."""
    entries = [entry(f"number {at:03d}.", at / 1000) for at in range(MOST + 20)][::-1]
    _, plain, html = parsed(digest_mail(HEAD, entries, "foot"))
    for found in (plain, html):
        assert found.count("number ") == MOST
        assert "number 000." in found
        assert f"number {MOST:03d}." not in found
        assert "20 more messages" in found


# --- who gets it, and when -----------------------------------------------------------------------


def test_each_recipient_of_this_site_gets_one_a_day(mailer, sink):
    """New messages alone are in it; other users get none."""
    both = mailer.keep(ALICE, BOB, EVE, "Bob+tag@Example.org", subject="to both")
    mailer.keep(EVE, subject="elsewhere")
    assert mailer.send() == 2
    assert mailer.send() == 0
    mails = {parsed(raw)[0]["To"]: parsed(raw)[1] for raw in sink.messages}
    assert mails.keys() == {ALICE, BOB}
    assert all("to both" in plain and "elsewhere" not in plain for plain in mails.values())
    token = re.search(r"https://console\.example\.org/d/(\S+)", mails[BOB])[1]
    assert mailer.links.read(token, mailer.now) == (both, BOB)
    assert mailer.send(days=1) == 0
    mailer.keep(BOB, subject="later")
    assert mailer.send(days=1) == 0
    assert mailer.send(days=2) == 1
    assert "later" in parsed(sink.messages[-1])[1]
    assert "to both" not in parsed(sink.messages[-1])[1]


def test_before_its_time_no_digest_is_sent(mailer, sink):
    """The time of the day counts; without one there are no digests."""
    mailer.keep(ALICE)
    later = time.localtime(mailer.now + 120)
    if later.tm_hour * 60 + later.tm_min >= 2:  # not about midnight
        plan = mailer.sending.plan._replace(at=time.strftime("%H:%M", later))
        assert mailer.send(plan=plan) == 0
    assert mailer.send(plan=mailer.sending.plan._replace(at="")) == 0
    assert sink.messages == []
    assert mailer.send() == 1


def test_logins_get_digests_without_a_known_domain(mailer, sink):
    """An address of a login is one of this site; an address that needs quoting gets none."""
    mailer.keep(EVE, '"a b"@example.org', "ü@example.org", "x>y@example.org")
    assert mailer.send(logins=(EVE.upper(),)) == 1
    assert parsed(sink.messages[0])[0]["To"] == EVE


def test_released_messages_are_in_no_digest(mailer, sink):
    """Only what waits for the recipient is named."""
    kept = mailer.keep(ALICE, BOB)
    mailer.quarantine.delete_for(kept, {0})
    assert mailer.send() == 1
    assert parsed(sink.messages[0])[0]["To"] == BOB


def test_who_wants_none_gets_none(mailer, sink):
    """Until the address turns digests on again; what came meanwhile is in none."""
    mailer.keep(ALICE, BOB)
    opt_outs = DigestOptOuts(mailer.home)
    opt_outs.add(ALICE)
    assert mailer.send() == 1
    mailer.keep(ALICE)
    opt_outs.remove(ALICE)
    opt_outs.remove(ALICE)
    assert mailer.send(days=1) == 1
    assert [parsed(raw)[0]["To"] for raw in sink.messages] == [BOB, ALICE]


def test_links_may_ask_for_the_login(mailer, sink):
    """Then a forwarded mail gives no right."""
    kept = mailer.keep(ALICE)
    mailer.send(plan=mailer.sending.plan._replace(links="login"))
    plain = parsed(sink.messages[0])[1]
    assert f"https://console.example.org/quarantine/{kept}" in plain.split()
    assert "/d/" not in plain


def test_an_unreachable_server_delays_the_digests(mailer, sink):
    """The round goes on where it stopped, and repeats nothing."""
    mailer.keep(ALICE, BOB)
    with pytest.raises(PeerError):
        mailer.send(plan=mailer.sending.plan._replace(smtp="127.0.0.1:1"))
    mailer.keep("carl@example.org")  # after the round began: in the next one
    assert mailer.send() == 2
    assert mailer.send() == 0
    with pytest.raises(PeerError):
        mailer.send(days=1, plan=mailer.sending.plan._replace(smtp="127.0.0.1:1"))
    assert mailer.send(days=2) == 1


def test_a_restart_between_two_digests_repeats_none(mailer, sink, monkeypatch):
    """A digest is recorded before the next one is sent."""
    mailer.keep(ALICE, BOB)
    digests = Digests(mailer.home, lambda _: digests.stop())
    assert digests.send_due(mailer.sending, mailer.now) == 1
    assert mailer.send() == 1
    assert [parsed(raw)[0]["To"] for raw in sink.messages] == [ALICE, BOB]


def test_a_deferred_digest_is_tried_again(mailer, sink):
    """With doubling pauses, some times; what is given up is in the next day's, and only there."""
    mailer.keep(ALICE, subject="first")
    sink.at_dot = b"451 4.2.0 try later\r\n"
    assert mailer.send() == 0
    assert mailer.send() == 0
    assert len(sink.messages) == 1
    mailer.now += RETRY_S
    sink.at_dot = b"250 ok\r\n"
    assert mailer.send() == 1
    assert mailer.send() == 0
    mailer.keep(ALICE, subject="second")
    sink.at_dot = b"451 4.2.0 try later\r\n"
    at = mailer.now
    for hours in range(24):
        mailer.now = at + DAY_S + hours * 3_600
        if time.localtime(mailer.now).tm_yday == time.localtime(at + DAY_S).tm_yday:
            mailer.send(plan=mailer.sending.plan._replace(at="00:00"))
    assert len(sink.messages) <= 2 + MOST_TRIES
    sink.at_dot = b"250 ok\r\n"
    mailer.now = at
    assert mailer.send(days=2) == 1
    plain = parsed(sink.messages[-1])[1]
    assert "second" in plain
    assert "first" not in plain
    mailer.keep(ALICE, subject="third")
    assert mailer.send(days=3) == 1
    assert "second" not in parsed(sink.messages[-1])[1]


def test_a_refused_digest_is_not_repeated(mailer, sink):
    """A reply with 5xx is final for that day; the others get theirs."""
    mailer.keep(ALICE, BOB)
    sink.at_dot = b"550 5.7.1 no\r\n"
    assert mailer.send() == 0
    assert len(sink.messages) == 2
    sink.at_dot = b"250 ok\r\n"
    assert mailer.send() == 0


def test_who_has_a_digest_gets_no_message_twice(mailer, sink):
    """A round that a day does not finish: the next one has for each user what the user lacks."""
    mailer.keep(ALICE, BOB, subject="first")
    digests = Digests(mailer.home, lambda _: digests.stop())
    assert digests.send_due(mailer.sending, mailer.now) == 1
    mailer.keep(ALICE, BOB, subject="second")
    assert mailer.send(days=1) == 2
    alice, bob = (parsed(raw)[1] for raw in sink.messages[1:])
    assert "first" not in alice
    assert "second" in alice
    assert "first" in bob
    assert "second" in bob


def test_a_kill_sends_no_digest_twice(mailer, sink):
    """Killed before the reply is noted, the user gets nothing more on this day, the others do."""
    mailer.keep(ALICE, BOB, subject="first")
    sink.wait = threading.Event()
    child = os.fork()
    if child == 0:
        mailer.send()
        os._exit(0)
    assert sink.at_end.wait(LIMIT_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    sink.wait.set()
    until(lambda: len(sink.messages) == 1, "the digest of the killed process")
    assert mailer.send() == 1
    assert mailer.send() == 0
    assert [parsed(raw)[0]["To"] for raw in sink.messages] == [ALICE, BOB]
    assert mailer.send(days=1) == 1
    assert parsed(sink.messages[-1])[0]["To"] == ALICE
    assert mailer.send(days=2) == 0


def test_the_daemon_sends_digests(tmp_path, sink):
    """With a time in the settings the console sends them, to the addresses of logins too."""
    trained_home(tmp_path)
    mailer = Mailer(tmp_path / "home", sink.address)
    mailer.keep("alice@example.org", subject="from before the start")
    more = f"""
[digest]
at = "00:00"
smtp = "{sink.address}"
sender = "postmaster@example.org"
"""
    with pages(tmp_path, more=more, url="https://console.example.org") as (daemon, _):
        sent = daemon.wait_for("digest", to="alice@example.org")
        assert (sent["messages"], sent["reply"][:3]) == (1, "250")
    mail, plain, _ = parsed(sink.messages[0])
    assert "from before the start" in plain
    assert mail["From"] == "postmaster@example.org"


class Admin:
    """What the administrator gets while the daemon's state is `facts`."""

    def __init__(self, home, smtp):
        self.facts = {"warnings": []}
        site = SimpleNamespace(ask=lambda _: SimpleNamespace(header={"status": self.facts}))
        plan = DigestPlan("", smtp, "postmaster@example.org", admin="admin@example.org")
        self.sending = DigestSending(site, plan, URL, ())
        self.home, self.now = home, 1e9
        self.again()

    def again(self):
        """As after a restart of the daemon."""
        self.mail = AdminMail(self.home, lambda _: None)

    def after(self, seconds, *warnings):
        """Look after so many seconds; return whether a mail was sent."""
        self.now += seconds
        self.facts["warnings"] = list(warnings)
        return self.mail.send_due(self.sending, self.now)


HOUR = 3600


def test_the_administrator_gets_each_warning_once(tmp_path, sink):
    """Also over a restart, also if its numbers change; what came back is new again."""
    admin = Admin(tmp_path, sink.address)
    assert not admin.after(0)
    assert admin.after(HOUR, "3 corrections wait", "bypass is on")
    assert "* 3 corrections wait" in sink.messages[0].decode()
    admin.again()
    assert not admin.after(7 * HOUR, "4 corrections wait", "bypass is on")
    assert not admin.after(HOUR, "4 corrections wait")
    assert admin.after(HOUR, "4 corrections wait", "bypass is on")
    assert len(sink.messages) == 2
    assert "corrections wait" not in sink.messages[1].decode()


def test_warnings_that_come_and_go_do_not_fill_the_mailbox(tmp_path, sink):
    """There is one mail in six hours; what lasts is in the next one."""
    admin = Admin(tmp_path, sink.address)
    assert admin.after(0, "one")
    assert not admin.after(HOUR, "two")
    assert not admin.after(1, "two")
    assert admin.after(5 * HOUR, "two")


def test_a_server_that_is_away_delays_the_warnings(tmp_path, sink):
    """They are sent later, and are not taken for sent."""
    admin = Admin(tmp_path, "127.0.0.1:1")
    with pytest.raises(PeerError):
        admin.after(0, "one")
    plan = admin.sending.plan._replace(smtp=sink.address)
    admin.sending = admin.sending._replace(plan=plan)
    assert admin.after(HOUR, "one")


@pytest.mark.parametrize(("kept", "is_told"), [(0, True), (1, False)])
def test_the_administrator_learns_that_observing_may_end(tmp_path, sink, kept, is_told):
    """If enough would have been filed, and users wanted none of it."""
    admin = Admin(tmp_path, sink.address)
    counts = {"messages": 1204, "filed": 310, "agreed": 12, "kept": kept, "missed": 0}
    admin.facts["observing"] = counts
    assert admin.after(0) == is_told
    assert is_told == any("spamnb live on" in raw.decode() for raw in sink.messages)


@pytest.mark.parametrize(
    "given",
    [
        {"admin": "admin@example.org"}, {"admin": "x", "smtp": "127.0.0.1:25", "sender": "a@b.c"},
        {"at": "7:00"}, {"at": "24:00"}, {"at": "07:60"}, {"at": "07:00"},
        {"at": "07:00", "smtp": "127.0.0.1:25"},
        {"at": "07:00", "smtp": "127.0.0.1:25", "sender": "a\r\nb@example.org"},
        {"at": "07:00", "smtp": "127.0.0.1:25", "sender": "a>b@example.org"},
    ],
)  # fmt: skip
def test_incomplete_settings_are_an_error(given):
    """A time needs a server and a sender that can stand in a command."""
    with pytest.raises(SettingsError):
        digest_plan(**given)
