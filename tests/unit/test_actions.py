"""The action on a message: mapping, mildest recipient, exempt recipients, possible actions."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.errors import SettingsError
from spamnb.model.costs import DECISIONS
from spamnb.policy.actions import (
    LEAST_MESSAGES,
    MAIL_ACTIONS,
    ActionMap,
    ActionPolicy,
    Fallbacks,
    limit_while_untrained,
)
from spamnb.policy.headers import Reason

HARSH = ActionMap(unsure="tag", junk="quarantine", reject="reject")

_ACTION_MAPS = st.lists(st.sampled_from(MAIL_ACTIONS), min_size=4, max_size=4).map(
    lambda chosen: ActionMap(*sorted(chosen, key=MAIL_ACTIONS.index))
)
_LOCALS = st.sampled_from(["ann", "bob", "postmaster", "Abuse", "abuse+x"])
_RECIPIENTS = st.lists(
    st.builds("{}@{}".format, _LOCALS, st.sampled_from(["a.example", "B.example", "c.example"])),
    max_size=5,
)
_TREATMENTS = st.builds(
    ActionPolicy,
    _ACTION_MAPS,
    st.dictionaries(st.sampled_from(["a.example", "b.example"]), _ACTION_MAPS),
    st.sampled_from([(), ("ann@a.example",), ("@b.example",), ("bob@",)]),
)


def rank(mail_action):
    return MAIL_ACTIONS.index(mail_action)


def test_as_shipped_every_message_gets_headers_alone():
    """By default no message is quarantined, tagged or rejected."""
    for decision in DECISIONS:
        assert ActionPolicy().of(decision, ["ann@a.example"], refusable=True) == "headers"


def test_each_decision_has_its_action():
    """Each decision gets the action that the mapping sets."""
    got = [ActionPolicy(HARSH).of(d, ["ann@a.example"], refusable=True) for d in DECISIONS]
    assert got == ["headers", "tag", "quarantine", "reject"]


@pytest.mark.parametrize(
    ("action_map", "after"),
    [
        (HARSH, "quarantine"),
        (ActionMap(junk="tag", reject="reject"), "tag"),
        (ActionMap(reject="reject"), "headers"),
        (ActionMap(*["reject"] * 4), "headers"),
    ],
)
def test_after_the_queue_nothing_is_refused(action_map, after):
    """`reject` becomes the harshest milder action in the same mapping."""
    assert ActionPolicy(action_map).of("reject", ["ann@a.example"]) == after


def test_what_was_not_seen_whole_is_not_kept():
    """An incomplete message is never quarantined."""
    assert ActionPolicy(HARSH).of("junk", ["ann@a.example"], whole=False) == "tag"
    assert ActionPolicy(HARSH).of("reject", ["ann@a.example"], whole=False) == "tag"
    assert (
        ActionPolicy(HARSH).of("reject", ["ann@a.example"], whole=False, refusable=True) == "reject"
    )


def test_a_domain_has_its_own_mapping():
    """The recipient's domain decides, in any case of letters; others have the default mapping."""
    action_policy = ActionPolicy(HARSH, {"A.example": ActionMap(junk="tag", reject="tag")})
    assert action_policy.of("junk", ["ann@A.Example."]) == "tag"
    assert action_policy.of("junk", ["ann@b.example"]) == "quarantine"


@pytest.mark.parametrize(
    "recipient",
    [
        *("postmaster@a.example", "Abuse@a.example", "postmaster", "abuse+list@a.example"),
        *("ann@out.example", "bob@a.example", "CARL@b.example"),
    ],
)
def test_exempt_recipients_get_headers_alone(recipient):
    """postmaster@ and abuse@ of every domain, and opted-out recipients, are always exempt."""
    action_policy = ActionPolicy(HARSH, {}, ("@Out.example", "Bob@a.example", "carl@"))
    for decision in DECISIONS:
        assert action_policy.of(decision, [recipient, "x@a.example"], refusable=True) == "headers"


@given(_TREATMENTS, st.sampled_from(DECISIONS), _RECIPIENTS, st.booleans(), st.booleans())
def test_the_mildest_of_several_recipients_holds(
    action_policy, decision, recipients, refusable, whole
):
    """Several recipients get the action of the mildest one."""
    possible = {"refusable": refusable, "whole": whole}
    together = action_policy.of(decision, recipients, **possible)
    alone = [action_policy.of(decision, [recipient], **possible) for recipient in recipients]
    if alone:
        assert together == min(alone, key=rank)
    if not refusable:
        assert together != "reject"
    if not whole:
        assert together != "quarantine"


@given(_ACTION_MAPS, st.booleans(), st.booleans())
def test_harsher_decisions_are_never_handled_more_mildly(action_map, refusable, whole):
    """A harsher decision never gets a milder action, also if some actions are impossible."""
    action_policy = ActionPolicy(action_map)
    got = [
        action_policy.of(d, ["a@a.example"], refusable=refusable, whole=whole) for d in DECISIONS
    ]
    assert got == sorted(got, key=rank)


def test_a_mapping_that_goes_backwards_is_an_error():
    """A mapping with a milder action for a harsher decision is refused."""
    with pytest.raises(SettingsError, match="order"):
        ActionMap(junk="quarantine")
    with pytest.raises(SettingsError, match="'shred'"):
        ActionMap(reject="shred")


def test_a_model_of_few_messages_is_never_sure():
    """Rule 9: until both labels have 3 messages no decision is stronger than unsure."""
    assert LEAST_MESSAGES == 3
    assert [limit_while_untrained(d, 2) for d in DECISIONS] == [
        "deliver",
        "unsure",
        "unsure",
        "unsure",
    ]
    assert [limit_while_untrained(d, 20) for d in DECISIONS] == list(DECISIONS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "deliver head defer defer deliver head deliver"),
        ({"oversize": "unscanned"}, "deliver deliver defer defer deliver head deliver"),
        ({"on_fault": "defer"}, "deliver head defer defer defer head defer"),
        ({"busy": "deliver"}, "deliver head defer deliver deliver head deliver"),
        ({"overrun": "deliver"}, "deliver head deliver defer deliver head deliver"),
        ({"known_crasher": "defer"}, "deliver head defer defer deliver defer deliver"),
    ],
)
def test_every_reason_has_one_fallback(changes, expected):
    """A setting decides about its own reason; an observed message is never deferred."""
    fallbacks, reasons = Fallbacks(**changes), get_args(Reason)
    assert [fallbacks.fallback_for(reason) for reason in reasons] == expected.split()
    observed = [fallbacks.fallback_for(reason, observed=True) for reason in reasons]
    assert observed == expected.replace("defer", "deliver").split()
