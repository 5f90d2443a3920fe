"""The spool: what lies there is believed only if it is a plain file of its owner's."""

import os
import resource
import stat
import subprocess
import time
from pathlib import Path

import pytest

from spamnb.errors import StoreBusyError, StoreError
from spamnb.service.limits import SpoolLimits
from spamnb.service.spool import MODE, Spool, problem

LABELS = ("ham", "spam")
TEACH = Path(__file__).resolve().parents[2] / "scripts" / "dovecot" / "spamnb-teach"
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path / "spool")
    spool.make()
    return spool


def leave(spool, name, data=b"Subject: x\n\nx\n", at=None):
    path = spool.folder / name
    path.write_bytes(data)
    path.chmod(0o644)
    if at is not None:
        os.utime(path, (at, at))
    return path


def drained(spool):
    found = []
    spool.drain(LABELS, found.append)
    return found


def names(spool):
    return sorted(path.name for path in spool.folder.iterdir())


def aside(spool):
    return [name for name in names(spool) if name.startswith(".aside-")]


def test_everybody_may_write_and_nobody_may_look(spool):
    """Mode 1733: sticky, so that nobody takes away what others left."""
    assert stat.S_IMODE(spool.folder.stat().st_mode) == MODE == 0o1733


def test_files_are_taken_in_the_order_in_which_they_were_written(spool):
    """Oldest first, by their owners, with their labels; then they are gone."""
    now = time.time()
    leave(spool, "b.spam", b"Subject: first\n\n", now - 3)
    leave(spool, "a.ham", b"Subject: second\n\n", now - 2)
    leave(spool, "c.spam", b"Subject: third\n\n", now - 1)
    found = drained(spool)
    assert [(left.label, left.raw) for left in found] == [
        ("spam", b"Subject: first\n\n"), ("ham", b"Subject: second\n\n"),
        ("spam", b"Subject: third\n\n"),
    ]  # fmt: skip
    assert {left.uid for left in found} == {os.geteuid()}
    assert names(spool) == []


def test_a_clock_that_is_set_back_turns_no_words_round(spool):
    """What the name tells of this boot goes before the file's time; numbers, not letters."""
    now = time.time()
    names = [f"{BOOT}.900.7.x.spam", f"{BOOT}.1000.40.x.ham", f"{BOOT}.1000.101.x.spam"]
    for steps, name in enumerate(names):
        leave(spool, name, at=now - 100 * steps)
    assert [left.name for left in drained(spool)] == names


def test_what_was_left_before_the_machine_started_goes_first(spool):
    """Another boot's count says nothing here: those, and names of all kinds, go by their times."""
    now, before = time.time(), "0" * 8 + BOOT[8:]
    started = now - time.clock_gettime(time.CLOCK_BOOTTIME)
    leave(spool, f"{before}.99999999.1.x.spam", at=started - 20)
    leave(spool, f"{before}.99999990.1.x.ham", at=started - 10)
    leave(spool, "plain.spam", at=started + 0.5)
    leave(spool, f"{BOOT}.100.1.x.ham", at=started - 1000)
    leave(spool, f"{BOOT}.{'9' * 16}.1.x.spam", at=started + 1.5)
    found = [left.name.split(".")[:2] for left in drained(spool)]
    assert found == [
        [before, "99999999"], [before, "99999990"], ["plain", "spam"], [BOOT, "100"],
        [BOOT, "9" * 16],
    ]  # fmt: skip


def test_words_of_one_moment_keep_their_order(spool):
    """The script that Dovecot runs: its files may all have one time."""
    for number in range(20):
        words = ["sh", TEACH, LABELS[number % 2], "alice"]
        environment = os.environ | {"SPAMNB_SPOOL": str(spool.folder)}
        subprocess.run(words, input=f"{number}".encode(), env=environment, check=True)
    for name in names(spool):
        os.utime(spool.folder / name, (1, 1))
    found = drained(spool)
    assert [int(left.raw) for left in found] == list(range(20))
    assert [left.label for left in found] == list(LABELS) * 10
    assert found[0].head == {"for": "alice", "channel": "imap"}


def test_a_long_absence_leaves_many_and_the_oldest_go_first(tmp_path):
    """However many lie there, whatever order the file system lists them in."""
    spool = Spool(tmp_path / "spool", SpoolLimits(each_owner=10))
    spool.make()
    for number in range(6000):
        leave(spool, f"{number * 7919 % 6000:04}.spam", at=1_000_000 + number * 7919 % 6000)
    found = [left.name for _ in range(3) for left in drained(spool)]
    assert found == [f"{number:04}.spam" for number in range(30)]


def test_a_line_before_the_message_tells_for_whom(spool):
    """The optional head is JSON on one line; the rest is the message."""
    leave(spool, "x.spam", b'{"for": "alice@example.org", "channel": "imap"}\nSubject: x\n\nx\n')
    left = drained(spool)[0]
    assert left.head == {"for": "alice@example.org", "channel": "imap"}
    assert left.raw == b"Subject: x\n\nx\n"


@pytest.mark.parametrize("name", [".hidden.spam", "x.tmp", "x", "x.virus", "spam"])
def test_what_has_no_final_name_is_still_being_written(spool, name):
    """It is left alone."""
    path = leave(spool, name)
    assert drained(spool) == []
    assert path.exists()


def a_symlink(folder, secret):
    (folder / "x.spam").symlink_to(secret)


def a_hard_link(folder, secret):
    (folder / "x.spam").hardlink_to(secret)


def a_pipe(folder, _):
    os.mkfifo(folder / "x.spam")


def a_folder(folder, _):
    (folder / "x.spam").mkdir()
    (folder / "x.spam" / "inside").write_text("x")


def a_device(folder, _):
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    os.mknod(folder / "x.spam", 0o666 | stat.S_IFCHR, os.makedev(1, 5))


def an_open_file(folder, _):
    (folder / "x.spam").write_bytes(b"Subject: x\n\n")
    (folder / "x.spam").chmod(0o666)


def an_empty_file(folder, _):
    (folder / "x.spam").touch()


def a_bad_head(folder, _):
    (folder / "x.spam").write_bytes(b'{"for": \nSubject: x\n\n')
    (folder / "x.spam").chmod(0o644)


def a_deep_head(folder, _):
    (folder / "x.spam").write_bytes(b'{"a":' * 20_000 + b"\n")
    (folder / "x.spam").chmod(0o644)


TRICKS = [a_symlink, a_hard_link, a_pipe, a_folder, a_device, an_open_file, an_empty_file,
          a_bad_head, a_deep_head]  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.__name__)
def test_what_is_no_plain_file_is_set_aside(spool, tmp_path, trick):
    """Nothing is read of it, nothing blocks, the next one is taken, and the secret is unharmed."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"Subject: secret\n\nsecret\n")
    trick(spool.folder, secret)
    leave(spool, "y.ham")
    assert [left.name for left in drained(spool)] == ["y.ham"]
    assert (spool.set_aside, aside(spool)) == (1, [".aside-x.spam"])
    assert secret.read_bytes() == b"Subject: secret\n\nsecret\n"
    assert drained(spool) == []


def test_a_file_that_is_too_large_is_set_aside(tmp_path):
    """The limit is looked at before anything is read."""
    spool = Spool(tmp_path / "spool", SpoolLimits(file_bytes=100))
    spool.make()
    leave(spool, "x.spam", b"x" * 101)
    assert drained(spool) == []
    assert spool.set_aside == 1


def test_one_owner_does_not_keep_the_others_waiting(tmp_path):
    """So many files of each in one look; the rest is taken in the next ones."""
    spool = Spool(tmp_path / "spool", SpoolLimits(each_owner=3))
    spool.make()
    for number in range(7):
        leave(spool, f"{number}.spam")
    assert [len(drained(spool)) for _ in range(4)] == [3, 3, 1, 0]


def test_what_is_set_aside_is_bounded(tmp_path):
    """A flood of links fills no folder."""
    spool = Spool(tmp_path / "spool", SpoolLimits(aside=3))
    spool.make()
    for number in range(10):
        (spool.folder / f"{number}.spam").symlink_to("/etc/passwd")
    assert drained(spool) == []
    assert (spool.set_aside, len(aside(spool))) == (10, 3)
    assert len(names(spool)) == 3


def test_a_store_that_fails_leaves_the_file_for_the_next_time(spool):
    """A file goes when its answer is durable, and not before."""

    def busy(_):
        raise StoreBusyError("later")

    leave(spool, "x.spam")
    with pytest.raises(StoreBusyError):
        spool.drain(LABELS, busy)
    assert [left.name for left in drained(spool)] == ["x.spam"]


def test_a_machine_that_cannot_read_now_leaves_the_file_for_the_next_time(spool):
    """No file can be opened any more: that is not the file's fault, so it is not set aside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def use_up(_):
        unused = os.dup(0)
        os.close(unused)
        resource.setrlimit(resource.RLIMIT_NOFILE, (unused, hard))

    leave(spool, "a.spam", at=1)
    leave(spool, "b.spam", at=2)
    try:
        with pytest.raises(StoreError, match="Too many open files"):
            spool.drain(LABELS, use_up)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert spool.set_aside == 0
    assert [left.name for left in drained(spool)] == ["b.spam"]


def test_what_was_taken_back_meanwhile_is_no_fault(spool):
    """Its owner may remove a file until it is learnt."""
    later = leave(spool, "b.spam", at=2)
    leave(spool, "a.spam", at=1)
    assert spool.drain(LABELS, lambda _: later.unlink()) == 1
    assert (spool.set_aside, names(spool)) == (0, [])


def test_without_a_folder_there_is_nothing_to_do(tmp_path):
    """No spool is no error."""
    assert drained(Spool(tmp_path / "none")) == []
    assert Spool(tmp_path / "none").waiting() == 0


def teach(script, *words, raw=b"Subject: x\n\nx\n", **environment):
    """Run the script that Dovecot runs, with no other variables than these."""
    done = subprocess.run(
        ["/bin/sh", script, *words], input=raw, check=True, capture_output=True,
        env={"PATH": os.environ["PATH"]} | environment,
    )  # fmt: skip
    return done.stderr.decode()


@pytest.mark.parametrize("end", ["\n", ""])
def test_the_script_finds_the_spool_by_the_file_beside_it(spool, tmp_path, end):
    """Dovecot passes no variable to the script: a file beside it names the spool."""
    script = tmp_path / "bin" / "spamnb-teach"
    script.parent.mkdir()
    script.write_text(TEACH.read_text())
    (tmp_path / "bin" / "spool").write_text(f"{spool.folder}{end}")
    assert teach(script, "spam", "alice") == ""
    assert [left.label for left in drained(spool)] == ["spam"]


@pytest.mark.parametrize("words", [("spam", "a user"), ("", "alice"), ("spam", "x/../y")])
def test_a_message_that_cannot_be_left_leaves_a_mark(spool, words):
    """The script ends well, for the move must not fail; the mark is counted, and is no feedback."""
    assert "spamnb-teach: no" in teach(TEACH, *words, SPAMNB_SPOOL=str(spool.folder))
    assert spool.failed() == 1
    assert spool.waiting() == 0
    assert drained(spool) == []


def test_a_spool_that_others_cannot_use_is_told(tmp_path):
    """Not there, no folder, another mode: each has its reason."""
    one = Spool(tmp_path / "s")
    assert "No such file" in str(problem(one.folder))
    one.make()
    assert problem(one.folder) is None
    one.folder.chmod(0o700)
    assert "has the mode 700, not 1733" in str(problem(one.folder))
    (tmp_path / "file").write_text("")
    assert "is no folder" in str(problem(tmp_path / "file"))
