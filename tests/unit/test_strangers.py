"""Strangers and heavy users: which proofs count, and which quota is used."""

from dataclasses import replace
from random import Random

import pytest
from test_feedback_service import ALICE, MADE, delivered, events, mail, signed, teach_some

from spamnb.engine.filter import Filter
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Feedback
from spamnb.settings.values import TeachingRules

BOB = "bob@example.org"
SITE = frozenset({"example.org"})


@pytest.fixture
def model(tmp_path):
    with Filter.open(tmp_path / "m", create=True, recipe=MADE) as model:
        teach_some(model)
        yield model


def service_of(model, tmp_path, **rules):
    return FeedbackService(model, ReviewQueue(tmp_path / "review"), TeachingRules(**rules))


def stranger(signature, user, **more):
    return Feedback("ham", b"", (signature,), user, "address", "stranger", **more)


# --- proofs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "to", "state"),
    [
        ("mallory@evil.example", "mallory@evil.example", "review"),
        ("mallory@evil.example", "mallory@evil.example alice@example.org", "review"),
        ("mallory", "mallory@evil.example", "review"),
        ("mallory@evil.example.", "mallory@EVIL.example", "review"),
        ('"mallory"@evil.example', "mallory@evil.example", "review"),
        ("mallory+x@example.org@evil.example", "mallory@evil.example", "review"),
        ("alice@evil.example", "alice@example.org", "review"),
        ("alice", "alice@example.org", "review"),
        ("alice@example.org", "alice@example.org", "learnt"),
        ('"Alice+shop"@Example.ORG.', "alice@example.org", "learnt"),
    ],
)
@pytest.mark.parametrize("known", [{"served": SITE}, {}])
def test_the_domain_of_a_stranger_must_be_served_here(model, tmp_path, user, to, state, known):
    """A signature reaches outsiders with outgoing mail, so it proves nothing for them."""
    feedback_service = service_of(model, tmp_path, **known)
    raw = mail(1, "a new catalogue of garden tools")
    signature, held = delivered(model, raw, *to.split()), events(model)
    feedback = [
        stranger(signature, user, domain="example.org"),
        replace(stranger("", user, domain="example.org"), raw=signed(raw, signature), refs=()),
        replace(stranger(signature, user, domain="example.org"), channel="arf"),
    ]
    answers = [feedback_service.teach(one).state for one in feedback]
    assert set(answers) <= {state, "unchanged"}
    assert answers[0] == state
    assert (events(model) > held) is (state == "learnt")


def test_no_stranger_teaches_where_no_domain_is_known(model, tmp_path):
    """Without known domains of this site the report is queued."""
    signature = delivered(model, mail(1), ALICE)
    assert service_of(model, tmp_path).teach(stranger(signature, ALICE)).state == "review"


def test_a_user_is_no_recipient_at_another_site(model, tmp_path):
    """An address at another site is never a local user's."""
    feedback_service, raw = service_of(model, tmp_path, served=SITE), mail(1)
    signature = delivered(model, raw, "alice@evil.example")
    feedback = Feedback("spam", b"", (signature,), "alice@evil.example")
    assert feedback_service.teach(feedback).state == "refused"
    delivered(model, raw, ALICE)
    assert feedback_service.teach(replace(feedback, raw=raw, refs=(), user=ALICE)).state == "learnt"


def test_the_delimiter_of_the_site_tells_mailboxes_apart(model, tmp_path):
    """Where nothing follows a mailbox's name, bob+x is another person than bob."""
    signature = delivered(model, mail(1), BOB)
    other = stranger(signature, "bob+x@example.org")
    assert service_of(model, tmp_path, served=SITE, delimiter="").teach(other).state == "review"
    assert service_of(model, tmp_path, served=SITE, delimiter="+").teach(other).state == "learnt"


@pytest.mark.parametrize("channel", ["address", "arf", "cli", "imap", "maildir", "api"])
def test_a_strangers_label_is_never_immediate(model, tmp_path, channel):
    """Not even after an admin has accepted it, because one command may accept many entries."""
    feedback_service, raw = (
        service_of(model, tmp_path, served=SITE),
        mail(1, "cheap pills and a casino bonus"),
    )
    signature = delivered(model, raw, ALICE)
    learnt = feedback_service.teach(
        replace(stranger(signature, ALICE), label="spam", channel=channel)
    )
    waits = feedback_service.teach(
        replace(stranger("", "x@evil.example"), raw=mail(2), channel=channel)
    )
    accepted = feedback_service.accept(waits.review)
    with model.store.read() as view:
        found = [view.event(one.receipt.event) for one in (learnt, accepted)]
    assert [event.immediate for event in found] == [False, False]


# --- quotas -----------------------------------------------------------------------------------


def test_what_is_not_proven_is_counted_apart(model, tmp_path):
    """A flood of unproven reports, also under the victim's name, uses no quota of proven ones."""
    feedback_service = service_of(
        model, tmp_path, served=SITE, stranger_per_day=2, strangers_per_day=4
    )
    signatures = [delivered(model, mail(number), BOB) for number in range(3)]
    for number in range(20):
        flood = replace(stranger("", BOB if number % 2 else f"x{number}@a.example"), refs=())
        feedback_service.teach(replace(flood, raw=mail(100 + number)))
    answers = [feedback_service.teach(stranger(one, BOB)) for one in signatures]
    assert [answer.state for answer in answers] == ["learnt", "learnt", "refused"]
    assert (answers[2].facts["error_type"], answers[2].facts["proven"]) == ("LimitError", True)


def test_a_flood_of_one_network_leaves_other_networks_their_review(model, tmp_path):
    """Names cost nothing and networks do: what cannot be proven is counted by them."""
    feedback_service = service_of(model, tmp_path, stranger_per_day=3, strangers_per_day=10)
    feedback = replace(stranger("", ""), refs=())
    states = [
        feedback_service.teach(
            replace(feedback, raw=mail(n), user=f"x{n}@a.example", client="192.0.2.7")
        ).state
        for n in range(8)
    ]
    assert states == ["review"] * 3 + ["refused"] * 5
    other = replace(feedback, raw=mail(9), user="x9@a.example", client="192.0.2.8")
    assert feedback_service.teach(other).state == "review"


def test_a_spent_quota_is_refused_before_the_message_is_read(model, tmp_path):
    """A flood beyond its quota costs no reading, whatever signature it invents."""
    feedback_service = service_of(model, tmp_path, served=SITE, stranger_per_day=1)
    flood = replace(stranger("", "x@a.example", client="192.0.2.7"), refs=())
    assert feedback_service.teach(replace(flood, raw=mail(1))).state == "review"
    read = []
    feedback_service.model.example = read.append
    raw = signed(mail(2), "s" + "a" * 26)
    assert (
        feedback_service.teach(replace(flood, raw=raw, user=ALICE)).facts["error_type"]
        == "LimitError"
    )
    assert read == []


def test_after_a_restart_a_strangers_labels_are_not_the_users(model, tmp_path):
    """After a restart, a stranger's reports in alice's name do not use up alice's quota."""
    rules = {"served": SITE, "user_per_day": 2, "stranger_per_day": 2}
    feedback_service = service_of(model, tmp_path, **rules)
    raws = [mail(number, f"a letter about garden tools {number}") for number in range(4)]
    signatures = [delivered(model, raw, ALICE) for raw in raws]
    for one in signatures[:2]:
        assert feedback_service.teach(stranger(one, ALICE)).state == "learnt"
    again = service_of(model, tmp_path, **rules)
    assert again.teach(stranger(signatures[2], ALICE)).facts["error_type"] == "LimitError"
    users = [again.teach(Feedback("spam", b"", (one,), ALICE)).state for one in signatures[2:]]
    assert users == ["learnt"] * 2


@pytest.mark.parametrize("rule", ["stranger_per_day", "strangers_per_day"])
def test_a_site_may_refuse_strangers(model, tmp_path, rule):
    """With a quota of 0 all strangers get a permanent error, with a signature too."""
    feedback_service = service_of(model, tmp_path, served=SITE, **{rule: 0})
    signature = delivered(model, mail(1), ALICE)
    for feedback in (stranger(signature, ALICE), replace(stranger("", "x@a.example"), raw=mail(2))):
        assert feedback_service.teach(feedback).facts["error_type"] == "RefusedError"
    assert feedback_service.teach(Feedback("spam", b"", (signature,), ALICE)).state == "learnt"


# --- bytes ------------------------------------------------------------------------------------


def random_mail(number, words=3000):
    dice = Random(number)
    return mail(number, " ".join(f"{dice.getrandbits(28):x}" for _ in range(words)))


def test_the_bytes_of_one_person_are_bounded(model, tmp_path):
    """Random words fill the disk: the person is stopped, another one is not."""
    feedback_service = service_of(model, tmp_path, user_bytes_per_day=500_000)
    raws = [random_mail(number) for number in range(6)]
    for raw in raws:
        delivered(model, raw, ALICE, BOB)
    answers = [feedback_service.teach(Feedback("spam", raw, user=ALICE)) for raw in raws]
    assert [answer.state for answer in answers] == ["learnt"] * 3 + ["refused"] * 3
    assert (answers[3].facts["error_type"], "bytes a day" in answers[3].reason) == (
        "LimitError",
        True,
    )
    assert feedback_service.teach(Feedback("spam", raws[3], user=BOB)).state == "learnt"


def test_labels_on_known_words_take_few_of_the_daily_bytes(model, tmp_path):
    """A label on a message of known words takes only its event in the journal."""
    feedback_service = service_of(model, tmp_path, user_bytes_per_day=250_000)
    for number in range(100):
        raw = mail(number, "cheap pills and a casino bonus", subject="the minutes")
        delivered(model, raw, ALICE)
        assert feedback_service.teach(Feedback("spam", raw, user=ALICE)).state == "learnt"


def test_moves_and_undos_are_counted(model, tmp_path):
    """One large message called spam and ham in turn, or an undo undone, fills the journal."""
    feedback_service = service_of(model, tmp_path, user_bytes_per_day=300_000)
    raw = random_mail(1)
    delivered(model, raw, ALICE)
    feedback = Feedback("spam", raw, user=ALICE)
    event = feedback_service.teach(feedback).receipt.event
    states = []
    for _ in range(20):
        answer = feedback_service.undo(event, Feedback("", user=ALICE))
        states.append(answer.state)
        event = answer.receipt.event if answer.receipt else event
    assert states[0] == "learnt"
    assert states[-1] == "refused"
    changes = [replace(feedback, label=label) for label in ("ham", "spam")]
    moves = [feedback_service.teach(one).state for one in changes]
    assert moves == ["refused"] * 2


def test_undos_are_counted_as_changes(model, tmp_path):
    """Each is an event of the journal, however small."""
    feedback_service = service_of(model, tmp_path, user_per_day=3)
    raw = mail(1)
    delivered(model, raw, ALICE)
    event, states = feedback_service.teach(Feedback("spam", raw, user=ALICE)).receipt.event, []
    for _ in range(4):
        answer = feedback_service.undo(event, Feedback("", user=ALICE))
        states.append(answer.state)
        event = answer.receipt.event if answer.receipt else event
    assert states == ["learnt"] * 2 + ["refused"] * 2
