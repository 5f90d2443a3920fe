"""Labels of several owners for the same messages: exact in any order, after any undo, on any host.

A plain table of labels says what every label and every count has to be.
"""

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.fleet import everything, joined
from support.memory_store import MemoryStore
from support.stores import picture
from test_learning import numbers

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.lookup import in_force
from spamnb.engine.values import Forget, Learn, Source, Undo
from spamnb.fleet.log import MemoryLog
from spamnb.maintenance.attribution import trainings_in_force
from spamnb.maintenance.rewind import relearn, rewind
from spamnb.model.costs import Costs
from spamnb.model.events import NO_LABEL, UNVERIFIED, label_key
from spamnb.store.maintenance import check
from spamnb.store.model_store import open_store

WORDS = ["apple", "pear", "plum", "fig", "lemon", "lime", "quince", "cherry", "melon", "grape"]
NOW = 20_000 * 86_400_000_000
HOUR_US = 3_600_000_000
RECIPE = replace(new_recipe(), key=bytes(range(32)))
SOURCES = {
    "administrator": Source("root", immediate=True),
    "training": Source("root", "train"),
    "ann": Source("ann", "imap", immediate=True, owner=11),
    "bob": Source("bob", "imap", immediate=True, owner=22),
    "carl": Source("carl", "imap", immediate=True, owner=33),
    "trap": Source("trap", "trap", 0.5, owner=44 | UNVERIFIED),
    "person": Source("dora", "imap", immediate=True, person=55),
}
WHO, MESSAGES = st.sampled_from(sorted(SOURCES)), st.integers(0, 4)


def mail(number):
    text = " ".join(WORDS[number % 3 :: number % 2 + 1])
    return f"From: ann@a.example\nMessage-ID: <{number}@a.example>\n\n{text} {number}\n".encode()


def key_of(source, digest):
    return label_key(digest, source.person, source.owner)


def learn(model, number, who, label, time_us):
    source = SOURCES[who]
    example = model.example(mail(number))
    return Learn(example, label, source, time_us, again=source.immediate)


def counts_of(table):
    """How many labels of each kind are in a table."""
    found = Counter(label for label in table.values() if label != NO_LABEL)
    return [found[0], found[1]]


class Owners(RuleBasedStateMachine):
    """One model, and the table of its labels."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.open()
        self.table = {}
        self.given_at = {}
        self.hour = 0

    def open(self):
        path = self.folder / "model"
        store = open_store(path) if path.exists() else open_store(path, create=RECIPE)
        self.model = Filter(store)

    def now(self):
        self.hour += 1
        return NOW + self.hour * HOUR_US

    def run(self, request):
        return self.model.teach([request])[0]

    def give(self, key, label, at):
        if label != self.table.get(key, NO_LABEL):
            self.given_at[key] = at
        self.table[key] = label

    @rule(who=WHO, number=MESSAGES, label=st.integers(0, 1))
    def label(self, who, number, label):
        """A label replaces the owner's earlier one, and no other."""
        request = learn(self.model, number, who, label, self.now())
        key, source = key_of(SOURCES[who], request.example.digest), SOURCES[who]
        receipt = self.run(request)
        assert receipt.error is None
        before = self.table.get(key, NO_LABEL)
        assert receipt.before == (None if before == NO_LABEL else RECIPE.labels[before])
        if before != label:
            assert receipt.changed
        self.give(key, label, receipt.event)
        again = self.run(request._replace(again=False, time_us=self.now()))
        assert not again.changed
        decided = self.decided(number)
        if not source.person:
            assert receipt.in_force == RECIPE.labels[decided]
        if source.immediate and not source.person:
            verdict = self.model.score(mail(number), remember=False)
            assert verdict.label == RECIPE.labels[decided]

    @rule(who=WHO, number=MESSAGES)
    def forget(self, who, number):
        """An owner forgets the own label alone."""
        digest = self.model.example(mail(number)).digest
        key = key_of(SOURCES[who], digest)
        receipt = self.run(Forget(digest, SOURCES[who], self.now()))
        if self.table.get(key, NO_LABEL) == NO_LABEL:
            assert not receipt.changed
        else:
            assert receipt.changed
            self.give(key, NO_LABEL, receipt.event)

    @rule(who=WHO, number=MESSAGES, label=st.integers(0, 1))
    def learn_and_take_back(self, who, number, label):
        """A first label that is forgotten or undone leaves every number as it was."""
        request = learn(self.model, number, who, label, self.now())
        key = key_of(SOURCES[who], request.example.digest)
        before = numbers(self.model)
        receipt = self.run(request)
        if self.table.get(key, NO_LABEL) == NO_LABEL:
            assert self.run(Forget(request.example.digest, SOURCES[who], self.now())).changed
            self.table[key] = NO_LABEL
            assert numbers(self.model) == before
            receipt = self.run(request)
        if receipt.changed:
            assert self.run(Undo(receipt.event, Source(), self.now())).changed
            assert numbers(self.model) == before

    @rule(back=st.integers(0, 12))
    def undo(self, back):
        """An undo restores the label that its event replaced, if it is the newest of its owner."""
        with self.model.store.read() as view:
            event = view.event(view.totals().last_seq - back)
        if event is None:
            return
        receipt = self.run(Undo(event.seq, Source(), self.now()))
        if receipt.changed:
            self.table[event.label_key] = event.before
            self.given_at.pop(event.label_key, None)

    @rule(number=MESSAGES)
    def forget_all(self, number):
        """An administrator takes back the labels of all owners, but not those of persons."""
        digest = self.model.example(mail(number)).digest
        keys = [key for key in self.table if key[:16] == digest and len(key) != 24]
        if any(self.table[key] != NO_LABEL for key in keys):
            assert self.model.forget(mail(number)).changed
            self.table |= dict.fromkeys(keys, NO_LABEL)

    @precondition(lambda self: self.hour)
    @rule()
    def relearn(self):
        """The journal gives the same labels and counts again, and the same label in force."""
        before = self.seen()
        self.model.close()
        relearn(self.folder / "model", lambda _: False, Costs())
        self.open()
        assert self.seen() == before

    @precondition(lambda self: self.hour)
    @rule(back=st.integers(0, 3))
    def rewind(self, back):
        """Rewinding after a label removes this label alone."""
        with self.model.store.read() as view:
            last = view.event(view.totals().last_seq)
        if last is None:
            return
        before = numbers(self.model)
        at = max(last.time_us, NOW + self.hour * HOUR_US)
        self.hour = (at - NOW) // HOUR_US + 1
        for number in range(back):
            self.run(learn(self.model, number, "bob", number % 2, self.now()))
        self.model.close()
        rewind(self.folder / "model", at)
        self.open()
        assert numbers(self.model) == before

    def seen(self):
        with self.model.store.read() as view:
            digests = {key[:16] for key in self.table}
            labels = {key: view.live(key) for key in self.table}
            said = {digest: in_force(view, digest).label for digest in digests}
            return (
                view.totals().messages.tolist(),
                {key: state.label for key, state in labels.items() if state and state.label >= 0},
                said,
            )

    def decided(self, number):
        """The label in force, told plainly."""
        digest = self.model.example(mail(number)).digest
        mine = {key: label for key, label in self.table.items() if key[:16] == digest}
        mine = {key: label for key, label in mine.items() if label != NO_LABEL and len(key) != 24}
        if digest in mine:
            return mine[digest]
        users = {key: label for key, label in mine.items() if not key[17] & 128} or mine
        votes = Counter(users.values())
        if len(set(votes.values())) == 1 and len(votes) == 2:
            with self.model.store.read() as view:
                return in_force(view, digest).label
        return votes.most_common(1)[0][0] if votes else NO_LABEL

    @invariant()
    def the_labels_are_those_of_the_table(self):
        """Every label, every count, and the store is the sum of its journal."""
        with self.model.store.read() as view:
            for key, label in self.table.items():
                state = view.live(key)
                assert (state.label if state else NO_LABEL) == label
            assert view.totals().messages.tolist() == counts_of(self.table)
            assert check(view) == []
            live = [key for key, label in self.table.items() if label != NO_LABEL]
            assert len(list(trainings_in_force(view))) == len(live)
        for number in range(5):
            digest = self.model.example(mail(number)).digest
            with self.model.store.read() as view:
                assert in_force(view, digest).label == self.decided(number)

    def teardown(self):
        self.model.close()


TestOwners = Owners.TestCase
TestOwners.settings = settings(
    max_examples=max(settings.default.max_examples // 5, 5), stateful_step_count=25
)

labels = st.lists(
    st.tuples(st.integers(0, 2), WHO, MESSAGES, st.integers(-1, 1), st.booleans()),
    min_size=1,
    max_size=25,
)


@settings(max_examples=max(settings.default.max_examples // 4, 5))
@given(labels)
def test_all_hosts_hold_what_a_single_one_would(given_labels):
    """Labels of several owners on any hosts give the numbers and events of one host with all."""
    log, alone = MemoryLog(), Filter(MemoryStore(RECIPE))
    hosts = [joined(MemoryStore(RECIPE), log, f"host{n}") for n in range(3)]
    log.put_level(hosts[0].store.member.level)
    for at, (host, who, number, label, follows) in enumerate(given_labels):
        model, time_us = hosts[host], NOW + at * HOUR_US
        if follows:
            model.store.follow()
        if label == NO_LABEL:
            digest = model.example(mail(number)).digest
            requests = [Forget(digest, SOURCES[who], time_us)] * 2
        else:
            requests = [learn(one, number, who, label, time_us) for one in (model, alone)]
        (got,), (want,) = model.teach([requests[0]]), alone.teach([requests[1]])
        assert got._replace(error=None) == want._replace(error=None)
    for model in hosts:
        model.store.follow()
    found = [everything(model.store) for model in hosts]
    assert found[0] == found[1] == found[2]
    with alone.store.read() as view:
        assert picture(view) == found[0][0]


@pytest.mark.parametrize("kind", ["multinomial", "bernoulli"])
def test_labels_of_several_owners_in_other_kinds(kind):
    """Every owner counts once, and forgetting restores the counts."""
    model = Filter(MemoryStore(new_recipe(kind)))
    model.learn(mail(0), "ham")
    before = numbers(model)
    receipts = [
        model.teach([learn(model, 1, who, label, NOW)])[0]
        for who, label in (("ann", 0), ("bob", 1), ("ann", 1))
    ]
    assert [one.before for one in receipts] == [None, None, "ham"]
    with model.store.read() as view:
        assert view.totals().messages.tolist() == [1, 2]
    model.forget(mail(1))
    assert numbers(model) == before
