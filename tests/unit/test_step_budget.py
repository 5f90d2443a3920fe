"""How far one user, and all users together, may move shared numbers of the model."""

import contextlib
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from support.memory_store import MemoryStore
from support.stores import copied

from spamnb.engine import learner as step_budget
from spamnb.engine import planner
from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.learner import (
    CREDIT_STEPS,
    DAY_US,
    MIN_STEPS,
    SHARED_STEPS,
    WINDOW_US,
    Learner,
    StepBudgets,
    Used,
    budget,
)
from spamnb.engine.values import Forget, Learn, Source
from spamnb.model.events import BIAS_ONE, EventKind
from spamnb.store.maintenance import replay

NOW = 20_000 * DAY_US
RECIPE = new_recipe()


def mail(number, text):
    return f"From: a@x.test\nMessage-ID: <{number}@x.test>\n\n{text}\n".encode()


@pytest.fixture(scope="module")
def grown_once():
    """1,800 messages of others, half of them of each label."""
    model = Filter(MemoryStore(RECIPE))
    raws = [mail(n, "minutes agenda" if n % 2 else "pills offer") for n in range(1_800)]
    others = Source("others")
    model.teach([Learn(model.example(raw), n % 2, others, 1) for n, raw in enumerate(raws)])
    return model.store


@pytest.fixture
def grown(grown_once):
    """Make a model of the 1,800 messages, in memory."""
    return lambda: Filter(copied(grown_once))


def word(
    model,
    number,
    user="mallory",
    at=NOW,
    label=1,
    weight=1.0,
    *,
    immediate=True,
    owner=0,
):
    """Return how far one contradiction changes the bias, in full steps."""
    raw = mail(f"w{number}", f"unknown x{number}")
    source = Source(user, "imap", weight, immediate, owner=owner)
    before = model.store
    with before.read() as view:
        then = view.totals().bias.copy()
    model.teach([Learn(model.example(raw), label, source, at)])
    with before.read() as view:
        moved = np.abs(view.totals().bias - then).max()
    return moved / (RECIPE.rate_bias / 2 * BIAS_ONE)


def test_the_steps_of_one_person_in_a_day_sum_to_less_than_the_budget(grown):
    """A hundred corrections change bias, temperatures and common words by at most one step."""
    model = grown()
    # In turn, because a streak of one label rehearses others, which is not the person's step.
    moved = [word(model, n, at=NOW + n, label=n % 2) for n in range(100)]
    assert sum(moved) <= budget(np.array([950, 950]), 100)
    assert moved[0] > 10 * moved[-1]


def test_a_budget_is_a_persons_own_and_of_one_day(grown):
    """Another person, or the next day, has a new budget; the case of a name does not matter."""
    model = grown()
    first = word(model, 0)
    for number in range(1, 60):
        word(model, number, label=number % 2)
    assert word(model, 60, "Mallory", label=0) < first / 10
    assert word(model, 61, "ann", label=1) > first / 5
    assert word(model, 62, at=NOW + DAY_US + 1, label=0) > first / 3


def shared(messages, users, steps=SHARED_STEPS):
    """The budget of all users without credit, after that many of their messages."""
    return budget(np.array([messages, messages]), users, steps)


def test_many_new_accounts_share_one_budget(grown):
    """Sixty users with one contradiction each move the shared numbers no more than one of them."""
    model = grown()
    moved = [word(model, n, f"u{n}", NOW + n, n % 2, owner=100 + n) for n in range(60)]
    assert sum(moved) <= shared(930, 60)
    assert moved[0] > 10 * moved[-1]


def test_the_next_days_bring_no_new_budget(grown):
    """Five contradictions a day for twenty days: the shared budget, and at most that of credit."""
    model = grown()
    moved = [word(model, n, "mallory", NOW + n // 5 * DAY_US, n % 2, owner=100) for n in range(100)]
    assert sum(moved) <= shared(950, 100, SHARED_STEPS + CREDIT_STEPS * planner.MOST)


def test_the_shared_budget_is_new_after_thirty_days(grown):
    """What was spent is forgotten after thirty days."""
    model = grown()
    first = word(model, 0, "u0", owner=100)
    for number in range(1, 60):
        word(model, number, f"u{number}", label=number % 2, owner=100 + number)
    late = NOW + 29 * DAY_US
    assert word(model, 60, "ann", late, 0, owner=99) < first / 10
    assert word(model, 61, "ann", NOW + WINDOW_US + DAY_US, 0, owner=99) > first / 3


def test_a_clock_that_was_a_year_ahead_leaves_a_budget(grown):
    """What was spent under a wrong clock is spent for a day, not until the clock is there again."""
    model = grown()
    first = word(model, 0, at=NOW + 365 * DAY_US)
    for number in range(1, 30):
        word(model, number, at=NOW + 365 * DAY_US, label=number % 2)
    assert word(model, 60, at=NOW) > 0.5 * first
    assert word(model, 61, at=NOW + DAY_US - 1) < 0.8 * first


def test_unproven_channels_share_one_budget(grown):
    """All unproven senders share one budget."""
    model = grown()
    source = {"weight": 0.5, "immediate": False}
    moved = [word(model, n, f"s{n}", label=n % 2, **source) for n in range(100)]
    assert sum(moved) <= MIN_STEPS * 1.001


def test_training_has_no_budget(grown):
    """Bulk training has no budget."""
    model = grown()
    moved = [word(model, n, label=n % 2, immediate=False) for n in range(30)]
    assert sum(moved) > 4 * MIN_STEPS


@pytest.mark.parametrize("messages", [[0, 0], [5, 0], [900, 0], [4, 4]])
def test_a_young_model_has_nothing_to_lose(messages):
    """A young model has a large budget; an unused third label does not make a model young."""
    assert budget(np.array(messages), 0) >= 10
    assert budget(np.array([900, 900, 0]), 0) == MIN_STEPS


def test_the_only_user_of_a_model_has_no_budget():
    """The budget grows with the person's share of the messages."""
    messages = np.array([900, 900])
    shares = [budget(messages, own) for own in (0, 900, 1700, 1800, 2000)]
    assert shares == sorted(shares)
    assert shares[1] == 2 * MIN_STEPS
    assert shares[-2] == shares[-1] == np.inf


def test_learning_and_forgetting_in_turn_brings_no_share(grown):
    """A message counts for the user that trained it, until it is forgotten."""
    model = grown()
    raw, ann = mail("own", "unknown words"), Source("ann", "imap")
    for _ in range(150):
        receipt = model.correct(raw, "spam", source=ann)
        model.undo(receipt, source=ann)
    for number in range(60):
        word(model, number, "ann", label=number % 2)
    assert word(model, 60, "ann", label=0) < 0.05


def test_labels_without_steps_renew_no_budget(grown):
    """A budget is spent for a day, no matter how many events follow."""
    model = grown()
    moved = [word(model, n, label=n % 2) for n in range(60)]
    sure, mallory = (
        model.example(mail("sure", "minutes agenda")),
        Source("mallory", "imap", 1, True),
    )
    for number in range(505):
        model.teach([Learn(sure, 1, mallory, NOW + number), Forget(sure.digest, mallory, NOW)])
    moved += [word(model, n, label=n % 2) for n in range(60, 120)]
    assert sum(moved) < MIN_STEPS * 1.1


def test_a_restart_gives_no_new_budget(grown_once, tmp_path):
    """After a restart, the budget read from the journal is the same."""
    states = []
    for restarts in (False, True):
        with Filter.open(tmp_path / str(restarts), create=True, recipe=RECIPE) as model:
            with grown_once.read() as view:
                replay(view.events(), view, model.store)
            asked = model
            for number in range(12):
                if restarts:
                    asked = Filter(model.store)
                word(asked, number, at=NOW + number)
            with model.store.read() as view:
                totals = view.totals()
                states.append((totals.bias.tolist(), totals.temperatures.tolist()))
    assert states[0] == states[1]


def abandoned(store, learner, request):
    with contextlib.suppress(ZeroDivisionError), store.write() as view:
        learner.run(view, [request])
        raise ZeroDivisionError


def test_an_abandoned_transaction_spends_nothing(grown):
    """Steps of an aborted transaction are not counted."""

    def moved(*, abandons):
        model, learner = grown(), Learner(RECIPE, Filter(MemoryStore(RECIPE)).costs)
        for number in range(6):
            example = model.example(mail(f"w{number}", f"pills minutes x{number}"))
            source = Source("mallory", "imap", immediate=True)
            request = Learn(example, Random(number).randrange(2), source, NOW + number)
            if abandons:
                abandoned(model.store, learner, request._replace(label=1))
            model.store.transact(lambda view, one=request: learner.run(view, [one]))
            learner.committed()
        with model.store.read() as view:
            return view.totals().bias.tolist(), view.totals().temperatures.tolist()

    assert moved(abandons=True) == moved(abandons=False)


# --- the journal's events ---


def spends(seq, dice):
    """An event of one of three users, which goes on in time or steps back."""
    after = dice.choice((0, 1, 1, -1))
    user = dice.choice(("ann", "bob", "Ann"))
    return SimpleNamespace(
        seq=seq,
        kind=dice.choice((EventKind.LEARN, EventKind.MOVE, EventKind.FORGET)),
        time_us=NOW + seq * DAY_US // 4 + dice.choice((0, 0, -DAY_US, DAY_US)),
        user=user,
        person=0,
        owner=dice.choice((0, {"ann": 11, "Ann": 11, "bob": 22}[user])),
        credit=dice.choice((-3, 0, 1, 2, 8)),
        immediate=dice.random() < 0.7,
        weight=dice.choice((1.0, 0.5)),
        before=dice.choice((-1, 0)),
        after=after,
        counted_ids=(range(100), range(50)),
        net_update=SimpleNamespace(steps=np.full((2, 2), dice.randrange(1 << 20))),
    )


def walked(plan, events, *, span, pays, authors):
    """What the rule says, event by event from the newest to the oldest."""
    spent, messages, now = 0, 0, plan.request.time_us
    for back in range(plan.seq - 1):
        event = events.get(plan.seq - 1 - back)
        recent = back < step_budget.RECENT_EVENTS
        if back >= step_budget.MOST_EVENTS or event is None:
            break
        if not recent and event.time_us <= now - WINDOW_US:
            break
        if not recent and event.time_us <= now - span:
            span = 0
        _, _, size, _, _, change, _, _, _ = StepBudgets(RECIPE)._used(event)
        if pays(event) and span and now - span < event.time_us < now + DAY_US:
            spent += size
        messages += change * (recent and authors(event))
    return Used(spent / step_budget._SIZE_ONE, messages)


def in_pool(event):
    """Whether an event used the budget that users without credit share."""
    return event.owner != 0 and event.immediate and event.credit < 2


@pytest.mark.parametrize("seed", range(40))
def test_the_budget_is_that_of_a_walk_through_the_journal(monkeypatch, seed):
    """Also beside abandoned transactions, events of other processes, a checkpoint and limits."""
    dice = Random(seed)
    monkeypatch.setattr(step_budget, "RECENT_EVENTS", dice.choice((3, 20, 1000)))
    monkeypatch.setattr(step_budget, "MOST_EVENTS", dice.choice((30, 200, 50_000)))
    monkeypatch.setattr(step_budget, "_AT_ONCE", dice.choice((1, 7, 256)))
    budgets = StepBudgets(RECIPE)
    checkpoint, stored, events = dice.choice((0, 0, 50)), 0, {}
    for _ in range(60):
        stored += dice.choice((0, 1, 1, 2, 40))
        events |= {n: spends(n, dice) for n in range(checkpoint + 1, stored + 1) if n not in events}
        if dice.random() < 0.5 and stored in events:
            budgets.note([events[stored]])
        planned = dice.choice((0, 0, 1, 5, 50))
        new = {n: spends(n, dice) for n in range(stored + 1, stored + planned + 1)}
        every = events | new
        journal = SimpleNamespace(
            stored=stored, view=SimpleNamespace(event=events.get), event=every.get
        )
        seq = stored + planned + 1
        request = SimpleNamespace(time_us=NOW + seq * DAY_US // 4)
        plan = SimpleNamespace(seq=seq, request=request)
        for person in ("ann", "bob"):
            found = budgets._in_journal(person, plan, journal)

            def is_own(event, person=person):
                return event.immediate and event.user.casefold() == person

            def is_author(event, person=person):
                return event.user.casefold() == person

            def is_own_with_credit(event, is_own=is_own):
                return is_own(event) and not in_pool(event)

            assert found == (
                walked(plan, every, span=DAY_US, pays=is_own, authors=is_author),
                walked(plan, every, span=WINDOW_US, pays=is_own_with_credit, authors=is_author),
                walked(plan, every, span=WINDOW_US, pays=in_pool, authors=in_pool),
            )


def test_a_correction_reads_no_event_twice(grown):
    """What the events of a day have used is kept: a correction reads those of other processes."""
    model, read = grown(), []
    for number in range(20):
        word(model, number)
    view_event = type(model.store.read().__enter__()).event
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            type(model.store.read().__enter__()), "event",
            lambda view, seq: read.append(seq) or view_event(view, seq),
        )  # fmt: skip
        word(model, 20)
    assert len(read) < 5
