"""Who may change which list of senders, and whom a message names."""

import pytest
from support.fleet import joined
from support.memory_store import MemoryStore
from test_feedback_service import MADE, delivered, mail, teach_some

from spamnb.engine.filter import Filter
from spamnb.errors import LimitError, RefError, RefusedError, UserError
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import ListTarget, SenderChange
from spamnb.fleet.log import MemoryLog
from spamnb.operations.parameters import read_known
from spamnb.operations.request import SENDER, Caller, sender_change_of
from spamnb.policy.actions import PersonNames
from spamnb.settings.values import TeachingRules

DOMAINS = frozenset({"example.org"})
NAMES = PersonNames("+", DOMAINS, DOMAINS, {"sales@example.org": "bob", "all@example.org": ""})
ADMIN, ANN = ListTarget("root", "admin"), ListTarget("ann@example.org")
REFERENCE = "<4000@a.example>"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with Filter.open(tmp_path_factory.mktemp("lists") / "m", create=True, recipe=MADE) as made:
        teach_some(made)
        yield made


@pytest.fixture
def service(model, tmp_path):
    rules = TeachingRules(user_per_day=5, served=DOMAINS)
    yield FeedbackService(model, ReviewQueue(tmp_path / "review"), rules, persons=NAMES)
    model.store.transact(
        lambda view: [view.put_senders(key, None) for key, _ in [*view.sender_lists()]]
    )


def owners(service):
    with service.model.store.read() as view:
        return {(one.kind, one.name) for _, one in view.sender_lists()}


@pytest.mark.parametrize(
    ("target", "owner"),
    [
        (ADMIN, ("site", "")),
        (ADMIN._replace(person="Ann+x@Example.org"), ("person", "ann")),
        (ADMIN._replace(person="sales@example.org"), ("person", "bob")),
        (ADMIN._replace(domain="@Example.ORG"), ("domain", "example.org")),
        (ANN, ("person", "ann")),
        (ListTarget("ANN"), ("person", "ann")),
    ],
)
def test_a_list_belongs_to_its_owner(service, target, owner):
    """Aliases, extensions, case and logins name one person."""
    assert service.list_sender(SenderChange(target, "wanted", "a@x.example")).state == "listed"
    assert owners(service) == {owner}


@pytest.mark.parametrize(
    "target",
    [
        ANN._replace(person="bob"),
        ANN._replace(domain="example.org"),
        ANN._replace(trust="stranger"),
        ListTarget("ann@elsewhere.example"),
        ListTarget("all@example.org"),
        ListTarget(""),
        ADMIN._replace(person="ann", domain="example.org"),
        ADMIN._replace(person="a\nb"),
        ADMIN._replace(person="x" * 1000),
        ADMIN._replace(domain="other.example"),
    ],
)
def test_nothing_is_changed_without_the_right(service, target):
    """A user has no other list; a stranger, an alias of several and another domain have none."""
    with pytest.raises(UserError):
        service.list_sender(SenderChange(target, "wanted", "a@x.example"))
    assert owners(service) == set()


@pytest.mark.parametrize(
    ("role", "fields", "target"),
    [
        ("admin", {}, ListTarget("me", "admin")),
        ("admin", {"for": "ann"}, ListTarget("ann", "user")),
        ("self", {}, ListTarget("me", "user")),
        ("self", {"trust": "admin"}, ListTarget("me", "user")),
        ("self", {"trust": "stranger"}, ListTarget("me", "stranger")),
        ("delegate", {"for": "ann", "trust": "admin"}, ListTarget("ann", "user")),
        ("self", {"for": "ann"}, None),
    ],
)
def test_a_caller_acts_as_itself(role, fields, target):
    """Only an admin is one; a delegate names a user; another caller has the own name."""
    caller = Caller(1, role, "me")
    given = read_known(SENDER, {"word": "wanted", "sender": "a@x.example"} | fields)
    if target is None:
        with pytest.raises(RefusedError):
            sender_change_of(caller, given, b"")
    else:
        assert sender_change_of(caller, given, b"").target == target


def test_a_reference_names_the_author_of_own_mail(service, model):
    """The note of the author counts, then the envelope; other users' mail is not found."""
    raw = mail(4000, "a message to ann")
    feature_batch = model.reader.feature_batch([raw])
    notes = {"to": "ann@example.org", "from": "bounce@x.example", "author": "shop@x.example"}
    model.remember([feature_batch], model.score_batches([feature_batch]), [notes])
    for target in (ANN, ADMIN):
        answer = service.list_sender(SenderChange(target, "wanted", refs=(REFERENCE,)))
        assert answer.facts["sender"] == "shop@x.example"
    with pytest.raises(RefError):
        service.list_sender(SenderChange(ListTarget("bob"), "wanted", refs=(REFERENCE,)))
    delivered(model, mail(4001, "without notes"), "ann@example.org")
    with pytest.raises(UserError, match="exactly one sender"):
        service.list_sender(SenderChange(ANN, "wanted", refs=("<4001@a.example>",)))
    with pytest.raises(UserError, match="exactly one of these"):
        service.list_sender(SenderChange(ANN, "wanted", "a@x.example", refs=(REFERENCE,)))


def test_changes_count_for_the_day_of_the_user(service):
    """What changes nothing, or is refused, does not count; an admin has no quota."""
    for _ in range(9):
        service.list_sender(SenderChange(ANN, None, "a@x.example"))
        with pytest.raises(UserError):
            service.list_sender(SenderChange(ANN, "wanted", "*"))
    for number in range(5):
        service.list_sender(SenderChange(ANN, "wanted", f"a{number}@x.example"))
    with pytest.raises(LimitError):
        service.list_sender(SenderChange(ANN, "wanted", "more@x.example"))
    service.list_sender(SenderChange(ADMIN._replace(person="ann"), "wanted", "more@x.example"))
    assert len(list(service.sender_lists.shown(ANN))) == 6
    assert list(service.sender_lists.shown(ListTarget("bob"))) == []
    with pytest.raises(RefusedError):
        list(service.sender_lists.shown(ANN._replace(person="bob")))


def test_a_host_of_a_fleet_has_its_own_lists(tmp_path):
    """A change adds no event to the log, and the other hosts go on."""
    log = MemoryLog()
    hosts = [joined(MemoryStore(MADE), log, name) for name in ("one", "two")]
    services = [
        FeedbackService(host, ReviewQueue(tmp_path / str(n)), persons=NAMES)
        for n, host in enumerate(hosts)
    ]
    assert services[0].list_sender(SenderChange(ANN, "wanted", "a@x.example")).state == "listed"
    assert log.head().seq == 0
    hosts[1].learn(mail(1, "of the other host"), "ham")
    hosts[0].learn(mail(2, "of this host"), "spam")
    assert log.head().seq == 2
    assert [len(list(one.sender_lists.shown(ANN))) for one in services] == [1, 0]
