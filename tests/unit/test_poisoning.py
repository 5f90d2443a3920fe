"""Poisoning by one message in a hundred: its effect, and its removal."""

from pathlib import Path
from random import Random

import pytest

from spamnb.engine.event_filter import EventFilter
from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.values import Learn, Source
from spamnb.maintenance.rewind import relearn, undoable
from spamnb.model.costs import Costs
from spamnb.store.maintenance import collect

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
RECIPE = new_recipe()
BOB, MALLORY = Source("bob", "imap"), Source("mallory", "imap", immediate=True)
MALLORYS = EventFilter(user=("mallory",))


def read(label, start, stop):
    paths = sorted((SAMPLE / label).iterdir())[start:stop]
    return [(path.read_bytes(), label) for path in paths]


def mixed():
    """Half of the sample, and two messages that label all words of good mail as spam."""
    taught = [(*one, BOB) for label in ("ham", "spam") for one in read(label, 0, 100)]
    Random(1).shuffle(taught)
    words = sorted({w for raw, _ in read("ham", 0, 100) for w in raw.split() if w.isalpha()})
    for number, at in enumerate((70, 140)):
        head = f"From: m@x.test\nMessage-ID: <{number}@x.test>\nSubject: offer\n\n"
        taught.insert(at, (head.encode() + b" ".join(words), "spam", MALLORY))
    return taught


def taught(home, rows):
    with Filter.open(home, create=True, recipe=RECIPE, history=False) as model:
        for moment, (raw, label, source) in enumerate(rows):
            model.teach([Learn(model.example(raw), model.label(label), source, moment)])


def numbers(home):
    """The counts, and everything that is stored of features and sums."""
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        ids, records = collect(view.features(), 2)
        held, sums = records.n.any(axis=1), view.totals()
        counts = ids[held].tolist(), records.n[held].tolist(), sums.messages.tolist()
        rest = ids.tolist(), records.w.tolist(), records.day.tolist(), sums.bias.tolist()
        return counts, (*rest, sums.temperatures.tolist(), sums.known, sums.last_seq)


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Three models: never attacked, attacked, and the same once more."""
    work = tmp_path_factory.mktemp("poisoning")
    taught(work / "clean", [row for row in mixed() if row[2] == BOB])
    for name in ("attacked", "again"):
        taught(work / name, mixed())
    return work


def test_good_mail_survives_the_attack(homes):
    """A dictionary labelled as spam by a trusted person costs no ham, because steps are spread."""
    lost = {}
    for name in ("clean", "attacked"):
        with Filter.open(homes / name, readonly=True, history=False) as model:
            verdicts = list(model.score_many([raw for raw, _ in read("ham", 100, 200)]))
        lost[name] = sum(verdict.label == "spam" for verdict in verdicts)
        assert all(verdict.decision in ("deliver", "unsure") for verdict in verdicts)
    assert lost["attacked"] <= lost["clean"]


def test_undoing_the_attacker_restores_the_counts_of_the_clean_model(homes):
    """With all events of mallory taken back, every count is as without them."""
    assert numbers(homes / "attacked")[0] != numbers(homes / "clean")[0]
    with Filter.open(homes / "attacked", history=False) as model:
        with model.store.read() as view:
            found = undoable(view, RECIPE, MALLORYS)
        assert len(found.events) == 2
        for event in found.events:
            model.undo(event, source=BOB)
    assert numbers(homes / "attacked")[0] == numbers(homes / "clean")[0]


def test_relearning_without_the_attacker_restores_the_clean_model(homes):
    """Counts, corrections, days and sums: every stored number."""
    relearn(homes / "again", MALLORYS, Costs())
    assert numbers(homes / "again") == numbers(homes / "clean")
