"""The bound of lost ham: `evaluate --apply` writes the costs, and a reload uses them."""

import email
import signal
import smtplib

import pytest
from support.cli import HAM, SAMPLE, SPAM
from support.cli import forked as spamnb
from support.daemon import delivered, serve, settings_in
from support.waiting import LIMIT_S, until

from spamnb.maintenance.home_files import read_costs
from spamnb.model.costs import Costs
from spamnb.policy.headers import junk_threshold


def score(daemon, folder):
    """Send a spam of the sample; its score."""
    raw = (SAMPLE / "spam" / "0150.eml").read_bytes()
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
        client.sendmail("alice@example.com", ["bob@example.org"], raw)
    (found,) = delivered(folder, email.message_from_bytes(raw)["Message-ID"])
    for path in (folder / "home" / "mail" / "bob").rglob("new/*"):
        path.unlink()
    return float(email.message_from_bytes(found)["X-Spam-Score"])


def test_what_evaluation_found_is_in_force_after_a_reload(home):
    """The score is 5 at the junk threshold, so it changes by as much as the threshold."""
    config = settings_in(home, more="[ham_loss]\none_in = 20")
    with serve(home, config=config).ready() as daemon:
        before = score(daemon, home)
        done = spamnb(home / "home", "--config", config, "evaluate", "--apply", HAM, SPAM)
        assert done.code == 0, done.err
        assert score(daemon, home) == before
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("settings reloaded")
        moved = junk_threshold(Costs()) - junk_threshold(read_costs(home / "home", 20))
        assert moved > 1
        until(lambda: score(daemon, home) == pytest.approx(before + moved, abs=0.11), "the move")
        assert daemon.stop() == 0
