"""Corrections that wait for the log of a fleet: judged at once, learnt later, once and in order."""

import random
from collections import Counter

import pytest
from support.fleet import everything
from support.fleet_storm import letter
from support.outbox_host import Killed, OutboxHost

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.values import Learn, Source
from spamnb.errors import LogAwayError, RefError
from spamnb.fleet.administration import leave
from spamnb.fleet.log import MemoryLog
from spamnb.fleet.waiting import learn_alone
from spamnb.model.events import NO_LABEL, EventKind

RECIPE = new_recipe()


@pytest.fixture
def fleet(tmp_path):
    """Two hosts that know a ham and a spam."""
    log = MemoryLog()
    hosts = [OutboxHost(tmp_path / name, log, RECIPE, name) for name in ("a", "b")]
    hosts[0].model.learn(letter("h", 0), "ham")
    hosts[0].model.learn(letter("s", 1), "spam")
    hosts[1].model.store.follow()
    yield hosts
    for host in hosts:
        host.model.close()


def host_request(host, number):
    return Learn(host.model.example(letter(f"more{number}", 1)), 1, Source("u", "api"), 1)


def equal(fleet):
    """Whether all hosts are equal when they have followed the log."""
    for host in fleet:
        host.heal()
    for host in fleet:
        host.model.store.follow()
    found = [everything(host.model.store) for host in fleet]
    return all(one == found[0] for one in found)


def labels_of(fleet):
    """The kind and label of each event after the first two."""
    with fleet[0].model.store.read() as view:
        return [(event.kind.name, event.after) for event in view.events(3)]


def test_a_message_is_judged_as_said_while_its_correction_waits(fleet):
    """A correction without the log changes the verdict on its message alone, and at once."""
    first, second = fleet
    raw, alike = letter("x", 0), letter("y", 0)
    first.log.away = True
    before = everything(first.model.store), first.model.score(alike, remember=False)
    receipt = first.model.correct(raw, "spam")
    assert (receipt.changed, receipt.waiting, receipt.after) == (False, 1, "spam")
    verdict = first.model.score(raw, remember=False)
    assert (verdict.label, verdict.decision in {"junk", "reject"}) == ("spam", True)
    assert verdict.probabilities["spam"] == pytest.approx(verdict.probability)
    assert first.model.score(alike, remember=False).z == before[1].z
    assert second.model.score(raw, remember=False).label == "ham"
    assert everything(first.model.store) == before[0]
    first.restart()
    assert first.model.score(raw, remember=False).label == "spam"
    assert first.heal() == 1
    assert equal(fleet)
    for host in fleet:
        assert host.model.score(raw, remember=False).label == "spam"
        assert host.waiting == 0
    assert first.committer.outbox.pinned([verdict.digest]) == {}


def test_a_pin_of_a_person_is_for_that_person(fleet):
    """A person's waiting correction changes that person's verdict, and no other one."""
    first, raw = fleet[0], letter("x", 0)
    ann = first.model.person("ann")
    first.log.away = True
    first.model.correct(raw, "spam", source=Source("ann", "api", immediate=True, person=ann))
    given = first.model.score(raw, remember=False), first.model.example(raw)
    found = first.model.personal_verdicts(given, [ann, first.model.person("bob")])
    assert given[0].label == "ham"
    assert {person: verdict.label for person, verdict in found.items()} == {ann: "spam"}
    assert equal(fleet)


def test_pins_of_several_users_are_as_their_labels_will_be(fleet):
    """The label that is in force decides; an administrator's stored label is not overridden."""
    first = fleet[0]
    ann, bob, carl = (
        Source(name, "imap", immediate=True, owner=first.model.owner(name))
        for name in ("ann", "bob", "carl")
    )
    mine, trained = letter("x", 0), letter("s", 1)
    first.log.put_level(2)
    first.model.store.follow()
    first.log.away = True
    first.model.correct(mine, "spam", source=ann)
    first.model.correct(mine, "ham", source=bob)
    assert first.model.score(mine, remember=False).label == "spam"
    first.model.correct(mine, "ham", source=carl)
    first.model.correct(trained, "ham", source=ann)
    for _ in range(2):
        assert first.model.score(mine, remember=False).label == "ham"
        assert first.model.score(trained, remember=False).label == "spam"
        assert equal(fleet)
    with fleet[1].model.store.read() as view:
        assert len(view.labels(first.model.example(mine).digest)) == 3
        assert len(view.labels(first.model.example(trained).digest)) == 2


def test_a_fleet_with_older_hosts_writes_labels_that_they_read(fleet):
    """Until the level is raised a message has one label for all users; then one for each."""
    first, second = fleet
    sources = [
        Source(name, "imap", immediate=True, owner=first.model.owner(name)) for name in ("u", "v")
    ]
    raw = letter("x", 0)
    first.model.correct(raw, "spam", source=sources[0])
    assert first.model.correct(raw, "ham", source=sources[1]).before == "spam"
    assert equal(fleet)
    first.log.put_level(2)
    second.model.store.follow()
    other = letter("y", 1)
    second.model.correct(other, "spam", source=sources[0])
    assert second.model.correct(other, "ham", source=sources[1]).before is None
    assert second.model.correct(other, "ham", source=sources[0]).before == "spam"
    assert equal(fleet)


def test_waiting_corrections_are_learnt_in_their_order(fleet):
    """Labels that contradict each other, forgets and undos are learnt as they were given."""
    first, raw = fleet[0], letter("x", 0)
    event = first.model.correct(letter("z", 1), "ham").event
    first.log.away = True
    first.model.correct(raw, "spam")
    first.model.correct(raw, "ham")
    assert first.model.score(raw, remember=False).label == "ham"
    first.model.forget(raw)
    first.model.correct(raw, "spam")
    first.model.undo(event)
    assert first.waiting == 5
    assert equal(fleet)
    spam, ham = RECIPE.labels.index("spam"), RECIPE.labels.index("ham")
    kinds = [("LEARN", spam), ("MOVE", ham), ("FORGET", NO_LABEL), ("LEARN", spam)]
    assert labels_of(fleet)[1:] == [*kinds, ("UNDO", NO_LABEL)]


def test_a_waiting_correction_can_be_undone(fleet):
    """An undone correction is not learnt; the message is judged by the label that it had before."""
    first, raw = fleet[0], letter("x", 0)
    first.log.away = True
    first.model.correct(raw, "ham")
    number = first.model.correct(raw, "spam").waiting
    first.committer.take_back(number)
    assert first.model.score(raw, remember=False).label == "ham"
    with pytest.raises(RefError):
        first.committer.take_back(number)
    assert equal(fleet)
    assert labels_of(fleet) == [("LEARN", RECIPE.labels.index("ham"))]


@pytest.mark.parametrize("fault", ["lost", "dropped", "late", "killed"])
def test_a_correction_is_learnt_once_whatever_becomes_of_its_append(fleet, fault):
    """A correction that the log may have waits, is learnt once, and can be undone."""
    for undone in (False, True):
        first, raw = fleet[0], letter(f"{fault}{undone}", 0)
        before = len(labels_of(fleet))
        first.log.faults = [fault]
        try:
            number = first.model.correct(raw, "spam").waiting
        except Killed:
            number = 0
        if undone and number:
            first.committer.take_back(number)
        first.restart()
        assert equal(fleet)
        kinds = [kind for kind, _ in labels_of(fleet)[before:]]
        is_in_log = fault in {"lost", "late", "killed"}
        wanted = ["LEARN", "UNDO"] if undone and number and is_in_log else ["LEARN"]
        assert kinds == ([] if undone and number and not is_in_log else wanted)
        assert first.waiting == 0


def test_a_full_outbox_refuses(tmp_path):
    """Beyond its bound the outbox takes nothing, and loses nothing; what it has is learnt."""
    host = OutboxHost(tmp_path / "a", MemoryLog(), RECIPE, "a", limit_bytes=1 << 18)
    host.log.away, taken = True, 0
    while host.committer.outbox.state().bytes < (1 << 18) - 4000:
        host.model.correct(letter(f"{taken}", taken % 2), "spam")
        taken += 1
    with pytest.raises(LogAwayError, match="wait"):
        host.model.teach([host_request(host, number) for number in range(40)])
    assert (host.waiting, host.heal(), host.waiting) == (taken, taken, 0)
    assert taken > 20
    host.model.close()


@pytest.mark.parametrize("seed", range(6))
def test_each_correction_is_learnt_once_through_faults(fleet, seed):
    """Despite cuts, lost and late appends and kills each acknowledged correction is learnt once."""
    chance, given, unsure = random.Random(seed), set(), set()
    for number in range(60):
        host = chance.choice(fleet)
        host.log.away, host.log.rough = chance.random() < 0.3, 0.4
        name = f"{seed}.{number}"
        try:
            host.model.correct(letter(name, 1), "spam")
            given.add(name)
            if chance.random() < 0.3:
                host.committer.learn_waiting()
        except Killed:
            unsure.add(name)
            host.restart()
        except LogAwayError:
            pass
    assert equal(fleet)
    with fleet[0].model.store.read() as view:
        learnt = Counter(event.message_id.partition("@")[0] for event in view.events(3)
                         if event.kind is EventKind.LEARN)  # fmt: skip
    assert set(learnt.values()) == {1}
    assert given <= learnt.keys() <= given | unsure


def test_a_host_that_leaves_learns_what_waits(fleet):
    """A correction that waits when the host leaves its fleet is learnt alone."""
    first = fleet[0]
    first.log.away = True
    first.model.correct(letter("x", 0), "spam")
    number = first.model.correct(letter("y", 1), "ham").waiting
    first.committer.take_back(number)
    outbox = first.committer.outbox
    alone = Filter(first.model.store._store)
    leave(alone.store)
    assert (learn_alone(alone, outbox), outbox.state().waiting) == (2, 0)
    assert alone.score(letter("x", 0), remember=False).label == "spam"
    assert alone.trained_label(letter("y", 1)) is None
