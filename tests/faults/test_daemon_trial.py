"""A daemon that looks on behind another filter: the mail stays as it is, the report counts it."""

import shutil
import smtplib
import subprocess
from pathlib import Path

import pytest
from support.cli import forked
from support.daemon import delivered, serve, settings_in
from support.waiting import LIMIT_S, until

from spamnb.scan.shadow import read_asked

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
MARKS = {
    "spam": b"X-Spam-Flag: YES\nX-Spam-Status: Yes, score=8.0 required=5.0 tests=RBL_A\n",
    "ham": b"X-Spam-Flag: NO\nX-Spam-Status: No, score=1.0 required=5.0 tests=none\n",
}
FORGED = b"X-Spamnb-Verdict: deliver\n"


@pytest.fixture
def site(home):
    """Start a daemon that observes; its next hop takes mail for every domain."""
    running = []

    def start(listener="", more=""):
        hop = f"unix:{home}/post.sock"
        config = settings_in(
            home,
            listener=f'upstream = "{hop}"\nobserve = true\n{listener}',
            delivery=f'[delivery]\naddress = "{hop}"\n',
            more=more,
        )
        running.append(serve(home, config=config))
        return running[-1].ready(), config

    yield start
    for one in running:
        one.__exit__()


def send(daemon, raw):
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
        client.sendmail("ann@far.example", ["bob@here.example"], raw)


def messages(label, start, stop):
    for number, path in list(enumerate(sorted((SAMPLE / label).iterdir())))[start:stop]:
        ident = f"<trial{label}{number}@far.example>"
        lines = path.read_bytes().splitlines(keepends=True)
        others = [line for line in lines if not line.lower().startswith(b"message-id:")]
        yield ident, b"Message-ID: %b\n" % ident.encode() + b"".join(others)


def marked(daemon, home, number):
    """Send spam; whether it arrived with the verdict."""
    ident, raw = next(messages("spam", number, number + 1))
    send(daemon, raw)
    (copy,) = until(lambda: delivered(home, ident), "the message")
    return b"X-Spamnb-Verdict" in copy


def test_live_marks_what_was_only_observed(site, home):
    """`spamnb live on` holds immediately and over a restart, until `spamnb live off`."""
    daemon, config = site()

    def run(*words):
        return forked(home / "home", "--config", config, *words).out

    assert not marked(daemon, home, 1)
    assert "mark and file" in run("live", "on")
    until(lambda: '"live": true' in run("status", "--json"), "the switch")
    assert marked(daemon, home, 2)
    assert "spamnb live off" in run("status")
    assert "only observe" in run("live", "off")
    until(lambda: '"live": false' in run("status", "--json"), "the switch")
    assert not marked(daemon, home, 3)


def test_live_marks_nothing_behind_another_filter(site, home):
    """There the mail has the marks of that filter."""
    (home / "home" / "live").touch()
    daemon, _ = site('other = "spamassassin"\n')
    assert not marked(daemon, home, 1)


def test_the_marks_of_the_filter_in_front_are_reported(site, home):
    """They reach the mailbox unchanged, and the report has the same counts as was sent."""
    daemon, config = site('other = "spamassassin"\n')
    sent = []
    for label, start in (("ham", 40), ("spam", 40)):
        for number, (ident, raw) in enumerate(messages(label, start, start + 6)):
            marked = "spam" if (label == "spam") != (number == 0) else "ham"
            send(daemon, MARKS[marked] + FORGED + raw)
            sent.append((ident, label, marked))
    send(daemon, next(messages("ham", 50, 51))[1])
    daemon.wait_for("message", count=13)
    for ident, _, marked in sent:
        (copy,) = delivered(home, ident)
        assert MARKS[marked] in copy.replace(b"\r\n", b"\n")
        assert FORGED.split(b":")[0] not in copy
    for ident, label, marked in sent:
        if label != marked:
            done = forked(home / "home", "--config", config, "correct", label, ident)
            assert done.code == 0, done.err
    done = forked(home / "home", "--config", config, "trial", "report", "--json")
    assert done.code == 0, done.err
    [found] = done.json
    assert (found["messages"], found["unmarked"]) == (12, 1)
    columns = {
        name: sum(row[name] for row in found["agreement"].values())
        for name in ("ham", "unsure", "spam")
    }
    assert columns == {"ham": 6, "unsure": 0, "spam": 6}
    labelled = found["labelled"]
    assert labelled["ham_lost"]["other"] | {"low": 0, "high": 0} == {
        "wrong": 1, "of": 1, "low": 0, "high": 0,
    }  # fmt: skip
    assert (labelled["spam_missed"]["other"]["wrong"], labelled["spam_missed"]["other"]["of"]) == (
        1, 1,
    )  # fmt: skip
    (domain,) = found["domains"]
    assert (domain["domain"], domain["messages"]) == ("here.example", 12)


@pytest.mark.skipif(shutil.which("bogofilter") is None, reason="bogofilter is not installed")
def test_bogofilter_is_asked_beside_the_daemon(site, home):
    """After the mail has passed, the report has the verdict of the real program."""
    words = home / "words"
    words.mkdir()
    for label, option in (("ham", "-n"), ("spam", "-s")):
        names = "".join(f"{path}\n" for path in sorted((SAMPLE / label).iterdir())[:40])
        subprocess.run(["bogofilter", "-C", "-d", words, option, "-b"],
                       input=names.encode(), check=True)  # fmt: skip
    daemon, config = site(more=f'[trial]\nask = "bogofilter:{words}"\nshare = 1.0\n')
    for count, (ident, raw) in enumerate([*messages("ham", 60, 63), *messages("spam", 60, 63)], 1):
        send(daemon, raw)
        until(lambda count=count: len(read_asked(home / "home")) == count)
        assert delivered(home, ident)
    done = forked(home / "home", "--config", config, "trial", "report", "--json")
    assert done.code == 0, done.err
    [found] = done.json
    assert (found["messages"], found["unmarked"]) == (6, 0)
    assert found["milliseconds"]["other"] > 0
    assert sum(row["spam"] + row["unsure"] for row in found["agreement"].values()) >= 3


def test_a_filter_that_is_away_costs_no_mail(site, home):
    """Mail passes as without it; the log tells why there is no verdict."""
    daemon, config = site(more='[trial]\nask = "spamd:127.0.0.1:1"\nshare = 1.0\n')
    for ident, raw in messages("ham", 40, 43):
        send(daemon, raw)
        assert delivered(home, ident)
    daemon.wait_for("trial")
    done = forked(home / "home", "--config", config, "trial", "report")
    assert done.code == 2
    assert "no verdict of another filter in the last 7 days, on 3 messages" in done.err
