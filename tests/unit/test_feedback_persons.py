"""Labels of users while persons are enabled: what changes for them, and what for all others."""

from contextlib import suppress

import numpy as np
import pytest
from test_feedback_service import MADE, delivered, mail, signed, teach_some

from spamnb.engine.filter import Filter
from spamnb.engine.values import Source
from spamnb.errors import UserError
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Feedback, ListTarget, SenderChange
from spamnb.maintenance.rewind import relearn
from spamnb.model.costs import Costs, OwnCosts
from spamnb.model.events import label_key
from spamnb.policy.actions import PersonNames, RecipientCosts, aliases_of
from spamnb.policy.senders import ListOwner
from spamnb.store import maintenance as audit

DOMAINS = frozenset({"example.org"})
NAMES = PersonNames("+", DOMAINS, DOMAINS, aliases_of("sales@example.org bob", "aliases"))
NEWSLETTER = mail(77, "cheap pills and the minutes of our meeting")


@pytest.fixture
def model(tmp_path):
    with Filter.open(tmp_path / "m", create=True, recipe=MADE) as model:
        teach_some(model)
        yield model
        with model.store.read() as view:
            assert audit.check(view) == []


@pytest.fixture
def service(model, tmp_path):
    return FeedbackService(model, ReviewQueue(tmp_path / "review"), persons=NAMES)


def decision(model, raw, name=""):
    return model.score(raw, remember=False, person=model.person(name)).decision


def teach(service, label, raw, user, **more):
    return service.teach(Feedback(label, raw, user=user, channel="maildir", vouched=True, **more))


def test_two_users_disagree_on_one_message(service, model):
    """Each label holds for its user, by address, alias and login; others see shared evidence."""
    assert teach(service, "ham", NEWSLETTER, "ann").state == "learnt"
    assert teach(service, "spam", NEWSLETTER, "Sales+x@example.org").state == "learnt"
    assert decision(model, NEWSLETTER, "ann") == "deliver"
    assert decision(model, NEWSLETTER, "bob") in ("junk", "reject")
    with model.store.read() as view:
        assert view.live(model.example(NEWSLETTER).digest) is None
        assert {person for person, _ in view.persons()} == {
            model.person("ann"), model.person("bob"),
        }  # fmt: skip


CAUTIOUS = OwnCosts("person.bob", Costs(junk=(1e8, 0.05), reject=(1e9, 0.0)))
STRICT = OwnCosts("domain.example.org", Costs(unsure=(0.001, 0.6), junk=(0.01, 0.05)))
OWN = RecipientCosts({"bob": CAUTIOUS}, {"example.org": STRICT}, "example.org")


def taught_by(channel, label, user, refs):
    """A label of a user by a channel; an admin names the person on the command line."""
    if channel == "cli":
        return Feedback(label, NEWSLETTER, user="root", trust="admin", person=user)
    return Feedback(label, NEWSLETTER, refs, user, channel, vouched=True)


@pytest.mark.parametrize("channel", ["imap", "maildir", "address", "api", "cli"])
@pytest.mark.parametrize("label", ["ham", "spam"])
@pytest.mark.parametrize(
    ("user", "own"), [("bob", CAUTIOUS), ("Sales@example.org", CAUTIOUS), ("ann", STRICT)]
)
def test_a_label_holds_by_the_costs_of_its_person(model, tmp_path, channel, label, user, own):
    """After a label, the decision by the person's own costs fits it; undoing it leaves nothing."""
    queue = ReviewQueue(tmp_path / "review")
    service = FeedbackService(model, queue, persons=NAMES, recipient_costs=OWN)
    before = model.score(NEWSLETTER, remember=False).z
    signature = delivered(model, NEWSLETTER, "bob@example.org", "ann@example.org")
    feedback = taught_by(channel, label, user, (signature,))
    receipt = service.teach(feedback).receipt
    person = model.person(NAMES.of(user))
    verdict = model.score(NEWSLETTER, remember=False, person=person, own_costs=own)
    assert verdict.decision in {"ham": ("deliver",), "spam": ("junk", "reject")}[label]
    assert service.teach(feedback).state == "unchanged"
    assert model.undo(receipt).changed
    assert model.score(NEWSLETTER, remember=False).z == before
    with model.store.read() as view:
        assert list(view.persons()) == []


def test_relearning_uses_the_costs_of_persons(tmp_path):
    """A relearning insists by the costs of each person, as the labels did."""
    home = tmp_path / "home"
    with Filter.open(home, create=True, recipe=MADE) as model:
        teach_some(model)
        queue = ReviewQueue(tmp_path / "review")
        service = FeedbackService(model, queue, persons=NAMES, recipient_costs=OWN)
        teach(service, "spam", NEWSLETTER, "bob")
        before = model.score(NEWSLETTER, remember=False, person=model.person("bob")).z
    relearn(home, lambda _: False, Costs(), costs_of=lambda user: OWN.of_label(user, NAMES))
    with Filter.open(home, readonly=True) as model:
        assert model.score(NEWSLETTER, remember=False, person=model.person("bob")).z == before


def test_a_receipt_shows_the_probability_for_the_user(service, model):
    """The probabilities before and after are those of the person that gave the label."""
    receipt = teach(service, "spam", NEWSLETTER, "bob").receipt
    verdict = model.score(NEWSLETTER, remember=False, person=model.person("bob"))
    assert receipt.probability_after == pytest.approx(verdict.probability)
    assert receipt.digest == model.example(NEWSLETTER).digest.hex()


def test_a_user_takes_their_own_label_back(service, model):
    """Forgetting and undoing change the labels of one user alone, and leave no trace."""
    before = model.score(NEWSLETTER, remember=False).z
    teach(service, "ham", NEWSLETTER, "ann")
    undone = teach(service, "spam", NEWSLETTER, "bob").receipt.event
    refused = service.undo(undone, Feedback("", user="ann"))
    assert refused.state == "refused"
    assert service.undo(undone, Feedback("", user="sales@example.org")).state == "learnt"
    with model.store.read() as view:
        assert [person for person, _ in view.persons()] == [model.person("ann")]
    assert teach(service, "", NEWSLETTER, "bob").state == "unchanged"
    assert teach(service, "", NEWSLETTER, "ann@example.org").receipt.before == "ham"
    assert model.score(NEWSLETTER, remember=False).z == before
    with model.store.read() as view:
        assert list(view.persons()) == []


def test_a_person_has_one_budget_under_all_names(service, model):
    """A user gains no second daily budget by another spelling or an alias."""

    def moved(raws, names):
        for raw, name in zip(raws, names, strict=True):
            assert teach(service, "spam", raw, name).state == "learnt"
        with model.store.read() as view:
            events = list(view.events())[-len(raws) :]
        return sum(abs(event.delta.steps).sum() for event in events)

    raws = [mail(200 + n, "the minutes of our meeting on tuesday") for n in range(6)]
    one = moved(raws, ["bob"] * 6)
    for raw in raws:
        teach(service, "", raw, "bob")
    names = ["sales@example.org", "BOB", "bob+1@example.org", "bob@example.org", "bob", "Bob"]
    assert moved(raws, names) <= one


def test_labels_from_before_persons_are_forgotten_by_their_user_alone(model, tmp_path):
    """A user takes back a shared label that is their own, and no other user's."""
    queue = ReviewQueue(tmp_path / "review")
    teach(FeedbackService(model, queue), "spam", NEWSLETTER, "ann")
    service = FeedbackService(model, queue, persons=NAMES)
    assert teach(service, "", NEWSLETTER, "bob").state == "refused"
    assert teach(service, "", NEWSLETTER, "ann").receipt.before == "spam"


def test_admins_label_for_all_or_for_one_person(service, model):
    """A label of an admin is shared; with a person it is that person's, under their name."""
    admin = Feedback("spam", NEWSLETTER, user="root", channel="cli", trust="admin")
    service.teach(admin)
    with model.store.read() as view:
        assert list(view.persons()) == []
    assert decision(model, NEWSLETTER, "ann") in ("junk", "reject")
    receipt = service.teach(
        Feedback("ham", NEWSLETTER, user="root", trust="admin", person="ANN@example.org")
    ).receipt
    assert decision(model, NEWSLETTER, "ann") == "deliver"
    assert decision(model, NEWSLETTER) != "deliver"
    with model.store.read() as view:
        assert view.event(receipt.event).user == "ann"
        assert view.live(label_key(model.example(NEWSLETTER).digest, model.person("ann")))
    wrong = Feedback("ham", NEWSLETTER, user="root", trust="admin", person="x@elsewhere.example")
    assert "not the address of a person" in service.teach(wrong).reason


def test_strangers_and_reports_have_no_persons(service, model):
    """Labels of unverified senders and of report channels stay shared evidence."""
    signature = delivered(model, NEWSLETTER, "ann@example.org")
    raw = signed(NEWSLETTER, signature)
    stranger = Feedback("spam", raw, (signature,), "ann@example.org", "address", "stranger",
                        domain="example.org")  # fmt: skip
    service.teach(stranger)
    service.teach(Feedback("spam", mail(5), user="root", channel="trap", trust="admin"))
    with model.store.read() as view:
        assert list(view.persons()) == []


def test_a_batch_for_a_person_is_theirs(service, model):
    """Sorted mail of one person counts for that person, and once for each message in all."""
    batch = [("spam", mail(number, "quarterly figures")) for number in range(100, 110)]
    receipts = service.batch(batch, Source("root", "cli"), "ann")
    assert all(receipt.changed for receipt in receipts)
    raw = mail(120, "quarterly figures")
    mine, shared = (
        model.score(raw, remember=False, person=model.person(name)).probability
        for name in ("ann", "")
    )
    assert mine > shared


def test_an_accepted_label_is_its_users(service, model):
    """An admin accepts a queued label of a user; it is learnt for that user."""
    queued = service.teach(Feedback("spam", NEWSLETTER, user="bob", channel="api"))
    assert queued.state == "review"
    assert service.accept(queued.review).state == "learnt"
    with model.store.read() as view:
        assert [person for person, _ in view.persons()] == [model.person("bob")]


def test_clues_for_a_person_sum_to_the_log_odds(service, model):
    """The clues of a person's verdict and the bias add up to the person's log-odds."""
    teach(service, "spam", NEWSLETTER, "bob")
    verdict = model.explain(NEWSLETTER, person=model.person("bob"))
    total = sum(clue.nats for clue in verdict.clues()) + verdict.bias
    assert total == pytest.approx(verdict.log_odds)
    assert verdict.log_odds > model.explain(NEWSLETTER).log_odds
    by_text = {(clue.location, clue.token) for clue in verdict.clues()}
    assert by_text == {(clue.location, clue.token) for clue in model.explain(NEWSLETTER).clues()}


def test_a_person_without_labels_has_the_shared_verdict(service, model):
    """A person who taught nothing gets the shared scores, bit for bit."""
    teach(service, "spam", NEWSLETTER, "bob")
    raw = mail(3)
    mine = model.score(raw, remember=False, person=model.person("ann"))
    assert np.array_equal(mine.z, model.score(raw, remember=False).z)


OTHERS = (
    "\u017fally",
    "\u017fally@example.org", "sally@example.com", "sally@sub.example.org", "sally%example.org",
    "x+sally@example.org", "sally@example.org@example.com", "s\u0430lly@example.org", "sally\u200b",
    '"sally@example.org"@example.com', "\u212aally", "sally @example.org",
)  # fmt: skip
"""long s, other domains, an extension, a Cyrillic letter, a blank of no width, a Kelvin sign"""


@pytest.mark.parametrize("name", OTHERS)
def test_a_look_alike_is_another_person(service, model, name):
    """It neither undoes nor forgets the label of a person, nor changes corrections or senders."""
    event = teach(service, "spam", NEWSLETTER, "sally").receipt.event
    sally = ListOwner("person", id=model.person("sally"))
    service.list_sender(SenderChange(ListTarget("sally"), "wanted", "a@x.example"))
    with model.store.read() as view:
        before = view.personal(sally.id).values.copy()
    assert service.undo(event, Feedback("", user=name)).state == "refused"
    teach(service, "ham", NEWSLETTER, name)
    teach(service, "", NEWSLETTER, name)
    with suppress(UserError):
        service.list_sender(SenderChange(ListTarget(name), None, "a@x.example"))
    with model.store.read() as view:
        assert (view.personal(sally.id).values == before).all()
        assert view.senders(sally.key).word_of("a@x.example") == "wanted"
        assert view.event(event) is not None


@pytest.mark.parametrize("name", ["Sally", "SALLY+x@Example.ORG", "<sally@example.org.>"])
def test_other_forms_of_a_name_are_the_person(service, model, name):
    """Case, extension, brackets and the trailing dot of a domain do not make another person."""
    event = teach(service, "spam", NEWSLETTER, "sally").receipt.event
    service.list_sender(SenderChange(ListTarget(name), "wanted", "a@x.example"))
    with model.store.read() as view:
        assert view.senders(ListOwner("person", id=model.person("sally")).key)
    assert service.undo(event, Feedback("", user=name)).state == "learnt"
