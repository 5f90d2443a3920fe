"""From settings to what the daemon's parts are told."""

from dataclasses import replace

from spamnb.daemon.mapping import policy_of
from spamnb.settings import Settings
from spamnb.settings.tree import ListenerSettings


def test_reports_are_never_refused():
    """They hold spam: the addresses that take them are exempt, by the names that were set."""
    settings = Settings()
    treatment = policy_of(settings, ListenerSettings()).treatment
    assert treatment.is_exempt("spam@example.org")
    assert treatment.is_exempt("ham@example.net")
    assert not treatment.is_exempt("bob@example.org")
    other = replace(settings, post=replace(settings.post, spam="junk", ham=""))
    treatment = policy_of(other, ListenerSettings()).treatment
    assert treatment.is_exempt("junk@example.org")
    assert not treatment.is_exempt("ham@example.org")
