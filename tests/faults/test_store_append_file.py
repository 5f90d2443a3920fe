"""Each added history entry is found once, after kills, torn files and a full disk."""

import contextlib
import fcntl
import os
import random
import resource
import signal
import threading
import time
from zlib import crc32

import pytest
from support.history import APART, EACH, NOON_2026, WRITERS, entry, number_of, recent, run
from support.waiting import LIMIT_S

from spamnb.errors import BugError, StoreDamagedError, StoreFullError
from spamnb.records import verdicts
from spamnb.records import verdicts as module
from spamnb.records.verdicts import (
    _HEAD,
    _MAGIC,
    AppendFile,
    History,
    encode_entry,
    open_append_file,
    records,
    release_append_file,
)
from spamnb.settings.values import HistoryLimits
from spamnb.store.model_store import DATA_FILE


@pytest.fixture(autouse=True)
def _no_flusher(monkeypatch):
    """Switch the background flush off: entries are settled only where a test asks for it."""
    monkeypatch.setattr(verdicts, "_FLUSH_S", 1000.0)


def opened(folder, **limits):
    return contextlib.closing(History.open(folder, HistoryLimits(**limits)))


def leave(folder, *entries):
    """Add entries in a process that is killed afterwards."""
    folder.mkdir(exist_ok=True)
    fresh = open_append_file(folder)
    fresh.add(list(map(encode_entry, entries)))
    release_append_file(fresh)


def numbers(history):
    return [number_of(one) for one in history.newest()]


@contextlib.contextmanager
def files_at_most(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestKilled:
    @pytest.mark.parametrize("kills", [12, pytest.param(40, marks=pytest.mark.full)])
    def test_at_random_instants(self, tmp_path, kills):
        """Every entry that killed processes added is found once."""
        rng = random.Random(5)
        acknowledged = set()
        for round_ in range(1, kills + 1):
            with run("add_till_killed", tmp_path / "h", round_ * 100_000 + round_ % 2) as process:
                lines = [process.stdout.readline()]
                time.sleep(rng.random() * 0.1)  # the instant, not a wait for anything
                process.kill()
                lines += process.stdout.read().split("\n")[:-1]
                assert process.stderr.read() == ""
            first, last = round_ * 100_000 + round_ % 2, int(lines[-1])
            acknowledged |= set(range(first, last + 1))
            with opened(tmp_path / "h") as history:
                found = numbers(history)
                assert history.warning == ""
                assert len(found) == len(set(found)) == history.count()
                assert set(found) >= acknowledged
                assert found == sorted(found, reverse=True)
                assert len(history.find(signature=entry(last, size=0).signature)) == 1

    @pytest.mark.parametrize(
        "way",
        ["leave_fresh", "die_before_the_commit", "die_after_the_commit", "die_with_the_rest"],
    )
    def test_at_each_step(self, tmp_path, way):
        """Added, settled in part, settled but not emptied: each is found once, by each name."""
        for first in (1, 11):
            with run(way, tmp_path / "h", first) as process:
                assert process.wait() == -signal.SIGKILL, process.stderr.read()
        assert (tmp_path / "h" / "fresh").stat().st_size > 0
        with opened(tmp_path / "h") as history:
            assert numbers(history) == [13, 12, 11, 3, 2, 1]
            assert history.count() == 6
            for one in (entry(2), entry(13)):
                for how in ({"digest": one.digest}, {"message_id": one.message_id}):
                    assert [number_of(e) for e in history.find(**how)] == [number_of(one)]
        assert (tmp_path / "h" / "fresh").stat().st_size == 0


class TestTogether:
    def test_processes(self, tmp_path):
        """Two add while a third reads: each entry once, as often as it looks."""
        writers = [run("add_and_end", tmp_path / "h", 1 + APART * w) for w in range(WRITERS)]
        reader = run("read_till_all", tmp_path / "h")
        for process in (*writers, reader):
            output, errors = process.communicate()
            assert errors == ""
        assert output == f"{WRITERS * EACH}\n"

    def test_threads(self, tmp_path, monkeypatch):
        """Four threads add, each its own history of one folder, settled all the while."""
        monkeypatch.setattr(verdicts, "_FLUSH_S", 0.002)

        def work(first):
            with opened(tmp_path / "h") as history:
                for number in range(first, first + 100):
                    history.add([entry(number, size=20)])
                    if number % 9 == 0:
                        assert history.find(signature=entry(number, size=0).signature)

        threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with opened(tmp_path / "h") as history:
            found = numbers(history)
            assert sorted(found) == [1000 * n + k for n in range(1, 5) for k in range(100)]

    def test_what_is_added_while_others_settle(self, tmp_path, monkeypatch):
        """An entry that came after the file was read is settled too, or stays fresh."""
        with opened(tmp_path / "h") as history, opened(tmp_path / "h") as other:
            history.add([entry(1)])
            keep, late = History._store_records, [entry(2), entry(3)]

            def slow(self, raw):
                keep(self, raw)
                if late and self is history:
                    other.add([late.pop(0)])
                    other.find()  # settles all, and empties the file
                    other.add([late.pop(0)])

            monkeypatch.setattr(History, "_store_records", slow)
            history.flush()
            assert history._append_file.size() == 0
            monkeypatch.undo()
            assert numbers(other) == [3, 2, 1]

    def test_a_forked_child_cannot_loosen_the_lock(self, tmp_path):
        """The child gets an error, and the lock of the parent stays."""
        with opened(tmp_path / "h") as history:
            with history._append_file._locked():
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    try:
                        history.add([entry(1)])
                    except BugError:
                        os._exit(7)
                    os._exit(1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                with (tmp_path / "h" / "fresh").open() as file, pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            history.add([entry(2)])
            assert numbers(history) == [2]

    def test_a_forked_child_that_lives_on_holds_nothing(self, tmp_path):
        """The parent that dies within the lock lets go of it, though its child lives."""
        fresh = open_append_file(tmp_path)
        ready, done = os.pipe(), os.pipe()
        fcntl.flock(fresh._handle, fcntl.LOCK_EX)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        release_append_file(fresh)  # its file is closed, as by death
        with (tmp_path / "fresh").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(done[1], b"x")
        os.waitpid(child, 0)
        for end in (*ready, *done):
            os.close(end)


class TestOrder:
    def test_newest_first_across_settling(self, tmp_path):
        """Entries are found in the order of adding, also if the clock was set back between them."""
        with opened(tmp_path / "h") as history:
            for number in (1, 2, 9, 3, 4):
                history.add([entry(number), entry(number + 20)])
                if number % 2:
                    assert history.count()
            assert numbers(history) == [24, 4, 23, 3, 29, 9, 22, 2, 21, 1]
            times = [one.time_us for one in recent(history, 2)]
            assert times == [entry(24).time_us, entry(4).time_us]

    def test_every_reader_sees_what_is_fresh(self, tmp_path):
        """Every way to read finds a fresh entry, also as the first read."""
        asked = (
            lambda h: h.find(signature=entry(1).signature),
            lambda h: recent(h, 1),
            lambda h: h.count(),
            lambda h: h.span_days(),
            lambda h: h.expire(NOON_2026 + 99 * 86_400_000_000),
        )
        for place, ask in enumerate(asked):
            with opened(tmp_path / f"{place}") as history:
                history.add([entry(1), entry(2)])
                assert ask(history)


class TestTorn:
    def test_what_is_no_record_is_passed_over(self, tmp_path):
        """Half a record, zeros, noise, a wrong sum, a newer version: those around them stay."""
        folder = tmp_path / "h"
        leave(folder, entry(1))
        whole = (folder / "fresh").read_bytes()
        newer = b"\x63" + encode_entry(entry(9))[1:]
        broken = bytearray(whole)
        broken[-1] ^= 1
        rubbish = (
            whole[: len(whole) // 2], whole[:7], bytes(8192), random.Random(1).randbytes(5000),
            bytes(broken), _HEAD.pack(_MAGIC, len(newer), crc32(newer)) + newer,
            _HEAD.pack(_MAGIC, 1 << 31, 0), _HEAD.pack(_MAGIC, 0, 0), _MAGIC,
        )  # fmt: skip
        for number, piece in enumerate(rubbish, 2):
            with (folder / "fresh").open("ab") as file:
                file.write(piece)
            leave(folder, entry(number))
        with (folder / "fresh").open("ab") as file:
            file.write(whole[:-1])
        with opened(folder) as history:
            assert history.warning == ""
            assert numbers(history) == [*range(len(rubbish) + 1, 0, -1)]

    def test_no_message_id_holds_a_record(self, tmp_path):
        """A record written into a Message-ID is not found when the one around it is torn."""
        # An entry with a length and checksum in ASCII, which UTF-8 leaves as they are.
        data = next(b"%d" % n for n in range(9999) if max(crc32(b"%d" % n).to_bytes(4)) < 128)
        forged = _HEAD.pack(_MAGIC, len(data), crc32(data)) + data
        assert list(records(forged)) == [data]
        for way in ("latin-1", "surrogateescape"):
            name = forged.decode("latin-1") if way == "latin-1" else forged.decode("utf-8", way)
            fresh = AppendFile(tmp_path)
            fresh.add([encode_entry(entry(1, message_id=name, notes={"to": name}))])
            raw = fresh.read()
            fresh.close()
            (tmp_path / "fresh").unlink()
            assert len(list(records(raw))) == 1
            assert list(records(raw[:-1])) == []


def add_till_told(history):
    """Add entries until there is no room; return how many were added."""
    for number in range(1, 1000):
        try:
            history.add([entry(number, size=30)])
        except StoreFullError:
            return number - 1
    return 1000


class TestRoom:
    def test_no_room_for_what_is_added(self, tmp_path):
        """A full disk is an error; no entry is torn, and with free space appending works again."""
        with opened(tmp_path / "h") as history:
            history.add([entry(1)])
            size = history._append_file.size()
            with files_at_most(size + 1000), pytest.raises(StoreFullError) as full:
                history.add([entry(2)])
            assert full.value.hint
            assert history._append_file.size() == size
            history.add([entry(3)])
            assert numbers(history) == [3, 1]

    def test_no_room_for_the_tables(self, tmp_path, monkeypatch):
        """What was added stays fresh, on the disk, and is found when there is room."""
        synced = []
        sync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", lambda handle: synced.append(sync(handle)))
        with opened(tmp_path / "h") as history:
            history.add(entry(number) for number in range(1, 11))
            history.flush()
            assert synced == []
            with files_at_most(16_384):
                history.add([entry(11)])
                with pytest.raises(StoreFullError):
                    history.flush()
                assert synced == [None]
                assert numbers(history) == [*range(10, 0, -1)]
            history.add([entry(12)])
            assert numbers(history) == [*range(12, 0, -1)]
            with files_at_most(16_384):
                history.add([entry(13)])
                history.close()
        with opened(tmp_path / "h") as history:
            assert numbers(history) == [*range(13, 0, -1)]

    def test_when_much_waits_for_room_adding_says_so(self, tmp_path):
        """`add` fails and adds nothing while too many entries wait for room in the tables."""
        with opened(tmp_path / "h", limit_bytes=200_000) as history:
            history.flush()
            with files_at_most(30_000):
                taken = add_till_told(history)
                assert 25_000 < history._append_file.size() <= 30_000
            assert numbers(history) == [*range(taken, 0, -1)]

    def test_much_is_settled_by_adding(self, tmp_path):
        """`add` alone keeps the file small, without any read."""
        with opened(tmp_path / "h", limit_bytes=200_000) as history:
            for number in range(1, 41):
                history.add([entry(number)])
                assert history._append_file.size() < 25_000 + 4000
            assert numbers(history) == [*range(40, 0, -1)]

    def test_the_oldest_give_way_while_settling(self, tmp_path):
        """Entries added under a higher limit are kept as far as the lower limit allows."""
        folder = tmp_path / "h"
        leave(folder, *map(entry, range(1, 301)), entry(301, size=100_000), entry(302))
        with opened(folder, limit_bytes=100_000) as history:
            found = numbers(history)
            assert found[0] == 302
            assert found[1:] == [*range(300, 301 - len(found), -1)]
            assert 10 < len(found) < 100
            history.add([entry(303)])
            assert numbers(history)[:2] == [303, 302]
            assert history._append_file.size() == 0

    def test_a_limit_that_was_lowered(self, tmp_path):
        """A full file of the old one does not stop the new: the oldest go, the newest come."""
        with opened(tmp_path / "h") as history:
            history.add(entry(number) for number in range(1, 1001))
        with opened(tmp_path / "h", limit_bytes=400_000) as history:
            history.add([entry(1001)])
            history.flush()
            history.add([entry(1002)])
            found = numbers(history)
            assert found == [*range(1002, 1002 - len(found), -1)]
            assert 80 < len(found) < 160


class TestDamage:
    @pytest.mark.parametrize("how", ["nonsense", "torn by a power cut"])
    def test_what_is_fresh_outlives_the_tables(self, tmp_path, how):
        """If damaged tables are set aside, the new ones start with the fresh entries."""
        folder = tmp_path / "h"
        with opened(folder) as history:
            history.add(entry(number) for number in range(1, 100))
        if how == "nonsense":
            (folder / DATA_FILE).write_bytes(b"nonsense" * 2000)
        else:
            raw = (folder / DATA_FILE).read_bytes()
            (folder / DATA_FILE).write_bytes(raw[:8192] + bytes(len(raw) - 8192))
            (folder / "boot").write_text("another boot")
        leave(folder, entry(100), entry(101))
        with opened(folder) as history:
            assert "h.damaged" in history.warning
            assert numbers(history) == [101, 100]

    def test_damage_met_while_settling(self, tmp_path, monkeypatch):
        """If settling finds damage, the entries are in the new tables once."""
        with opened(tmp_path / "h") as history:
            history.add([entry(1)])
            history.flush()
            history.add([entry(2)])
            pieces, broken = module.ChunkedValues, [True]

            class Broken(pieces):
                def last_seq(self):
                    if broken:
                        broken.clear()
                        raise StoreDamagedError("page 7")
                    return super().last_seq()

            monkeypatch.setattr(module, "ChunkedValues", Broken)
            history.flush()
            assert "page 7" in history.warning
            assert numbers(history) == [2]
            history.add([entry(3)])
        with opened(tmp_path / "h") as history:
            assert numbers(history) == [3, 2]

    def test_two_threads_that_find_damage_start_one_new_history(self, tmp_path):
        """The second thread uses the new history and does not set it aside."""
        with opened(tmp_path / "h") as history:
            history.add([entry(1)])
            history.flush()
            both = threading.Barrier(2, timeout=LIMIT_S)

            def work():
                met = []

                def look():
                    if not met:
                        met.append(True)
                        both.wait()
                        raise StoreDamagedError("page 7")

                history._with_recovery(look)

            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            history.add([entry(2)])
            assert numbers(history) == [2]
        with opened(tmp_path / "h.damaged") as old:
            assert numbers(old) == [1]


def test_two_of_one_process_share_the_file(tmp_path):
    """The first to close leaves the other at work; a closed one cannot be used."""
    with opened(tmp_path / "h") as history:
        other = History.open(tmp_path / "h")
        other.add([entry(1)])
        other.close()
        history.add([entry(2)])
        assert numbers(history) == [2, 1]
    with pytest.raises(BugError):
        history.add([entry(3)])


def test_a_file_that_cannot_be_opened_is_an_error_with_its_path(tmp_path):
    """The error is a StoreError with the path, as for all other files."""
    (tmp_path / "h" / "fresh").mkdir(parents=True)
    with pytest.raises(module.StoreError, match="fresh"):
        History.open(tmp_path / "h")
