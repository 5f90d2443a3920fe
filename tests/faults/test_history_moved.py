"""A history that another process renames or removes while it is open."""

import contextlib
import shutil

import pytest
from support.history import damaged_once, entry, number_of, run
from support.waiting import LIMIT_S

from spamnb.errors import StoreFullError
from spamnb.records import verdicts as module
from spamnb.records.verdicts import History


def opened(folder):
    return contextlib.closing(History.open(folder))


@contextlib.contextmanager
def start_child(folder):
    """Open, with one entry on the disk."""
    with opened(folder) as history:
        history.add([entry(1)])
        history.flush()
        yield history


def numbers(history):
    return sorted(number_of(one) for one in history.newest())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "h"


@contextlib.contextmanager
def set_aside_by_another(folder, number):
    """Replace the history in another process, which adds an entry; yield what it finds."""
    other, found = run("set_aside", folder, number), []
    with other:
        assert other.stdout.readline() == "done\n"
        yield found
        found.append(other.communicate("\n", timeout=LIMIT_S)[0].strip())
    assert other.returncode == 0


def test_a_history_started_by_another_process_is_used(folder):
    """Both processes find an entry that was added before the replacement was noticed."""
    with start_child(folder) as history:
        with set_aside_by_another(folder, 2) as found:
            history.add([entry(3)])
            assert numbers(history) == [2, 3]
            history.add([entry(4)])
        assert found == ["[2, 3, 4]"]
        assert history.warning == ""
    assert (folder.with_name("h.damaged") / "data.mdb").exists()


def test_entries_added_after_a_move_are_kept_without_a_read(folder):
    """The flush of each second notices that another process replaced the file."""
    with opened(folder) as history:
        with set_aside_by_another(folder, 2):
            history.add([entry(3)])
            history.flush()
        with opened(folder) as later:
            assert numbers(later) == [2, 3]


def test_of_two_that_meet_damage_one_sets_it_aside(folder):
    """The other process finds a sound folder, and does not rename it."""
    with start_child(folder) as history:
        with set_aside_by_another(folder, 2) as found:
            history.add([entry(3)])
            history._with_recovery(damaged_once())
            assert numbers(history) == [2, 3]
        assert found == ["[2, 3]"]
        assert history.warning == ""


def test_two_in_one_process(folder):
    """Two histories of one process check the folder separately, and both use the new one."""
    with opened(folder) as first, opened(folder) as second:
        first._with_recovery(damaged_once())
        first.add([entry(1)])
        second.add([entry(2)])
        assert numbers(second) == [1, 2]
        assert numbers(first) == [1, 2]
        assert second.warning == ""


def test_without_room_for_the_new_one_it_is_tried_again(folder, monkeypatch):
    """Verdicts wait in the file beside the tables until there is room for those."""
    share, full = module.share, [StoreFullError("no room")]

    def sometimes(*given, **named):
        if full and folder.with_name("h.damaged").exists():
            raise full.pop()
        return share(*given, **named)

    with start_child(folder) as history:
        monkeypatch.setattr(module, "share", sometimes)
        with pytest.raises(StoreFullError):
            history._with_recovery(damaged_once())
        history.add([entry(2)])
        assert numbers(history) == [2]


def test_a_folder_that_is_taken_away_is_made_again(folder):
    """If the history is removed, its entries are lost, but no later verdict."""
    with start_child(folder) as history:
        shutil.rmtree(folder)
        history.add([entry(2)])
        history.flush()
        history.add([entry(3)])
    with opened(folder) as later:
        assert numbers(later) == [2, 3]


def test_a_home_that_is_gone_does_not_come_back_at_the_end(folder):
    """Without pending entries, closing does not create the home again."""
    with start_child(folder):
        shutil.rmtree(folder)
    assert not folder.exists()
