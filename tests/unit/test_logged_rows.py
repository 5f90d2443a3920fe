"""The log of changed rows: what is logged, when rows reach their buckets, and damaged logs."""

import contextlib
import threading

import numpy as np
import pytest
from support.stores import HAM, RECIPE, SPAM, apply, bulk_event, ids_of, learn, mail, sound

from spamnb.errors import StoreDamagedError
from spamnb.store import rows as logged_rows
from spamnb.store import rows as segments
from spamnb.store.codec import row_type
from spamnb.store.maintenance import check, compact
from spamnb.store.model_store import open_store
from spamnb.store.rows import LOG_KEY, LogState, Segments
from spamnb.store.table_views import Caches


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A model with a log of 128 rows and segments of some twenty."""
    monkeypatch.setattr(logged_rows, "LEAST_BITS", 7)
    monkeypatch.setattr(logged_rows, "MOST_BITS", 7)
    monkeypatch.setattr(segments, "ROW_BITS", 4)
    model = open_store(tmp_path / "model", create=RECIPE)
    yield model
    model.close()


def some_mail(number):
    return mail(number, *range(5), *range(100 * number, 100 * number + 5))


def tables_of(store):
    """The state of the log, the starts of its values, and how many rows are in the segments."""
    with store.environment.read() as tables:
        state = LogState.decode(tables["meta"].get(LOG_KEY))
        starts = [int.from_bytes(key) for key, _ in tables["log"].scan()]
        rows = sum(len(part.ids) for part in Segments(tables["features"], row_type(2)).all())
    return state, starts, rows


def spoil(store, change):
    """Change the tables of a store that other processes have not read yet."""
    with store.environment.write() as tables:
        change(tables)
    store.environment.mapped.clear()


def problems(store):
    with store.read() as view:
        return " ".join(check(view))


def test_a_lesson_is_logged_and_writes_few_rows_to_buckets(store):
    """The changed rows are one value of the log; only a range of the ids goes to the buckets."""
    learn(store, some_mail(1), HAM)
    state, starts, in_buckets = tables_of(store)
    assert state == (128, 0, 10)
    assert starts == [0]
    assert in_buckets < 10
    assert sound(store)


def test_after_a_turn_every_row_is_in_its_bucket_and_its_value_deleted(store):
    """The log keeps the values of one turn; what is older is in the buckets, and still found."""
    for number in range(1, 30):
        learn(store, some_mail(number), number % 2)
        state, starts, in_buckets = tables_of(store)
        assert starts == list(range(state.first, state.last, 10))
        assert state.last - state.first <= 128 + 10
        assert in_buckets >= 5 * (number - 14)
        assert sound(store)
    assert tables_of(store)[0].last == 290


def test_a_large_transaction_writes_everything_and_empties_the_log(store):
    """A transaction that changes most buckets writes them directly, without the log."""
    learn(store, some_mail(1), HAM)
    ids = ids_of(*range(200))
    ones = np.ones((200, 2))
    store.transact(lambda view: apply(view, bulk_event(view, ids, ones, ones)))
    assert tables_of(store) == (LogState(128, 210, 210), [], 200)
    assert sound(store)


def test_a_growing_model_gets_a_larger_log(store, monkeypatch):
    """The capacity follows the number of rows; the log is emptied when it changes."""
    monkeypatch.setattr(logged_rows, "MOST_BITS", 9)
    for number in range(1, 120):
        learn(store, some_mail(number), number % 2)
    state, starts, _ = tables_of(store)
    assert state.capacity == 512
    assert starts[0] == state.first
    assert sound(store)


def test_a_removed_row_covers_the_one_in_its_bucket(store):
    """Features of a forgotten message are missing immediately, before their buckets are written."""
    for number in range(1, 20):
        learn(store, some_mail(number), SPAM)
    learn(store, some_mail(1), -1)
    with store.read() as view:
        assert not view.gather(ids_of(*range(100, 105))).n.any()
        assert not np.isin(ids_of(*range(100, 105)), next(view.features())[0]).any()
    assert sound(store)


def test_another_reader_sees_each_lesson_as_soon_as_it_is_acknowledged(store, tmp_path):
    """A reader that keeps the log in memory reads what was added since, and after a large write."""
    ids, everything = ids_of(*range(5)), ids_of(*range(200))
    ones = np.ones((200, 2))
    with contextlib.closing(open_store(tmp_path / "model", readonly=True)) as reader:
        kept = store.environment.mapped["caches"] = Caches()
        for number in range(1, 30):
            store.environment.mapped.clear()
            learn(store, some_mail(number), HAM)
            store.environment.mapped["caches"] = kept
            with reader.read() as view:
                assert view.gather(ids).n[:, HAM].tolist() == [number] * 5
        store.environment.mapped.clear()
        store.transact(lambda view: apply(view, bulk_event(view, everything, ones, ones)))
        store.environment.mapped["caches"] = kept
        with reader.read() as view:
            assert view.gather(ids).n[:, HAM].tolist() == [30] * 5


def test_an_older_snapshot_keeps_its_rows(store):
    """A snapshot that is read after others have learnt shows the rows of its own time."""
    ids = ids_of(*range(5))
    for number in range(1, 9):
        learn(store, some_mail(number), HAM)
    with store.read() as first, store.read() as second:
        assert first.gather(ids).n[0, HAM] == 8
        late = threading.Thread(target=_learn_and_read, args=(store, ids))
        late.start()
        late.join()
        assert first.gather(ids).n[0, HAM] == 8
        assert second.gather(ids).n[0, HAM] == 8
    with store.read() as view:
        assert view.gather(ids).n[0, HAM] == 20


def _learn_and_read(store, ids):
    for number in range(9, 21):
        learn(store, some_mail(number), HAM)
        with store.read() as view:
            view.gather(ids)


def _change_and_fail(view):
    rows = view.gather(ids_of(1))
    rows.n[:] += 7
    view.scatter(ids_of(1), rows)
    assert view.gather(ids_of(1)).n.tolist() == [[8, 7]]
    raise ZeroDivisionError


def test_an_abandoned_transaction_leaves_no_rows_in_memory(store):
    """Rows of a transaction that failed are seen by no later one."""
    learn(store, some_mail(1), HAM)
    with pytest.raises(ZeroDivisionError):
        store.transact(_change_and_fail)
    with store.read() as view:
        assert view.gather(ids_of(1)).n.tolist() == [[1, 0]]
    learn(store, some_mail(2), SPAM)
    assert sound(store)


def test_a_rewrite_empties_the_log(tmp_path, monkeypatch):
    """After `compact` all rows are in buckets, and learning goes on."""
    monkeypatch.setattr(logged_rows, "LEAST_BITS", 7)
    store = open_store(tmp_path / "model", create=RECIPE)
    for number in range(1, 20):
        learn(store, some_mail(number), number % 2)
    store.close()
    compact(tmp_path / "model")
    store = open_store(tmp_path / "model")
    assert tables_of(store) == (LogState(128, 190, 190), [], 5 + 19 * 5)
    learn(store, some_mail(20), HAM)
    assert sound(store)
    store.close()


STATE = LogState(128, 80, 200)


def _state(**changes):
    return lambda tables: tables["meta"].put(LOG_KEY, STATE._replace(**changes).encode())


def _cut(tables):
    key, value = next(iter(tables["log"].scan()))
    tables["log"].put(key, bytes(value)[:-1])


def _swap(tables):
    (key, value), *_ = tables["log"].scan(down=True)
    rows = np.frombuffer(bytes(value), "V26")
    tables["log"].put(key, rows[::-1].tobytes())


@pytest.mark.parametrize(
    "change",
    [
        lambda tables: tables["log"].delete((80).to_bytes(8)),
        lambda tables: tables["log"].delete((170).to_bytes(8)),
        lambda tables: tables["log"].delete((190).to_bytes(8)),
        lambda tables: tables["meta"].put(LOG_KEY, b"short"),
        lambda tables: tables["meta"].delete(LOG_KEY),
        _state(first=201),
        _state(first=75),
        _state(first=145),
        _state(last=190),
        _state(last=210),
        _state(capacity=127),
        _state(capacity=0),
        _cut,
        _swap,
    ],
)
def test_a_log_that_contradicts_its_state_is_damage(store, change):
    """A missing, incomplete or unsorted value, or a wrong state, raises StoreDamagedError."""
    for number in range(1, 21):
        learn(store, some_mail(number), number % 2)
    assert tables_of(store)[0] == STATE
    spoil(store, change)
    assert "reading stopped" in problems(store)
    with pytest.raises(StoreDamagedError):
        learn(store, some_mail(21), HAM)


@pytest.mark.parametrize("first", [180, 200])
def test_a_mark_that_is_too_high_is_found_by_check(store, first):
    """A mark before which not all rows were written makes `check` name the wrong features."""
    for number in range(1, 21):
        learn(store, some_mail(number), number % 2)
    spoil(store, _state(first=first))
    assert "features" in problems(store)
