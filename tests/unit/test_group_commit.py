"""Group commit: requests of many threads share a transaction, and each gets its receipt."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.waiting import LIMIT_S

from spamnb.engine.filter import OWNER, Filter, new_recipe
from spamnb.engine.learner import ReplayableBatches
from spamnb.engine.values import Forget, Learn, Source, Undo
from spamnb.errors import LabelError, RefError, RefusedError
from spamnb.store import maintenance as audit

THREADS = 8
EACH = 40


def mail(thread, number):
    head = f"From: t{thread}@a.example\nMessage-ID: <{thread}.{number}@a.example>\n"
    return f"{head}\nplum {thread} fig {number}\n".encode()


@pytest.fixture
def model(tmp_path):
    with Filter.open(tmp_path / "model", create=True, recipe=new_recipe(), history=False) as model:
        yield model
        with model.store.read() as view:
            assert audit.check(view) == []


class Counted:
    """Counts the transactions of a real store."""

    def __init__(self, store):
        self._transact = store.transact
        self.count = 0

    def __call__(self, run):
        self.count += 1
        return self._transact(run)


def at_once(count, run):
    """The results of run(0), run(1), ... in as many threads that start together."""
    start = threading.Barrier(count)

    def one(number):
        start.wait()
        return run(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_threads_share_transactions_and_get_their_own_receipts(model):
    """Eight threads need fewer commits than requests; each receipt names its message."""
    counted = model.store.transact = Counted(model.store)

    def learn(thread):
        label = ("ham", "spam")[thread % 2]
        return [model.learn(mail(thread, number), label) for number in range(EACH)]

    found = at_once(THREADS, learn)
    assert counted.count < THREADS * EACH * 0.8
    for thread, receipts in enumerate(found):
        assert [r.message_id for r in receipts] == [f"{thread}.{n}@a.example" for n in range(EACH)]
        assert {r.after for r in receipts} == {("ham", "spam")[thread % 2]}
        assert [r.event for r in receipts] == sorted(r.event for r in receipts)
    with model.store.read() as view:
        assert view.totals().messages.tolist() == [THREADS * EACH // 2] * 2
        for receipt in (receipt for receipts in found for receipt in receipts):
            assert view.event(receipt.event).digest.hex() == receipt.digest


def test_one_message_taught_by_all_is_learnt_once(model):
    """The same message from eight threads is one change and seven duplicates."""
    receipts = at_once(THREADS, lambda _: model.learn(mail(0, 0), "ham"))
    assert sum(receipt.changed for receipt in receipts) == 1
    assert {receipt.event or receipt.already for receipt in receipts} == {1}


def test_a_refused_request_harms_no_other(model):
    """Overflows, unknown events and unknown labels among valid requests: only they fail."""
    for number in range(4):
        model.learn(mail("first", number), ("ham", "spam")[number % 2])

    def ask(thread):
        kept = []
        for number in range(10):
            if thread == 0:
                with pytest.raises(RefusedError):
                    model.learn(mail(thread, number), "spam", source=Source(weight=1e9))
            elif thread == 1:
                with pytest.raises(RefError):
                    model.undo(1_000_000)
            elif thread == 2:
                with pytest.raises(LabelError):
                    model.learn(mail(thread, number), "junk")
            else:
                kept.append(model.learn(mail(thread, number), "ham"))
        return kept

    kept = [receipt for receipts in at_once(THREADS, ask) for receipt in receipts]
    assert len(kept) == (THREADS - 3) * 10
    assert all(receipt.changed for receipt in kept)
    with model.store.read() as view:
        assert view.totals().messages.tolist() == [2 + len(kept), 2]


def test_a_training_that_can_only_fail_fails_alone_in_a_shared_transaction(model):
    """The overflow is in the same transaction as the others, which are run again without it."""
    model.learn(mail("first", 0), "ham")
    taken, go_on = threading.Event(), threading.Event()
    transact = model.store.transact

    def slow(run):
        # The first one in holds the turn until all others wait for the next.
        if not taken.is_set():
            taken.set()
            go_on.wait()
        return transact(run)

    model.store.transact = slow

    def learn(number):
        weight = 1e9 if number == 3 else 1.0
        return model.learn(mail("t", number), "spam", source=Source(weight=weight))

    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(learn, 0)
        assert taken.wait(LIMIT_S)
        others = [pool.submit(learn, number) for number in range(1, 6)]
        while len(model.committer._pending) < 5:
            assert not any(other.done() for other in others)
        go_on.set()
        assert first.result().changed
        errors = [other.exception() for other in others]
    assert model.committer._pending == []
    assert [type(error) for error in errors] == [
        type(None), type(None), RefusedError, type(None), type(None)
    ]  # fmt: skip
    with model.store.read() as view:
        assert view.totals().messages.tolist() == [1, 5]


def test_trainings_of_one_caller_stay_together_and_in_order(model):
    """A batch gets consecutive event numbers while other threads train."""

    def teach(thread):
        requests = [
            Learn(model.example(mail(thread, number)), number % 2, OWNER, number)
            for number in range(EACH)
        ]
        return [receipt.event for receipt in model.teach(requests)]

    for numbers in at_once(THREADS, teach):
        assert numbers == list(range(numbers[0], numbers[0] + EACH))


def test_a_caller_without_trainings_gets_no_receipts(model):
    """An empty batch is no error and no event."""
    assert model.teach([]) == []
    with model.store.read() as view:
        assert view.totals().last_seq == 0


def test_a_failing_store_fails_every_caller_and_the_next_one_is_served(model):
    """An error of the store reaches each caller; afterwards the committer works as before."""
    transact = model.store.transact

    def broken(_):
        raise OSError("the disk is gone")

    model.store.transact = broken
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            model.learn(mail(0, 0), "ham")
    model.store.transact = transact
    assert model.learn(mail(0, 0), "ham").event == 1
    assert isinstance(model.teach([Undo(5, OWNER, 1)])[0].error, RefError)


# --- trainings that come bit by bit ------------------------------------------------------------


def arriving(model, many, each=50):
    """Lists of requests, made on demand."""
    for start in range(0, many, each):
        yield [
            Learn(model.example(mail(0, number)), number % 2, OWNER, 1 << 50)
            for number in range(start, start + each)
        ]


def learnt(model):
    with model.store.read() as view:
        return [event.message_id for event in view.events()]


def test_trainings_that_come_bit_by_bit_share_one_transaction(model):
    """Requests are learnt as they arrive, and become visible together after the last one."""
    seen = []

    def watched():
        for requests in arriving(model, 200):
            seen.append(len(learnt(model)))
            yield requests

    receipts = model.teach_stream(ReplayableBatches(watched()))
    assert seen == [0, 0, 0, 0]
    assert [receipt.message_id for receipt in receipts] == learnt(model)
    assert len(receipts) == 200
    assert all(receipt.changed for receipt in receipts)


def test_when_the_map_grows_what_has_come_is_learnt_again(tmp_path):
    """When the map grows, the transaction runs again with all requests received so far."""
    with Filter.open(
        tmp_path / "small", create=True, recipe=new_recipe(), history=False, map_size=1 << 17
    ) as model:
        before = model.store.environment.map_size
        receipts = model.teach_stream(ReplayableBatches(arriving(model, 800)))
        assert model.store.environment.map_size > 2 * before
        assert learnt(model) == [receipt.message_id for receipt in receipts]
        assert len(set(learnt(model))) == 800
        with model.store.read() as view:
            assert audit.check(view) == []


def test_an_interrupted_caller_can_finish_the_pending_requests(model):
    """An interrupt changes nothing; after `stop`, the requests received before it are learnt."""

    def until_interrupted():
        yield from arriving(model, 100)
        raise KeyboardInterrupt

    requests = ReplayableBatches(until_interrupted())
    with pytest.raises(KeyboardInterrupt):
        model.teach_stream(requests)
    assert learnt(model) == []
    requests.stop()
    assert len(model.teach_stream(requests)) == 100
    assert len(learnt(model)) == 100


def test_what_is_forgotten_in_the_same_transaction_leaves_no_words(model):
    """Words exist exactly for existing features, after one batch and after several."""
    examples = [model.example(mail(number, number)) for number in range(6)]
    taught = [Learn(example, n % 2, OWNER, 1 << 50) for n, example in enumerate(examples)]
    forgotten = [Forget(example.digest, OWNER, 1 << 50) for example in examples]
    model.teach([*taught[:2], forgotten[0]])
    model.teach_stream(ReplayableBatches([taught[2:5], [forgotten[3]], [taught[5], forgotten[4]]]))
    with model.store.read() as view:
        named = [word.id for word in view.all_words()]
        known = [id_ for ids, _ in view.features() for id_ in ids.tolist()]
    assert named == known
    left = {id_ for n in (1, 2, 5) for part in examples[n].ids for id_ in part.tolist()}
    assert set(known) == left
