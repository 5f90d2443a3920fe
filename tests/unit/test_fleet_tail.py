"""The tail of a host: the entries that it can give back to the log."""

import os

from spamnb.fleet.log import Link, LogEntry, Tail


def link(before, chain, last, *, count=1, body=b"body"):
    return Link(before, LogEntry("a", last, last - count + 1, last, chain, body))


def test_a_tail_follows_one_history_backwards(tmp_path):
    """Of several histories the tail returns the one that ends with a given event."""
    tail = Tail(tmp_path)
    first, second, third = link("", "c1", 1), link("c1", "c2", 3, count=2), link("c2", "c3", 4)
    other = link("c1", "d2", 3, count=2)
    tail.put([first, second])
    tail.put([other, third])
    tail.put([second])
    assert tail.ending(4, "c3") == [first, second, third]
    assert Tail(tmp_path).ending(3, "d2") == [first, other]
    assert tail.ending(4, "d3") == Tail(tmp_path / "none").ending(1, "c1") == []


def test_an_interrupted_write_loses_nothing_else(tmp_path):
    """An incomplete record is removed before the next one is written."""
    Tail(tmp_path).put([link("", "c1", 1), link("c1", "c2", 2)])
    path = tmp_path / "tail" / "new"
    whole = path.read_bytes()
    for size in range(len(whole) // 2 + 1, len(whole), 7):
        path.write_bytes(whole)
        os.truncate(path, size)
        tail = Tail(tmp_path)
        assert [one.entry.last for one in tail.ending(1, "c1")] == [1]
        tail.put([link("c1", "c2", 2)])
        assert [one.entry.last for one in tail.ending(2, "c2")] == [1, 2]
    path.write_bytes(whole[:-1] + b"x")
    assert Tail(tmp_path).ending(2, "c2") == []


def test_a_tail_is_bounded(tmp_path):
    """The tail keeps the newest entries, in two files of a bounded size."""
    tail = Tail(tmp_path, file_bytes=4000)
    for last in range(1, 200):
        tail.put([link(f"c{last - 1}", f"c{last}", last, body=bytes(100))])
        sizes = [file.stat().st_size for file in (tmp_path / "tail").iterdir()]
        assert sum(sizes) < 9000
    kept = [one.entry.last for one in tail.ending(199, "c199")]
    assert kept == list(range(kept[0], 200))
    assert 20 < len(kept) < 80
