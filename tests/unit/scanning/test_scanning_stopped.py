"""Scans that wait for their turn, that are stopped, and that are late: one result, counted once."""

from dataclasses import replace
from functools import partial

import pytest
from support.scanning import COSTS, ENVELOPE, HARSH, Helper, request_of

from spamnb.mail.envelope import Client
from spamnb.scan.judge import ModelSession, SessionConfig
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.scanner import BUSY_REPLY, ScanPolicy


def turns(later, count):
    """Scan in so many turns of the loop."""
    for _ in range(count):
        later.pop(0)()


def test_a_burst_of_one_client_does_not_delay_another(scan_rig, surest):
    """Queued messages are ordered by client: another client's message is in the next turn."""
    later, order = [], []
    one = scan_rig(call_soon=later.append)
    other = replace(ENVELOPE, client=Client(address="198.51.100.1"))
    padded = surest["spam"] + b"words of the burst\r\n" * 3000
    for number in range(30):
        answer = partial(lambda number, _: order.append(number), number)
        one.scanner.scan(request_of(padded, ENVELOPE), answer)
    one.scanner.scan(request_of(surest["ham"], other), lambda _: order.append("other"))
    turns(later, 2)
    assert "other" in order
    assert len(order) <= 5
    while later:
        turns(later, 1)
    assert [number for number in order if number != "other"] == list(range(30))


def test_what_waited_too_long_in_the_worker_is_deferred(scan_rig, surest):
    """A message that waited too long is not scanned: the sender gets a temporary error."""
    later, answers = [], []
    one = scan_rig(ScanPolicy(wait_s=-1.0), call_soon=later.append)
    one.scanner.scan(request_of(surest["ham"], ENVELOPE), answers.append)
    turns(later, 1)
    assert (answers[0].action, answers[0].reply) == ("defer", BUSY_REPLY)
    assert one.meters.value("unscanned_deferred") == 1


def test_a_message_that_is_stopped_is_not_scored(scan_rig, surest):
    """The session that wanted the answer has ended."""
    later, answers = [], []
    one = scan_rig(call_soon=later.append)
    one.scanner.scan(request_of(surest["ham"], ENVELOPE), answers.append)("")
    turns(later, 1)
    assert answers == []
    assert one.meters.value("scanned") == 0


def test_what_is_kept_for_a_message_that_was_stopped_is_withdrawn(scan_rig, home, surest):
    """The disk was slow, and the sender will send the message again."""
    quarantine, works, answers = Quarantine(home / "quarantine"), [], []
    one = scan_rig(HARSH, quarantine=quarantine, run_in_thread=lambda *both: works.append(both))
    stop = one.scanner.scan(request_of(surest["spam"], ENVELOPE), answers.append)
    stop("")
    while works:
        work, then = works.pop(0)
        then(work())
    assert quarantine.messages() == []
    assert answers == []


COUNTED = ("scanned", "unscanned", "unscanned_busy", "unscanned_deferred", "mail_action_quarantine")


@pytest.mark.parametrize(
    ("policy", "counted"),
    [
        (HARSH, {"unscanned_deferred": 1}),
        (replace(HARSH, busy="deliver"), {"unscanned": 1, "unscanned_busy": 1}),
        (replace(HARSH, observe=True), {"unscanned": 1, "unscanned_busy": 1}),
    ],
    ids=["defer", "deliver", "observe"],
)
@pytest.mark.parametrize("step", ["queue", "scan process"])
def test_a_late_scan_is_counted_once(scan_rig, home, surest, policy, counted, step):
    """The endpoint's deadline passes; the fallback is the result, and a later verdict is none."""
    later, answers, helper = [], [], Helper(ModelSession(SessionConfig(home, costs=COSTS)))
    policy = replace(policy, large_bytes=10 if step == "scan process" else 1 << 20)
    one = scan_rig(policy, call_soon=later.append, offload=helper)
    stop = one.scanner.scan(request_of(surest["spam"], ENVELOPE), answers.append)
    stop("busy")
    stop("busy")
    turns(later, len(later))
    while helper.jobs:
        helper.work()
    (outcome,) = answers
    assert outcome.action == ("defer" if "unscanned_deferred" in counted else "relay")
    assert {name: one.meters.value(name) for name in COUNTED if one.meters.value(name)} == counted
    helper.model_session.close()


def test_a_scan_that_is_late_in_the_quarantine_is_counted_once(scan_rig, home, surest):
    """Its verdict is known, but no result: it counts as a message without a scan."""
    quarantine, works, answers = Quarantine(home / "quarantine"), [], []
    one = scan_rig(HARSH, quarantine=quarantine, run_in_thread=lambda *both: works.append(both))
    stop = one.scanner.scan(request_of(surest["spam"], ENVELOPE), answers.append)
    stop("busy")
    while works:
        work, then = works.pop(0)
        then(work())
    assert quarantine.messages() == []
    assert [outcome.action for outcome in answers] == ["defer"]
    counted = {name: one.meters.value(name) for name in COUNTED if one.meters.value(name)}
    assert counted == {"unscanned_deferred": 1}
