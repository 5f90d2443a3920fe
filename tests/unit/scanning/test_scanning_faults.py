"""Faults at every step of a scan: the policy decides, and the fault is logged once."""

import json
import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.scanning import COSTS, ENVELOPE, HARSH, TAUGHT, Helper, raws, request_of, scanner_deps

from spamnb.engine.filter import Filter
from spamnb.errors import StoreBusyError
from spamnb.policy.actions import ActionPolicy
from spamnb.policy.headers import ScanVerdict, as_block
from spamnb.scan.access_lists import AccessLists
from spamnb.scan.judge import (
    ModelSession,
    NoCrashRegister,
    ScanFault,
    SessionConfig,
    digest_of,
    verdict_from_json,
)
from spamnb.scan.scanner import BUSY_REPLY, DEFERRED_REPLY, ScanPolicy
from spamnb.store.model_store import DATA_FILE

REPLIES = {DEFERRED_REPLY, BUSY_REPLY}


class Register(NoCrashRegister):
    """Remembers in this process what the daemon keeps in shared memory."""

    def __init__(self):
        self.known_crasher, self.held, self.seen = set(), [], []

    def is_known_crasher(self, digest):
        return digest in self.known_crasher

    def mark(self, digest):
        self.held.append(digest)
        self.seen.append(digest)

    def release(self):
        self.held.clear()


def test_a_message_that_killed_a_process_is_not_scanned_again(scan_rig, surest):
    """Each message is marked during its scan; the others of the batch are scanned as usual."""
    register, later, answers = Register(), [], []
    policy = replace(HARSH, on_fault="defer", known_crasher="deliver")
    one = scan_rig(policy, crash_register=register, call_soon=later.append)
    register.known_crasher.add(digest_of(surest["unsure"]))
    for raw in (surest["ham"], surest["unsure"]):
        one.scanner.scan(request_of(raw, ENVELOPE), answers.append)
    later.pop(0)()
    assert [outcome.facts["verdict"] for outcome in answers] == ["ham", "unscanned"]
    assert as_block(answers[1].add) == b"X-Spamnb-Verdict: unscanned; reason=known_crasher\r\n"
    assert register.seen == [digest_of(surest["ham"])]
    assert register.held == []


def test_large_messages_are_judged_aside(scan_rig, home, surest):
    """The worker scans other messages meanwhile; the result equals a scan in the worker."""
    plan = SessionConfig(home, costs=COSTS, clues=2)
    helper = Helper(ModelSession(plan))
    one = scan_rig(ScanPolicy(large_bytes=10_000), offload=helper, plan=plan)
    large = surest["spam"] + b"more\r\n" * 3_000
    answers = []
    one.scanner.scan(request_of(large, ENVELOPE), answers.append)
    assert one.scan(surest["ham"]).facts["verdict"] == "ham"
    assert answers == []
    helper.work()
    (outcome,) = answers
    here = scan_rig(plan=plan).scan(large)
    for block in (as_block(outcome.add), as_block(here.add)):
        assert b"X-Spamnb-Clues" in block
    without = [
        [line for line in block.split(b"\r\n") if b"Signature" not in line]
        for block in (as_block(outcome.add), as_block(here.add))
    ]
    assert without[0] == without[1]
    helper.model_session.close()


@pytest.mark.parametrize("reason", ["overrun", "busy", "fault", "nonsense"])
def test_a_helper_that_fails_falls_back_by_policy(scan_rig, surest, reason):
    """Delivered with a header that says so, or deferred; counted once."""
    policies = {
        "relay": ScanPolicy(busy="deliver", overrun="deliver"),
        "defer": ScanPolicy(on_fault="defer"),
    }
    for action, policy in policies.items():
        helper = Helper(None)
        one = scan_rig(replace(policy, large_bytes=10), offload=helper)
        answers = []
        one.scanner.scan(request_of(surest["ham"], ENVELOPE), answers.append)
        helper.jobs.pop()[2]({"reason": reason, "incident": "abc"})
        (outcome,) = answers
        if reason != "nonsense":
            assert outcome.action == action
            assert one.meters.value("faults") == (reason != "busy")
            assert one.meters.value(f"unscanned_{reason}") == (action == "relay")
            assert one.meters.value("unscanned_deferred") == (action == "defer")
            assert outcome.reply in {"relay": {b""}, "defer": REPLIES}[action]
        assert outcome.facts["incident"] == "abc"
        assert one.meters.value("scan_overruns") == (reason == "overrun")
        if outcome.action == "relay":
            assert as_block(outcome.add).startswith(b"X-Spamnb-Verdict: unscanned; reason=")
            assert b"nonsense" not in as_block(outcome.add)


def test_a_helper_that_answers_nonsense_or_raises_is_a_fault(scan_rig, surest):
    """Whatever it says, the sender has an answer, and just one."""
    helper = Helper(None)
    one = scan_rig(ScanPolicy(large_bytes=10), offload=helper)
    for answer in ({}, {"decision": "x"}, {"decision": "deliver", "more": 1}):
        answers = []
        one.scanner.scan(request_of(surest["ham"], ENVELOPE), answers.append)
        done = helper.jobs.pop()[2]
        done(answer)
        done({"reason": "overrun"})
        assert [outcome.facts["reason"] for outcome in answers] == ["fault"]
    helper.submit = None
    assert one.scan(surest["ham"]).facts["reason"] == "fault"


def test_findings_travel_as_json():
    """The worker gets the result of the scan process unchanged."""
    for found in (
        ScanFault("model", "abc"),
        ScanVerdict("spam", 0.5, 0.0, "unsure", "s", "untrained"),
    ):
        assert verdict_from_json(json.loads(json.dumps(found._asdict()))) == found


# --- a model that goes and comes -----------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "garbage", "refused"])
@pytest.mark.parametrize("on_fault", ["deliver", "defer"])
def test_without_a_model_mail_falls_back_by_policy(scan_rig, home, surest, damage, on_fault):
    """Each message gets its result immediately; the model is tried again after a while."""
    data = home / DATA_FILE
    whole = data.read_bytes()
    if damage == "missing":
        data.unlink()
    elif damage == "refused":
        data.unlink()
        data.mkdir()
    else:
        data.write_bytes({"empty": b"", "torn": whole[:20_000], "garbage": b"x" * 50_000}[damage])
    one = scan_rig(replace(HARSH, on_fault=on_fault))
    for _ in range(3):
        outcome = one.scan(surest["spam"])
        assert outcome.facts["reason"] == "model"
        if on_fault == "deliver":
            assert as_block(outcome.add) == b"X-Spamnb-Verdict: unscanned; reason=model\r\n"
        else:
            assert (outcome.action, outcome.reply) == ("defer", DEFERRED_REPLY)
    assert [record["where"] for record in one.records] == ["model"]
    if damage == "refused":
        data.rmdir()
    data.write_bytes(whole)
    (home / "lock.mdb").unlink(missing_ok=True)
    assert one.scan(surest["ham"]).facts["verdict"] == "unscanned"
    one.clock.now = 1.1
    assert one.scan(surest["ham"]).facts["verdict"] == "ham"


def test_the_pauses_between_tries_grow_to_a_minute(scan_rig, tmp_path, surest):
    """A model that stays away costs one try a minute."""
    one = scan_rig(at=tmp_path / "nothing")
    tries = []
    for second in range(400):
        one.clock.now = float(second)
        before = len(one.records)
        one.scan(surest["ham"])
        if len(one.records) > before:
            tries.append(second)
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]


def test_a_model_that_was_replaced_is_noticed(scan_rig, home, tmp_path, surest):
    """Restored, or rewound: within a second the new one is in force."""
    one = scan_rig()
    assert one.scan(surest["ham"]).facts["verdict"] == "ham"
    other = tmp_path / "other"
    with Filter.open(other, create=True) as model:
        for ham, spam in zip(raws("ham", 0, 30), raws("spam", 0, 30), strict=True):
            model.learn(ham, "spam")
            model.learn(spam, "ham")
    (other / DATA_FILE).rename(home / DATA_FILE)
    one.clock.now = 2.0
    assert one.scan(surest["ham"]).facts["verdict"] == "spam"
    (home / DATA_FILE).unlink()
    one.clock.now = 4.0
    assert one.scan(surest["ham"]).facts["verdict"] == "spam"


# --- faults on the way ---------------------------------------------------------------------------


def test_a_failed_scan_passes_its_message_and_the_batch_is_scanned(scan_rig, surest, monkeypatch):
    """One incident, found again in the log; nothing internal in the header."""
    later, answers = [], []
    one = scan_rig(call_soon=later.append)
    real = Filter.score_batches

    def failing(self, feature_batches):
        if any(
            m.digest == bad for feature_batch in feature_batches for m in feature_batch.messages
        ):
            raise ValueError("secret path /var/lib")
        return real(self, feature_batches)

    one.model_session.prepare()
    bad = one.model_session._model.reader.feature_batch([surest["unsure"]]).messages[0].digest
    monkeypatch.setattr(Filter, "score_batches", failing)
    for name in ("ham", "unsure", "spam"):
        one.scanner.scan(request_of(surest[name], ENVELOPE), answers.append)
    later.pop(0)()
    got = [outcome.facts["verdict"] for outcome in answers]
    assert got == ["ham", "unscanned", "spam"]
    assert as_block(answers[1].add) == b"X-Spamnb-Verdict: unscanned; reason=fault\r\n"
    (record,) = one.records
    assert answers[1].facts["incident"] == record["incident"]
    assert "secret path" in record["error"]
    assert "secret" not in str(answers[1])


@pytest.mark.parametrize("step", ["rules", "treatment", "block", "bypass", "call_soon", "notes"])
def test_a_fault_at_any_other_step_is_answered_once(scan_rig, surest, monkeypatch, step):
    """Whatever breaks, by policy, and never twice."""
    from spamnb.scan import scanner as scanning

    def broken(*_, **__):
        raise RuntimeError(step)

    around = {"bypass": {"bypassed": broken}, "call_soon": {"call_soon": broken}}.get(step, {})
    one = scan_rig(replace(HARSH, on_fault="defer"), **around)
    places = {
        "rules": (AccessLists, "on"),
        "treatment": (ActionPolicy, "of"),
        "block": (scanning, "scanned_fields"),
        "notes": (scanning, "notes_of"),
    }
    if step in places:
        monkeypatch.setattr(*places[step], broken)
    outcome = one.scan(surest["spam"])
    assert (outcome.action, outcome.reply) == ("defer", DEFERRED_REPLY)
    assert outcome.facts["incident"] == one.records[0]["incident"]
    assert one.meters.value("faults") == 1
    monkeypatch.undo()
    one.scanner.apply_settings(HARSH, scanner_deps(one.model_session))
    assert one.scan(surest["spam"]).facts["verdict"] == "spam"


def test_a_history_that_is_full_costs_the_signature_alone(scan_rig, home, surest):
    """A disk that takes no more: the verdict stands, and the history is asked again later."""
    one = scan_rig()
    assert one.scan(surest["ham"]).facts["signature"]
    size = (home / "history" / DATA_FILE).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        outcomes = [one.scan(raw) for raw in raws("ham", TAUGHT, TAUGHT + 40)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {outcome.facts["verdict"] for outcome in outcomes} <= {"ham", "spam"}
    unsigned = [outcome for outcome in outcomes if not outcome.facts["signature"]]
    assert unsigned
    assert b"Signature" not in as_block(unsigned[-1].add)
    assert [record["where"] for record in one.records] == ["history"]
    one.clock.now = 11.0
    assert one.scan(surest["ham"]).facts["signature"]


def test_a_history_that_cannot_be_opened_costs_the_signature_alone(scan_rig, home, surest):
    """A file where its folder should be: logged once, verdicts go on."""
    shutil.rmtree(home / "history", ignore_errors=True)
    (home / "history").write_text("in the way")
    one = scan_rig()
    for _ in range(2):
        outcome = one.scan(surest["spam"])
        assert (outcome.facts["verdict"], outcome.facts["signature"]) == ("spam", "")
    assert [record["where"] for record in one.records] == ["history"]


def test_a_busy_store_is_no_reason_to_close_it(scan_rig, surest, monkeypatch):
    """Without a free reader slot this message gets the fallback; the next one is scanned."""
    one = scan_rig()
    one.scan(surest["ham"])
    with monkeypatch.context() as patch:
        patch.setattr(
            Filter, "score_batches", lambda *_: (_ for _ in ()).throw(StoreBusyError("slots"))
        )
        assert one.scan(surest["ham"]).facts["reason"] == "fault"
    assert one.scan(surest["ham"]).facts["verdict"] == "ham"


def test_a_scanner_reads_while_another_process_writes(scan_rig, home, surest):
    """The learner's teaching is in force with the next message."""
    one = scan_rig()
    assert one.scan(surest["spam"]).facts["verdict"] == "spam"
    path = home.parent / "one.eml"
    path.write_bytes(surest["spam"])
    code = os.spawnl(
        os.P_WAIT, shutil.which("env"), "env", os.sys.executable, "-m", "spamnb",
        "--home", str(home), "correct", "ham", str(path),
    )  # fmt: skip
    assert code == 0
    assert one.scan(surest["spam"]).facts["verdict"] == "ham"


# --- waiting, and judging by less ----------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_a_message_that_ended_a_process_is_judged_by_its_header(scan_rig, home, surest, whole):
    """Its body is not tried again, so it does not pass unscanned; only its header may fail too."""
    register = Register()
    helper = Helper(ModelSession(SessionConfig(home, costs=COSTS), crash_register=register))
    policy = ScanPolicy(large_bytes=len(surest["spam"]) - 1)
    one = scan_rig(policy, crash_register=register, offload=helper)
    register.known_crasher.add(digest_of(surest["spam"]))
    answers = []
    one.scanner.scan(request_of(surest["spam"], ENVELOPE, whole=whole), answers.append)
    ((header, *_),) = helper.jobs
    assert surest["spam"].startswith(header)
    assert header.endswith(b"\r\n\r\n")
    register.known_crasher.add(digest_of(header))
    helper.work()
    assert answers[0].facts["reason"] == "known_crasher"
    assert one.meters.value("unscanned_known_crasher") == 1
    register.known_crasher.discard(digest_of(header))
    one.scanner.scan(request_of(surest["spam"], ENVELOPE, whole=whole), answers.append)
    helper.work()
    assert answers[1].facts["reason"] == "head"
    assert answers[1].facts["verdict"] in {"ham", "spam"}
    helper.model_session.close()


def test_a_small_message_that_ended_a_worker_is_judged_by_its_header_elsewhere(
    scan_rig, home, surest
):
    """Not in the worker: its header may be what ended it."""
    register, later, answers = Register(), [], []
    helper = Helper(ModelSession(SessionConfig(home, costs=COSTS)))
    one = scan_rig(crash_register=register, offload=helper, call_soon=later.append)
    register.known_crasher.add(digest_of(surest["ham"]))
    one.scanner.scan(request_of(surest["ham"], ENVELOPE), answers.append)
    later.pop()()
    helper.work()
    assert answers[0].facts["reason"] == "head"
    helper.model_session.close()


@pytest.mark.parametrize("known_crasher", ["deliver", "defer"])
def test_what_ended_a_process_passes_or_waits_where_the_policy_says_so(
    scan_rig, surest, known_crasher
):
    """Without another scan."""
    register = Register()
    one = scan_rig(
        ScanPolicy(known_crasher=known_crasher), crash_register=register, offload=Helper(None)
    )
    register.known_crasher.add(digest_of(surest["ham"]))
    outcome = one.scan(surest["ham"])
    assert outcome.action == {"deliver": "relay", "defer": "defer"}[known_crasher]
    assert outcome.facts["reason"] == "known_crasher"


def test_an_observed_message_is_never_deferred(scan_rig, surest):
    """Its verdict would change nothing, so a fault does not delay it."""
    one = scan_rig(ScanPolicy(observe=True, on_fault="defer"), at=Path("/nowhere"))
    outcome = one.scan(surest["ham"])
    assert (outcome.action, as_block(outcome.add)) == ("relay", b"")
