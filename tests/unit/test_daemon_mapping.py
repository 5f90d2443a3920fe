"""From settings to the parameters of the daemon's parts."""

from dataclasses import replace
from pathlib import Path

import pytest

from spamnb.daemon.configure import WorkerShare, policy_of, relay_params_of
from spamnb.daemon.learner import learning_of
from spamnb.daemon.start import scan_slots_of
from spamnb.settings import Settings
from spamnb.settings.persons import served_domains
from spamnb.settings.schema import ListenerSettings
from spamnb.settings.values import Timeouts
from spamnb.telemetry import silent


def test_reports_are_never_refused():
    """Reports contain spam, so the configured report addresses are exempt."""
    settings = Settings()
    action_policy = policy_of(settings, ListenerSettings()).action_policy
    assert action_policy.is_exempt("spam@example.org")
    assert action_policy.is_exempt("ham@example.net")
    assert not action_policy.is_exempt("bob@example.org")
    other = replace(settings, delivery=replace(settings.delivery, spam="junk", ham=""))
    action_policy = policy_of(other, ListenerSettings()).action_policy
    assert action_policy.is_exempt("junk@example.org")
    assert not action_policy.is_exempt("ham@example.org")


def test_a_listener_allows_no_more_connections_than_descriptors():
    """A connection takes two descriptors: the limit follows, and is at least one."""

    def connections(listeners, descriptors):
        share = WorkerShare("127.0.0.1:25", 2, listeners, descriptors, Path())
        return relay_params_of(Settings(), ListenerSettings(), share).limits.connections

    assert connections(1, 1 << 20) == 2000
    assert connections(1, 1024) == 341
    assert connections(2, 1024) == 170
    assert connections(8, 3) == 1


def site(**more):
    """Settings with a listener, and what else is given."""
    settings = Settings(listener={"mx": ListenerSettings(**more.pop("listener", {}))})
    sections = {key: replace_any(getattr(settings, key), **values) for key, values in more.items()}
    return replace(settings, **sections)


def replace_any(section, **values):
    named = hasattr(section, "_replace")
    return section._replace(**values) if named else replace(section, **values)


@pytest.mark.parametrize(
    ("settings", "domains", "complete", "final"),
    [
        ({}, (), False, True),
        ({"listener": {"upstream": "192.0.2.1:25"}}, (), False, False),
        ({"listener": {"upstream": "lmtp:192.0.2.1:24"}}, (), False, True),
        (
            {"listener": {"upstream": "192.0.2.1:25", "recipient_domains": ("A.Example.",)},
             "feedback": {"domains": ("b.example",)}, "delivery": {"domains": ("c.example",)}},
            ("a.example", "b.example", "c.example"), True, False,
        ),
        (
            {"listener": {"upstream": "192.0.2.1:25"}, "feedback": {"domains": ("b.example",)}},
            ("b.example",), False, False,
        ),
        (
            {"listener": {"upstream": "192.0.2.1:25", "recipient_domains": ("a.example",)},
             "local": {"domains": ("h.example",)}, "feedback": {"domains": ("b.example",)}},
            ("h.example",), True, False,
        ),
    ],
)  # fmt: skip
def test_domains_of_local_mailboxes(settings, domains, complete, final):
    """They come from local.domains, or else from other settings; feedback uses the same."""
    found = site(**settings)
    served = policy_of(found, found.listener["mx"]).served
    assert (served.domains, served.complete, served.final) == (frozenset(domains), complete, final)
    assert served_domains(found) == served.domains
    assert learning_of(found, Path("/nowhere"), silent).teaching.served == served.domains


@pytest.mark.parametrize(
    ("workers", "helpers", "expected"),
    [
        (2, 2, [[5], [6]]),
        (1, 4, [[5, 6, 7, 8]]),
        (3, 4, [[5, 8], [6], [7]]),
        (4, 2, [[5], [6], [7], [8]]),
    ],
)
def test_as_many_scan_helpers_as_cores(workers, helpers, expected):
    """The limit is for all workers together, and at least one for each."""
    assert scan_slots_of(5, workers, helpers) == expected


@pytest.mark.parametrize(
    "times",
    [Timeouts(), Timeouts(final_s=10.0), Timeouts(scan_s=90.0), Timeouts(scan_wait_s=600.0)],
)
def test_the_next_hop_keeps_time_to_answer(times):
    """Under all settings of times, a scan may wait, and the next hop's deadline holds."""
    assert 0 < times.scan_start_s <= times.scan_total_s < times.final_s
