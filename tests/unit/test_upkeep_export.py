"""Export and import: a round trip is exact, and nothing is added that means something else."""

import io
import json

import numpy as np
import pytest
from support.memory_store import MemoryStore

from spamnb.engine.filter import OWNER, Filter, new_recipe
from spamnb.engine.values import Source
from spamnb.errors import UserError
from spamnb.maintenance.export import (
    LINE,
    export,
    lines_of,
    merge,
    read_export,
    recipe_of,
)
from spamnb.store import maintenance as audit


def message(number, words):
    head = f"From: a@example.org\nSubject: news\nMessage-ID: <{number}@x.test>\n\n"
    return f"{head}{words}\n".encode()


def trained(kind="corrected", labels=("ham", "spam")):
    model = Filter(MemoryStore(new_recipe(kind, labels)))
    for number in range(6):
        model.learn(message(number, f"word{number} shared"), labels[number % len(labels)])
    return model


def state(model):
    with model.store.read() as view:
        ids, records = audit.collect(view.features(), len(model.labels))
        totals = view.totals()
        words = [(word.id, word.location, word.text) for word in view.all_words()]
    numbers = (records.n, records.w, records.day, totals.messages, totals.tokens, totals.bias)
    return [ids.tolist(), *(a.tolist() for a in numbers), totals.known, words]


@pytest.mark.parametrize("kind", ["corrected", "multinomial", "bernoulli"])
def test_a_round_trip_into_a_new_model_is_exact(kind):
    """Exported with its key and imported as new, every number, day and word is the same."""
    model = trained(kind)
    exported = read_export(export(model.store, with_key=True))
    again = Filter(MemoryStore(recipe_of(exported)))
    merge(again, exported, source=OWNER)
    assert state(again) == state(model)
    assert again.score(message(1, "word1 shared")).z == model.score(message(1, "word1 shared")).z
    with again.store.read() as view:
        assert audit.check(view) == []


def test_an_import_adds_and_one_undo_takes_it_back():
    """Merging is one event: counts double, and undo restores every number."""
    model = trained()
    before = state(model)
    receipt = merge(model, read_export(export(model.store)), source=OWNER)
    doubled = state(model)
    assert doubled[1] == (2 * np.array(before[1])).tolist()
    model.undo(receipt)
    assert state(model) == before


def test_the_key_is_written_on_demand_only():
    """An export has the fingerprint of the key, not the key."""
    model = trained()
    plain = "".join(export(model.store))
    assert model.recipe.key.hex() not in plain
    assert model.recipe.key.hex() in "".join(export(model.store, with_key=True))
    with pytest.raises(UserError, match="has no key"):
        recipe_of(read_export(plain.splitlines(keepends=True)))


def test_another_model_is_not_merged():
    """An export with another key, other labels or another kind is refused."""
    model = trained()
    with pytest.raises(UserError, match="another key"):
        merge(model, read_export(export(trained().store)), source=OWNER)
    header, *rest = export(model.store)
    for name, value in (("labels", ["spam", "ham"]), ("kind", "bernoulli")):
        changed = json.dumps(json.loads(header) | {name: value})
        with pytest.raises(UserError, match=f"export's {name}"):
            merge(model, read_export([changed, *rest]), source=OWNER)


def changed(lines, number, **values):
    lines = list(lines)
    lines[number] = json.dumps(json.loads(lines[number]) | values)
    return lines


def with_constants(lines, bias=None, **constants):
    header = json.loads(lines[0])
    header |= {} if bias is None else {"bias": bias}
    return changed(lines, 0, **header | {"recipe": header["recipe"] | constants})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: [],
        lambda _: ["{}"],
        lambda _: ["[1]"],
        lambda _: ["\x00"],
        lambda _: ["[" * 100_000],
        lambda lines: [lines[0], "[" * 100_000, *lines[2:]],
        lambda lines: lines[1:],
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: [*lines[:3], lines[3][:20], *lines[4:]],
        lambda lines: changed(lines, 0, version=1),
        lambda lines: changed(lines, 0, format="other"),
        lambda lines: changed(lines, 0, recipe={}),
        lambda lines: changed(lines, 0, tokens=[0, 0]),
        lambda lines: changed(lines, 0, messages=[-1, 5]),
        lambda lines: changed(lines, 0, bias=[[1 << 70, 0], [0, 0]]),
        lambda lines: changed(lines, 0, temperatures=[0]),
        lambda lines: changed(lines, 1, n=[1]),
        lambda lines: changed(lines, 1, n=[1, -1]),
        lambda lines: changed(lines, 1, n=[0.5, 0.5]),
        lambda lines: changed(lines, 1, n="xx"),
        lambda lines: changed(lines, 1, w=[1 << 40, 0]),
        lambda lines: changed(lines, 1, day=-1),
        lambda lines: changed(lines, 1, day=70_000),
        lambda lines: changed(lines, 1, id="zz"),
        lambda lines: changed(lines, 1, id="f" * 40),
        lambda lines: changed(lines, 1, location="nowhere"),
        lambda lines: changed(lines, 1, token=5),
        lambda lines: changed(lines, 0, kind=["corrected"]),
        lambda lines: changed(lines, 0, labels="hs"),
        lambda lines: changed(lines, 0, labels=[1, 2]),
        lambda lines: with_constants(lines, bias=[], groups=10**12),
    ],
)
def test_what_is_no_whole_export_is_refused(spoil):
    """A truncated, reordered or forged export gives one error and changes nothing."""
    with pytest.raises(UserError):
        read_export(spoil(list(export(trained().store))))


@pytest.mark.parametrize(
    "constants",
    [
        {"groups": 2.0},
        {"vocabulary": "no"},
        {"documents": 1},
        {"occurrences": True},
        {"alpha": 0},
        {"alpha": float("nan")},
        {"alpha": "x"},
        {"kappa": 99},
        {"r": -1},
        {"eta": float("inf")},
        {"rate_bias": True},
        {"rate_temper": 10**400},
    ],
)
def test_constants_with_which_nothing_can_be_scored_make_no_model(constants):
    """A forged recipe gives one error instead of a model that fails at the first message."""
    lines = list(export(trained().store, with_key=True))
    assert recipe_of(read_export(lines)).eta > 0
    with pytest.raises(UserError, match="recipe is invalid"):
        recipe_of(read_export(with_constants(lines, **constants)))


@pytest.mark.parametrize("groups", [0, 1, 3])
def test_a_model_has_the_groups_of_this_program(groups):
    """An export with other groups of features makes no model."""
    lines = list(export(trained().store, with_key=True))
    header = {"bias": [[0, 0]] * groups, "temperatures": [0] * groups}
    forged = with_constants(changed(lines, 0, **header), groups=groups)
    with pytest.raises(UserError, match="groups is"):
        recipe_of(read_export(forged))


def test_a_line_without_end_is_not_read_at_once():
    """Lines of a file are read up to a length; a longer one is no feature."""
    lines = list(export(trained().store))
    text = lines[0] + '{"id":"' + "f" * (LINE + 1) + '"}\n'
    parts = list(lines_of(io.StringIO(text)))
    assert max(map(len, parts)) == LINE
    with pytest.raises(UserError):
        read_export(parts)


def test_words_that_were_cut_within_a_letter_survive():
    """A word cut within a character is exported and imported unchanged."""
    model = Filter(MemoryStore(new_recipe()))
    model.learn(message(1, "\u00e9" * 200 + " " + "x" * 300), "spam")
    again = read_export(export(model.store)).words
    with model.store.read() as view:
        assert again.texts == b"".join(word.text for word in view.all_words())


def test_a_model_without_words_can_be_exported():
    """A model without a vocabulary is exported without tokens."""
    model = Filter(MemoryStore(new_recipe(vocabulary=False)))
    model.learn(message(1, "word"), "spam")
    lines = list(export(model.store))
    assert "token" not in json.loads(lines[1])
    assert len(read_export(lines).words.ids) == 0


def test_an_empty_model_can_be_exported():
    """An empty model can be exported and imported."""
    model = Filter(MemoryStore(new_recipe()))
    assert len(read_export(export(model.store)).bulk.ids) == 0


def with_persons():
    """A model in which two persons have corrections."""
    model = trained()
    for name, label in (("ann", "spam"), ("bob", "ham")):
        source = Source(name, person=model.person(name))
        model.correct(message(2, "word2 shared"), label, source=source)
    return model


def persons_in(model):
    with model.store.read() as view:
        assert audit.check(view) == []
        return {person: personal.values.tolist() for person, personal in view.persons()}


def test_persons_are_exported_on_request_and_imported_exactly():
    """A new model with the key has the same persons; an undo of each event removes it."""
    model = with_persons()
    assert not any("person" in json.loads(line) for line in export(model.store))
    exported = read_export(export(model.store, with_key=True, persons=True))
    assert [one.name for one in exported.persons] == sorted(("ann", "bob"), key=model.person)
    again = Filter(MemoryStore(recipe_of(exported)))
    merge(again, exported, source=OWNER)
    assert persons_in(again) == persons_in(model)
    assert state(again) == state(model)
    with again.store.read() as view:
        events = {event.user: event.seq for event in view.events() if event.person}
        assert view.base_totals().last_seq == 0
    again.undo(events["ann"])
    assert set(persons_in(again)) == {model.person("bob")}
    merge(again, exported, source=OWNER)
    assert persons_in(again) == persons_in(model)
    with again.store.read() as view:
        last = view.totals().last_seq
    again.store.transact(lambda view: view.fold(1 << 60, 99))
    assert last
    assert persons_in(again) == persons_in(model)


def test_persons_of_another_key_or_damaged_ones_are_refused():
    """Nothing is changed by an export of another model, or with an invalid line."""
    model, other = with_persons(), trained()
    lines = list(export(model.store, persons=True))
    with pytest.raises(UserError, match="another key"):
        merge(other, read_export(lines), source=OWNER)
    assert persons_in(other) == {}
    good = json.loads(lines[-1])
    for damage in (
        {"places": good["places"][::-1]},
        {"places": [1 << 14, *good["places"][1:]]},
        {"values": []},
        {"values": [[1 << 31] * len(good["places"])]},
        {"values": [[0.5] * len(good["places"])]},
        {"person": "x"},
        {"person": "0"},
        {"name": "a\nb"},
        {"name": 7},
    ):
        with pytest.raises(UserError, match="not a valid"):
            read_export([*lines[:-1], json.dumps(good | damage)])
    with pytest.raises(UserError, match="announces 2 persons"):
        read_export(lines[:-1])
