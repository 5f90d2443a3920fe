"""The spool: only a plain file counts, as a label of its owner."""

import os
import resource
import shutil
import stat
import subprocess
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from spamnb.errors import StoreBusyError, StoreError
from spamnb.feedback import spool as place
from spamnb.feedback.spool import MODE, Spool
from spamnb.settings.values import SpoolLimits

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
    vouch(path)
    return path


def vouch(path):
    """Make the voucher of a file."""
    voucher = path.with_name(f".{path.name}.{path.lstat().st_ino}")
    voucher.mkdir(0o755)
    return voucher


def drained(spool):
    found = []
    spool.drain(LABELS, found.append)
    return found


def names(spool):
    """Files of the spool, and what lies aside."""
    return sorted(
        path.name
        for path in spool.folder.iterdir()
        if path.is_symlink() or not path.is_dir() or not path.name.startswith(".")
    )


def vouchers(spool):
    return [path.name for path in spool.folder.iterdir() if path.is_dir()]


def aside(spool):
    return [name for name in names(spool) if name.startswith(".aside-")]


def test_users_may_write_but_not_list(spool):
    """Mode 1733: sticky, so that no user can delete another user's files."""
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
    assert names(spool) == vouchers(spool) == []


def test_files_keep_their_order_when_the_clock_is_set_back(spool):
    """Boot and ticks in the name precede the file's time; they are compared as numbers."""
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


def test_files_of_the_same_time_keep_their_order(spool):
    """The script that Dovecot runs: its files may all have one time."""
    for number in range(20):
        command = ["sh", TEACH, LABELS[number % 2], "alice"]
        environment = os.environ | {"SPAMNB_SPOOL": str(spool.folder)}
        subprocess.run(command, input=f"{number}".encode(), env=environment, check=True)
    for name in names(spool):
        os.utime(spool.folder / name, (1, 1))
    found = drained(spool)
    assert [int(left.raw) for left in found] == list(range(20))
    assert [left.label for left in found] == list(LABELS) * 10
    assert found[0].head == {"for": "alice", "channel": "imap"}


def test_a_long_absence_leaves_many_and_the_oldest_go_first(tmp_path):
    """Files are read in order of arrival, for any number and any order of the listing."""
    spool = Spool(tmp_path / "spool", SpoolLimits(each_owner=10))
    spool.make()
    for number in range(6000):
        leave(spool, f"{number * 7919 % 6000:04}.spam", at=1_000_000 + number * 7919 % 6000)
    found = [left.name for _ in range(3) for left in drained(spool)]
    assert found == [f"{number:04}.spam" for number in range(30)]


@pytest.mark.parametrize(
    "forge",
    [
        lambda _: None,
        lambda path: path.with_name(f".{path.name}").mkdir(0o755),
        lambda path: path.with_name(f".{path.name}.{path.stat().st_ino + 1}").mkdir(0o755),
        lambda path: path.with_name(f".{path.name}.{path.stat().st_ino}").touch(),
        lambda path: vouch(path).chmod(0o777),
        lambda path: vouch(path).chmod(0o775),
        lambda path: (vouch(path) / "cur").mkdir(),
        lambda path: path.with_name(f".{path.name}.{path.stat().st_ino}").symlink_to("/usr"),
    ],
    ids=["none", "no inode", "another file's", "a file", "open to all", "open to a group",
         "not empty", "a link"],
)  # fmt: skip
def test_a_file_without_its_voucher_is_refused(spool, forge):
    """A file alone proves nothing: any user that may write its folder can have moved it here."""
    path = spool.folder / "x.spam"
    path.write_bytes(b"Subject: x\n\nx\n")
    path.chmod(0o644)
    forge(path)
    assert drained(spool) == []
    assert (spool.set_aside, aside(spool)) == (1, [".aside-x.spam"])


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs several users")
VMAIL, MALLORY = 65533, 65532


def as_user(uid, run):
    """Whether it could be done by this user."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            run()
        except PermissionError:
            os._exit(1)
        except BaseException:  # noqa: BLE001 - shown by the exit code
            os._exit(2)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0


@pytest.fixture
def shared():
    """A folder that others reach, with a spool and a folder of mallory's."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        spool = Spool(folder / "spool")
        spool.make()
        (folder / "mallory").mkdir()
        os.chown(folder / "mallory", MALLORY, MALLORY)
        yield spool, folder / "mallory"


@needs_root
def test_a_file_of_another_user_is_not_believed(shared):
    """A file and its voucher of the mail server's user count only if that user put them here."""
    spool, mallory = shared
    mail = mallory / "1.eml"
    mail.write_bytes(b'{"for": "alice"}\nSubject: x\n\nx\n')
    folder = mallory / "cur"
    folder.mkdir(0o755)
    for path in (mail, folder):
        os.chown(path, VMAIL, VMAIL)
    target = spool.folder / "x.spam"
    inode = mail.stat().st_ino
    assert as_user(MALLORY, lambda: mail.rename(target))
    voucher = spool.folder / f".x.spam.{inode}"
    assert not as_user(MALLORY, lambda: folder.rename(voucher))
    assert as_user(MALLORY, lambda: voucher.mkdir(0o755))
    assert drained(spool) == []
    assert aside(spool) == [".aside-x.spam"]


@needs_root
def test_a_file_counts_as_the_label_of_its_owner(shared):
    """Run as the mail server's user: no other user can move the file or its voucher."""
    spool, mallory = shared
    script = shutil.copy(TEACH, mallory.parent)  # TEACH may be where only root can read
    environment = os.environ | {"SPAMNB_SPOOL": str(spool.folder)}
    subprocess.run(
        ["sh", script, "spam", "alice"], input=b"Subject: x\n\nx\n", env=environment, check=True,
        user=VMAIL, group=VMAIL, extra_groups=[], cwd="/",
    )  # fmt: skip
    assert len(list(spool.folder.iterdir())) == 2
    for path in spool.folder.iterdir():
        assert not as_user(MALLORY, lambda path=path: path.rename(mallory / "x"))
    (left,) = drained(spool)
    assert (left.uid, left.head["for"], left.private) == (VMAIL, "alice", False)
    assert list(spool.folder.iterdir()) == []


@pytest.fixture
def reads(monkeypatch):
    """Count the calls of a look that cost more than a name."""
    counted = Counter()

    def counting(name, real):
        def call(*args, **more):
            counted[name] += 1
            return real(*args, **more)

        return call

    for name in ("listdir", "scandir", "rename", "unlink", "open", "rmdir"):
        monkeypatch.setattr(os, name, counting(name, getattr(os, name)))
    return counted


def rubbish(spool, count):
    """Hidden files, and undeletable folders with names of feedback, are left alone."""
    for number in range(count):
        (spool.folder / f".{number}.tmp").touch()
    for number in range(200):
        folder = spool.folder / f"{number}.spam"
        folder.mkdir()
        (folder / "inside").touch()
        (spool.folder / f".aside-{number}.spam").mkdir()
        (spool.folder / f".aside-{number}.spam" / "inside").touch()
        (spool.folder / f".done-{number}.spam").mkdir()


def test_rubbish_costs_a_look_two_listings_and_nothing_else(spool, reads):
    """Other files do not delay a label: the first look takes it, with no more system calls."""
    leave(spool, "a.spam")
    reads.clear()
    assert len(drained(spool)) == 1
    alone = dict(reads)
    rubbish(spool, 20_000)
    leave(spool, "b.ham")
    reads.clear()
    assert [left.name for left in drained(spool)] == ["b.ham"]
    assert dict(reads) == alone
    assert alone["scandir"] == 2
    assert (spool.set_aside, spool.waiting()) == (0, 0)


def test_few_files_of_a_killed_process_are_deleted_in_one_listing(spool, reads, monkeypatch):
    """A user can make any number of them; each listing deletes some, until none is left."""
    monkeypatch.setattr("spamnb.feedback.spool._DONE_AT_ONCE", 10)
    for number in range(25):
        (spool.folder / f".done-{number}.spam").touch()
    leave(spool, "a.spam")
    assert [left.name for left in drained(spool)] == ["a.spam"]
    assert reads["unlink"] == 10 + 10 + 1  # two listings, and the learnt file
    assert drained(spool) == []
    assert list(spool.folder.iterdir()) == []


def test_many_bad_files_cost_no_listing_each(spool, reads):
    """They are put aside or removed one by one, so many of each owner in a look."""
    for number in range(150):
        (spool.folder / f"{number}.spam").symlink_to("/dev/null")
    reads.clear()
    assert drained(spool) == []
    assert reads["scandir"] == 2
    assert (spool.set_aside, len(aside(spool)), reads["unlink"]) == (150, 100, 50)


def test_a_listing_without_end_goes_on_in_the_next_look(spool, monkeypatch):
    """So many entries in one look; what the whole listing shows is taken in order."""
    monkeypatch.setattr("spamnb.feedback.spool._STEP", 64)
    rubbish(spool, 500)
    for number in range(3):
        leave(spool, f"word{number}.spam", at=1_000_000 + number)
    looks = [[left.name for left in drained(spool)]]
    while spool.busy:
        looks.append([left.name for left in drained(spool)])
    assert looks[-1] == ["word0.spam", "word1.spam", "word2.spam"]
    assert len(looks) > 2 * 900 // 64
    assert not any(looks[:-1])


def test_a_private_spool_is_closed_to_others(tmp_path):
    """A file in it needs no voucher, so no other user may write there."""
    spool = Spool(tmp_path / "traps", private=True)
    spool.make()
    assert stat.S_IMODE(spool.folder.stat().st_mode) == 0o700
    place.leave(spool.folder, "spam", b"Subject: x\n\nx\n", {"channel": "trap"})
    (left,) = drained(spool)
    assert (left.head, left.private) == ({"channel": "trap"}, True)
    spool.folder.chmod(0o733)
    with pytest.raises(StoreError, match="accessible to other users"):
        drained(spool)


def test_a_line_before_the_message_names_the_user(spool):
    """The optional head is JSON on one line; the rest is the message."""
    leave(spool, "x.spam", b'{"for": "alice@example.org", "channel": "imap"}\nSubject: x\n\nx\n')
    left = drained(spool)[0]
    assert left.head == {"for": "alice@example.org", "channel": "imap"}
    assert left.raw == b"Subject: x\n\nx\n"


@pytest.mark.parametrize("name", [".hidden.spam", "x.tmp", "x", "x.virus", "spam"])
def test_what_has_no_final_name_is_still_being_written(spool, name):
    """A file with another name is ignored and stays."""
    path = leave(spool, name)
    assert drained(spool) == []
    assert path.exists()


def a_symlink(folder, secret):
    (folder / "x.spam").symlink_to(secret)


def a_hard_link(folder, secret):
    (folder / "x.spam").hardlink_to(secret)
    vouch(folder / "x.spam")


def a_pipe(folder, _):
    os.mkfifo(folder / "x.spam")


def a_device(folder, _):
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    os.mknod(folder / "x.spam", 0o666 | stat.S_IFCHR, os.makedev(1, 5))


def an_open_file(folder, _):
    (folder / "x.spam").write_bytes(b"Subject: x\n\n")
    (folder / "x.spam").chmod(0o666)
    vouch(folder / "x.spam")


def an_empty_file(folder, _):
    (folder / "x.spam").touch()
    vouch(folder / "x.spam")


def a_bad_head(folder, _):
    (folder / "x.spam").write_bytes(b'{"for": \nSubject: x\n\n')
    (folder / "x.spam").chmod(0o644)
    vouch(folder / "x.spam")


def a_deep_head(folder, _):
    (folder / "x.spam").write_bytes(b'{"a":' * 20_000 + b"\n")
    (folder / "x.spam").chmod(0o644)
    vouch(folder / "x.spam")


TRICKS = [a_symlink, a_hard_link, a_pipe, a_device, an_open_file, an_empty_file, a_bad_head,
          a_deep_head]  # fmt: skip


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


@pytest.mark.parametrize("name", [b"a" * 250, "\u4e00".encode() * 82, b"\xff" * 250, b"\x1b[2J\n"])
def test_no_name_is_too_long_to_be_set_aside(spool, name):
    """A file name has 255 bytes, of which a character may take four; the file does not stay."""
    Path(os.fsdecode(os.fsencode(spool.folder) + b"/" + name + b".spam")).write_bytes(b"x")
    assert drained(spool) == []
    assert spool.set_aside == len(aside(spool)) == len(names(spool)) == 1


def test_a_file_that_is_too_large_is_set_aside(tmp_path):
    """The limit is looked at before anything is read."""
    spool = Spool(tmp_path / "spool", SpoolLimits(file_bytes=100))
    spool.make()
    leave(spool, "x.spam", b"x" * 101)
    assert drained(spool) == []
    assert spool.set_aside == 1


def test_one_owner_does_not_keep_the_others_waiting(tmp_path):
    """One look takes a limited number of files of each owner; later looks take the rest."""
    spool = Spool(tmp_path / "spool", SpoolLimits(each_owner=3))
    spool.make()
    for number in range(7):
        leave(spool, f"{number}.spam")
    assert [len(drained(spool)) for _ in range(4)] == [3, 3, 1, 0]


def test_one_owner_with_large_files_does_not_keep_the_others_waiting(tmp_path):
    """One look takes a limited number of bytes of each owner, at least one file, oldest first."""
    spool = Spool(tmp_path / "spool", SpoolLimits(owner_bytes=1000))
    spool.make()
    for number, size in enumerate((400, 500, 300, 2000, 100)):
        leave(spool, f"{number}.spam", b"x" * size, at=1_000_000 + number)
    looks = [[left.name[0] for left in drained(spool)] for _ in range(5)]
    assert looks == [["0", "1"], ["2"], ["3"], ["4"], []]


def test_what_is_set_aside_is_bounded(tmp_path):
    """A flood of links fills no folder."""
    spool = Spool(tmp_path / "spool", SpoolLimits(max_invalid=3))
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
