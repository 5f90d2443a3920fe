"""The index of the history: it finds what a walk over all entries finds, and can be built again."""

import random
import shutil
from dataclasses import replace

import pytest
from support.history import NOON_2026, entry

from spamnb.engine.filter import Filter
from spamnb.feedback.rights import delivered_to
from spamnb.model.verdict import signature_text
from spamnb.operations.listings import (
    VerdictQuery,
    follow,
    mark_of,
    search,
    terms_of,
)
from spamnb.records.verdicts import History, LookupIndex
from spamnb.settings.values import TeachingRules

RULES = TeachingRules(delimiter="+")
PEOPLE = ("Ann+news@a.example", "bob@b.example", "bob@c.example")
SUBJECTS = ("Invoice of May", "\xdcber die Rechnung", "invoice", "=?", "")
SENDERS = ("x@one.example", "y@one.example", "z@two.example", "")


def verdict(number):
    """Make an entry with notes, the same ones for the same number."""
    rng = random.Random(number)
    notes = {
        "to": " ".join(rng.sample(PEOPLE, rng.randint(0, 2))),
        "from": rng.choice(SENDERS),
        "subject": rng.choice(SUBJECTS),
        "client": f"192.0.2.{rng.randint(1, 3)}",
        "listener": rng.choice(("mx", "lmtp")),
    }
    decision = rng.choice(("deliver", "junk"))
    notes = {name: text for name, text in notes.items() if text}
    return entry(number, size=5, label=rng.choice(("ham", "spam")), decision=decision, notes=notes)


@pytest.fixture
def model(tmp_path):
    """A model with 300 verdicts, one of which was corrected."""
    with Filter.open(tmp_path / "home", create=True) as model:
        model.history.add([verdict(number) for number in range(300)])
        model.correct(signature_text((7).to_bytes(16, "big")), "ham")
        yield model


def opened(model, tmp_path, rules=RULES):
    """Open the index and let it follow the history to its end."""
    index = LookupIndex.open(tmp_path / "lookup", mark_of(rules))
    while follow(model.history, index, rules):
        pass
    return index


def found(model, index, query, limit=40):
    """Give the numbers of all found verdicts, over all pages."""
    numbers = []
    while True:
        page = search(model, index, RULES, query, limit)
        numbers += [int.from_bytes(bytes.fromhex(row["id"])[1:], "big") for row in page.verdicts]
        assert len(page.verdicts) <= limit
        if not page.below:
            return numbers
        query = replace(query, below=page.below)


def walked(model, matches):
    """Give the numbers of the verdicts that match, by a walk over the history."""
    return [int.from_bytes(one.digest[1:], "big") for one in model.history.newest() if matches(one)]


QUERIES = [
    (VerdictQuery(), lambda _: True),
    (VerdictQuery(decision="junk"), lambda one: one.decision == "junk"),
    (
        VerdictQuery(decision="junk", label="ham", listener="mx", client="192.0.2.2"),
        lambda one: (
            (one.decision, one.label, one.notes["listener"], one.notes["client"])
            == ("junk", "ham", "mx", "192.0.2.2")
        ),
    ),
    (VerdictQuery(to="ann@A.example"), lambda one: "Ann+" in one.notes.get("to", "")),
    (VerdictQuery(sender="X@one.example"), lambda one: one.notes.get("from", "")[:1] == "x"),
    (VerdictQuery(sender="one.example"), lambda one: "@one" in one.notes.get("from", "")),
    (VerdictQuery(sender="@one.example"), lambda one: "@one" in one.notes.get("from", "")),
    (VerdictQuery(words="INVOICE"), lambda one: "nvoice" in one.notes.get("subject", "")),
    (VerdictQuery(words="may invoice"), lambda one: "May" in one.notes.get("subject", "")),
    (VerdictQuery(words="\xfcber"), lambda one: "Rech" in one.notes.get("subject", "")),
    (VerdictQuery(words="absent"), lambda _: False),
    (VerdictQuery(user="bob"), lambda one: delivered_to(one, "bob", RULES)),
    (VerdictQuery(user="bob@c.example"), lambda one: "bob@c" in one.notes.get("to", "")),
    (VerdictQuery(user="mallory"), lambda _: False),
    (VerdictQuery(corrected=True, label="spam"), lambda _: False),
    (
        VerdictQuery(since_us=NOON_2026 + 100_000_000, until_us=NOON_2026 + 200_000_000),
        lambda one: NOON_2026 + 100_000_000 <= one.time_us < NOON_2026 + 200_000_000,
    ),
]


@pytest.mark.parametrize(("query", "matches"), QUERIES)
def test_a_search_finds_what_a_walk_finds(model, tmp_path, query, matches):
    """Every condition, over several pages, newest first."""
    index = opened(model, tmp_path)
    if not query.corrected:
        assert found(model, index, query) == walked(model, matches)
    for below in (index.position, index.position + 1):
        assert search(model, index, RULES, replace(query, below=below), 1).below <= below
    index.close()


def test_a_corrected_verdict_is_found_as_such(model, tmp_path):
    """`corrected` compares the label that the message was taught with that of the verdict."""
    label = verdict(7).label
    index = opened(model, tmp_path)
    assert found(model, index, VerdictQuery(corrected=True)) == ([7] if label == "spam" else [])
    assert len(found(model, index, VerdictQuery(corrected=False))) == 300 - (label == "spam")
    index.close()


def test_the_index_forgets_with_the_history(model, tmp_path):
    """An entry that the history deleted leaves no term behind."""
    index = opened(model, tmp_path)
    assert model.history.expire(NOON_2026 + 31 * 86_400_000_000) > 0
    left = model.history.count()
    while follow(model.history, index, RULES):
        pass
    assert index.count() == left
    assert found(model, index, VerdictQuery()) == walked(model, lambda _: True)
    model.history.add([verdict(400)])
    while follow(model.history, index, RULES):
        pass
    assert found(model, index, VerdictQuery(), 1)[0] == 400
    index.close()


@pytest.mark.parametrize("harm", ["deleted", "damaged", "power cut", "delimiter", "other history"])
def test_the_index_is_built_again(model, tmp_path, harm):
    """Whatever happens to the index or the history, the next search finds the same as a walk."""
    opened(model, tmp_path).close()
    folder, rules = tmp_path / "lookup", RULES
    if harm == "deleted":
        shutil.rmtree(folder)
    elif harm == "damaged":
        (folder / "data.mdb").write_bytes(b"\0" * 8192)
    elif harm == "power cut":
        (folder / "boot").write_text("another boot")
    elif harm == "delimiter":
        rules = replace(RULES, delimiter="-")
    else:
        model.history.close()
        shutil.rmtree(tmp_path / "home" / "history")
        model.history = History.open(tmp_path / "home" / "history")
        model.history.add([verdict(5)])
    index = opened(model, tmp_path, rules)
    assert found(model, index, VerdictQuery()) == walked(model, lambda _: True)
    assert index.count() == model.history.count()
    index.close()


def test_the_index_is_built_again_while_it_is_open(model, tmp_path):
    """Its folder is deleted under it: the next look at the history starts a new one there."""
    index = opened(model, tmp_path)
    shutil.rmtree(tmp_path / "lookup")
    while follow(model.history, index, RULES):
        pass
    assert found(model, index, VerdictQuery()) == walked(model, lambda _: True)
    assert (tmp_path / "lookup" / "data.mdb").exists()
    index.close()


def test_terms_do_not_cross_fields():
    """A subject cannot imitate a recipient: each term names its field."""
    one = entry(1, notes={"to": "a@b.example", "subject": "to bob@b.example listener mx"})
    assert {term.partition(" ")[0] for term in terms_of(one, RULES)} == {
        "decision", "label", "to", "login", "word",
    }  # fmt: skip
    assert "to bob@b.example" not in set(terms_of(one, RULES))
