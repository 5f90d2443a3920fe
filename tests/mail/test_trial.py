"""A real Postfix with the daemon behind another filter, as docs/trial.md says."""

import json

import pytest
from support.docs_snippets import changed, snippet
from support.postfix import PROJECT, Daemon, Rig, needs_rig, started
from support.waiting import until

pytestmark = needs_rig

SAMPLE = PROJECT / "corpora" / "sample"
SECTION = "Beside the filter that runs"
MARK = b"X-Spam: Yes\nX-Spamd-Result: default: False [8.00 / 15.00];\n\tRBL_A(8.00)[192.0.2.1]\n"
FORGED = b"X-Spamnb-Verdict: deliver; forged\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Postfix, Dovecot and the daemon; the client's mail has the marks of the filter in front."""
    folder, rig = tmp_path_factory.mktemp("trial"), Rig()
    port = f"127.0.0.1:{rig.port['filter']}"
    rig.master = f"127.0.0.1:{rig.port['mx']} inet n - n - - smtpd\n"
    places = {"inet:127.0.0.1:11332, ": "", "127.0.0.1:10029": port}
    rig.main += changed(snippet("trial.md", SECTION, "main.cf"), places)
    toml = changed(snippet("trial.md", SECTION, "spamnb.toml"), {"127.0.0.1:10029": port})
    rig.daemon = Daemon(folder, toml)
    rig.daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
    with started(rig):
        yield rig


def test_the_mail_keeps_its_marks_and_the_report_counts_them(site):
    """The mailbox gets what the other filter marked; ending the daemon ends the trial."""
    message = sorted((SAMPLE / "ham").iterdir())[3].read_bytes()
    site.send(MARK + FORGED + message, ["alice@example.org"])
    (copy,) = until(lambda: site.delivered("alice", "X-Spamnb-Signature"))
    assert b"X-Spam: Yes" in copy
    assert b"X-Spamd-Result: default: False [8.00 / 15.00];" in copy
    assert b"forged" not in copy
    assert b"X-Spam-Flag" not in copy
    found = json.loads(site.daemon.spamnb("trial", "report", "--json"))
    assert (found["messages"], found["unmarked"], found["moved"]) == (1, 0, 1)
    assert found["other_tests"] == [{"test": "RBL_A", "messages": 1, "known_spam": 0}]
    site.daemon.stop()
    site.send(b"X-Trial: over\n" + message, ["alice@example.org"])
    until(lambda: site.delivered("alice", "X-Trial: over"))
