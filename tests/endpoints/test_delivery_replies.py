"""Replies to reports by mail: the result; only an authentic sender gets a 5xx."""

import pytest
from support.delivery_agent import MESSAGE, running_agent
from test_delivery_feedback import (
    ALICE,
    BOB,
    LAN,
    NOTHING,
    SPAM,
    learnt,
    model,
    report,
    scored,
    send,
    settings,
)

from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Answer
from spamnb.settings.values import TeachingRules

__all__ = ["model", "settings"]

THANKS = "250 2.0.0 Report accepted, thank you"
TOO_MUCH = "450 4.7.1 Report not learnt, the daily limit is reached, try again later"
LIMIT = {"error_type": "LimitError", "proven": True}
REFUSED = {"error_type": "RefError", "proven": False}


@pytest.mark.parametrize(
    ("answers", "how", "reply"),
    [
        # a stranger with proof gets a temporary error, and otherwise a permanent one
        ([Answer("refused", facts=LIMIT)], {}, TOO_MUCH),
        ([Answer("learnt"), Answer("refused", facts=LIMIT)], {}, TOO_MUCH),
        ([Answer("refused", facts=REFUSED | {"proven": True})], {}, "550 5.6.0"),
        # a sender with a possibly forged address gets no bounce
        ([Answer("refused", facts=LIMIT | {"proven": False})], {}, f"250 {NOTHING}"),
        ([Answer("refused", facts=REFUSED)], {}, f"250 {NOTHING}"),
        ([Answer("review"), Answer("refused", facts=REFUSED)], {}, "250 2.0.0 Report accepted in"),
        ([Answer("review"), Answer("unchanged")], {}, THANKS),
        # a client of a trusted network has no receipt, so the reply says
        ([Answer("refused", facts=LIMIT)], {"xforward": "ADDR=192.0.2.7"}, TOO_MUCH),
        ([Answer("refused", facts=REFUSED)], {"xforward": "ADDR=192.0.2.7"}, "550 5.6.0"),
        # a logged-in user gets a receipt, or else the reply has the result
        ([Answer("refused", facts=LIMIT)], {"login": True}, "250 2.0.0 1 not learnt"),
        ([Answer("refused", facts=LIMIT)], {"login": True, "sender": ""}, TOO_MUCH),
    ],
)
def test_what_was_dropped_is_not_thanked_for(settings, answers, how, reply):
    """The reply has the result of the report, and only an authentic sender gets a 5xx."""
    left = list(answers)
    messages = [SPAM.replace(b"w1@", b"w%d@" % number) for number in range(len(answers))]
    with running_agent(**settings | LAN) as rig:
        rig.teach = lambda _: left.pop(0)
        assert send(rig, report(*messages), **how).startswith(reply)


def test_a_report_says_where_it_came_from(settings):
    """The address that took it and the client's network; a relay without XFORWARD names none."""
    with running_agent(**settings) as rig:
        send(rig, report(SPAM), "Spam@X.example", xforward="ADDR=198.51.100.7")
        send(rig, report(SPAM))
        send(rig, report(SPAM), xforward="ADDR=127.0.0.1")
    assert [feedback.client for feedback in rig.taught] == ["198.51.100.7", "", ""]
    assert [feedback.domain.lower() for feedback in rig.taught] == ["x.example"] * 3


def test_a_flood_without_proof_costs_those_with_proof_nothing(settings, model, tmp_path):
    """Unproven reports do not use up the quota of users, and discarded ones are not thanked for."""
    rules = TeachingRules(stranger_per_day=3, strangers_per_day=6)
    feedback_service = FeedbackService(model, ReviewQueue(tmp_path / "review"), rules)
    kept = scored(model, SPAM, BOB)
    with running_agent(**settings) as rig:
        rig.teach = feedback_service.teach
        for number in range(10):
            raw = report(MESSAGE.replace(b"<1@", b"<%d@" % number))
            sender = ALICE if number % 2 else f"x{number}@evil.example"
            reply = send(rig, raw, sender=sender)
            assert reply == (THANKS if number < 6 else f"250 {NOTHING}")
        assert send(rig, report(kept), sender=BOB) == THANKS
        assert learnt(model, SPAM) == "spam"
        replies_sent = []
        for number in range(3):
            other = SPAM.replace(b"w1@", b"v%d@" % number)
            replies_sent.append(send(rig, report(scored(model, other, BOB)), sender=BOB))
    assert replies_sent == [THANKS] * 2 + [TOO_MUCH]
