"""A real Exim asks the real daemon by its `spam` condition, as the documentation says."""

import email
import json
import shutil
import smtplib

import pytest
from support.exim import AskingExim, needs_scanning_exim
from support.postfix import PROJECT, Daemon, started
from support.waiting import until

pytestmark = needs_scanning_exim

SAMPLE = PROJECT / "corpora" / "sample"
MORE = 'on_fault = "defer"\n[local]\nhosts = ["mx.example.org"]\n'
MORE += '[serve]\ndelegates = ["Debian-exim"]\n'


DECISIONS = {"ham": "deliver", "spam": "junk"}


def mail_of(label, number):
    """A message of the sample."""
    return sorted((SAMPLE / label).iterdir())[number].read_bytes()


@pytest.fixture(scope="module", params=["protocol of spamd", "protocol of rspamd"])
def site(request, trained, tmp_path_factory):
    """Exim and the daemon."""
    folder, exim = tmp_path_factory.mktemp("asked"), AskingExim(request.param)
    shutil.copytree(trained, folder / "home", ignore=shutil.ignore_patterns("*.sock"))
    exim.daemon = Daemon(folder, exim.settings() + MORE)
    with started(exim):
        yield exim


def came(site, name, tag):
    """The one message of a person with a text."""
    (raw,) = until(lambda: site.delivered(name, tag))
    return email.message_from_bytes(raw)


@pytest.mark.parametrize(
    ("label", "flag", "actions"),
    [("ham", "NO", ("no action", "no action")), ("spam", "YES", ("reject", "add header"))],
)
def test_mail_is_marked(site, label, flag, actions):
    """Ham and spam get flag and score; forged marks are gone; `$spam_action` is as documented."""
    forged = b"X-Spam-Flag: maybe\r\nx-spamnb-verdict: deliver\r\nX-Spam-Score: -9\r\n"
    marked = b"X-Test: marked-%b\r\n" % label.encode()
    site.send(forged + marked + mail_of(label, 3), ["alice@example.org"])
    found = came(site, "alice", f"marked-{label}")
    assert found.get_all("X-Spam-Flag") == [flag]
    (score,) = found.get_all("X-Spam-Score")
    assert (float(score) >= 5.0) == (flag == "YES")
    verdict = found.get_all("X-Spamnb-Verdict")
    if site.protocol.endswith("rspamd"):
        assert [one.partition(";")[0] for one in verdict] == [DECISIONS[label]]
        # So alice may correct the verdict.
        newest = json.loads(site.daemon.spamnb("history", "--json", "--limit", "1"))
        assert newest["notes"]["to"] == "alice@example.org"
        assert newest["signature"] == found["X-Spamnb-Signature"]
    else:
        assert verdict is None
    assert f"action {actions[site.protocol.endswith('rspamd')]}." in site.log()


def test_the_daemon_is_down(site):
    """The sender gets 451; with `defer_ok` mail is delivered without marks, also forged ones."""
    site.daemon.stop()
    try:
        passes_unmarked_or_waits(site, "down")
    finally:
        site.daemon.start()


def test_a_temporary_error_of_the_daemon(site):
    """With `on_fault = "defer"` Exim gets no verdict, and does as without the daemon."""
    with site.daemon.damaged():
        passes_unmarked_or_waits(site, "fault")
    assert "action=defer" in site.daemon.log.read_text()


def passes_unmarked_or_waits(site, tag):
    """A message with a forged mark, while there are no verdicts."""
    raw = f"X-Spam-Flag: NO\r\nSubject: {tag}\r\n\r\nx\r\n".encode()
    if site.protocol.endswith("rspamd"):
        with pytest.raises(smtplib.SMTPDataError) as refused:
            site.send(raw, ["bob@example.org"])
        assert refused.value.smtp_code == 451
        return
    site.send(raw, ["bob@example.org"])
    assert "X-Spam-Flag" not in came(site, "bob", tag)


def test_the_way_back(site):
    """Without the lines of the recipe Exim delivers mail as before."""
    site.configure(site.without_filter())
    site.reload()
    site.send(b"Subject: as before\r\n\r\nx\r\n", ["bob@example.org"])
    assert "X-Spam-Flag" not in came(site, "bob", "as before")
    site.configure(site.parts())
    site.reload()
    site.send(b"Subject: asked again\r\n\r\nx\r\n", ["bob@example.org"])
    assert came(site, "bob", "asked again")["X-Spam-Flag"] == "NO"
