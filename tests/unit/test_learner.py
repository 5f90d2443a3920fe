"""The learner: the events of a training, rehearsal, immediate corrections, and refusals."""

from dataclasses import replace

import numpy as np
import pytest
from support.memory_store import MemoryStore

from spamnb.engine.filter import OWNER, Filter, new_recipe
from spamnb.engine.planner import STREAK
from spamnb.engine.values import BulkLoad, Learn, Source
from spamnb.errors import RefusedError
from spamnb.model.events import BIAS_ONE, STEP_ONE, BulkChange, EventKind
from spamnb.store import maintenance as audit

PERSON = Source(user="ann", channel="test", immediate=True)
THREE = ("ham", "spam", "list")


def mail(number, text="pills and minutes"):
    head = f"From: ann@a.example\nSubject: s{number}\nMessage-ID: <{number}@a.example>\n"
    return f"{head}\n{text}\n".encode()


def new(kind="corrected", labels=("ham", "spam"), **changes):
    return Filter(MemoryStore(replace(new_recipe(kind, labels), **changes)))


def events(model):
    with model.store.read() as view:
        return list(view.events())


def check(model):
    with model.store.read() as view:
        return audit.check(view)


def test_an_event_has_user_time_and_channel():
    """The journal has the user's name, the channel, the time and the message's identity."""
    model = new()
    source = Source(user="ann", channel="imap")
    model.teach([Learn(model.example(mail(1)), 1, source, 1_700_000_000_000_000)])
    (event,) = events(model)
    assert (event.seq, event.kind, event.user, event.channel) == (1, EventKind.LEARN, "ann", "imap")
    assert (event.time_us, event.message_id) == (1_700_000_000_000_000, "1@a.example")
    assert (event.before, event.after, event.previous) == (-1, 1, 0)


def test_kinds_follow_what_happened():
    """Learn, move, forget and undo have different kinds, and each names the previous event."""
    model = new()
    model.learn(mail(1), "ham")
    model.learn(mail(1), "spam")
    model.forget(mail(1))
    model.undo(3)
    made = events(model)
    assert [event.kind for event in made] == [
        EventKind.LEARN,
        EventKind.MOVE,
        EventKind.FORGET,
        EventKind.UNDO,
    ]
    assert [event.previous for event in made] == [0, 1, 2, 3]
    assert [event.undoes for event in made] == [0, 0, 0, 3]
    assert [(event.before, event.after) for event in made] == [(-1, 0), (0, 1), (1, -1), (-1, 1)]


def test_what_changes_nothing_is_no_event():
    """Duplicates and second forgets leave the journal as it is."""
    model = new()
    model.learn(mail(1), "ham")
    model.learn(mail(1), "ham")
    model.forget(mail(1))
    model.forget(mail(1))
    assert len(events(model)) == 2


def test_a_step_is_the_formula_of_the_model():
    """First training, two labels: e = 1/2, w += eta/2 e/sqrt|x|, b += rate/2 e, rounded once."""
    model = new()
    example = model.example(mail(1))
    model.learn(mail(1), "spam")
    (event,) = events(model)
    for group, ids in enumerate(example.ids):
        step = round(6.0 / 2 * 0.5 / len(ids) ** 0.5 * STEP_ONE)
        assert event.delta.steps[group].tolist() == [-step, step]
    bias = round(0.01 / 2 * 0.5 * BIAS_ONE)
    assert event.delta.bias.tolist() == [[-bias, bias]] * 2


@pytest.mark.parametrize("kind", ["multinomial", "bernoulli"])
def test_the_classical_kinds_take_no_steps(kind):
    """Only the default kind has corrections; the other kinds have counts only."""
    model = new(kind)
    model.learn(mail(1), "spam")
    model.correct(mail(2), "ham")
    assert not any(event.delta.steps.any() or event.delta.bias.any() for event in events(model))


def test_weight_scales_the_step_and_not_the_count():
    """A channel of half the weight moves corrections half as far; counts move by one."""
    steps = []
    for weight in (1.0, 0.5, 0.0):
        model = new()
        model.learn(mail(1), "spam", source=Source(weight=weight))
        steps.append(events(model)[0].delta.steps)
        with model.store.read() as view:
            assert view.totals().messages.tolist() == [0, 1]
    assert np.abs(steps[1] * 2 - steps[0]).max() <= 1
    assert not steps[2].any()


def streak(labels, others, length=STREAK + 5):
    """Some messages of every other label, then a streak of the last label."""
    model = new(labels=labels)
    for label in range(len(labels) - 1):
        for number in range(others):
            model.learn(mail(f"{label}.{number}", f"minutes {label} {number}"), labels[label])
    for number in range(length):
        model.learn(mail(f"last.{number}", f"pills {number}"), labels[-1])
    return model, (len(labels) - 1) * others


@pytest.mark.parametrize("labels", [("ham", "spam"), THREE])
def test_a_streak_of_one_label_rehearses_the_others(labels):
    """From the twenty-first event of one label on, each event rehearses messages of the others."""
    model, before = streak(labels, others=3)
    made = events(model)
    assert not any(event.delta.rehearsals for event in made[: before + STREAK])
    per_label = {len(event.delta.rehearsals) for event in made[before + STREAK :]}
    assert len(per_label) == 1
    assert per_label.pop() >= len(labels) - 1
    theirs = {tuple(map(tuple, event.ids)) for event in made[:before]}
    for event in made[before + STREAK :]:
        for rehearsal in event.delta.rehearsals:
            assert tuple(map(tuple, rehearsal.ids)) in theirs
    assert check(model) == []


def test_a_streak_without_others_has_nothing_to_rehearse():
    """The first messages ever may all be of one label."""
    model, _ = streak(("ham", "spam"), others=0)
    assert not any(event.delta.rehearsals for event in events(model))


def test_a_forgotten_message_is_not_rehearsed():
    """A forgotten message is not rehearsed."""
    model, _ = streak(("ham", "spam"), others=2, length=STREAK)
    gone = model.example(mail("0.0", "minutes 0 0"))
    model.forget(gone.digest.hex())
    for number in range(6):
        model.learn(mail(f"more.{number}", "pills"), "spam")
    rehearsals = [rehearsal for event in events(model) for rehearsal in event.delta.rehearsals]
    assert rehearsals
    assert not any(rehearsal.ids[1].tolist() == gone.ids[1].tolist() and
                   rehearsal.ids[0].tolist() == gone.ids[0].tolist()
                   for rehearsal in rehearsals)  # fmt: skip


def test_a_move_takes_back_its_own_rehearsals():
    """Moving or forgetting a message takes back its rehearsals of other messages."""
    model, _ = streak(("ham", "spam"), others=3)
    with model.store.read() as view:
        before = view.totals().bias.tolist()
    receipt = model.learn(mail("x", "other pills"), "spam")
    assert events(model)[-1].delta.rehearsals
    model.learn(mail("x", "other pills"), "ham")
    model.forget(receipt.digest)
    with model.store.read() as view:
        assert view.totals().bias.tolist() == before
    assert check(model) == []


def test_an_overflow_refuses_the_event_and_nothing_saturates():
    """A correction beyond its 32 bits is refused; the model is as it was."""
    model = new()
    model.learn(mail(1), "ham")
    before = events(model)
    with pytest.raises(RefusedError, match="2048 nats"):
        model.learn(mail(2), "spam", source=Source(weight=1e7))
    assert len(events(model)) == len(before)
    assert check(model) == []


def test_a_count_beyond_32_bits_refuses_the_event():
    """An import that would overflow a feature's count leaves it as it was."""
    model = new()
    ids, zeros = np.array([7], np.uint64), np.zeros((1, 2), np.int64)
    full = BulkChange(ids, np.array([[2**32 - 1, 0]]), zeros, np.array([2**32, 0]),
                np.zeros(2, np.int64), np.zeros(2, np.int64), np.ones(1, np.uint16))  # fmt: skip
    model.teach([BulkLoad(full, False, OWNER, 1)])
    with pytest.raises(RefusedError, match=r"2\^32"):
        model.teach([BulkLoad(full, False, OWNER, 2)])
    with model.store.read() as view:
        assert view.gather(ids).n.tolist() == [[2**32 - 1, 0]]
    assert check(model) == []


def test_after_the_checkpoint_a_duplicate_is_known_and_a_move_is_refused():
    """The checkpoint keeps digest and label: a duplicate changes nothing, a move is refused."""
    model = new()
    receipt = model.learn(mail(1), "ham")
    model.store.transact(lambda view: view.fold(2**62, 10))
    assert not model.learn(mail(1), "ham").changed
    for ask in (
        lambda: model.learn(mail(1), "spam"),
        lambda: model.forget(mail(1)),
    ):
        with pytest.raises(RefusedError, match="checkpoint"):
            ask()
    assert check(model) == []
    assert receipt.event == 1


def test_what_a_checkpoint_holds_cannot_stand_again():
    """An undo of an event with a folded predecessor is refused; forgetting is still exact."""
    model = new()
    model.learn(mail(1), "ham")
    with model.store.read() as view:
        before = view.totals(), view.gather(model.example(mail(1)).ids[0]).w.tolist()
    one, other = model.example(mail(2, "others")), Source()
    model.teach([Learn(one, 0, other, 10), Learn(one, 1, other, 1000)])
    model.store.transact(lambda view: view.fold(500, 10))
    with pytest.raises(RefusedError, match="checkpoint"):
        model.undo(3)
    model.forget(mail(2, "others"))
    with model.store.read() as view:
        assert view.totals().bias.tolist() == before[0].bias.tolist()
        assert view.gather(model.example(mail(1)).ids[0]).w.tolist() == before[1]
    assert check(model) == []


def test_days_go_forward_only_whatever_the_clock_does():
    """A move after the clock went back a day, and counts that came from a clock ahead."""
    model, day = new(), 86_400_000_000
    now = 20_000 * day
    one, other = model.example(mail(1)), model.example(mail(2))
    model.teach([Learn(one, 0, OWNER, now), Learn(one, 1, OWNER, now - day)])
    assert check(model) == []
    ids, zeros = one.ids[0][:1], np.zeros((1, 2), np.int64)
    ahead = BulkChange(ids, np.array([[1, 0]]), zeros, np.array([1, 0]), np.zeros((2, 2), np.int64),
                 np.zeros(2, np.int64), np.array([10_000], np.uint16))  # fmt: skip
    model.teach([BulkLoad(ahead, False, OWNER, now), Learn(other, 0, OWNER, now)])
    with model.store.read() as view:
        assert view.gather(ids).day.tolist() == [10_000]
    assert check(model) == []


def test_sums_that_would_come_round_are_refused():
    """An import that would overflow bias, temperatures or message counts is refused."""
    zeros = np.zeros((0, 2), np.int64)
    for which in range(3):
        model = new()
        sums = [np.zeros(shape, np.int64) for shape in (2, (2, 2), 2)]
        sums[which][:] = 1 << 61
        load = BulkChange(np.zeros(0, np.uint64), zeros, zeros, *sums, np.zeros(0, np.uint16))
        for _ in range(2):
            model.teach([BulkLoad(load, False, OWNER, 1)])
        with pytest.raises(RefusedError, match=r"2\^62"):
            model.teach([BulkLoad(load, False, OWNER, 2)])
        assert check(model) == []


def test_occurrences_are_for_multinomial_models():
    """Only multinomial models may have counts above the number of messages."""
    for kind in ("corrected", "bernoulli"):
        with pytest.raises(RefusedError, match="multinomial"):
            new(kind, occurrences=True)


def test_receipts_tell_the_probability_before_and_after():
    """A receipt has the probabilities that scoring gives before and after the training."""
    for kind in ("corrected", "multinomial", "bernoulli"):
        model = new(kind)
        model.learn(mail(1, "minutes"), "ham")
        model.learn(mail(2, "pills"), "spam")
        before = model.score(mail(3, "pills minutes")).probability
        receipt = model.learn(mail(3, "pills minutes"), "spam")
        after = model.score(mail(3, "pills minutes")).probability
        assert receipt.probability_before == pytest.approx(before, abs=1e-9)
        assert receipt.probability_after == pytest.approx(after, abs=1e-9)
        assert after > before


def test_insistence_ends_even_where_it_cannot_win():
    """Repeated corrections of a message without own words are bounded and exactly undone."""
    model = new(labels=THREE)
    for turn in range(6):
        model.correct(b".\n", THREE[turn % 3], source=PERSON)
        assert model.score(b".\n").label == THREE[turn % 3]
    assert check(model) == []


def test_a_move_takes_back_what_was_learnt_and_not_what_is_read_now():
    """A move uses the features that were learnt, even if the parser finds others now."""
    model = new()
    example = model.example(mail(1))
    model.teach([Learn(example, 0, OWNER, 1)])
    other = tuple(ids[1:] + np.uint64(1) for ids in example.ids)
    model.teach([Learn(example._replace(ids=other), 1, OWNER, 2)])
    learnt, moved = events(model)
    assert [a.tolist() for a in moved.ids] == [a.tolist() for a in learnt.ids]
    assert check(model) == []
    model.forget(mail(1))
    with model.store.read() as view:
        assert view.totals().known == 0


def test_a_correction_works_in_the_middle_of_a_streak():
    """A correction takes effect while other messages are rehearsed."""
    model = new()
    for number in range(30):
        model.learn(mail(number, f"cheap pills offer number {number % 7}"), "spam")
    for number in range(100, 100 + 2 * STREAK):
        model.correct(mail(number, f"cheap pills offer number {number % 7}"), "ham")
        verdict = model.score(mail(number, f"cheap pills offer number {number % 7}"))
        assert (verdict.label, verdict.decision) == ("ham", "deliver")
    assert check(model) == []


def test_a_receipt_tells_what_scoring_would_where_occurrences_count():
    """With occurrences, the probabilities of a receipt equal those of scoring."""
    model = new("multinomial", occurrences=True)
    for number in range(4):
        model.learn(
            mail(number, "pills pills pills" if number % 2 else "minutes"),
            "spam" if number % 2 else "ham",
        )
    raw = mail(9, "pills minutes minutes minutes pills")
    before = model.score(raw, remember=False).probability
    receipt = model.learn(raw, "ham")
    after = model.score(raw, remember=False).probability
    assert receipt.probability_before == pytest.approx(before, rel=1e-9)
    assert receipt.probability_after == pytest.approx(after, rel=1e-9)
