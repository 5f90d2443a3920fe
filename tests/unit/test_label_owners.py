"""Labels of several users for one message: who takes back which, and which one is in force."""

import pytest
from support.stores import sound
from test_feedback_service import ALICE, MADE, mail, teach_some

from spamnb.engine.filter import Filter
from spamnb.engine.lookup import in_force, labels_of
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Feedback
from spamnb.maintenance.rewind import relearn
from spamnb.model.costs import Costs
from spamnb.model.events import NO_LABEL, EventKind
from spamnb.operations.listings import trainings_of
from spamnb.settings.values import TeachingRules

BOB, CARL, DORA = "bob@example.org", "carl@example.org", "dora@example.org"
LIST = mail("list", "the minutes of our meeting and cheap pills")
SURE_SPAM = mail("sure", "cheap pills and a casino bonus")
JUNK = ("junk", "reject")


@pytest.fixture
def model(tmp_path):
    with Filter.open(tmp_path / "m", create=True, recipe=MADE) as model:
        teach_some(model)
        yield model
        assert sound(model.store)


@pytest.fixture
def service(model, tmp_path):
    return FeedbackService(model, ReviewQueue(tmp_path / "review"))


def teach(service, label, user, raw=LIST, channel="imap", **more):
    return service.teach(Feedback(label, raw, user=user, channel=channel, vouched=True, **more))


def admin(service, label, raw=LIST):
    return service.teach(Feedback(label, raw, user="root", channel="cli", trust="admin"))


def decision(model, raw=LIST):
    return model.score(raw, remember=False).decision


def counts(model):
    with model.store.read() as view:
        return view.totals().messages.tolist()


def numbers(model):
    """Every count and correction of the model."""
    with model.store.read() as view:
        totals = view.totals()
        rows = [(ids.tolist(), r.n.tolist(), r.w.tolist()) for ids, r in view.features()]
    return rows, totals.messages.tolist(), totals.bias.tolist(), totals.temperatures.tolist()


def said(model, raw=LIST):
    """The label in force, and why."""
    with model.store.read() as view:
        found = in_force(view, model.example(raw).digest)
    return (None if found.label == NO_LABEL else model.labels[found.label]), str(found.reason)


def test_a_move_does_not_take_back_what_an_administrator_trained(service, model):
    """A user's label is one more training; the message keeps the administrator's label."""
    admin(service, "spam")
    before = counts(model)
    receipt = teach(service, "ham", ALICE).receipt
    assert (receipt.before, receipt.after) == (None, "ham")
    assert (receipt.in_force, receipt.why) == ("spam", "the administrator's label")
    assert counts(model) == [before[0] + 1, before[1]]
    assert decision(model) in JUNK


def test_twenty_moves_of_trained_mail_take_nothing_back(service, model):
    """None of them moves an administrator's training, and forgetting them restores every number."""
    raws = [mail(f"spam{n}", "cheap pills and a casino bonus") for n in range(20)]
    for raw in raws:
        model.learn(raw, "spam")
    before = numbers(model)
    for raw in raws:
        assert teach(service, "ham", ALICE, raw).receipt.before is None
        assert model.trained_label(raw) == "spam"
    for raw in reversed(raws):
        assert teach(service, "", ALICE, raw).receipt.before == "ham"
    assert numbers(model) == before


def test_a_move_does_not_take_back_the_label_of_another_user(service, model):
    """Of two labels the first one is in force; each user moves and forgets only the own one."""
    first = teach(service, "spam", ALICE)
    assert decision(model) in JUNK
    second = teach(service, "ham", BOB)
    assert second.receipt.before is None
    assert (second.receipt.in_force, second.receipt.why) == (
        "spam",
        "as many users gave another label, later",
    )
    assert decision(model) in JUNK
    assert teach(service, "spam", ALICE).state == "unchanged"
    assert service.undo(second.receipt.event, Feedback("", user=ALICE)).state == "refused"
    assert service.undo(first.receipt.event, Feedback("", user=BOB)).state == "refused"
    assert teach(service, "", BOB).receipt.before == "ham"
    assert said(model) == ("spam", "the label of one user")


def test_the_label_of_most_users_is_in_force(service, model):
    """The second user that says ham decides; before, the first label did."""
    teach(service, "spam", ALICE)
    teach(service, "ham", BOB)
    assert said(model)[0] == "spam"
    receipt = teach(service, "ham", CARL).receipt
    assert (receipt.in_force, receipt.why) == ("ham", "the label of most users")
    assert decision(model) == "deliver"
    teach(service, "", CARL)
    assert said(model)[0] == "spam"


def test_a_repeated_label_stays_the_first(service, model):
    """A tie is decided by the time of the label, not by that of its repetition."""
    teach(service, "spam", ALICE)
    for n in range(12):
        teach(service, "ham", BOB, mail(f"like{n}", "the minutes of our meeting and cheap pills"))
    teach(service, "ham", BOB)
    teach(service, "spam", ALICE)
    assert said(model) == ("spam", "as many users gave another label, later")
    assert decision(model) in JUNK


def test_an_administrator_overrides_users(service, model):
    """An administrator's label is in force over any number of users, and their labels stay."""
    for user in (ALICE, BOB, CARL):
        teach(service, "ham", user, SURE_SPAM)
    assert decision(model, SURE_SPAM) == "deliver"
    before = counts(model)
    receipt = admin(service, "spam", SURE_SPAM).receipt
    assert (receipt.in_force, receipt.why) == ("spam", "the administrator's label")
    assert decision(model, SURE_SPAM) in JUNK
    assert counts(model) == [before[0], before[1] + 1]
    teach(service, "ham", DORA, SURE_SPAM)
    assert decision(model, SURE_SPAM) in JUNK


def test_sorted_mail_of_an_administrator_overrides_a_user(service, model):
    """The training of an administrator is in force, too, if a user said otherwise."""
    teach(service, "ham", ALICE, SURE_SPAM)
    assert decision(model, SURE_SPAM) == "deliver"
    model.learn(SURE_SPAM, "spam")
    assert decision(model, SURE_SPAM) in JUNK


def test_an_administrator_takes_back_all_labels(service, model):
    """Forgetting by an administrator leaves nothing of a message, by all who labelled it."""
    before = numbers(model)
    teach(service, "ham", ALICE)
    teach(service, "spam", BOB)
    admin(service, "spam")
    answer = admin(service, "")
    assert answer.state == "learnt"
    assert "events" in answer.reason
    assert numbers(model) == before
    assert said(model) == (None, "no label")
    assert admin(service, "").state == "unchanged"


def test_an_administrator_forgets_by_the_interface_of_python(service, model):
    """`Filter.forget` removes the training of a message, also that of users."""
    before = numbers(model)
    teach(service, "ham", ALICE)
    admin(service, "spam")
    model.forget(LIST)
    assert numbers(model) == before


def test_a_user_forgets_only_the_own_label(service, model):
    """Without an own label there is nothing to forget."""
    admin(service, "spam")
    before = numbers(model)
    answer = teach(service, "", ALICE)
    assert (answer.state, numbers(model)) == ("refused", before)
    assert ALICE in answer.reason
    teach(service, "spam", ALICE)
    assert teach(service, "", ALICE).receipt.before == "spam"
    assert numbers(model) == before
    assert said(model) == ("spam", "the administrator's label")


def test_an_equal_label_stays_when_the_first_one_is_taken_back(service, model):
    """Each user counts once; what the second one holds does not depend on the first."""
    before = counts(model)
    teach(service, "spam", ALICE)
    assert teach(service, "spam", BOB).state == "learnt"
    assert teach(service, "spam", BOB).state == "unchanged"
    assert counts(model) == [before[0], before[1] + 2]
    teach(service, "", ALICE)
    assert counts(model) == [before[0], before[1] + 1]
    assert said(model) == ("spam", "the label of one user")


def test_spellings_of_an_address_are_one_user(service, model):
    """Case, a delimiter and quotes do not make a second user."""
    teach(service, "spam", "Alice+list@Example.ORG")
    receipt = teach(service, "ham", ALICE).receipt
    assert (receipt.before, receipt.after) == ("spam", "ham")


def test_a_login_and_its_address_are_one_user(model, tmp_path):
    """If the settings say that the addresses of a domain are logins."""
    rules = TeachingRules(domains=("example.org",))
    service = FeedbackService(model, ReviewQueue(tmp_path / "review"), rules)
    teach(service, "spam", "alice")
    assert teach(service, "ham", ALICE).receipt.before == "spam"
    assert service.undo(2 * 30 + 1, Feedback("", user="alice")).state == "refused"


def test_a_report_that_nothing_proves_takes_nothing_back(service, model):
    """A spamtrap, and a stranger under the name of a user, have labels of their own."""
    teach(service, "ham", ALICE)
    service.teach(Feedback("spam", LIST, user=ALICE, channel="trap", trust="admin"))
    assert said(model) == ("ham", "the label of one user")
    assert decision(model) == "deliver"
    with model.store.read() as view:
        labels = labels_of(view, model.example(LIST).digest)
    assert len(labels) <= 2
    assert model.trained_label(LIST, model.source_of(ALICE, service.rules)) == "ham"


def test_an_accepted_report_is_a_label_of_its_sender(service, model):
    """What an administrator accepts for a user, this user may take back."""
    answer = service.teach(Feedback("spam", LIST, user=ALICE, channel="imap"))
    assert answer.state == "review"
    assert service.accept(answer.review).receipt.after == "spam"
    receipt = teach(service, "ham", ALICE).receipt
    assert receipt.before == "spam"


def test_an_old_label_without_an_owner_belongs_to_its_user(service, model):
    """In models of 0.1.0: only the user that the event names moves it, and forgets it."""
    source = model.source_of(ALICE, service.rules)._replace(owner=0, channel="imap")
    model.correct(LIST, "spam", source=source)
    held = numbers(model)
    assert teach(service, "ham", BOB).receipt.before is None
    assert teach(service, "", BOB).receipt.before == "ham"
    assert numbers(model) == held
    assert teach(service, "", BOB).state in ("refused", "unchanged")
    assert teach(service, "ham", ALICE).receipt.before == "spam"
    assert teach(service, "", ALICE).receipt.before == "ham"
    assert said(model) == (None, "no label")


def test_trainings_of_a_message_are_those_of_all_users(service, model):
    """Newest first, by one list."""
    admin(service, "spam")
    teach(service, "ham", ALICE)
    teach(service, "spam", BOB)
    teach(service, "spam", ALICE)
    found = trainings_of(model, model.example(LIST).digest)
    assert [(one["user"], one["kind"]) for one in found] == [
        (ALICE, "move"), (BOB, "learn"), (ALICE, "learn"), ("root", "learn"),
    ]  # fmt: skip
    assert len(trainings_of(model, model.example(LIST).digest, 2)) == 2


def test_relearning_gives_the_same_model(tmp_path):
    """The owners are in the journal; without one user, the others keep what they taught."""
    home = tmp_path / "home"
    with Filter.open(home, create=True, recipe=MADE) as model:
        teach_some(model)
        service = FeedbackService(model, ReviewQueue(tmp_path / "review"))
        admin(service, "spam")
        for user, label in ((ALICE, "ham"), (BOB, "spam"), (ALICE, "spam"), (CARL, "ham")):
            teach(service, label, user)
        before = numbers(model)
    relearn(home, lambda _: False, Costs())
    with Filter.open(home) as model:
        assert numbers(model) == before
    relearn(home, lambda event: event.user == ALICE, Costs())
    with Filter.open(home) as model:
        with model.store.read() as view:
            labels = labels_of(view, model.example(LIST).digest)
        assert [(one.event.user, one.label) for one in labels] == [("root", 1), (BOB, 1), (CARL, 0)]
        assert all(one.event.kind == EventKind.LEARN for one in labels)
        assert sound(model.store)
