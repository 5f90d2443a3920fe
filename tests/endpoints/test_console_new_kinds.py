"""A message of a new kind: the log of the daemon and the page say why it is unsure."""

import smtplib

from support.browser import pages
from support.cli import forked as spamnb
from support.new_kinds import FIRST, write_mail
from support.page_client import Rig
from support.waiting import LIMIT_S


def test_the_page_says_that_the_kind_of_a_message_is_new(tmp_path):
    """The reason of the verdict, and a sentence on its page."""
    assert spamnb(tmp_path / "home", "train", *write_mail(tmp_path / "mail")).code == 0
    with pages(tmp_path) as (daemon, url):
        rig = Rig(tmp_path, daemon, url)
        with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
            client.sendmail("news@good.test", ["alice@example.org"], FIRST)
        record = daemon.wait_for("message")
        assert (record["decision"], record["reason"]) == ("unsure", "new-kind")
        page = rig.get(f"/message/{record['signature']}", rig.log_in("root").cookie)
        assert "a kind that this filter has not met" in page.text
