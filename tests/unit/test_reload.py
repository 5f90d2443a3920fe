"""What a running daemon takes of new settings."""

import pytest

from spamnb.settings import Settings, load
from spamnb.settings.render import merge_reloadable

ONE = """
[listener.mx]
address = "127.0.0.1:25"
upstream = "127.0.0.1:26"
"""


def loaded(folder, text):
    path = folder / "spamnb.toml"
    path.write_text(text)
    return load(path, environment={})


AGENT = '[delivery]\naddress = "127.0.0.1:27"'
NO_HOP = ONE.replace('upstream = "127.0.0.1:26"', "")


def merged(folder, before, after, *, has_agent=False):
    """The listeners that result, and the keys that must wait."""
    found, later = merge_reloadable(
        loaded(folder, before), loaded(folder, after), has_agent=has_agent
    )
    return found.listener, later


def test_what_does_not_rest_on_processes_is_taken(tmp_path):
    """Settings that need no restart change, and none is reported to wait."""
    after = loaded(tmp_path, ONE.replace(":26", ":27") + 'observe = true\n[log]\nlevel = "debug"')
    found, later = merge_reloadable(loaded(tmp_path, ONE), after, has_agent=False)
    assert (found, later) == (after, [])


@pytest.mark.parametrize("change", [(".mx", ".other"), (":25", ":24"), ('"127', 'lmtp:"127')])
def test_listeners_come_and_go(tmp_path, change):
    """Listeners that are new, gone, or elsewhere need no restart."""
    after = ONE.replace(*change).replace('lmtp:"', '"lmtp:')
    want = loaded(tmp_path, after).listener
    assert merged(tmp_path, ONE, after) == (want, [])
    assert merged(tmp_path, ONE, "", has_agent=True) == ({}, [])


def test_a_delivery_agent_that_was_not_started_is_no_next_hop(tmp_path):
    """A listener that needs it stays as it was, or is not added, unless the agent runs."""
    before = loaded(tmp_path, ONE).listener
    assert merged(tmp_path, ONE, NO_HOP) == (before, ["listener.mx.upstream"])
    added = ONE + NO_HOP.replace(".mx", ".more")
    assert merged(tmp_path, ONE, added) == (before, ["listener.more.upstream"])
    assert merged(tmp_path, ONE, "") == (before, ["listener"])
    listeners, later = merged(tmp_path, ONE + AGENT, added + AGENT, has_agent=True)
    assert (listeners["more"].upstream, later) == ("", [])


def test_processes_are_those_of_the_start(tmp_path):
    """Another number of workers waits for a restart."""
    found, later = merge_reloadable(
        loaded(tmp_path, ONE), loaded(tmp_path, ONE + "[serve]\nworkers = 7"), has_agent=False
    )
    assert (found.serve.workers, later) == (Settings().serve.workers, ["serve.workers"])


MAILBOX = """
[imap.alice]
host = "imap.example.org"
user = "alice"
password_file = "/nowhere"
"""


@pytest.mark.parametrize("change", [(MAILBOX, ""), ("alice", "bob"), (".org", ".net")])
def test_mailboxes_are_those_of_the_start(tmp_path, change):
    """A mailbox that is new, gone or changed waits for a restart."""
    before, after = (loaded(tmp_path, ONE + text) for text in (MAILBOX, MAILBOX.replace(*change)))
    for old, new in ((before, after), (after, before)):
        found, later = merge_reloadable(old, new, has_agent=False)
        assert (found.imap, bool(later)) == (old.imap, True)
        assert all(name.startswith("imap.") for name in later)
