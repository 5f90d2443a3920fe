"""The review list: files that survive, bounds that hold."""

import stat
from dataclasses import replace

import pytest

from spamnb.errors import LimitError, RefError, RefusedError
from spamnb.feedback.review import ReviewItem, ReviewQueue
from spamnb.settings.values import ReviewLimits

DAY_US = 86_400_000_000
NOW_US = 1_763_712_345_000_000


def waiting(number=0, **more):
    plain = ReviewItem("spam", f"p{number}@a.example", "address", "stranger", "no proof", NOW_US)
    return replace(plain, digest=f"{number:032x}", **more)


@pytest.fixture
def review_queue(tmp_path):
    return ReviewQueue(tmp_path / "review")


def test_an_entry_is_given_back_as_it_was(review_queue):
    """All fields of the feedback, and the message byte by byte."""
    raw = b"Subject: x\r\n\r\n\x00\xff{}\n"
    entry = waiting(refs=("<1@a>", "s" * 27), verdict={"label": "ham", "probability": 0.25})
    name = review_queue.add(entry, raw)
    assert review_queue.get(name) == (
        replace(entry, name=name, raw_bytes=len(raw), subject="x"),
        raw,
    )
    assert [found.name for found in review_queue.entries()] == [name]


def test_the_files_are_private(review_queue):
    """The files contain users' mail: folder 0700, files 0600."""
    name = review_queue.add(waiting(), b"x")
    assert stat.S_IMODE(review_queue.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((review_queue.folder / name).stat().st_mode) == 0o600


def test_the_same_label_is_queued_once(review_queue):
    """A repeated report is one entry; another label, user or message is another entry."""
    first = review_queue.add(waiting(), b"raw")
    assert review_queue.add(waiting(time_us=NOW_US + 5), b"raw") == first
    others = {
        review_queue.add(replace(waiting(), label="ham"), b"raw"),
        review_queue.add(replace(waiting(), user="z"), b"raw"),
        review_queue.add(waiting(), b"other"),
        review_queue.add(waiting(1), b""),
        review_queue.add(waiting(2), b""),
    }
    assert len(others | {first}) == 6


def test_a_full_list_takes_nothing_new(tmp_path):
    """The queue is limited in number and bytes; a flood does not displace queued entries."""
    review_queue = ReviewQueue(tmp_path / "r", ReviewLimits(max_messages=3, share=1, strangers=1))
    names = [review_queue.add(waiting(n), b"") for n in range(3)]
    with pytest.raises(RefusedError):
        review_queue.add(waiting(4), b"")
    assert [entry.name for entry in review_queue.entries()] == sorted(names)
    review_queue.drop(names[0])
    review_queue.add(waiting(4), b"")
    small = ReviewQueue(tmp_path / "s", ReviewLimits(limit_bytes=1000, share=1, strangers=1))
    small.add(waiting(), b"x" * 500)
    with pytest.raises(RefusedError):
        small.add(waiting(1), b"x" * 500)


def test_undecided_entries_expire(tmp_path):
    """Entries above the age limit are removed."""
    review_queue = ReviewQueue(tmp_path / "r", ReviewLimits(keep_days=2))
    old = review_queue.add(waiting(1), b"")
    new = review_queue.add(waiting(2, time_us=NOW_US + 3 * DAY_US), b"")
    assert [entry.name for entry in review_queue.entries()] == [new]
    with pytest.raises(RefError):
        review_queue.get(old)


def test_one_person_does_not_fill_the_list(tmp_path):
    """One user gets an eighth of the queue, in number and bytes; others still have room."""
    review_queue = ReviewQueue(
        tmp_path / "r", ReviewLimits(max_messages=16, limit_bytes=16_000, strangers=1)
    )
    for raw in (b"1", b"2"):
        review_queue.add(waiting(), raw)
    with pytest.raises(RefusedError, match="one person"):
        review_queue.add(waiting(), b"3")
    review_queue.add(waiting(1), b"3")
    with pytest.raises(RefusedError, match="one person"):
        review_queue.add(waiting(2), b"x" * 3000)


def test_strangers_do_not_fill_the_list(tmp_path):
    """Names cost nothing: all strangers together have half of it, under any names."""
    review_queue = ReviewQueue(tmp_path / "r", ReviewLimits(max_messages=32, limit_bytes=64_000))
    for number in range(16):
        review_queue.add(waiting(number), b"")
    with pytest.raises(LimitError, match="strangers"):
        review_queue.add(waiting(17), b"")
    for number in range(16):
        review_queue.add(waiting(number, trust="user"), b"")
    with pytest.raises(LimitError, match="full"):
        review_queue.add(waiting(18, trust="user"), b"")


def test_one_network_of_strangers_does_not_shut_out_the_others(tmp_path):
    """Each network gets an eighth of the strangers' half, under any number of names."""
    review_queue = ReviewQueue(tmp_path / "r", ReviewLimits(max_messages=32, limit_bytes=64_000))
    for number in range(2):
        review_queue.add(waiting(number, client="192.0.2.7"), b"")
    with pytest.raises(LimitError, match="one person"):
        review_queue.add(waiting(3, client="192.0.2.7"), b"")
    assert review_queue.add(waiting(3, client="192.0.2.8"), b"")
    assert review_queue.add(waiting(4), b"")


@pytest.mark.parametrize("name", ["", "..", "../x", "/etc/passwd", "0" * 30, "a\0b", "x" * 5000])
def test_a_name_that_is_none_reaches_no_file(review_queue, tmp_path, name):
    """Only names of the queue's form are accepted, so no path leaves the folder."""
    (tmp_path / "x").write_text("{}\n")
    for ask in (review_queue.get, review_queue.drop):
        with pytest.raises(RefError):
            ask(name)
    assert (tmp_path / "x").exists()


def test_what_cannot_be_read_is_skipped(review_queue):
    """A file that was cut short or written by another version hides no other."""
    name = review_queue.add(waiting(1), b"x")
    broken = review_queue.folder / f"{NOW_US:013x}-{'0' * 24}"
    for content in (b"", b"{", b"[]\n", b'{"version": 2}\n', b'{"version": 1}\n'):
        broken.write_bytes(content)
        assert [entry.name for entry in review_queue.entries()] == [name]
        with pytest.raises(RefError):
            review_queue.get(broken.name)


def test_what_was_half_written_is_not_there(review_queue):
    """A file of a writer that was killed before the rename is no entry."""
    name = review_queue.add(waiting(), b"x")
    review_queue.drop(name)
    (review_queue.folder / f".{name}.0123abcd.tmp").write_bytes(b"half")
    assert list(review_queue.entries()) == []
    assert review_queue.add(waiting(), b"x") == name
    assert [entry.name for entry in review_queue.entries()] == [name]
