"""Maildir deliveries: whole and on the disk, or not there at all."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from support.waiting import LIMIT_S

from spamnb.smtp import delivery
from spamnb.store import files

ALICE, BOB = 65531, 65530
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs several users")


def seen(folder):
    return sorted(path.read_bytes() for path in (folder / "new").iterdir())


def test_a_message_is_in_new_and_nothing_is_left_in_tmp(tmp_path):
    """A delivery ends in `new`, readable by its owner alone, and leaves nothing in `tmp`."""
    path = delivery.deliver(tmp_path / "a" / "Maildir", (b"head\n", b"body\n"))
    assert path.read_bytes() == b"head\nbody\n"
    assert path.parent.name == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a" / "Maildir").stat().st_mode & 0o777 == 0o700
    assert list((path.parent.parent / "tmp").iterdir()) == []
    assert path.name.endswith(f",S={path.stat().st_size}")


def test_a_sub_folder_is_one_of_maildir_plus_plus(tmp_path):
    """Junk goes to a folder that IMAP servers know as one."""
    delivery.deliver(tmp_path / "Maildir" / delivery.JUNK, (b"x",))
    assert (tmp_path / "Maildir" / ".Junk" / "maildirfolder").is_file()
    assert (tmp_path / "Maildir" / "cur").is_dir()


def test_names_are_unique():
    """No two deliveries have one name, in the same microsecond or not."""
    names = [delivery.unique_name(1) for _ in range(10_000)]
    assert len(set(names)) == len(names)
    assert not any("/" in name or ":" in name for name in names)


def test_several_settle_together_or_not_at_all(tmp_path):
    """If one Maildir refuses, none of the others has the message."""
    one = delivery.prepare(tmp_path / "one", (b"x",))
    two = delivery.prepare(tmp_path / "two", (b"x",))
    three = delivery.prepare(tmp_path / "three", (b"x",))
    (tmp_path / "two" / "new").rmdir()
    with pytest.raises(OSError, match="two"):
        delivery.settle([one, two, three])
    assert seen(tmp_path / "one") == seen(tmp_path / "three") == []
    for name in ("one", "two", "three"):
        assert list((tmp_path / name / "tmp").iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path):
    """A write that fails half-way leaves no file, in `tmp` or in `new`."""
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from spamnb.smtp import delivery as maildir_writer\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    maildir_writer.deliver(Path(sys.argv[1]), (b'x' * 900, b'y' * 900))\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m")],
        capture_output=True, check=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.stdout.strip() == "27"
    assert [path for path in (tmp_path / "m").rglob("*") if path.is_file()] == []


def test_a_kill_before_the_rename_leaves_nothing_to_be_seen(tmp_path):
    """A process killed between `tmp` and `new` has delivered nothing; its rest is swept later."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from spamnb.smtp import delivery as maildir_writer\n"
        "maildir_writer.prepare(Path(sys.argv[1]), (b'x',))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    folder = tmp_path / "m"
    done = subprocess.run([sys.executable, "-c", script, str(folder)], check=False, timeout=LIMIT_S)
    assert done.returncode == -9
    assert seen(folder) == []
    left = list((folder / "tmp").iterdir())
    assert len(left) == 1
    assert delivery.sweep(folder) == 0
    old = time.time() - delivery.STALE_S - 60
    os.utime(left[0], (old, old))
    assert delivery.sweep(folder) == 1
    assert list((folder / "tmp").iterdir()) == []


def test_a_link_in_the_way_is_not_followed(tmp_path):
    """A name in `tmp` that is already there is an error, never written through."""
    delivery.make(tmp_path / "m")
    (tmp_path / "m" / "tmp" / "here").symlink_to(tmp_path / "secret")
    with files.opened(tmp_path / "m" / "tmp") as tmp, pytest.raises(FileExistsError):
        delivery._write(tmp, "here", (b"x",))
    assert not (tmp_path / "secret").exists()


@pytest.fixture
def home(tmp_path):
    """Something with files of old that deliveries must not touch."""
    home = tmp_path / "home"
    home.mkdir()
    names = ("data.mdb", delivery.unique_name(1))
    old = time.time() - delivery.STALE_S - 60
    for name in names:
        (home / name).write_bytes(b"precious")
        os.utime(home / name, (old, old))
    return home


@needs_root
@pytest.mark.parametrize("where", ["m", "m/tmp", "m/new", "m/.Junk", "m/.Junk/tmp"])
def test_a_link_of_its_owner_leads_nowhere(tmp_path, home, where):
    """In place of a Maildir or of a part of it: nothing is written, swept or removed behind it."""
    owned = tmp_path / "alice"
    delivery.make(owned / "m" / delivery.JUNK)
    before = {path.name: path.read_bytes() for path in home.iterdir()}
    place = owned / where
    shutil.rmtree(place)
    place.symlink_to(home)
    for path in (owned, *owned.rglob("*")):
        os.chown(path, ALICE, ALICE, follow_symlinks=False)
    for folder in (owned / "m", owned / "m" / delivery.JUNK):
        for attempt in (
            delivery.make,
            delivery.sweep,
            lambda f: delivery.deliver(f, (b"x",)),
        ):
            with suppress(OSError):
                attempt(folder)
    with pytest.raises(OSError, match=r"alice"):
        delivery.deliver(place if where != "m/tmp" else owned / "m", (b"x",))
    assert {path.name: path.read_bytes() for path in home.iterdir()} == before


@needs_root
def test_the_first_user_on_the_way_is_the_owner(tmp_path):
    """Root acts as the folder's owner, so a link of that user leads nowhere else."""
    delivery.make(tmp_path / "home" / "m")
    assert files.owner_of(tmp_path / "home" / "m").st_uid == 0
    os.chown(tmp_path / "home", ALICE, ALICE)
    assert files.owner_of(tmp_path / "home" / "m").st_uid == ALICE
    (tmp_path / "home" / "link").symlink_to("/root")
    with pytest.raises(OSError, match="link"):
        files.owner_of(tmp_path / "home" / "link")


@needs_root
def test_a_folder_of_a_third_user_is_no_part_of_a_maildir(tmp_path):
    """Below a user's folder all belongs to that user, or to this process."""
    delivery.make(tmp_path / "m")
    os.chown(tmp_path / "m", ALICE, ALICE)
    delivery.deliver(tmp_path / "m", (b"x",))
    os.chown(tmp_path / "m" / "new", BOB, BOB)
    with pytest.raises(PermissionError, match="new"):
        delivery.deliver(tmp_path / "m", (b"x",))
    assert list((tmp_path / "m" / "tmp").iterdir()) == []


def test_the_administrators_links_are_followed(tmp_path):
    """A path of the settings may have links, as far as no other user can have made them."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to("disk")
    (tmp_path / "disk" / "alice").symlink_to(tmp_path / "disk" / "a")
    delivery.deliver(tmp_path / "home" / "alice" / "Maildir", (b"x",))
    assert seen(tmp_path / "disk" / "a" / "Maildir") == [b"x"]
    (tmp_path / "disk").chmod(0o777)
    with pytest.raises(OSError, match="symbolic links"):
        delivery.deliver(tmp_path / "home" / "alice" / "Maildir", (b"x",))


def test_the_sweep_takes_nothing_but_dead_deliveries_of_this_program(tmp_path):
    """Other programs have their own files in `tmp`, and folders are none of its business."""
    delivery.make(tmp_path / "m")
    tmp, old = tmp_path / "m" / "tmp", time.time() - delivery.STALE_S - 60
    dead = delivery.prepare(tmp_path / "m", (b"x",)).name
    (tmp / "data.mdb").touch()
    (tmp / "1763712345.M7P3.host").touch()
    (tmp / delivery.unique_name(1)).symlink_to("data.mdb")
    os.mkfifo(tmp / delivery.unique_name(2))
    for path in tmp.iterdir():
        os.utime(path, (old, old), follow_symlinks=False)
    assert delivery.sweep(tmp_path / "m") == 1
    assert len(list(tmp.iterdir())) == 4
    assert not (tmp / dead).exists()
