"""The series of the counters: growth by step, over restarts of daemon and console, bounded."""

import contextlib

import pytest

from spamnb.records.console import STEPS, SeriesStore

NOON = 1_767_268_800


@pytest.fixture
def series(tmp_path):
    with contextlib.closing(SeriesStore(tmp_path / "series")) as store:
        yield store


def values(series, step, name="scanned"):
    return [value for _, value in series.points(name, step, 0, 1 << 40)]


def test_growth_is_counted_once(series):
    """Over restarts of the console (same run) and of the daemon (counters begin at 0)."""
    series.add(NOON, "1", {"scanned": 5})
    series.add(NOON + 60, "1", {"scanned": 5})
    series.add(NOON + 120, "1", {"scanned": 9})
    series.add(NOON + 130, "2", {"scanned": 3})
    series.add(NOON + 900, "2", {"scanned": 4})
    assert values(series, "minute") == [5, 0, 7, 1]
    assert values(series, "quarter") == [12, 1]
    assert values(series, "day") == [13]
    assert values(series, "day", "absent") == [0]
    assert series.points("scanned", "minute", NOON + 60, NOON + 180) == [
        (NOON + 60, 0), (NOON + 120, 7),
    ]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_old_points_are_deleted(series, step):
    """Each step has as many points as it may have, and the newest ones."""
    seconds, keep_s = STEPS[step]
    for number in range(5):
        series.add(NOON + number * seconds, "1", {"scanned": number})
    later = NOON + keep_s + 3 * seconds
    series.add(later, "1", {"scanned": 9})
    times = [at for at, _ in series.points("scanned", step, 0, 1 << 40)]
    assert min(times) >= later - keep_s
    assert max(times) == later - later % seconds


def test_a_damaged_folder_is_started_anew(tmp_path):
    """Nothing but the series is lost."""
    folder = tmp_path / "series"
    with contextlib.closing(SeriesStore(folder)) as store:
        store.add(NOON, "1", {"scanned": 1})
    with contextlib.closing(SeriesStore(folder)) as store:
        assert values(store, "day") == [1]
    (folder / "data.mdb").write_bytes(b"\0" * 8192)
    with contextlib.closing(SeriesStore(folder)) as store:
        assert values(store, "day") == []
        store.add(NOON, "1", {"scanned": 2})
        assert values(store, "day") == [2]
