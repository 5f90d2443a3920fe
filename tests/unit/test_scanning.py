"""Letters to outcomes on a real model: headers, handlings, lists, and every way to fail."""

import json
import os
import resource
import shutil
from dataclasses import replace
from email.parser import BytesParser
from pathlib import Path

import pytest

from spamnb.core.decision import Costs
from spamnb.core.envelope import Client, Envelope
from spamnb.core.handling import Handlings, Treatment
from spamnb.core.message import House
from spamnb.core.stamp import as_delivered, written
from spamnb.errors import SettingsError, StoreBusyError
from spamnb.service.bench import (
    Bench,
    BenchPlan,
    Fault,
    Judgement,
    Nobody,
    digest_of,
    found_of,
    judged_aside,
)
from spamnb.service.filter import Filter, new_recipe
from spamnb.service.letters import Letter
from spamnb.service.meters import Meters
from spamnb.service.quarantine import Quarantine, QuarantineLimits
from spamnb.service.rules import Rules, parse
from spamnb.service.scanning import DEFERRED, REFUSED, Around, LetterScanner, ScanPolicy, notes_of
from spamnb.service.trainer import train
from spamnb.store.environment import DATA_FILE

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
TAUGHT = 150
ENVELOPE = Envelope(
    sender="ann@a.example",
    recipients=("bob@b.example", "carl@c.example"),
    client=Client(address="192.0.2.7", ident="4ABC"),
    mail_line=b"MAIL FROM:<ann@a.example>",
    rcpt_lines=(b"RCPT TO:<bob@b.example>", b"RCPT TO:<carl@c.example>"),
)
COSTS = Costs(reject=(200.0, 0.0))
"""refuses sooner than as shipped: the sample has few messages that are sure enough for that"""
HARSH = ScanPolicy(Treatment(Handlings("headers", "tag", "quarantine", "reject")))


def raws(side, start=0, stop=None):
    return [
        path.read_bytes().replace(b"\n", b"\r\n")
        for path in sorted((SAMPLE / side).iterdir())[start:stop]
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of three quarters of the sample; closed, to be copied."""
    folder = tmp_path_factory.mktemp("scanning")
    for side in ("ham", "spam"):
        (folder / side).mkdir()
        for path in sorted((SAMPLE / side).iterdir())[:TAUGHT]:
            shutil.copy(path, folder / side)
    sources = [(side, str(folder / side)) for side in ("ham", "spam")]
    train(folder / "home", sources, recipe=new_recipe())
    return folder / "home"


@pytest.fixture
def home(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "home")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Desk:
    """A scanner with all that it works with in reach."""

    def __init__(self, home, policy=None, *, plan=None, hand=None, **around):
        self.records = []
        self.clock = Clock()
        self.meters = Meters()
        plan = replace(plan or BenchPlan(home), home=home, costs=COSTS)
        self.bench = Bench(plan, hand=hand, log=self.records.append, clock=self.clock)
        self.around = Around(meters=self.meters, log=self.records.append, **around)
        self.scanner = LetterScanner(self.bench, policy or ScanPolicy(), self.around)

    def scan(self, raw, envelope=ENVELOPE, **letter):
        """The one outcome of a letter."""
        found = []
        self.scanner.scan(Letter(raw, envelope, **letter), found.append)
        (outcome,) = found
        return outcome

    def close(self):
        self.bench.close()


@pytest.fixture
def desk(home):
    """Make desks; close them before the next test."""
    made = []

    def make(policy=None, at=home, **more):
        made.append(Desk(at, policy, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def fields(block):
    return dict(BytesParser().parsebytes(block + b"\r\n").items())


@pytest.fixture(scope="module")
def surest(trained, tmp_path_factory):
    """A new spam and a new ham that the model is surest of, and one that it is unsure of."""
    copy = shutil.copytree(trained, tmp_path_factory.mktemp("surest") / "home")
    new = raws("spam", TAUGHT) + raws("ham", TAUGHT)
    with Filter.open(copy, costs=COSTS) as model:
        verdicts = list(model.score_many(new))
    order = sorted(range(len(new)), key=lambda at: verdicts[at].log_odds)
    unsure = next(at for at in order if verdicts[at].decision == "unsure")
    assert verdicts[order[-1]].decision == "reject"
    return {"ham": new[order[0]], "spam": new[order[-1]], "unsure": new[unsure]}


# --- judged --------------------------------------------------------------------------------------


def test_a_letter_is_judged_as_the_filter_would(desk, home, surest):
    """The same verdict, in headers, in facts and in the history, whose entry knows whose it was."""
    one = desk()
    outcome = one.scan(surest["spam"])
    said = fields(outcome.block)
    facts = outcome.facts
    assert outcome.action == "relay"
    assert said["X-Spam-Flag"] == "YES"
    assert said["X-Spamnb-Signature"] == facts["signature"]
    assert facts["verdict"] == "spam"
    assert (facts["decision"], facts["handling"], facts["reason"]) == ("reject", "headers", "")
    assert facts["scan_ms"] > 0
    one.close()
    with Filter.open(home) as model:
        (entry,) = model.history.recent(5)
        assert entry.notes == {
            "to": "bob@b.example carl@c.example", "client": "192.0.2.7", "queue": "4ABC",
        }  # fmt: skip
        assert model.score(surest["spam"]).probability == pytest.approx(
            facts["probability"], abs=1e-6
        )
        receipt = model.correct(facts["signature"], "ham")
        assert receipt.after == "ham"
    assert [one.meters.value(n) for n in ("scanned", "decision_reject", "handling_headers")] == [
        1, 1, 1,
    ]  # fmt: skip


def test_what_is_judged_is_what_a_mailbox_will_hold(desk, home, surest):
    """Law 8: the message with our headers has the digest that the history knows."""
    hostile = b"A: b\r\njunk\r\nX-Spam-Flag: NO\r\n" + surest["ham"]
    for raw in (surest["ham"], hostile, b" " + surest["ham"], b"From x\r\n" + surest["ham"]):
        one = desk()
        outcome = one.scan(raw)
        one.close()
        with Filter.open(home) as model:
            digest = model.score(written(raw, outcome.block), remember=False).digest
            assert model.history.recent(1)[0].digest == digest
            assert model.score(as_delivered(raw), remember=False).digest == digest


def test_letters_of_one_turn_are_judged_together(desk, home, surest):
    """All are answered, each with its own verdict, with one commit of the history for each few."""
    later = []
    one = desk(later=later.append)
    letters = [surest["spam"], surest["ham"]] * 10
    answers = [[] for _ in letters]
    for raw, answer in zip(letters, answers, strict=True):
        one.scanner.scan(Letter(raw, ENVELOPE), answer.append)
    assert not any(answers)
    turns = 0
    while later:
        later.pop(0)()
        turns += 1
    assert turns == 3
    got = [outcome.facts["verdict"] for answer in answers for outcome in answer]
    assert got == ["spam", "ham"] * 10
    signatures = {answer[0].facts["signature"] for answer in answers}
    assert len(signatures) == 20


def test_a_listener_that_fails_to_take_its_answer_harms_no_other(desk, surest):
    """Its fault is logged; the rest of the turn is answered."""
    later, answers = [], []
    one = desk(later=later.append)

    def broken(outcome):
        raise ValueError(outcome.action)

    one.scanner.scan(Letter(surest["ham"], ENVELOPE), broken)
    one.scanner.scan(Letter(surest["ham"], ENVELOPE), answers.append)
    later.pop(0)()
    assert [outcome.action for outcome in answers] == ["relay"]
    assert [record["where"] for record in one.records] == ["answer"]


def test_a_young_model_is_never_sure(desk, tmp_path, surest):
    """Rule 9: below 20 messages of both labels nothing is stronger than unsure, and it says why."""
    home = tmp_path / "young"
    with Filter.open(home, create=True) as model:
        for raw in raws("spam", 0, 40):
            model.learn(raw, "spam")
        for raw in raws("ham", 0, 19):
            model.learn(raw, "ham")
        model.correct(surest["spam"], "spam")
        assert model.score(surest["spam"]).decision in ("junk", "reject")
    one = desk(HARSH, home)
    outcome = one.scan(surest["spam"])
    assert (outcome.facts["decision"], outcome.facts["reason"]) == ("unsure", "untrained")
    assert fields(outcome.block)["X-Spam-Flag"] == "NO"
    one.close()
    with Filter.open(home) as model:
        model.learn(surest["ham"], "ham")
    assert desk(HARSH, home).scan(surest["spam"]).facts["decision"] in ("junk", "reject")


def test_the_clues_are_shown_where_they_were_asked_for(desk, surest):
    """A number of them, and none by default."""
    assert "X-Spamnb-Clues" not in fields(desk().scan(surest["spam"]).block)
    outcome = desk(plan=BenchPlan(Path(), clues=3)).scan(surest["spam"])
    assert fields(outcome.block)["X-Spamnb-Clues"].count(":") >= 3


# --- handled -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handling", "before", "action"),
    [
        ("headers", True, "relay"),
        ("tag", True, "relay"),
        ("redirect", True, "relay"),
        ("quarantine", True, "keep"),
        ("quarantine", False, "keep"),
        ("reject", True, "refuse"),
        ("reject", False, "relay"),
    ],
)
def test_each_handling_does_what_it_says(desk, home, surest, handling, before, action):
    """Headers always; a tag, a redirect, a place in quarantine or a refusal where it was set."""
    policy = ScanPolicy(Treatment(Handlings("headers", "headers", handling, handling)))
    one = desk(policy, quarantine=Quarantine(home / "quarantine", upstream="x:25"))
    outcome = one.scan(surest["spam"], before_queue=before)
    assert outcome.action == action
    assert fields(outcome.block)["X-Spam-Flag"] == "YES"
    assert outcome.tag == (b"[SPAM] " if handling == "tag" else b"")
    assert ("X-Spamnb-Redirect" in fields(outcome.block)) == (handling == "redirect")
    if action == "refuse":
        assert outcome.reply == REFUSED
    kept = Quarantine(home / "quarantine").messages()
    if action == "keep":
        assert outcome.reply.endswith(kept[0].id.encode())
        assert kept[0].rcpt_lines == ("RCPT TO:<bob@b.example>", "RCPT TO:<carl@c.example>")
        raw = Quarantine(home / "quarantine").raw(kept[0].id)
        assert raw == outcome.block + surest["spam"]
        assert kept[0].facts["decision"] == "reject"
    else:
        assert kept == []
    expected = "headers" if handling == "reject" and not before else handling
    assert one.meters.value(f"handling_{expected}") == 1


@pytest.mark.parametrize("fault", ["limit", "disk", "none"])
def test_a_quarantine_that_takes_nothing_means_deliver_with_headers(desk, home, surest, fault):
    """Full by its limit, by the disk, or not set up: the message reaches its people, marked."""
    folder = home / "quarantine"
    limits = QuarantineLimits(limit_bytes=10) if fault == "limit" else None
    one = desk(HARSH, quarantine=None if fault == "none" else Quarantine(folder, limits))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    one.scan(surest["ham"])
    try:
        if fault == "disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
            one.bench._history_next = 1e9  # its files are not what this is about
        outcome = one.scan(surest["spam"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert outcome.action == "relay"
    assert fields(outcome.block)["X-Spam-Flag"] == "YES"
    assert outcome.facts["handling"] == "headers"
    assert outcome.facts["reason"] == ("quarantine-fault" if fault == "none" else "quarantine-full")
    assert outcome.facts["incident"] == one.records[-1]["incident"]
    assert Quarantine(folder).messages() == []


def test_observing_adds_the_signature_and_nothing_else(desk, surest):
    """The facts tell what would have happened."""
    one = desk(replace(HARSH, observe=True))
    outcome = one.scan(surest["spam"], before_queue=True)
    assert outcome.action == "relay"
    assert set(fields(outcome.block)) == {"X-Spamnb-Signature"}
    assert outcome.facts["handling"] == "reject"
    assert outcome.facts["observed"]
    assert (one.meters.value("observed"), one.meters.value("handling_reject")) == (1, 0)


@pytest.mark.parametrize(
    ("client", "observed"),
    [
        (Client(address="198.51.100.9"), True),
        (Client(address="192.0.2.7", source="LOCAL"), True),
        (Client(address="192.0.2.7", source="REMOTE"), False),
        (Client(address="127.0.0.1"), False),
    ],
)
def test_what_our_own_people_send_leaves_without_our_word(desk, surest, client, observed):
    """By network or by XFORWARD; a loopback address alone is every message behind Postfix."""
    one = desk(replace(HARSH, own_clients=("198.51.100.0/24",)))
    outcome = one.scan(surest["spam"], replace(ENVELOPE, client=client), before_queue=True)
    assert (outcome.action == "relay") == observed
    assert ("X-Spam-Flag" not in fields(outcome.block)) == observed


def test_what_a_mail_server_calls_local_can_be_judged(desk, surest):
    """Where fetchmail or a test hands strangers' mail to Postfix on its own machine."""
    envelope = replace(ENVELOPE, client=Client(address="127.0.0.1", source="LOCAL"))
    outcome = desk(ScanPolicy(local="judge")).scan(surest["spam"], envelope)
    assert fields(outcome.block)["X-Spam-Flag"] == "YES"


def test_lists_decide_and_are_named(desk, surest):
    """Allowed spam is delivered, blocked ham refused; headers agree, and give nothing away."""
    one = desk(HARSH, rules=Rules(allow=parse("client 192.0.2.0/24", "a")))
    outcome = one.scan(surest["spam"], before_queue=True)
    said = fields(outcome.block)
    assert outcome.action == "relay"
    assert (said["X-Spam-Flag"], float(said["X-Spam-Score"]) < 5) == ("NO", True)
    assert said["X-Spamnb-Verdict"].endswith("decision=deliver; reason=allow-client")
    assert outcome.facts["rule"] == "192.0.2.0/24"
    one.close()
    one = desk(HARSH, rules=Rules(block=parse("sender ann@a.example", "b")))
    outcome = one.scan(surest["ham"], before_queue=True)
    assert (outcome.action, outcome.facts["reason"]) == ("refuse", "block-sender")
    assert b"ann" not in outcome.block


def test_a_list_believes_our_own_servers_alone(desk, surest):
    """The house of the bench is the house of the lists."""
    head = b"Authentication-Results: mx.example; dkim=pass header.d=pals.example\r\n"
    raw = head + b"From: joe@pals.example\r\nSubject: x\r\n\r\n" + surest["spam"]
    rules = Rules(allow=parse("domain pals.example", "a"))
    assert desk(rules=rules).scan(raw).facts["reason"] != "allow-domain"
    plan = BenchPlan(Path(), house=House(authserv_ids=("mx.example",)))
    assert desk(rules=rules, plan=plan).scan(raw).facts["reason"] == "allow-domain"


def test_new_settings_hold_for_new_letters(desk, surest):
    """A reload needs no new scanner."""
    one = desk()
    assert one.scan(surest["spam"], before_queue=True).action == "relay"
    one.scanner.renew(HARSH, one.around)
    assert one.scan(surest["spam"], before_queue=True).action == "refuse"


def test_a_tag_is_one_plain_line():
    """Or the subject would end where a setting wants it."""
    for bad in ("a\r\nX-Spam-Flag: NO", "caf\xe9"):
        with pytest.raises(SettingsError, match="the tag"):
            ScanPolicy(tag=bad)
        with pytest.raises(SettingsError, match="the redirect"):
            ScanPolicy(redirect=bad)


def test_notes_hold_no_more_than_they_may():
    """50,000 recipients are not 50,000 words in the history; a quoted blank makes no two of one."""
    many = Envelope(recipients=('"x alice@a.example"@b.example', *["bob@b.example"] * 50_000))
    notes = notes_of(Letter(b"", many))
    assert len(notes["to"]) < 17_000
    assert "alice" not in notes["to"]
    assert notes_of(Letter(b"", Envelope())) == {}


# --- not judged ----------------------------------------------------------------------------------


def test_bypass_passes_all_mail_at_once(desk, surest):
    """Nothing is opened, nothing is judged, and the header says so."""
    one = desk(HARSH, at=Path("/nowhere"), bypassed=lambda: True)
    outcome = one.scan(surest["spam"])
    assert outcome.block == b"X-Spamnb-Verdict: unscanned; reason=bypass\r\n"
    assert one.meters.value("unscanned") == 1
    assert one.records == []


def test_a_message_above_the_limit_passes_or_is_judged_by_its_head(desk, surest):
    """By policy; what was not seen whole is never kept."""
    outcome = desk().scan(surest["spam"], whole=False)
    assert outcome.block == b"X-Spamnb-Verdict: unscanned; reason=large\r\n"
    outcome = desk(replace(HARSH, oversize="head")).scan(surest["spam"], whole=False)
    assert (outcome.action, outcome.facts["handling"], outcome.tag) == ("relay", "tag", b"[SPAM] ")


class Hand(Nobody):
    """Remembers in this process what a board remembers in shared memory."""

    def __init__(self):
        self.poison, self.held, self.seen = set(), [], []

    def is_poisonous(self, digest):
        return digest in self.poison

    def hold(self, digest):
        self.held.append(digest)
        self.seen.append(digest)

    def release(self):
        self.held.clear()


def test_a_message_that_killed_a_process_passes_at_once(desk, surest):
    """Its digest was in hand while it was judged, and its companions are judged as ever."""
    hand, later, answers = Hand(), [], []
    one = desk(replace(HARSH, on_fault="defer"), hand=hand, later=later.append)
    hand.poison.add(digest_of(surest["unsure"]))
    for raw in (surest["ham"], surest["unsure"]):
        one.scanner.scan(Letter(raw, ENVELOPE), answers.append)
    later.pop(0)()
    assert [outcome.facts["verdict"] for outcome in answers] == ["ham", "unscanned"]
    assert answers[1].block == b"X-Spamnb-Verdict: unscanned; reason=poison\r\n"
    assert hand.seen == [digest_of(surest["ham"])]
    assert hand.held == []


class Helper:
    """Judges aside, when it is told to, as a process of its own would: through JSON."""

    def __init__(self, bench):
        self.bench, self.jobs = bench, []

    def submit(self, raw, notes, done):
        self.jobs.append((raw, notes, done))

    def work(self):
        raw, notes, done = self.jobs.pop(0)
        done(json.loads(json.dumps(judged_aside(self.bench, raw, notes))))


def test_large_messages_are_judged_aside(desk, home, surest):
    """Meanwhile others are judged here; the answer is the same as if it were judged here."""
    plan = BenchPlan(home, costs=COSTS, clues=2)
    helper = Helper(Bench(plan))
    one = desk(ScanPolicy(large_bytes=10_000), offload=helper, plan=plan)
    large = surest["spam"] + b"more\r\n" * 3_000
    answers = []
    one.scanner.scan(Letter(large, ENVELOPE), answers.append)
    assert one.scan(surest["ham"]).facts["verdict"] == "ham"
    assert answers == []
    helper.work()
    (outcome,) = answers
    here = desk(plan=plan).scan(large)
    for block in (outcome.block, here.block):
        assert b"X-Spamnb-Clues" in block
    without = [
        [line for line in block.split(b"\r\n") if b"Signature" not in line]
        for block in (outcome.block, here.block)
    ]
    assert without[0] == without[1]
    helper.bench.close()


@pytest.mark.parametrize("reason", ["overrun", "busy", "fault", "nonsense"])
def test_a_helper_that_fails_falls_back_by_policy(desk, surest, reason):
    """Delivered with a header that says so, or deferred; counted once."""
    for policy, action in ((ScanPolicy(), "relay"), (ScanPolicy(on_fault="defer"), "defer")):
        helper = Helper(None)
        one = desk(replace(policy, large_bytes=10), offload=helper)
        answers = []
        one.scanner.scan(Letter(surest["ham"], ENVELOPE), answers.append)
        helper.jobs.pop()[2]({"reason": reason, "incident": "abc"})
        (outcome,) = answers
        if reason != "nonsense":
            assert outcome.action == action
            assert one.meters.value("faults") == 1
        assert outcome.facts["incident"] == "abc"
        assert one.meters.value("scan_overruns") == (reason == "overrun")
        if outcome.action == "relay":
            assert outcome.block.startswith(b"X-Spamnb-Verdict: unscanned; reason=")
            assert b"nonsense" not in outcome.block


def test_a_helper_that_answers_nonsense_or_raises_is_a_fault(desk, surest):
    """Whatever it says, the sender has an answer, and just one."""
    helper = Helper(None)
    one = desk(ScanPolicy(large_bytes=10), offload=helper)
    for answer in ({}, {"decision": "x"}, {"decision": "deliver", "more": 1}):
        answers = []
        one.scanner.scan(Letter(surest["ham"], ENVELOPE), answers.append)
        done = helper.jobs.pop()[2]
        done(answer)
        done({"reason": "overrun"})
        assert [outcome.facts["reason"] for outcome in answers] == ["fault"]
    helper.submit = None
    assert one.scan(surest["ham"]).facts["reason"] == "fault"


def test_findings_travel_as_json():
    """What a helper says is what its worker hears."""
    for found in (Fault("model", "abc"), Judgement("spam", 0.5, 0.0, "unsure", "s", "untrained")):
        assert found_of(json.loads(json.dumps(_plain(found)))) == found


def _plain(found):
    from dataclasses import asdict

    return asdict(found)


# --- a model that goes and comes -----------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "garbage", "refused"])
@pytest.mark.parametrize("on_fault", ["deliver", "defer"])
def test_without_a_model_mail_falls_back_by_policy(desk, home, surest, damage, on_fault):
    """Each message is answered at once; the model is asked for again later, not each time."""
    data = home / DATA_FILE
    whole = data.read_bytes()
    if damage == "missing":
        data.unlink()
    elif damage == "refused":
        data.unlink()
        data.mkdir()
    else:
        data.write_bytes({"empty": b"", "torn": whole[:20_000], "garbage": b"x" * 50_000}[damage])
    one = desk(replace(HARSH, on_fault=on_fault))
    for _ in range(3):
        outcome = one.scan(surest["spam"])
        assert outcome.facts["reason"] == "model"
        if on_fault == "deliver":
            assert outcome.block == b"X-Spamnb-Verdict: unscanned; reason=model\r\n"
        else:
            assert (outcome.action, outcome.reply) == ("defer", DEFERRED)
    assert [record["where"] for record in one.records] == ["model"]
    if damage == "refused":
        data.rmdir()
    data.write_bytes(whole)
    (home / "lock.mdb").unlink(missing_ok=True)
    assert one.scan(surest["ham"]).facts["verdict"] == "unscanned"
    one.clock.now = 1.1
    assert one.scan(surest["ham"]).facts["verdict"] == "ham"


def test_the_pauses_between_tries_grow_to_a_minute(desk, tmp_path, surest):
    """A model that stays away costs one try a minute."""
    one = desk(at=tmp_path / "nothing")
    tries = []
    for second in range(400):
        one.clock.now = float(second)
        before = len(one.records)
        one.scan(surest["ham"])
        if len(one.records) > before:
            tries.append(second)
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]


def test_a_model_that_was_replaced_is_noticed(desk, home, tmp_path, surest):
    """Restored, or rewound: within a second the new one is in force."""
    one = desk()
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


def test_a_message_whose_scan_fails_passes_and_its_companions_are_judged(desk, surest, monkeypatch):
    """One incident, found again in the log; nothing internal in the header."""
    later, answers = [], []
    one = desk(later=later.append)
    real = Filter.judge

    def failing(self, portions):
        if any(m.digest == bad for portion in portions for m in portion.messages):
            raise ValueError("secret path /var/lib")
        return real(self, portions)

    one.bench.prepare()
    bad = one.bench._model.reader.portion([surest["unsure"]]).messages[0].digest
    monkeypatch.setattr(Filter, "judge", failing)
    for name in ("ham", "unsure", "spam"):
        one.scanner.scan(Letter(surest[name], ENVELOPE), answers.append)
    later.pop(0)()
    got = [outcome.facts["verdict"] for outcome in answers]
    assert got == ["ham", "unscanned", "spam"]
    assert answers[1].block == b"X-Spamnb-Verdict: unscanned; reason=fault\r\n"
    (record,) = one.records
    assert answers[1].facts["incident"] == record["incident"]
    assert "secret path" in record["error"]
    assert "secret" not in str(answers[1])


@pytest.mark.parametrize("step", ["rules", "treatment", "block", "bypass", "later", "notes"])
def test_a_fault_at_any_other_step_is_answered_once(desk, surest, monkeypatch, step):
    """Whatever breaks, by policy, and never twice."""
    from spamnb.service import scanning

    def broken(*_, **__):
        raise RuntimeError(step)

    around = {"bypass": {"bypassed": broken}, "later": {"later": broken}}.get(step, {})
    one = desk(replace(HARSH, on_fault="defer"), **around)
    places = {
        "rules": (Rules, "on"),
        "treatment": (Treatment, "of"),
        "block": (scanning, "block_of"),
        "notes": (scanning, "notes_of"),
    }
    if step in places:
        monkeypatch.setattr(*places[step], broken)
    outcome = one.scan(surest["spam"])
    assert (outcome.action, outcome.reply) == ("defer", DEFERRED)
    assert outcome.facts["incident"] == one.records[0]["incident"]
    assert one.meters.value("faults") == 1
    monkeypatch.undo()
    one.scanner.renew(HARSH, Around())
    assert one.scan(surest["spam"]).facts["verdict"] == "spam"


def test_a_history_that_is_full_costs_the_signature_alone(desk, home, surest):
    """A disk that takes no more: the verdict stands, and the history is asked again later."""
    one = desk()
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
    assert b"Signature" not in unsigned[-1].block
    assert [record["where"] for record in one.records] == ["history"]
    one.clock.now = 11.0
    assert one.scan(surest["ham"]).facts["signature"]


def test_a_history_that_cannot_be_opened_costs_the_signature_alone(desk, home, surest):
    """A file where its folder should be: logged once, verdicts go on."""
    shutil.rmtree(home / "history", ignore_errors=True)
    (home / "history").write_text("in the way")
    one = desk()
    for _ in range(2):
        outcome = one.scan(surest["spam"])
        assert (outcome.facts["verdict"], outcome.facts["signature"]) == ("spam", "")
    assert [record["where"] for record in one.records] == ["history"]


def test_a_busy_store_is_no_reason_to_close_it(desk, surest, monkeypatch):
    """All reader slots taken: this message falls back, the next is judged."""
    one = desk()
    one.scan(surest["ham"])
    with monkeypatch.context() as patch:
        patch.setattr(Filter, "judge", lambda *_: (_ for _ in ()).throw(StoreBusyError("slots")))
        assert one.scan(surest["ham"]).facts["reason"] == "fault"
    assert one.scan(surest["ham"]).facts["verdict"] == "ham"


def test_a_scanner_reads_while_another_process_writes(desk, home, surest):
    """The learner's teaching is in force with the next message."""
    one = desk()
    assert one.scan(surest["spam"]).facts["verdict"] == "spam"
    path = home.parent / "one.eml"
    path.write_bytes(surest["spam"])
    code = os.spawnl(
        os.P_WAIT, shutil.which("env"), "env", os.sys.executable, "-m", "spamnb",
        "--home", str(home), "correct", "ham", str(path),
    )  # fmt: skip
    assert code == 0
    assert one.scan(surest["spam"]).facts["verdict"] == "ham"
