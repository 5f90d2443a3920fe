"""Room: how large the model may become where the administrator names no limit."""

import os

import pytest

from spamnb.engine.filter import Filter
from spamnb.operations.status import gauges, model_facts, warnings
from spamnb.store.model_store import limit_of, share_of

GB = 1 << 30


@pytest.mark.parametrize(
    ("total", "free", "used", "limit"),
    [
        (400 * GB, 300 * GB, 0, 100 * GB),
        (400 * GB, 60 * GB, 1 * GB, 41 * GB),
        (400 * GB, 20 * GB, 8 * GB, 10.5 * GB),
        (40 * GB, 24 * GB, 12 * GB, 15 * GB),
        (40 * GB, 0, 12 * GB, 12 * GB),
        (0, 0, 12 * GB, 0),
    ],
)
def test_the_disk_gives_a_limit(total, free, used, limit):
    """A quarter of it; a twentieth stays free; where that is spent, an eighth of what is free.

    A file system that does not know its size gives none.
    """
    assert share_of(total, free, used) == limit


def test_a_limit_that_is_given_holds(tmp_path):
    """The administrator's limit has precedence; a missing folder gives no limit."""
    assert limit_of(tmp_path, 5 << 20) == 5 << 20
    assert limit_of(tmp_path / "nowhere", 0) == 0


def test_without_a_limit_the_model_keeps_to_a_share_of_the_disk(tmp_path):
    """A store opened with default settings has a limit."""
    with Filter.open(tmp_path / "m", create=True) as model:
        disk = os.statvfs(tmp_path)
        assert 0 < model.store.limit_bytes <= disk.f_blocks * disk.f_frsize // 4
        facts = model_facts(tmp_path / "m", model)
        assert facts["store_limit_bytes"] == model.store.limit_bytes
    assert gauges({"model": facts})["model_store_limit_bytes"] == facts["store_limit_bytes"]
    full = facts | {"store_bytes": facts["store_limit_bytes"]}
    assert any("store.limit_bytes" in line for line in warnings({"model": full}))
