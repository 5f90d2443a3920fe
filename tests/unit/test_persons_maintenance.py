"""Listing, expiring and erasing persons."""

from pathlib import Path

import pytest
from test_feedback_service import MADE, delivered, mail, teach_some

from spamnb.engine.filter import OWNER, Filter
from spamnb.errors import RefusedError
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Feedback, ListTarget, SenderChange
from spamnb.maintenance.expiry import DAY_US, ExpiryRules, expire
from spamnb.maintenance.persons import Erasing, persons_of
from spamnb.maintenance.rewind import relearn
from spamnb.model.costs import Costs
from spamnb.model.events import NO_LABEL, EventKind
from spamnb.policy.actions import PersonNames
from spamnb.settings.values import HistoryLimits
from spamnb.store import maintenance as audit
from spamnb.telemetry import now_us

DOMAINS = frozenset({"example.org"})
NAMES = PersonNames("+", DOMAINS, DOMAINS)
ANN, BOB = "ann.secret@example.org", "bob@example.org"


@pytest.fixture
def home(tmp_path):
    with Filter.open(tmp_path / "m", create=True, recipe=MADE) as model:
        teach_some(model)
        service = FeedbackService(model, ReviewQueue(tmp_path / "m" / "review"), persons=NAMES)
        for number in range(12):
            raw = mail(1000 + number, f"figures zz{number}zz for all")
            delivered(model, raw, *((ANN,) if number % 3 else (ANN, BOB)))
            label = ("ham", "spam")[number % 2]
            assert service.teach(Feedback(label, raw, user=ANN)).state == "learnt"
            if not number % 3:
                assert service.teach(Feedback("spam", raw, user=BOB)).state == "learnt"
        service.teach(Feedback("ham", mail(1001, "figures zz1zz for all"), user=ANN))
        service.teach(Feedback("", mail(1002, "figures zz2zz for all"), user=ANN))
        queued = service.teach(Feedback("spam", mail(5000, "never delivered"), user=ANN))
        assert queued.state == "review"
        for name in (ANN, BOB):
            listed(service, name, "wanted", f"friend@{name[:3]}-likes.example")
        listed(service, ANN, "unwanted", "ann-hates.example")
        listed(service, "", "unwanted", "all-hate.example")
    return tmp_path / "m"


def listed(service, user, word, sender):
    target = ListTarget(user, "user" if user else "admin")
    assert service.list_sender(SenderChange(target, word, sender)).state == "listed"


def erasing(home):
    return Erasing(
        home, NAMES, NAMES.of(ANN), HistoryLimits(), ReviewQueue(home / "review")
    )  # fmt: skip


def opened(home):
    return Filter.open(home, readonly=True, history=False)


def sound(home):
    with opened(home) as model, model.store.read() as view:
        return audit.check(view) == []


def holding(home, *wanted):
    """Files with one of these byte strings."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return [path.name for path in files if any(one in path.read_bytes() for one in wanted)]


def test_persons_are_listed_with_their_labels_in_force(home):
    """The newest label first; a moved label counts once, a forgotten one does not."""
    with opened(home) as model, model.store.read() as view:
        ann, bob = persons_of(view, model.labels)
    assert (ann.name, sum(ann.labels.values())) == (ANN, 11)
    assert (bob.name, bob.labels) == (BOB, {"spam": 4})
    assert min(ann.bytes, bob.bytes, ann.places, bob.places) > 0
    assert (ann.senders, bob.senders) == (2, 1)
    assert ann.as_dict()["last"]


def test_an_erased_person_leaves_no_trace(home):
    """No file of the home holds the name, or a message that only this person had."""
    with opened(home) as model:
        digests = [
            model.example(mail(1000 + number, f"figures zz{number}zz for all")).digest
            for number in range(12)
            if number % 3
        ]
        person, ids = model.person(NAMES.of(ANN)), [b"1001@a.example", b"zz1zz"]
        bob, shared = model.person("bob"), model.store
        with shared.read() as view:
            before = view.personal(bob).values.copy()
    wanted = b"ann.secret", b"ann-likes", b"ann-hates", *digests, *ids
    assert holding(home, *wanted)
    done = erasing(home).run()
    assert (done.events, done.reviews, done.senders) == (14, 1, 2)
    assert done.verdicts == 12
    assert holding(home, *wanted) == []
    assert erasing(home).still_named() == []
    assert sound(home)
    with opened(home) as model, model.store.read() as view:
        assert view.personal(person) is None
        assert (view.personal(bob).values == before).all()
        husks = [event for event in view.events() if event.kind == EventKind.ERASED]
        assert len(husks) == 14
        assert [one.name for _, one in view.sender_lists()] == ["bob", ""]
    assert erasing(home).run() == (0, 0, 0, 0, 0)


def test_a_person_with_a_list_alone_is_listed_and_erased(home):
    """The list names the person, who has taught nothing; erasing leaves no trace of it."""
    with Filter.open(home) as model:
        service = FeedbackService(model, ReviewQueue(home / "review"), persons=NAMES)
        listed(service, "carl.secret@example.org", "wanted", "carl-likes.example")
        with model.store.read() as view:
            carl = persons_of(view, model.labels)[0]
    assert (carl.name, carl.senders, carl.labels, carl.bytes) == ("carl.secret", 1, {}, 0)
    done = Erasing(home, NAMES, "carl.secret", HistoryLimits(), ReviewQueue(home / "review")).run()
    assert done == (0, 0, 0, 1, 0)
    assert holding(home, b"carl.secret", b"carl-likes") == []
    assert holding(home, b"ann-likes") == ["data.mdb"]


def test_erasing_takes_the_labels_out_of_the_shared_model(home, tmp_path):
    """Counts and steps of the labels are taken back: the counts are those of the others alone."""
    with opened(home) as model, model.store.read() as view:
        before = view.totals().messages.sum()
    erasing(home).run()
    with opened(home) as model, model.store.read() as view:
        assert view.totals().messages.sum() == before - 11


def test_a_model_with_erased_events_goes_on(home):
    """It learns, relearns and expires; an erased event cannot be undone."""
    erasing(home).run()
    with Filter.open(home) as model:
        with model.store.read() as view:
            husk = next(e for e in view.events() if e.kind == EventKind.ERASED)
            assert (husk.after, husk.user, husk.digest) == (NO_LABEL, "", b"")
        with pytest.raises(RefusedError, match="erased"):
            model.undo(husk.seq)
        model.learn(mail(9000, "something new"), "ham")
    relearn(home, lambda event: event.user == BOB, Costs())
    assert sound(home)
    erasing(home).run()
    with Filter.open(home) as model:
        assert model.store.transact(lambda view: view.fold(now_us() + DAY_US, 10**6)) > 60
    assert sound(home)


def test_labels_in_the_checkpoint_lose_their_person_alone(home):
    """Of labels in the checkpoint the sums stay; the corrections and the index entries go."""
    with Filter.open(home) as model:
        model.store.transact(lambda view: view.fold(now_us() + DAY_US, 65))
        person = model.person(NAMES.of(ANN))
        with model.store.read() as view:
            assert person in {one for one, _ in view.base_persons()}
    erasing(home).run()
    assert sound(home)
    with opened(home) as model, model.store.read() as view:
        assert person not in {one for one, _ in view.base_persons()}
    assert holding(home, b"ann.secret", person.to_bytes(8)) == []


def test_silent_persons_expire(home):
    """Persons with all labels in the checkpoint lose their corrections; their labels stay."""
    rules = ExpiryRules(400, 400, 1)
    with Filter.open(home) as model:
        service = FeedbackService(model, ReviewQueue(home / "review"), persons=NAMES)
        with model.store.read() as view:
            before = view.totals().messages.tolist()
        later = now_us() + 500 * DAY_US
        expired = expire(model.store, None, rules, now_us=later, source=OWNER)
        assert expired.persons_dropped == 2
        assert expired.as_dict()["persons_dropped"] == 2
        with model.store.read() as view:
            assert list(view.persons()) == list(view.base_persons()) == []
            assert [one.kind for _, one in view.sender_lists()] == ["site"]
            assert view.totals().messages.tolist() == before
        assert service.teach(Feedback("ham", mail(6000), user=BOB, vouched=True)).state == "learnt"
        again = expire(model.store, None, rules, now_us=now_us(), source=OWNER)
        assert again.persons_dropped == 0
    assert sound(home)


def test_erasing_goes_on_after_a_kill(home):
    """A history that was renamed halfway is completed by the next call."""
    fresh = Path(home / "history.new")
    (home / "history").rename(fresh)
    assert erasing(home).run().verdicts == 12
    assert not fresh.exists()
    assert holding(home, b"ann.secret") == []


def test_a_change_of_a_list_keeps_a_person(home):
    """A person whose labels are all in the checkpoint stays, if the list was changed since."""
    rules = ExpiryRules(400, 400, 1)
    with Filter.open(home) as model:
        store, later = model.store, now_us() + 300 * DAY_US
        store.transact(lambda view: view.fold(now_us() + DAY_US, 10**6))
        assert expire(store, None, rules, now_us=later, source=OWNER).persons_dropped == 0
        with store.read() as view:
            assert len(list(view.persons())) == 2
            assert len(list(view.sender_lists())) == 3
    assert sound(home)
