"""The threshold of the site: the daemon counts the history of its home, and judges by that."""

import email
import re
import smtplib
from contextlib import closing

import pytest
from support.cli import HAM, SAMPLE, SPAM
from support.cli import forked as spamnb
from support.daemon import delivered, serve, settings_in
from support.history import entry
from support.waiting import LIMIT_S

from spamnb.model.verdict import FLOOR, SETTLED_US, SHIPPED
from spamnb.records.verdicts import History
from spamnb.telemetry import now_us


def old_verdicts(home, count=400):
    """Write verdicts on ham that no user moved for two days."""
    then = now_us() - 2 * SETTLED_US
    with closing(History.open(home / "history")) as history:
        history.add(
            entry(
                number,
                size=5,
                time_us=then + number,
                label="ham",
                decision="deliver",
                log_odds=-1.0 - number % 30 / 10,
            )
            for number in range(1, count)
        )


def score(daemon, folder):
    """Send a spam of the sample; the value of its header X-Spam-Score."""
    raw = (SAMPLE / "spam" / "0150.eml").read_bytes()
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
        client.sendmail("alice@example.com", ["bob@example.org"], raw)
    (found,) = delivered(folder, email.message_from_bytes(raw)["Message-ID"])
    return float(email.message_from_bytes(found)["X-Spam-Score"])


def test_the_daemon_counts_the_scores_of_mail_that_was_not_moved(home):
    """One event, one line in the log, a higher score of spam; `status` says where junk begins."""
    old_verdicts(home / "home")
    assert spamnb(home / "home", "train", HAM, SPAM).code == 0
    before = spamnb(home / "home", "score", "--json", SAMPLE / "spam" / "0150.eml").json[0]
    with serve(home, config=settings_in(home)).ready() as daemon:
        record = daemon.wait_for("junk threshold changed")
        assert FLOOR <= record["after"] < 3
        assert record["before"] == SHIPPED
        assert record["level"] == "warning"
        assert score(daemon, home) > before["log_odds"] - SHIPPED + 5
        status = spamnb(home / "home", "status")
        assert re.search(rf"junk from {record['after']:.2f} nats", status.out), status.out
        journal = spamnb(home / "home", "journal", "--json")
        assert journal.json[0]["kind"] == "scores"
        assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("setting", "nats"), [("site_threshold = false", "5.20"), ("junk_from = 3.4", "3.40")]
)
def test_switched_off_nothing_is_counted(home, setting, nats):
    """Without the site's mail the threshold is that of the costs, or a fixed one."""
    old_verdicts(home / "home")
    assert spamnb(home / "home", "train", HAM, SPAM).code == 0
    config = settings_in(home, more=f"[ham_loss]\n{setting}")
    with serve(home, config=config).ready() as daemon:
        status = spamnb(home / "home", "--config", config, "status")
        assert f"junk from {nats} nats" in status.out, status.out
        raw = spamnb(home / "home", "--config", config, "score", "--json", SAMPLE / "spam/0150.eml")
        assert (raw.json[0]["decision"] in ("junk", "reject")) == (
            raw.json[0]["log_odds"] > float(nats)
        )
        assert daemon.stop() == 0
        assert not daemon.logged("junk threshold changed")
