"""Filter: score, learn, correct, forget, undo, as people and programs call them."""

import shutil
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import spamnb
from spamnb.engine.bulk import train
from spamnb.engine.filter import OWNER, Filter, new_recipe
from spamnb.engine.values import BulkLoad, Learn, Source, Undo
from spamnb.errors import (
    BugError,
    LabelError,
    RefError,
    RefusedError,
    StoreMissingError,
    UserError,
)
from spamnb.model.events import BulkChange
from spamnb.store import maintenance as audit

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
TAUGHT = 150
"""messages of each side that the model of these tests was trained with; the rest is new to it"""


def mail(number, text, *, subject="a subject"):
    head = f"From: ann@a.example\nSubject: {subject}\nMessage-ID: <{number}@a.example>\n"
    return f"{head}\n{text}\n".encode()


def raws(side):
    return [path.read_bytes() for path in sorted((SAMPLE / side).iterdir())]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of three quarters of the sample; closed, to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    for side in ("ham", "spam"):
        (folder / side).mkdir()
        for path in sorted((SAMPLE / side).iterdir())[:TAUGHT]:
            shutil.copy(path, folder / side)
    sources = [(side, str(folder / side)) for side in ("ham", "spam")]
    train(folder / "model", sources, recipe=new_recipe())
    return folder / "model"


@pytest.fixture
def model(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "model")
    with Filter.open(tmp_path / "model") as model:
        yield model
        with model.store.read() as view:
            assert audit.check(view) == []


@pytest.fixture
def small(tmp_path):
    with Filter.open(tmp_path / "small", create=True) as model:
        model.learn(mail("h1", "the minutes of our meeting on tuesday"), "ham")
        model.learn(mail("s1", "cheap pills and a casino bonus"), "spam")
        yield model


def numbers(model):
    """The numbers that an undo restores; days only move forward, and texts are not kept."""
    with model.store.read() as view:
        ids, records = audit.collect(view.features(), len(model.labels))
        totals = view.totals()
    sums = [totals.messages, totals.tokens, totals.bias, totals.temperatures, totals.known]
    return [np.array(x).tolist() for x in (*sums, ids, records.n, records.w)]


def surest(model, side):
    """The unseen message of this label with the most certain verdict."""
    new = raws(side)[TAUGHT:]
    odds = [verdict.log_odds for verdict in model.score_many(new)]
    return new[int(np.argmax(odds) if side == "spam" else np.argmin(odds))]


# --- a correction works immediately -----------------------------------------------------


def test_a_spam_judged_with_certainty_is_ham_after_one_correction(model):
    """A message with a wrong verdict of p = 0.999 gets label and decision from one correction."""
    raw = surest(model, "spam")
    assert model.score(raw).probability > 0.999
    receipt = model.correct(raw, "ham")
    assert (receipt.changed, receipt.before, receipt.after) == (True, None, "ham")
    verdict = model.score(raw)
    assert (verdict.label, verdict.decision) == ("ham", "deliver")
    assert receipt.probability_before > 0.999
    assert receipt.probability_after == pytest.approx(verdict.probability, abs=1e-9)


def test_a_ham_judged_with_certainty_is_junk_after_one_correction(model):
    """One correction makes a message with a certain ham verdict junk."""
    raw = surest(model, "ham")
    assert model.score(raw).probability < 0.001
    model.correct(raw, "spam")
    verdict = model.score(raw)
    assert verdict.label == "spam"
    assert verdict.decision in ("junk", "reject")


@pytest.mark.parametrize(("side", "label"), [("spam", "ham"), ("ham", "spam")])
def test_one_undo_takes_a_correction_back_exactly(model, side, label):
    """All steps of a correction are one event, and one undo reverts them."""
    raw = surest(model, side)
    before, odds = numbers(model), model.score(raw).log_odds
    receipt = model.correct(raw, label)
    assert numbers(model) != before
    assert model.undo(receipt).changed
    assert numbers(model) == before
    assert model.score(raw).log_odds == odds


def test_every_message_of_the_other_side_can_be_turned_round(model):
    """Each of twenty corrections in a row takes effect."""
    for raw in raws("spam")[TAUGHT : TAUGHT + 20]:
        model.correct(raw, "ham")
        verdict = model.score(raw, remember=False)
        assert (verdict.label, verdict.decision) == ("ham", "deliver")


def test_a_correction_works_on_a_message_that_was_learnt_with_doubt(model):
    """A correction takes effect if bulk training had the same label with too small a step."""
    raw = surest(model, "spam")
    model.learn(raw, "ham")
    assert model.score(raw).label == "spam"
    model.correct(raw, "ham")
    verdict = model.score(raw)
    assert (verdict.label, verdict.decision) == ("ham", "deliver")


def test_a_doubted_lesson_moves_less_than_a_correction(model):
    """A training label that contradicts the model makes a smaller step; counts are not reduced."""
    raw = surest(model, "spam")
    learnt = model.learn(raw, "ham")
    with model.store.read() as view:
        totals = view.totals()
    assert totals.messages.tolist() == [TAUGHT + 1, TAUGHT]
    model.undo(learnt)
    corrected = model.correct(raw, "ham")
    assert corrected.probability_after < 0.5 < learnt.probability_after


# --- duplicates, contradictions, taking back --------------------------------------------


@pytest.mark.parametrize("teach", [Filter.learn, Filter.correct])
def test_the_same_training_twice_changes_nothing_and_says_so(small, teach):
    """A duplicate is a success: not changed, with a reason, and no number to be undone."""
    first = teach(small, mail(1, "quarterly figures"), "ham")
    before = numbers(small)
    again = teach(small, mail(1, "quarterly figures"), "ham")
    assert (again.changed, again.event, again.before) == (False, 0, "ham")
    assert again.already == first.event
    assert again.reason
    assert numbers(small) == before


def test_the_same_message_after_delivery_is_a_duplicate(small):
    """CRLF, an mbox line and headers of the delivery do not change the digest."""
    raw = mail(1, "quarterly figures")
    delivered = b"Return-Path: <x@y.example>\r\nDelivered-To: ben\r\n" + raw.replace(b"\n", b"\r\n")
    small.learn(raw, "ham")
    assert not small.learn(delivered, "ham").changed
    assert not small.learn(b"From x@y.example Mon Jan  6 07:00:00 2025\n" + raw, "ham").changed


def test_a_contradiction_moves_the_message(small):
    """Training with the other label moves the message, in one event."""
    raw = mail(1, "quarterly figures")
    small.learn(raw, "ham")
    moved = small.learn(raw, "spam")
    assert (moved.changed, moved.before, moved.after) == (True, "ham", "spam")
    with small.store.read() as view:
        assert view.totals().messages.tolist() == [1, 2]


def test_moved_counts_are_those_of_the_other_label_alone(small, tmp_path):
    """Learning ham and then spam leaves the same counts as learning spam only."""
    raw = mail(1, "quarterly figures")
    small.learn(raw, "ham")
    small.learn(raw, "spam")
    with Filter.open(tmp_path / "other", create=True, recipe=small.recipe) as other:
        for one, label in ((mail("h1", "the minutes of our meeting on tuesday"), "ham"),
                           (mail("s1", "cheap pills and a casino bonus"), "spam"),
                           (raw, "spam")):  # fmt: skip
            other.learn(one, label)
        counted = [numbers(model)[at] for model in (small, other) for at in (0, 1, 4, 5, 6)]
    assert counted[:5] == counted[5:]


def test_forget_says_what_it_forgot_and_a_second_one_that_there_was_nothing(small):
    """The receipt of a forget names the removed label; a second forget changes nothing."""
    before = numbers(small)
    small.learn(mail(1, "quarterly figures"), "ham")
    forgot = small.forget(mail(1, "quarterly figures"))
    assert (forgot.changed, forgot.before, forgot.after) == (True, "ham", None)
    assert numbers(small) == before
    assert not small.forget(mail(1, "quarterly figures")).changed


def test_what_was_never_taught_cannot_be_forgotten(small):
    """A message without a training is a RefError, not a count below zero."""
    with pytest.raises(RefError):
        small.forget(mail(7, "never seen"))


def test_undo_twice_says_so_and_an_undo_out_of_order_names_the_newer_event(small):
    """A second undo changes nothing; an undo below a later training is refused with a hint."""
    raw = mail(1, "quarterly figures")
    first = small.learn(raw, "ham")
    second = small.learn(raw, "spam")
    with pytest.raises(RefusedError) as refused:
        small.undo(first)
    assert f"undo {second.event}" in refused.value.hint
    assert small.undo(second).changed
    assert not small.undo(second).changed
    assert small.undo(first).changed


@pytest.mark.parametrize("teach", [Filter.learn, Filter.correct])
def test_the_receipt_of_a_duplicate_undoes_nothing_and_says_so(small, teach):
    """A receipt without change undoes nothing: another person's training gave the label."""
    raw = mail(1, "quarterly figures")
    first = teach(small, raw, "ham", source=Source("ann"))
    again = teach(small, raw, "ham", source=Source("bob"))
    before = numbers(small)
    undone = small.undo(again, source=Source("bob"))
    assert (undone.changed, undone.event) == (False, 0)
    assert undone.reason == "the receipt changed nothing"
    assert numbers(small) == before
    assert small.undo(first).changed


def test_the_receipt_of_a_second_forget_undoes_nothing(small):
    """A second forget changes nothing, and undoing its receipt changes nothing."""
    raw = mail(1, "quarterly figures")
    small.learn(raw, "ham")
    small.forget(raw)
    before = numbers(small)
    again = small.forget(raw)
    assert (again.changed, again.event) == (False, 0)
    assert not small.undo(again).changed
    assert not small.undo(small.undo(again)).changed
    assert numbers(small) == before


def test_a_receipt_of_another_model_undoes_nothing(small):
    """An event number that the journal does not have is a RefError."""
    with pytest.raises(RefError):
        small.undo(99)


def test_an_import_is_undone_once(small):
    """The second undo of an import changes nothing, like that of a message."""
    ids, nothing = np.array([5, 9], np.uint64), np.zeros((2, 2), np.int64)
    bulk = BulkChange(ids, np.array([[1, 0], [0, 2]]), nothing, np.array([1, 2]),
                np.zeros(2, np.int64), np.zeros(2, np.int64), np.ones(2, np.uint16))  # fmt: skip
    receipt, _ = small.teach(
        [BulkLoad(bulk, False, OWNER, 1000), BulkLoad(bulk, False, OWNER, 1000)]
    )
    assert small.undo(receipt).changed
    once = numbers(small)
    assert not small.undo(receipt).changed
    assert numbers(small) == once


def test_two_undos_of_one_event_in_one_batch_are_one(small):
    """Two undos of the same event in one batch have the result of two batches."""
    receipt = small.learn(mail(1, "quarterly figures"), "ham")
    first, second = small.teach([Undo(receipt.event, OWNER, 1), Undo(receipt.event, OWNER, 2)])
    assert first.changed
    assert second.error is None
    assert not second.changed


# --- references -------------------------------------------------------------------------


def test_a_correction_needs_only_the_signature(small):
    """A scored message is corrected by its signature, without its body."""
    raw = mail(1, "quarterly figures and pills")
    verdict = small.score(raw)
    assert small.correct(verdict.signature, "spam").changed
    assert small.score(raw).label == "spam"
    assert not small.learn(raw, "spam").changed


@pytest.mark.parametrize("form", ["1@a.example", "<1@a.example>", " 1@a.example\n"])
def test_a_correction_needs_only_the_message_id(small, form):
    """With or without brackets, the id of a scored message is enough."""
    raw = mail(1, "quarterly figures and pills")
    small.score(raw)
    receipt = small.correct(form, "spam")
    assert (receipt.changed, receipt.message_id) == (True, "1@a.example")
    assert small.score(raw).label == "spam"


@pytest.mark.parametrize("odd", ["0123456789abcdef" * 2, "s" + "a" * 26, " 1@a.example "])
def test_a_message_id_may_look_like_one_of_our_names(small, odd):
    """A Message-ID that looks like a signature or digest, or contains spaces, is found."""
    raw = mail(1, "quarterly figures and pills").replace(b"<1@a.example>", f"<{odd}>".encode())
    small.score(raw)
    for form in (odd, f"<{odd}>"):
        assert small.correct(form, "spam").message_id == odd.strip()
    assert small.learn(raw, "spam").message_id == odd.strip()


def test_a_learnt_message_is_found_in_the_journal(small):
    """A message that was learnt but not scored is found by Message-ID and digest."""
    receipt = small.learn(mail(1, "quarterly figures"), "ham")
    assert small.correct("1@a.example", "spam").before == "ham"
    assert small.forget(receipt.digest).before == "spam"


def test_by_reference_and_by_body_give_the_same_event(tmp_path):
    """A correction without the body teaches the same features as one with it."""
    models = []
    made = new_recipe()
    for name in ("a", "b"):
        with Filter.open(tmp_path / name, create=True, recipe=made) as model:
            raw = mail(1, "quarterly figures and pills, figures")
            verdict = model.score(raw)
            model.correct(raw if name == "a" else verdict.signature, "spam")
            models.append(numbers(model))
    assert models[0] == models[1]


def test_by_reference_and_by_body_agree_where_occurrences_count(tmp_path):
    """Corrected by signature, then moved by its body: every count is what it was before."""
    made = replace(new_recipe("multinomial"), occurrences=True)
    with Filter.open(tmp_path / "model", create=True, recipe=made) as model:
        raw = mail(1, "pills pills pills figures")
        before = numbers(model)
        model.correct(model.score(raw).signature, "spam")
        model.correct(raw, "ham")
        model.forget(raw)
        assert numbers(model) == before


def test_an_ambiguous_message_id_lists_the_digests(small):
    """Several messages with one Message-ID give an error that lists the digests; each works."""
    receipts = [small.learn(mail(1, text), "ham") for text in ("one text", "another text")]
    third = small.score(mail(1, "a third text"))
    with pytest.raises(RefError) as refused:
        small.correct("1@a.example", "spam")
    digests = [receipt.digest for receipt in receipts] + [third.digest.hex()]
    assert all(digest in refused.value.hint for digest in digests)
    assert all(small.correct(digest, "spam").changed for digest in digests)


@pytest.mark.parametrize("ref", ["", "nobody@nowhere.example", "0" * 32, "s" + "a" * 26, "<>"])
def test_an_unknown_reference_is_a_reference_error(small, ref):
    """A reference of any form that matches nothing raises RefError."""
    for ask in (lambda: small.correct(ref, "ham"), lambda: small.forget(ref)):
        with pytest.raises(RefError):
            ask()
    with pytest.raises(RefError):
        small.explain(ref)


def test_an_unknown_label_is_a_label_error_that_lists_the_labels(small):
    """The error lists the model's labels, and nothing is read or written."""
    for teach in (small.learn, small.correct):
        with pytest.raises(LabelError) as refused:
            teach(mail(1, "quarterly figures"), "junk")
        assert "ham, spam" in refused.value.hint


# --- opening and closing ----------------------------------------------------------------


def test_a_model_survives_closing(tmp_path):
    """After closing and opening, the model has its messages and the same scores."""
    raw = mail(1, "quarterly figures")
    with Filter.open(tmp_path / "m", create=True) as model:
        model.learn(raw, "ham")
        odds = model.score(raw).log_odds
    with Filter.open(tmp_path / "m") as model:
        assert model.score(raw).log_odds == odds


def test_nothing_is_made_without_being_asked(tmp_path):
    """Opening a folder without a model is an error, and leaves no folder."""
    with pytest.raises(StoreMissingError):
        Filter.open(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_the_folder_is_private(tmp_path):
    """Folders have mode 0700 and files 0600, because the store contains words of private mail."""
    with Filter.open(tmp_path / "m", create=True) as model:
        model.score(mail(1, "quarterly figures"))
        model.learn(mail(1, "quarterly figures"), "ham")
        for path in [tmp_path / "m", *(tmp_path / "m").rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_closing_twice_is_closing_once(tmp_path):
    """A second close does nothing; using a closed filter raises BugError."""
    model = Filter.open(tmp_path / "m", create=True)
    model.close()
    model.close()
    with pytest.raises(BugError):
        model.score(b"Subject: x\n\nx\n")


@pytest.mark.parametrize("labels", [("ham",), ("a", "a"), ("ham", ""), ()])
def test_labels_are_two_or_more_and_different(labels):
    """Invalid labels raise LabelError."""
    with pytest.raises(LabelError):
        new_recipe(labels=labels)


def test_a_refused_lesson_in_a_batch_says_so_in_its_receipt(small):
    """The others of the batch are learnt; the refused one carries its error."""
    example = small.example(mail(1, "quarterly figures"))
    good, bad = small.teach([Learn(example, 0, OWNER, 1), Undo(99, OWNER, 2)])
    assert good.changed
    assert isinstance(bad.error, RefError)


# --- what is no message ---------------------------------------------------------------------


@pytest.mark.parametrize("empty", [b"", b"\r\n", b" \n\n"])
@pytest.mark.parametrize("teach", [Filter.learn, Filter.correct])
def test_an_empty_message_is_not_learnt(small, teach, empty):
    """An empty message raises UserError, because the calling program failed to read it."""
    before = numbers(small)
    with pytest.raises(UserError, match="the message is empty"):
        teach(small, empty, "ham")
    assert numbers(small) == before


@pytest.mark.parametrize(
    "call",
    [
        lambda model, wrong: model.score(wrong),
        lambda model, wrong: list(model.score_many([b"Subject: x\n\nx", wrong])),
        lambda model, wrong: model.learn(wrong, "ham"),
        lambda model, wrong: model.example(wrong),
    ],
)
@pytest.mark.parametrize("wrong", ["text", bytearray(b"Subject: x\n\nx"), None, 7])
def test_what_is_not_bytes_is_the_callers_mistake(small, call, wrong):
    """The error names the wanted type."""
    with pytest.raises(UserError, match=f"a message is bytes, not {type(wrong).__name__}"):
        call(small, wrong)


@pytest.mark.parametrize("wrong", [bytearray(b"Subject: x\n\nx"), None, 7])
def test_a_reference_is_text_or_a_message(small, wrong):
    """Any other type raises the same error."""
    for call in (small.explain, small.forget, lambda ref: small.correct(ref, "ham")):
        with pytest.raises(UserError, match="a message is bytes"):
            call(wrong)


@pytest.mark.parametrize("wrong", [b"Subject: x\n\nx", "text"])
def test_one_message_is_not_many(small, wrong):
    """`score_many` refuses a single message: each of its bytes would count as a message."""
    with pytest.raises(UserError, match="one message is given, not several"):
        list(small.score_many(wrong))


def test_the_package_lists_its_public_names():
    """`dir` lists the public names before they are imported, for shell completion."""
    assert {*spamnb.__all__} <= {*dir(spamnb)}
    assert {"__name__", "__doc__"} <= {*dir(spamnb)}
