"""Scan results on a real model: headers, actions, lists."""

import math
import resource
import struct
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from support.history import recent
from support.scanning import ENVELOPE, HARSH, as_delivered, fields, raws, request_of

from spamnb.engine.filter import OWNER, Filter
from spamnb.errors import SettingsError, StoreFullError
from spamnb.mail.envelope import Client, Envelope, LocalHosts
from spamnb.maintenance.export import export, merge, read_export
from spamnb.operations.listings import verdict_facts
from spamnb.policy.actions import LEAST_MESSAGES, ActionMap, ActionPolicy
from spamnb.policy.headers import add_to_message, as_block, marked_message_id
from spamnb.records.verdicts import History
from spamnb.scan.access_lists import AccessLists, parse
from spamnb.scan.judge import (
    SessionConfig,
    notes_of,
)
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.scanner import REFUSED_REPLY, ScanPolicy
from spamnb.scan.values import ScanRequest
from spamnb.settings.values import QuarantineLimits

# --- judged --------------------------------------------------------------------------------------


def test_a_message_is_scored_as_the_filter_would(scan_rig, home, surest):
    """The same verdict, in headers, in facts and in the history, with the recipients."""
    one = scan_rig()
    outcome = one.scan(surest["spam"])
    headers = fields(as_block(outcome.add))
    facts = outcome.facts
    assert outcome.action == "relay"
    assert headers["X-Spam-Flag"] == "YES"
    assert headers["X-Spamnb-Signature"] == facts["signature"]
    assert facts["verdict"] == "spam"
    assert (facts["decision"], facts["mail_action"], facts["reason"]) == ("reject", "headers", "")
    assert facts["scan_ms"] > 0
    one.close()
    with Filter.open(home) as model:
        (entry,) = recent(model.history, 5)
        names = ("from", "header_from", "subject", "size", "known")
        described = {name: entry.notes.pop(name) for name in names}
        assert entry.notes == {
            "to": "bob@b.example carl@c.example", "client": "192.0.2.7", "queue": "4ABC",
        "actions": "headers headers headers headers",
        }  # fmt: skip
        assert 0 < int(described["known"]) <= 100
        assert described["from"] == "ann@a.example"
        assert described["header_from"] in surest["spam"].decode()
        assert described["subject"] in surest["spam"].decode()
        assert int(described["size"]) > len(described["subject"]) > 0
        assert model.score(surest["spam"]).probability == pytest.approx(
            facts["probability"], abs=1e-6
        )
        receipt = model.correct(facts["signature"], "ham")
        assert receipt.after == "ham"
    assert [one.meters.value(n) for n in ("scanned", "decision_reject", "mail_action_headers")] == [
        1, 1, 1,
    ]  # fmt: skip


def test_what_is_judged_is_what_a_mailbox_will_hold(scan_rig, home, surest):
    """Law 8: the message with the added headers has the digest that the history knows."""
    hostile = b"A: b\r\njunk\r\nX-Spam-Flag: NO\r\n" + surest["ham"]
    for raw in (surest["ham"], hostile, b" " + surest["ham"], b"From x\r\n" + surest["ham"]):
        one = scan_rig()
        outcome = one.scan(raw)
        one.close()
        with Filter.open(home) as model:
            digest = model.score(add_to_message(raw, outcome.add), remember=False).digest
            assert recent(model.history, 1)[0].digest == digest
            assert model.score(as_delivered(raw), remember=False).digest == digest


def test_messages_of_one_turn_are_scored_together(scan_rig, home, surest):
    """All are answered, each with its own verdict, with one write to the history for each few."""
    later = []
    one = scan_rig(call_soon=later.append)
    requests = [surest["spam"], surest["ham"]] * 10
    answers = [[] for _ in requests]
    for raw, answer in zip(requests, answers, strict=True):
        one.scanner.scan(request_of(raw, ENVELOPE), answer.append)
    assert not any(answers)
    turns = 0
    while later:
        later.pop(0)()
        turns += 1
    assert turns == 2
    got = [outcome.facts["verdict"] for answer in answers for outcome in answer]
    assert got == ["spam", "ham"] * 10
    signatures = {answer[0].facts["signature"] for answer in answers}
    assert len(signatures) == 20


def test_a_listener_that_fails_to_take_its_answer_harms_no_other(scan_rig, surest):
    """The fault of one message is logged; the other messages of the batch get verdicts."""
    later, answers = [], []
    one = scan_rig(call_soon=later.append)

    def broken(outcome):
        raise ValueError(outcome.action)

    one.scanner.scan(request_of(surest["ham"], ENVELOPE), broken)
    one.scanner.scan(request_of(surest["ham"], ENVELOPE), answers.append)
    later.pop(0)()
    assert [outcome.action for outcome in answers] == ["relay"]
    assert [record["where"] for record in one.records] == ["answer"]


def test_a_model_of_imported_counts_alone_is_never_sure(scan_rig, tmp_path, surest):
    """Rule 9 counts own messages: an import of thousands does not make a decision stronger."""
    home, trained = tmp_path / "imported", tmp_path / "trained"
    with Filter.open(trained, create=True) as model:
        for number in range(60):
            for label in ("ham", "spam"):
                model.learn(raws(label, number, number + 1)[0], label)
        exported = read_export(export(model.store))
        recipe = model.recipe
    with Filter.open(home, create=True, recipe=recipe) as model:
        merge(model, exported, source=OWNER)
        assert model.score(surest["spam"]).decision in ("junk", "reject")
    one = scan_rig(HARSH, home)
    outcome = one.scan(surest["spam"])
    assert (outcome.facts["decision"], outcome.facts["reason"]) == ("unsure", "untrained")
    one.close()
    with Filter.open(home) as model:
        for label in ("ham", "spam"):
            for raw in raws(label, 60, 80):
                model.learn(raw, label)
    one = scan_rig(HARSH, home)
    assert one.scan(surest["spam"]).facts["decision"] in ("junk", "reject")


def test_a_young_model_is_never_sure(scan_rig, tmp_path, surest):
    """Rule 9: while a label is hardly learnt nothing is stronger than unsure, and it says why."""
    home = tmp_path / "young"
    with Filter.open(home, create=True) as model:
        for raw in raws("spam", 0, 40):
            model.learn(raw, "spam")
        for raw in raws("ham", 0, LEAST_MESSAGES - 1):
            model.learn(raw, "ham")
        model.correct(surest["spam"], "spam")
        assert model.score(surest["spam"]).decision in ("junk", "reject")
    one = scan_rig(HARSH, home)
    outcome = one.scan(surest["spam"])
    assert (outcome.facts["decision"], outcome.facts["reason"]) == ("unsure", "untrained")
    assert fields(as_block(outcome.add))["X-Spam-Flag"] == "NO"
    one.close()
    with Filter.open(home) as model:
        model.learn(surest["ham"], "ham")
    assert scan_rig(HARSH, home).scan(surest["spam"]).facts["decision"] in ("junk", "reject")


def test_the_clues_are_shown_where_they_were_asked_for(scan_rig, surest):
    """The header has the set number of clues; by default it has none."""
    assert "X-Spamnb-Clues" not in fields(as_block(scan_rig().scan(surest["spam"]).add))
    outcome = scan_rig(plan=SessionConfig(Path(), clues=3)).scan(surest["spam"])
    assert fields(as_block(outcome.add))["X-Spamnb-Clues"].count(":") >= 3


# --- handled -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mail_action", "before", "action"),
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
def test_each_action_does_what_it_says(scan_rig, home, surest, mail_action, before, action):
    """Headers always; a tag, a redirect, a place in quarantine or a refusal where it was set."""
    policy = ScanPolicy(ActionPolicy(ActionMap("headers", "headers", mail_action, mail_action)))
    one = scan_rig(policy, quarantine=Quarantine(home / "quarantine", upstream="x:25"))
    outcome = one.scan(surest["spam"], before_queue=before)
    assert outcome.action == action
    assert fields(as_block(outcome.add))["X-Spam-Flag"] == "YES"
    assert outcome.tag == (b"[SPAM] " if mail_action == "tag" else b"")
    assert ("X-Spamnb-Redirect" in fields(as_block(outcome.add))) == (mail_action == "redirect")
    if action == "refuse":
        assert outcome.reply == REFUSED_REPLY
    kept = Quarantine(home / "quarantine").messages()
    if action == "keep":
        assert outcome.reply.endswith(kept[0].id.encode())
        assert kept[0].rcpt_lines == ("RCPT TO:<bob@b.example>", "RCPT TO:<carl@c.example>")
        raw = Quarantine(home / "quarantine").raw(kept[0].id)
        assert raw == as_block(outcome.add) + surest["spam"]
        assert kept[0].facts["decision"] == "reject"
    else:
        assert kept == []
    expected = "headers" if mail_action == "reject" and not before else mail_action
    assert one.meters.value(f"mail_action_{expected}") == 1


@pytest.mark.parametrize("mail_action", ["headers", "tag", "redirect", "quarantine", "reject"])
def test_advice_is_the_verdict_without_its_consequences(scan_rig, home, surest, mail_action):
    """The client gets verdict, fields, tag and action; nothing is kept and nothing is refused."""
    policy = ScanPolicy(ActionPolicy(ActionMap("headers", "headers", mail_action, mail_action)))
    one = scan_rig(policy, quarantine=Quarantine(home / "quarantine", upstream="x:25"))
    asked = request_of(surest["spam"], ENVELOPE, before_queue=True)
    found = []
    one.scanner.advise(asked, found.append)
    (outcome,) = found
    advice = outcome.advice
    assert (outcome.action, outcome.reply) == ("relay", b"")
    assert (advice.verdict.decision, advice.mail_action) == ("reject", mail_action)
    assert fields(as_block(outcome.add))["X-Spam-Score"] == f"{advice.score:.1f}"
    assert advice.score >= advice.reject_score > 5
    assert outcome.tag == (b"[SPAM] " if mail_action == "tag" else b"")
    assert Quarantine(home / "quarantine").messages() == []
    assert one.scan(surest["ham"]).advice is None


def test_what_was_kept_can_be_withdrawn(scan_rig, home, surest):
    """Where the outcome came too late the message is gone again, and the log says so."""
    quarantine = Quarantine(home / "quarantine")
    one = scan_rig(HARSH, quarantine=quarantine)
    outcome = one.scan(surest["spam"])
    assert outcome.action == "keep"
    (kept,) = quarantine.messages()
    outcome.withdraw()
    assert quarantine.messages() == []
    (record,) = [record for record in one.records if record["event"] == "kept too late"]
    assert (record["quarantine"], record["withdrawn"]) == (kept.id, True)
    outcome.withdraw()
    assert [r["withdrawn"] for r in one.records if r["event"] == "kept too late"] == [True, False]


def test_all_listeners_and_workers_share_one_limit(home):
    """Each has its own object for the folder; together they store no more than the limit."""
    folder, limits = home / "quarantine", QuarantineLimits(limit_bytes=40_000)
    refused = []

    def fill():
        one = Quarantine(folder, limits)
        try:
            for _ in range(100):
                one.keep(b"x" * 1000, Envelope(), {})
        except StoreFullError as error:
            refused.append(error)

    threads = [Thread(target=fill) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 8
    assert 30_000 < Quarantine(folder).used_bytes() <= 40_100


def test_a_count_that_cannot_be_read_is_made_again(home):
    """Of a lock file that another version wrote, or that the time before a restart is in."""
    quarantine = Quarantine(home / "quarantine", QuarantineLimits(limit_bytes=10_000))
    quarantine.keep(b"x" * 1000, Envelope(), {})
    for content in (b"", b"x", struct.pack("=dQ", 1e18, 0), struct.pack("=dQ", math.nan, 0)):
        (home / "quarantine" / ".lock").write_bytes(content)
        with pytest.raises(StoreFullError):
            quarantine.keep(b"x" * 9000, Envelope(), {})


@pytest.mark.parametrize("fault", ["limit", "disk", "none"])
def test_a_quarantine_that_takes_nothing_means_deliver_with_headers(scan_rig, home, surest, fault):
    """Full by its limit, by the disk, or not set up: the recipients get the message, marked."""
    folder = home / "quarantine"
    limits = QuarantineLimits(limit_bytes=10) if fault == "limit" else None
    one = scan_rig(HARSH, quarantine=None if fault == "none" else Quarantine(folder, limits))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    one.scan(surest["ham"])
    try:
        if fault == "disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
            one.model_session._history_next = 1e9  # its files are not what this is about
        outcome = one.scan(surest["spam"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert outcome.action == "relay"
    assert fields(as_block(outcome.add))["X-Spam-Flag"] == "YES"
    assert outcome.facts["mail_action"] == "headers"
    assert outcome.facts["reason"] == ("quarantine-fault" if fault == "none" else "quarantine-full")
    assert outcome.facts["incident"] == one.records[-1]["incident"]
    assert Quarantine(folder).messages() == []


def test_observing_adds_the_signature_and_nothing_else(scan_rig, surest):
    """The facts contain the action that would have been applied."""
    one = scan_rig(replace(HARSH, observe=True))
    outcome = one.scan(surest["spam"], before_queue=True)
    assert outcome.action == "relay"
    assert set(fields(as_block(outcome.add))) == {"X-Spamnb-Signature"}
    assert outcome.facts["mail_action"] == "reject"
    assert outcome.facts["observed"]
    assert (one.meters.value("observed"), one.meters.value("mail_action_reject")) == (1, 0)


@pytest.mark.parametrize(
    ("other", "note"), [("spamassassin", "spam 9/5 A_B"), ("", None), ("bogofilter", None)]
)
def test_the_verdict_of_the_filter_in_front_is_noted(home, scan_rig, surest, other, note):
    """It stands in the notes of the history beside the verdict, and changes neither."""
    mark = b"X-Spam-Status: Yes, score=9.0 required=5.0 tests=A_B\r\n"
    one = scan_rig(ScanPolicy(observe=True, other=other))
    without = one.scan(surest["ham"])
    request = request_of(surest["ham"], ENVELOPE)
    found = []
    one.scanner.scan(
        request._replace(raw=mark + request.raw, header_bytes=len(mark) + request.header_bytes),
        found.append,
    )
    (outcome,) = found
    assert outcome.facts["probability"] == without.facts["probability"]
    one.close()
    history = History.open(home / "history")
    newest = next(history.newest())
    history.close()
    assert newest.notes.get("other") == note


@pytest.mark.parametrize(
    ("client", "observed"),
    [
        (Client(address="198.51.100.9"), True),
        (Client(address="192.0.2.7", source="LOCAL"), True),
        (Client(address="192.0.2.7", source="REMOTE"), False),
        (Client(address="127.0.0.1"), False),
    ],
)
def test_mail_of_own_clients_leaves_without_a_verdict(scan_rig, surest, client, observed):
    """By network or by XFORWARD; a loopback address alone is every message behind Postfix."""
    one = scan_rig(replace(HARSH, own_clients=("198.51.100.0/24",)))
    outcome = one.scan(surest["spam"], replace(ENVELOPE, client=client), before_queue=True)
    assert (outcome.action == "relay") == observed
    assert ("X-Spam-Flag" not in fields(as_block(outcome.add))) == observed


@pytest.mark.parametrize(
    ("policy", "client", "setting", "counter"),
    [
        (ScanPolicy(), Client(source="LOCAL"), 'scan.local = "observe"', "observed_local"),
        (ScanPolicy(own_clients=("198.51.100.0/24",)), Client(address="198.51.100.9"),
         "scan.own_clients", "observed_own_clients"),
        (ScanPolicy(observe=True, listener="mx"), Client(address="192.0.2.7"),
         "listener.mx.observe = true", "observed_listener"),
    ],
)  # fmt: skip
def test_the_setting_that_leaves_mail_unmarked_is_named(
    home, scan_rig, surest, policy, client, setting, counter
):
    """The log, the history and the counters say why mail that is junk has no mark."""
    one = scan_rig(policy)
    outcome = one.scan(surest["spam"], replace(ENVELOPE, client=client))
    assert outcome.facts["observed_by"] == setting
    assert one.meters.value(counter) == 1
    one.close()
    history = History.open(home / "history")
    newest = next(history.newest())
    history.close()
    assert newest.notes["observed"] == setting


@pytest.mark.parametrize(
    ("policy", "is_marked"),
    [(ScanPolicy(), True), (ScanPolicy(observe=True), False)],
    ids=["local", "listener"],
)
def test_a_message_with_the_secret_of_the_doctor_is_marked(home, scan_rig, policy, is_marked):
    """Also as local mail: the doctor runs on this machine, and asks about mail from outside."""
    with Filter.open(home, readonly=True) as model:
        ident = marked_message_id(model.reader.local.test_key, "0" * 24)
    local = replace(ENVELOPE, client=Client(source="LOCAL"))
    one = scan_rig(policy)
    outcome = one.scan(f"Subject: x\r\nMessage-ID: {ident}\r\n\r\nx\r\n".encode(), local)
    assert ("X-Spam-Flag: YES" in as_block(outcome.add).decode()) is is_marked
    assert (outcome.facts["reason"], outcome.facts["decision"]) == ("test-message", "junk")


def test_a_forged_secret_of_the_doctor_marks_nothing(scan_rig):
    """A message with a Message-ID like the doctor's has the verdict of the model."""
    for ident in (marked_message_id(b"another key", "0" * 24), "<doctor.0.0@spamnb.invalid>"):
        outcome = scan_rig(ScanPolicy()).scan(
            f"Subject: x\r\nMessage-ID: {ident}\r\n\r\nx\r\n".encode(), ENVELOPE
        )
        assert outcome.facts["reason"] == ""


def test_what_a_mail_server_calls_local_can_be_judged(scan_rig, surest):
    """Where fetchmail or a test hands strangers' mail to Postfix on its own machine."""
    envelope = replace(ENVELOPE, client=Client(address="127.0.0.1", source="LOCAL"))
    outcome = scan_rig(ScanPolicy(local="enforce")).scan(surest["spam"], envelope)
    assert fields(as_block(outcome.add))["X-Spam-Flag"] == "YES"


def test_lists_decide_and_are_named(scan_rig, surest):
    """Allowed spam is delivered, blocked ham refused; headers agree, and give nothing away."""
    one = scan_rig(HARSH, rules=AccessLists(allow=parse("client 192.0.2.0/24", "a")))
    outcome = one.scan(surest["spam"], before_queue=True)
    headers = fields(as_block(outcome.add))
    assert outcome.action == "relay"
    assert (headers["X-Spam-Flag"], float(headers["X-Spam-Score"]) < 5) == ("NO", True)
    assert headers["X-Spamnb-Verdict"].startswith("deliver; label=")
    assert headers["X-Spamnb-Verdict"].endswith("; reason=allow-client")
    assert outcome.facts["rule"] == "192.0.2.0/24"
    one.close()
    one = scan_rig(HARSH, rules=AccessLists(block=parse("sender ann@a.example", "b")))
    outcome = one.scan(surest["ham"], before_queue=True)
    assert (outcome.action, outcome.facts["reason"]) == ("refuse", "block-sender")
    assert b"ann" not in as_block(outcome.add)


def test_a_list_believes_our_own_servers_alone(scan_rig, surest):
    """The model session and the lists use the same local hosts."""
    head = b"Authentication-Results: mx.example; dkim=pass header.d=pals.example\r\n"
    head += b"Received: by mx.example\r\n"
    raw = head + b"From: joe@pals.example\r\nSubject: x\r\n\r\n" + surest["spam"]
    rules = AccessLists(allow=parse("domain pals.example", "a"))
    assert scan_rig(rules=rules).scan(raw).facts["reason"] != "allow-domain"
    plan = SessionConfig(
        Path(), local=LocalHosts(hosts=("mx.example",), authserv_ids=("mx.example",))
    )
    believing = scan_rig(rules=rules, plan=plan)
    outcome, found = believing.scan(raw), []
    assert outcome.facts["reason"] == "allow-domain"
    assert "X-Spamnb-Results" in fields(as_block(outcome.add))
    believing.scanner.advise(request_of(raw, ENVELOPE), found.append)
    # A local program may have written all of it: it gets no proof for other mail.
    assert "X-Spamnb-Results" not in fields(as_block(found[0].add))


def test_new_settings_hold_for_new_messages(scan_rig, surest):
    """A reload needs no new scanner."""
    one = scan_rig()
    assert one.scan(surest["spam"], before_queue=True).action == "relay"
    one.scanner.apply_settings(HARSH, one.around)
    assert one.scan(surest["spam"], before_queue=True).action == "refuse"


def test_a_tag_is_one_plain_line():
    """A tag is one line of ASCII, because a line end in it would end the subject."""
    for bad in ("a\r\nX-Spam-Flag: NO", "caf\xe9"):
        with pytest.raises(SettingsError, match="the tag"):
            ScanPolicy(tag=bad)
        with pytest.raises(SettingsError, match="the redirect"):
            ScanPolicy(redirect=bad)


def test_notes_hold_no_more_than_they_may():
    """50,000 recipients are not 50,000 words in the history; a quoted blank makes no two of one."""
    many = Envelope(recipients=('"x alice@a.example"@b.example', *["bob@b.example"] * 50_000))
    notes = notes_of(request_of(b"", many))
    assert len(notes["to"]) < 17_000
    assert "alice" not in notes["to"]
    assert notes_of(request_of(b"", Envelope())) == {}
    long = request_of(b"Subject: " + b"=?utf-8?q?=C3=BC?= x " * 900 + b"\r\n\r\n", many)
    assert len(notes_of(long, described=True)["subject"]) == 160


@pytest.mark.parametrize(
    ("head", "subject"),
    [
        (b"Subject: a note\r\n", "a note"),
        (b"To: x\nsubject :  a\n\tfolded\n  note\nX: y\n", "a folded note"),
        (b"Subject: =?utf-8?q?=C3=BCber?=\r\n", "\xfcber"),
        (b"X-Subject: no\r\nTo: Subject: no\r\n", ""),
        (b"Subject:", ""),
        (b"Subject: \xff\x00\x1b[31m\r\n", None),
    ],
)
def test_a_verdict_is_described_by_its_message(head, subject):
    """With history.keep_subject the notes have sender, subject, size and listener, else none."""
    envelope = Envelope(sender="ann@a.example")
    request = ScanRequest(head + b"\r\nbody", len(head), envelope)
    notes = notes_of(request, "mx", described=True)
    assert notes["listener"] == "mx"
    assert (notes["from"], notes["size"]) == ("ann@a.example", str(len(request.raw)))
    if subject is not None:
        assert notes.get("subject", "") == subject
    assert notes_of(request, "mx") == {}


# --- not judged ----------------------------------------------------------------------------------


def test_bypass_passes_all_mail_without_a_scan(scan_rig, surest):
    """The model is not opened, no message is scanned, and the header says so."""
    one = scan_rig(HARSH, at=Path("/nowhere"), bypassed=lambda: True)
    outcome = one.scan(surest["spam"])
    assert as_block(outcome.add) == b"X-Spamnb-Verdict: unscanned; reason=bypass\r\n"
    assert one.meters.value("unscanned") == 1
    assert one.records == []


def test_a_message_above_the_limit_is_judged_by_its_head_or_passes(scan_rig, surest):
    """As shipped its size alone lets nothing pass; what was not seen whole is never kept."""
    one = scan_rig(replace(HARSH, oversize="unscanned"))
    outcome = one.scan(surest["spam"], whole=False)
    assert as_block(outcome.add) == b"X-Spamnb-Verdict: unscanned; reason=large\r\n"
    assert (one.meters.value("unscanned_large"), one.meters.value("scanned_head")) == (1, 0)
    one = scan_rig(HARSH)
    outcome = one.scan(surest["spam"], whole=False)
    assert (one.meters.value("unscanned_large"), one.meters.value("scanned_head")) == (0, 1)
    assert outcome.facts["reason"] == "head"
    assert (outcome.action, outcome.facts["mail_action"], outcome.tag) == (
        "relay",
        "tag",
        b"[SPAM] ",
    )


@pytest.mark.parametrize(("before_queue", "done"), [(True, "reject"), (False, "headers")])
def test_the_history_says_what_was_done(home, scan_rig, surest, before_queue, done):
    """The decision reject marks a message only where nothing can be rejected."""
    policy = ScanPolicy(action_policy=ActionPolicy(ActionMap(reject="reject")))
    one = scan_rig(policy)
    outcome = one.scan(surest["spam"], before_queue=before_queue)
    one.close()
    history = History.open(home / "history")
    line = verdict_facts(next(history.newest()))
    history.close()
    assert line["decision"] == "reject"
    assert line["done"] == outcome.facts["mail_action"] == done


def test_a_long_name_cannot_push_the_address_out_of_sight(scan_rig, home):
    """A From of 10,000 characters is noted with its beginning and its address."""
    name = "Support Bank " * 800
    message = f'From: "{name}" <eve@evil.example>\nSubject: {"s" * 500}\n\ntext\n'.encode()
    one = scan_rig()
    one.scan(message)
    one.close()
    with Filter.open(home) as model:
        (entry,) = recent(model.history, 1)
        shown, subject = entry.notes["header_from"], entry.notes["subject"]
        assert len(shown) == len(subject) == 160
        assert shown.startswith('"Support Bank')
        assert shown.endswith("<eve@evil.example>")
        assert "…" in shown
        assert subject.endswith("…")
