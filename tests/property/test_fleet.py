"""The hosts of a fleet hold what a single host would hold, wherever a correction is given.

The messages are small, so that they share features, and features are removed and made again.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleet import everything, joined
from support.memory_store import MemoryStore
from support.stores import picture

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.values import Forget, Learn, Source, Undo
from spamnb.errors import SpamnbError
from spamnb.fleet.log import MemoryLog
from spamnb.store.model_store import open_store

WORDS = ["apple", "pear", "plum", "fig", "lemon", "lime", "quince", "cherry", "melon", "grape"]
NOW = 20_000 * 86_400_000_000
ANN = Source(user="ann", channel="test")
RECIPES = {
    kind: replace(new_recipe(kind), key=bytes(range(32)))
    for kind in ("corrected", "multinomial", "bernoulli")
}

corrections = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["learn", "correct", "forget", "undo", "follow"]),
        st.integers(0, 9),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)
few = settings(max_examples=settings.default.max_examples // 2)


def mail(number):
    text = " ".join(WORDS[number % 7 :: number % 3 + 1])
    return f"From: ann@a.example\nMessage-ID: <{number}@a.example>\n\n{text}\n".encode()


def request(model, way, number, label, time_us):
    """Make the request of one correction on this model."""
    if way == "undo":
        return Undo(number, ANN, time_us)
    example = model.example(mail(number))
    if way == "forget":
        return Forget(example.digest, ANN, time_us)
    source = ANN._replace(immediate=way == "correct")
    return Learn(example, label, source, time_us, again=source.immediate)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@few
@given(corrections)
def test_all_hosts_hold_what_a_single_one_would(recipe, corrections):
    """Corrections on any hosts give the numbers, texts and events of one host with all of them."""
    log, alone = MemoryLog(), Filter(MemoryStore(recipe))
    hosts = [joined(MemoryStore(recipe), log, f"host{n}") for n in range(3)]
    for at, (host, way, number, label) in enumerate(corrections):
        model = hosts[host]
        if way == "follow":
            model.store.follow()
            continue
        args = way, number, int(label), NOW + at * 3_600_000_000
        (got,) = model.teach([request(model, *args)], scored=True)
        (want,) = alone.teach([request(alone, *args)], scored=True)
        assert got._replace(error=None) == want._replace(error=None)
    for model in hosts:
        model.store.follow()
    found = [everything(model.store) for model in hosts]
    assert found[0] == found[1] == found[2]
    with alone.store.read() as view:
        assert picture(view) == found[0][0]


def test_a_host_with_lmdb_holds_the_same(tmp_path):
    """A store on disk folds the same entries to the same numbers as one in memory."""
    recipe = RECIPES["corrected"]
    log, store = MemoryLog(), open_store(tmp_path / "model", create=recipe)
    hosts = [joined(MemoryStore(recipe), log, "memory"), joined(store, log, "disk")]
    for number in range(40):
        model = hosts[number // 3 % 2]
        way = "forget" if number % 7 == 6 else "correct"
        try:
            model.run(request(model, way, number % 9, number % 2, NOW + number))
        except SpamnbError:
            assert way == "forget"
    for model in hosts:
        model.store.follow()
    assert everything(hosts[0].store) == everything(hosts[1].store)
    store.close()


def test_a_long_training_is_not_computed_in_vain():
    """A host that has just learnt much has the lease before it computes more, on all entries."""
    log = MemoryLog()
    hosts = [joined(MemoryStore(RECIPES["corrected"]), log, f"host{n}") for n in range(2)]
    first, second = hosts
    runs, learn = [], first.committer.learner.run

    def run(*args, **fields):
        runs.append(not runs or not log.take_write_lease("host1", 60_000))
        return learn(*args, **fields)

    first.committer.learner.run = run
    for part in range(3):
        numbers = range(100 * part, 100 * part + 20)
        first.teach([request(first, "learn", number, 0, NOW) for number in numbers])
        second.teach([request(second, "learn", 1000 + part, 1, NOW)])
    assert runs == [True] * 3
    assert log.take_write_lease("host1", 1)
    first.store.follow()
    assert everything(first.store) == everything(second.store)
