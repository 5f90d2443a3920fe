"""The feedback service: permissions, and the result of each feedback."""

import os
import re
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from spamnb.engine.filter import OWNER, Filter, new_recipe
from spamnb.engine.values import Learn
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.rights import CHANNEL_POLICIES, delivered_to
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Feedback
from spamnb.model.verdict import signature_text
from spamnb.records import verdicts
from spamnb.records.verdicts import HistoryEntry
from spamnb.settings.values import TeachingRules
from spamnb.store import codec
from spamnb.store import maintenance as audit
from spamnb.telemetry import Meters

ALICE = "alice@example.org"
MADE = new_recipe()


def mail(number, text="quarterly figures", *, head="", subject="a subject"):
    top = f"From: ann@a.example\nSubject: {subject}\nMessage-ID: <{number}@a.example>\n"
    return f"{head}{top}\n{text} {number}\n".encode()


def teach_some(model):
    """Thirty of each, in one transaction."""
    texts = ("the minutes of our meeting on tuesday", "cheap pills and a casino bonus")
    model.teach(
        [
            Learn(model.example(mail(f"{label}{number}", texts[label])), label, OWNER, 1)
            for number in range(30)
            for label in (0, 1)
        ]
    )


@pytest.fixture
def model(tmp_path):
    with Filter.open(tmp_path / "m", create=True, recipe=MADE) as model:
        teach_some(model)
        yield model
        with model.store.read() as view:
            assert audit.check(view) == []


@pytest.fixture
def feedback_service(model, tmp_path):
    return FeedbackService(model, ReviewQueue(tmp_path / "review"))


def delivered(model, raw, *to):
    """Score a message as the relay does; returns its signature."""
    verdict = model.score(raw, remember=False)
    example, signature = model.example(raw), os.urandom(16)
    entry = HistoryEntry(
        1, signature, verdict.digest, verdict.message_id, verdict.label, verdict.probability,
        verdict.log_odds, verdict.decision, example.ids, notes={"to": " ".join(to)},
    )  # fmt: skip
    model.history.add([entry])
    return signature_text(signature)


def signed(raw, signature):
    return f"X-Spamnb-Signature: {signature}\r\n".encode() + raw


def events(model):
    with model.store.read() as view:
        return view.totals().last_seq


# --- admins -----------------------------------------------------------------------------------


def test_an_admin_teaches_of_every_message(feedback_service, model):
    """After a correction the verdict has the user's label; the receipt shows both probabilities."""
    raw = mail(1, "cheap pills and a casino bonus")
    answer = feedback_service.teach(Feedback("ham", raw, user="root", trust="admin"))
    assert (answer.state, answer.receipt.after) == ("learnt", "ham")
    assert answer.receipt.probability_after < answer.receipt.probability_before
    assert model.score(raw).decision == "deliver"


@pytest.mark.parametrize("trust", ["admin", "user"])
@pytest.mark.parametrize("same_key", [True, False])
def test_the_features_that_were_scored_are_learnt(feedback_service, model, trust, same_key):
    """With those of the sender's check, which a stored copy lacks; not those of another model."""
    raw = mail(1, "cheap pills and a casino bonus")
    given, key = model.example(raw).ids, np.uint64(0 if same_key else 1 << 40)
    ids = (given[0] ^ key, np.sort(np.append(given[1] ^ key, np.uint64(77))))
    model.history.add([
        HistoryEntry(1, os.urandom(16), model.example(raw).digest, "", "spam", 0.9, 2.0, "junk",
                     ids, notes={"to": ALICE})
    ])  # fmt: skip
    answer = feedback_service.teach(Feedback("ham", raw, user=ALICE, trust=trust))
    with model.store.read() as view:
        taught = view.event(answer.receipt.event)
    wanted = ids if same_key else given
    assert [one.tolist() for one in taught.ids] == [one.tolist() for one in wanted]


def test_a_duplicate_is_a_success_that_changes_nothing(feedback_service, model):
    """A repeated label changes nothing and is a success."""
    feedback = Feedback("spam", mail(1), user="root", trust="admin")
    first, held = feedback_service.teach(feedback), events(model)
    again = feedback_service.teach(feedback)
    assert (first.state, again.state, events(model)) == ("learnt", "unchanged", held)
    assert (again.receipt.event, again.receipt.already) == (0, first.receipt.event)


def test_a_contradiction_moves(feedback_service, model):
    """The same message under another label: it is moved, and counted once."""
    feedback = Feedback("spam", mail(1), user="root", trust="admin")
    feedback_service.teach(feedback)
    answer = feedback_service.teach(replace(feedback, label="ham"))
    assert (answer.receipt.before, answer.receipt.after) == ("spam", "ham")
    assert feedback_service.teach(replace(feedback, label="")).receipt.before == "ham"


@pytest.mark.parametrize(
    ("feedback", "error_type"),
    [
        (Feedback("junk", b"Subject: x\n\nx\n", user="root", trust="admin"), "LabelError"),
        (Feedback("spam", b"", user="root", trust="admin"), "UserError"),
        (Feedback("spam", b"", ("1@nowhere",), user="root", trust="admin"), "RefError"),
        (Feedback("spam", b"S: x\n\nx\n", user="x", channel="rumour"), "RefusedError"),
        (Feedback("spam", b"S: x\n\nx\n", user="x", channel="trap"), "RefusedError"),
        (Feedback("spam", b"S: x\n\nx\n", user=""), "RefusedError"),
        (Feedback("spam", b"S: x\n\nx\n", user="a\x1b[2Jb"), "RefusedError"),
        (Feedback("spam", b"S: x\n\nx\n", user="a" * 400), "RefusedError"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(
    feedback_service, model, feedback, error_type
):
    """An invalid feedback gets a reply with the type of the error; nothing is learnt."""
    held = events(model)
    answer = feedback_service.teach(feedback)
    assert (answer.state, answer.facts["error_type"], bool(answer.reason)) == (
        "refused",
        error_type,
        True,
    )
    assert events(model) == held


def test_a_message_that_is_too_large_is_refused(model, tmp_path):
    """Above the limit nothing is read."""
    feedback_service = FeedbackService(
        model, ReviewQueue(tmp_path / "review"), TeachingRules(limit_bytes=100)
    )
    answer = feedback_service.teach(
        Feedback("spam", mail(1, "x" * 100), user="root", trust="admin")
    )
    assert answer.state == "refused"


# --- users ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["signature", "digest", "message id", "raw", "header"])
def test_a_user_teaches_of_messages_delivered_to_them(feedback_service, model, by):
    """Any reference to the message will do, and the next verdict agrees with the label."""
    raw = mail(1, "cheap pills and a casino bonus")
    signature = delivered(model, raw, "bob@example.org", "Alice@Example.org")
    digest = model.example(raw).digest.hex()
    refs = {"signature": (signature,), "digest": (digest,), "message id": ("<1@a.example>",)}
    body = {"raw": raw, "header": signed(raw + b"-- \nlist footer\n", signature)}
    feedback = Feedback("ham", body.get(by, b""), refs.get(by, ()), ALICE)
    assert feedback_service.teach(feedback).state == "learnt"
    assert model.score(raw).decision == "deliver"


@pytest.mark.parametrize("by", ["signature", "digest", "message id"])
def test_a_user_names_no_message_of_others(feedback_service, model, by):
    """Another user's message gives the same answer as an unknown one."""
    raw = mail(1)
    signature = delivered(model, raw, "bob@example.org")
    digest = model.example(raw).digest.hex()
    ref = {"signature": signature, "digest": digest, "message id": "1@a.example"}[by]
    held = events(model)
    theirs = feedback_service.teach(Feedback("spam", b"", (ref,), ALICE))
    unknown = feedback_service.teach(Feedback("spam", b"", ("2@a.example",), ALICE))
    assert theirs.state == unknown.state == "refused"
    assert theirs.reason == unknown.reason
    assert events(model) == held


def test_a_users_message_that_is_unknown_waits_for_review(feedback_service, model):
    """A message that is not in the history is queued; nothing is learnt before an admin decides."""
    held = events(model)
    answer = feedback_service.teach(Feedback("spam", mail(1), user=ALICE))
    assert (answer.state, events(model)) == ("review", held)
    assert feedback_service.review_queue.get(answer.review)[1] == mail(1)


@pytest.mark.parametrize(("rule", "state"), [("refuse", "refused"), ("learn", "learnt")])
def test_the_setting_unproven_decides_on_unknown_messages(model, tmp_path, rule, state):
    """`feedback.unproven` decides about messages that are not in the history."""
    feedback_service = FeedbackService(
        model, ReviewQueue(tmp_path / "review"), TeachingRules(unproven=rule)
    )
    assert feedback_service.teach(Feedback("spam", mail(1), user=ALICE)).state == state


def test_a_user_takes_back_their_own_events_only(feedback_service, model):
    """A user may undo their own events only."""
    raw = mail(1)
    delivered(model, raw, ALICE)
    mine = feedback_service.teach(Feedback("spam", raw, user=ALICE)).receipt.event
    assert feedback_service.undo(1, Feedback("", user=ALICE)).state == "refused"
    assert feedback_service.undo(mine, Feedback("", user="mallory@example.org")).state == "refused"
    assert feedback_service.undo(mine, Feedback("", user=ALICE.upper())).state == "learnt"
    assert feedback_service.undo(1, Feedback("", user="root", trust="admin")).state == "learnt"


# --- strangers --------------------------------------------------------------------------------


def test_a_stranger_may_label_with_the_signature_of_a_received_message(feedback_service, model):
    """A stranger needs the signature of a message delivered to the claimed address."""
    signature = delivered(model, mail(1, "a new catalogue of garden tools"), ALICE)
    feedback = Feedback(
        "spam", b"", (signature,), ALICE, "address", "stranger", domain="example.org"
    )
    assert feedback_service.teach(feedback).state == "learnt"


@pytest.mark.parametrize("by", ["message id", "digest", "raw", "guess", "foreign signature"])
def test_a_stranger_without_proof_teaches_nothing(feedback_service, model, by):
    """The message id and the text prove nothing: the message's sender knows both."""
    raw = mail(1, "a new catalogue of garden tools")
    delivered(model, raw, ALICE)
    foreign = delivered(model, raw, "bob@example.org")
    digest = model.example(raw).digest.hex()
    refs = {
        "message id": ("<1@a.example>",), "digest": (digest,), "guess": ("s" + "a" * 26,),
        "foreign signature": (foreign,),
    }  # fmt: skip
    feedback = Feedback(
        "spam", raw if by == "raw" else b"", refs.get(by, ()), ALICE, "address", "stranger",
        domain="example.org",
    )  # fmt: skip
    held = events(model)
    answer = feedback_service.teach(feedback)
    assert (answer.state, events(model)) == ("refused" if by == "guess" else "review", held)


@pytest.mark.parametrize("channel", ["address", "arf"])
def test_a_careful_channel_does_not_contradict_a_sure_verdict(feedback_service, model, channel):
    """A label of a stranger against a very sure verdict waits for review."""
    text = "cheap pills, a casino bonus " + " ".join(f"pill{n}" for n in range(80))
    feedback_service.batch(
        [
            ("spam", mail(f"c{number}", text, subject="cheap casino bonus pills"))
            for number in range(600)
        ],
        OWNER,
    )
    raw = mail(1, text, subject="cheap casino bonus pills")
    assert model.score(raw, remember=False).probability > 0.999
    signature, held = delivered(model, raw, ALICE), events(model)
    trust = "stranger" if channel == "address" else "user"
    answer = feedback_service.teach(
        Feedback("ham", b"", (signature,), ALICE, channel, trust, domain="example.org")
    )
    assert (answer.state, events(model)) == ("review", held)
    assert (
        feedback_service.teach(Feedback("ham", b"", (signature,), ALICE, "imap")).state == "learnt"
    )


def test_a_channel_that_is_less_worth_takes_smaller_steps(tmp_path):
    """The weight scales the corrections; the counts move by one all the same."""
    moved, counts = {}, {}
    for channel in ("address", "trap"):
        with Filter.open(tmp_path / channel, create=True, recipe=MADE) as model:
            teach_some(model)
            feedback_service = FeedbackService(model, ReviewQueue(tmp_path / "review"))
            raw = mail(1, "a new catalogue of garden tools")
            answer = feedback_service.teach(Feedback("spam", raw, (), "root", channel, "admin"))
            moved[channel] = answer.receipt.probability_after
            with model.store.read() as view:
                counts[channel] = view.totals().messages.tolist()
    assert moved["trap"] < moved["address"]
    assert counts["trap"] == counts["address"]
    assert CHANNEL_POLICIES["trap"].weight < CHANNEL_POLICIES["address"].weight


# --- signatures within ------------------------------------------------------------------------


def test_a_signature_line_on_another_message_is_not_believed(feedback_service, model):
    """A signature line copied onto another message does not make either of them learnt."""
    request = mail(1, "the letter of our garden club: tools, seeds and dates", subject="garden")
    signature = delivered(model, request, ALICE)
    text = b"From: Watches <sale@w.example>\nSubject: sale\n\ntotally other words for you\n"
    spam = signed(text, signature)
    answer = feedback_service.teach(Feedback("spam", spam, user=ALICE))
    assert answer.state == "review"
    answer = feedback_service.teach(Feedback("spam", spam, user="root", trust="admin"))
    assert answer.receipt.digest == model.example(spam).digest.hex()


def test_an_attached_message_is_found_by_its_signature_line(feedback_service, model):
    """Forwarded with its header, by a user: the message inside is the one that is meant."""
    raw = mail(1, "a new catalogue of garden tools")
    signature = delivered(model, raw, ALICE)
    forward = b"From: alice@example.org\nSubject: Fwd\n\nsee below\n\n" + signed(raw, signature)
    answer = feedback_service.teach(Feedback("spam", forward, user=ALICE))
    assert (answer.state, answer.receipt.digest) == ("learnt", model.example(raw).digest.hex())


def test_a_line_in_the_body_does_not_hide_the_message_that_carries_it(feedback_service, model):
    """A stamped message that quotes another's line is itself what is taught."""
    request, spam = mail(1, "the letter of our garden club"), mail(2, "cheap watches for you")
    inside = delivered(model, request, ALICE)
    spam += f"\nX-Spamnb-Signature: {inside}\n".encode()
    outside = delivered(model, spam, ALICE)
    answer = feedback_service.teach(Feedback("spam", signed(spam, outside), user=ALICE))
    assert answer.receipt.digest == model.example(spam).digest.hex()


# --- caps and counting ------------------------------------------------------------------------


def test_a_person_is_stopped_at_their_cap_and_others_are_not(model, tmp_path):
    """One user's changes per day are limited, also after a restart."""
    rules = TeachingRules(user_per_day=3)
    raws = [mail(number, f"words{number} of garden") for number in range(5)]
    for raw in raws:
        delivered(model, raw, ALICE, "bob@example.org")
    feedback_service = FeedbackService(model, ReviewQueue(tmp_path / "review"), rules)
    labels = [Feedback("spam", raw, user=ALICE) for raw in raws]
    assert [feedback_service.teach(one).state for one in labels] == ["learnt"] * 3 + ["refused"] * 2
    again = FeedbackService(model, ReviewQueue(tmp_path / "review"), rules)
    assert again.teach(labels[4]).state == "refused"
    assert again.teach(replace(labels[4], user="bob@example.org")).state == "learnt"


def test_what_changes_nothing_does_not_count_towards_the_cap(model, tmp_path):
    """Repeated labels do not use up the quota."""
    feedback_service = FeedbackService(
        model, ReviewQueue(tmp_path / "review"), TeachingRules(user_per_day=2)
    )
    raws = [mail(number, f"words{number} of garden") for number in range(2)]
    for raw in raws:
        delivered(model, raw, ALICE)
    for _ in range(5):
        assert feedback_service.teach(Feedback("spam", raws[0], user=ALICE)).state in (
            "learnt",
            "unchanged",
        )
    assert feedback_service.teach(Feedback("spam", raws[1], user=ALICE)).state == "learnt"


def test_strangers_share_a_cap(model, tmp_path):
    """Names cost a stranger nothing, so all of them together are bounded."""
    rules = TeachingRules(stranger_per_day=2, strangers_per_day=4)
    feedback_service = FeedbackService(model, ReviewQueue(tmp_path / "review"), rules)
    feedback = Feedback("ham", channel="address", trust="stranger")
    states = [
        feedback_service.teach(replace(feedback, raw=mail(n), user=f"x{n // 3}@a.example")).state
        for n in range(9)
    ]
    assert states == ["review", "review", "refused"] * 2 + ["refused"] * 3


def test_every_label_is_counted_and_timed(model, tmp_path):
    """The counters have each label from a user, whatever its result."""
    meters = Meters()
    feedback_service = FeedbackService(model, ReviewQueue(tmp_path / "review"), meters=meters)
    admin = Feedback("spam", mail(1), user="root", trust="admin")
    for feedback in (admin, admin, replace(admin, label="ham"), replace(admin, label="")):
        feedback_service.teach(feedback)
    feedback_service.teach(Feedback("spam", mail(2), user=ALICE))
    feedback_service.teach(Feedback("spam", b"", ("x@y",), ALICE))
    found = {
        name: meters.value(name)
        for name in ("learned_spam", "learned_ham", "forgotten", "feedback_unchanged",
                     "feedback_review", "feedback_refused")
    }  # fmt: skip
    assert set(found.values()) == {1}


# --- review -----------------------------------------------------------------------------------


def test_an_accepted_entry_is_learnt_under_the_name_of_its_sender(feedback_service, model):
    """An accepted label is learnt immediately, and undone with all labels of its user."""
    raw = mail(1, "cheap pills and a casino bonus")
    name = feedback_service.teach(Feedback("ham", raw, user=ALICE, channel="imap")).review
    answer = feedback_service.accept(name)
    assert (answer.state, answer.receipt.after) == ("learnt", "ham")
    assert model.score(raw).decision == "deliver"
    with model.store.read() as view:
        event = view.event(answer.receipt.event)
    assert (event.user, event.channel) == (ALICE, "imap")
    assert feedback_service.review_queue.count() == 0
    assert feedback_service.accept(name).state == "refused"


def test_what_is_looked_at_is_what_is_learnt(feedback_service, model):
    """References beside a stranger's message name another one: the message is what counts."""
    other = delivered(model, mail(2, "the letter of our garden club"), "bob@example.org")
    raw = mail(1, "cheap watches for you")
    name = feedback_service.teach(
        Feedback("spam", raw, (other,), ALICE, "address", "stranger")
    ).review
    assert feedback_service.accept(name).receipt.digest == model.example(raw).digest.hex()


def test_what_is_refused_in_review_teaches_nothing(feedback_service, model):
    """A refused entry is removed, and the model is unchanged."""
    held = events(model)
    name = feedback_service.teach(Feedback("ham", mail(1), user=ALICE)).review
    assert feedback_service.refuse(name).state == "unchanged"
    assert (events(model), feedback_service.review_queue.count()) == (held, 0)
    assert feedback_service.refuse("../../etc/passwd").state == "refused"


# --- ownership --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "user", "domains", "theirs"),
    [
        ("alice@example.org", "alice@example.org", (), True),
        ("ALICE@Example.ORG", "alice@example.org", (), True),
        ("bob@x.example alice@example.org", "alice@example.org", (), True),
        ("alice+shop@example.org", "alice@example.org", (), True),
        ("alice@example.org", "alice", (), True),
        ("alice@example.org", "alice", ("example.org",), True),
        ("alice@other.example", "alice", ("example.org",), False),
        ("alice@other.example", "alice@example.org", (), False),
        ("alice", "alice", (), True),
        ("malice@example.org", "alice", (), False),
        ("alice@example.org", "", (), False),
        ("", "", (), False),
        ("+x@example.org", "@example.org", (), False),
        ("alice@example.org", '"Alice"@example.org.', (), True),
        ("alice@xn--bcher-kva.example", "alice@B\u00fccher.example", (), True),
        ("alice@b\u00fccher.example.", "alice", ("xn--bcher-kva.example",), True),
        ("kate@example.org", "\u212aate@example.org", (), False),
        ("strasse@example.org", "stra\u00dfe@example.org", (), False),
        ('"alice@example.org"@other.example', "alice@example.org", (), False),
    ],
)
def test_ownership_of_a_message(to, user, domains, theirs):
    """By address, or by login in a local domain; case and sub-addresses do not matter."""
    entry = HistoryEntry(1, b"s" * 16, b"d" * 16, "", "ham", 0.0, 0.0, "deliver", (), None,
                         {"to": to})  # fmt: skip
    assert delivered_to(entry, user, TeachingRules(domains=domains)) is theirs


def test_no_code_passes_a_score_to_the_feedback_service():
    """Scoring never teaches."""
    from pathlib import Path

    import spamnb.feedback.service as place

    paths = list((Path(place.__file__).parents[1] / "scan").glob("*.py"))
    assert len(paths) > 5
    for path in paths:
        called = re.search(r"\bFeedback|\.(learn|correct|teach)\(", path.read_text())
        assert not called, path.name


@pytest.mark.parametrize("trust", ["admin", "user"])
def test_a_correction_by_signature_decodes_one_entry(feedback_service, model, trust):
    """One history entry is decoded, and the model is read in the transaction alone.

    For a user, the event of an earlier label is decoded, too, to check it.
    """
    signature = delivered(model, mail(1, "cheap pills and a casino bonus"), ALICE)
    delivered(model, mail(1, "cheap pills and a casino bonus"), ALICE)
    first = delivered(model, mail(2), ALICE)  # it counts today's events
    feedback_service.teach(Feedback("spam", refs=(first,), user=ALICE, trust=trust))
    counted = {
        verdicts.decode_entry.__code__: "entry decoded",
        codec.decode_event.__code__: "event decoded",
        type(model.store).read.__wrapped__.__code__: "snapshot",
        type(model.store).transact.__code__: "transaction",
    }
    calls, begun = Counter(), set()

    def count(frame, event, _):
        if event == "call" and frame.f_code in counted and frame not in begun:
            begun.add(frame)  # a generator is called again when it goes on
            calls[counted[frame.f_code]] += 1

    feedback = Feedback("ham", refs=(signature,), user=ALICE, trust=trust)
    sys.setprofile(count)
    try:
        answer = feedback_service.teach(feedback)
    finally:
        sys.setprofile(None)
    assert answer.state == "learnt"
    events = {"event decoded": 1} if trust == "user" else {}
    assert calls == {"entry decoded": 1, "transaction": 1} | events
