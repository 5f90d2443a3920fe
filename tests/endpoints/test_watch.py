"""The Maildir watcher: what a person's filing teaches, and what it does not."""

import errno
import os
import time

import pytest

from spamnb.core.model.events import NO_LABEL
from spamnb.endpoints.maildir import watcher
from spamnb.endpoints.maildir.folder_roles import Folders, delivered_as, label_from_folder, role_of
from spamnb.endpoints.maildir.watcher import Maildir, Watcher, WatchOptions
from spamnb.errors import CorpusError
from spamnb.service.engine.filter import Filter
from spamnb.service.feedback.review_queue import ReviewQueue
from spamnb.service.feedback.service import FeedbackService

FOLDERS = ("", ".Junk", ".Junk.old", ".Trash", ".Work", ".Sent")


@pytest.mark.parametrize(
    ("folder", "role"),
    [
        ("", "ham"),
        (".Work", "ham"),
        (".Junk", "spam"),
        (".junk.2026", "spam"),
        (".Junkyard", "ham"),
        (".Spam", "spam"),
        (".INBOX.Junk", "spam"),
        (".Trash", "silent"),
        (".Trash.old", "silent"),
        (".Deleted Messages", "silent"),
        (".Sent", "silent"),
    ],
)
def test_a_folder_says_what_its_name_says(folder, role):
    """Sub-folders mean what their parent means; a name that only begins alike does not."""
    assert role_of(folder, Folders()) == role


@pytest.mark.parametrize(
    ("head", "role"),
    [
        (b"X-Spam-Flag: YES\r\n\r\n", "spam"),
        (b"Subject: x\nX-Spam-Flag: NO\n\nX-Spam-Flag: YES\n", "ham"),
        (b"Subject: x\n\nX-Spam-Flag: YES\n", "silent"),
        (b"", "silent"),
    ],
)
def test_the_header_alone_says_how_it_was_delivered(head, role):
    """Not the body, which strangers write."""
    assert delivered_as(head) == role


@pytest.mark.parametrize(
    ("place", "delivered", "taught", "word"),
    [
        ("spam", "ham", None, "spam"),
        ("ham", "spam", None, "ham"),
        ("spam", "spam", None, None),
        ("ham", "ham", None, None),
        ("spam", "silent", None, "spam"),
        ("ham", "silent", None, None),
        ("silent", "spam", None, None),
        ("silent", "ham", "spam", None),
        ("ham", "ham", "spam", "ham"),
        ("spam", "ham", "spam", None),
        ("spam", "spam", "ham", "spam"),
        ("ham", "spam", "news", None),
    ],
)
def test_only_a_place_that_contradicts_is_a_word(place, delivered, taught, word):
    """The product's verdict is never learnt; a folder counts against the user's earlier label."""
    assert label_from_folder(place, delivered, taught) == word


class Stamp:
    """A memory in memory."""

    def __init__(self):
        self.seen = 0

    def load(self):
        return self.seen

    def save(self, seen_ns):
        self.seen = seen_ns


class House:
    """A Maildir, a model, and a watcher without delays."""

    def __init__(self, tmp_path):
        self.root = tmp_path / "Maildir"
        for folder in FOLDERS:
            self.folder(folder)
        self.model = Filter.open(tmp_path / "model", create=True)
        self.desk = FeedbackService(self.model, ReviewQueue(tmp_path / "review"))
        self.stamp = Stamp()
        self.number = 0
        self.watcher = self.begin()

    def folder(self, folder):
        for part in ("tmp", "new", "cur"):
            (self.root / folder / part).mkdir(parents=True, exist_ok=True)

    def begin(self):
        maildirs = [Maildir(self.root, "alice")]
        watcher = Watcher(maildirs, self.taught, self.teach, self.stamp, WatchOptions(quiet_s=0))
        watcher.begin()
        return watcher

    def teach(self, feedback):
        from dataclasses import replace

        return self.desk.teach(replace(feedback, trust="admin"))

    def taught(self, raw):
        with self.model.store.read() as view:
            live = view.live(self.model.example(raw).digest)
        return None if live is None or live.label == NO_LABEL else self.model.labels[live.label]

    def deliver(self, folder, flag=None, part="new"):
        self.number += 1
        head = f"X-Spam-Flag: {flag}\n" if flag else ""
        name = f"{self.number}.host"
        text = f"{head}Subject: number {self.number}\n\nwords of {self.number}\n"
        (self.root / folder / "tmp" / name).write_text(text)
        return (self.root / folder / "tmp" / name).rename(self.root / folder / part / name)

    def move(self, path, folder, flags=":2,S"):
        return path.rename(self.root / folder / "cur" / (path.name.partition(":")[0] + flags))

    def words(self):
        self.watcher.listen()
        return [(f.label, answer.state) for f, answer, _ in self.watcher.due()]

    def close(self):
        self.watcher.close()
        self.model.close()


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    yield made
    made.close()


def test_deliveries_teach_nothing(house):
    """A message that the delivery agent files is no label of the user."""
    house.deliver("", "NO")
    house.deliver(".Junk", "YES")
    house.deliver("")
    assert house.words() == []


def test_a_move_teaches_and_a_move_back_too(house):
    """Into Junk it is spam, out of it ham; every move is one word."""
    path = house.move(house.deliver("", "NO"), ".Junk")
    assert house.words() == [("spam", "learnt")]
    path = house.move(path, "")
    assert house.words() == [("ham", "learnt")]
    house.move(path, ".Work")
    assert house.words() == []


def test_a_message_on_its_way_through_says_nothing(house):
    """Only where it lies still counts, not each stop on the way."""
    path = house.move(house.deliver("", "NO"), ".Junk")
    house.move(path, ".Work")
    assert house.words() == []


def test_what_is_thrown_away_teaches_nothing(house):
    """Junk into Trash, and inbox into Trash."""
    house.move(house.deliver(".Junk", "YES"), ".Trash")
    house.move(house.deliver("", "NO"), ".Trash")
    assert house.words() == []


def test_flags_do_not_hide_a_message(house):
    """A mail program renames the file between its move and our look."""
    path = house.move(house.deliver("", "NO"), ".Junk")
    house.watcher.listen()
    path.rename(path.with_name(path.name + "T"))
    assert house.words() == [("spam", "learnt")]


def test_a_folder_made_later_is_watched(house):
    """Also what came before we watched it."""
    message = house.deliver(".Junk", "YES")
    house.folder(".New")
    house.move(message, ".New")
    assert house.words() == [("ham", "learnt")]


def test_a_restart_goes_on_where_it_stopped(house):
    """Files that moved while the watcher was down are found, and nothing is learnt twice."""
    house.move(house.deliver("", "NO"), ".Junk")
    assert house.words() == [("spam", "learnt")]
    house.watcher.close()
    house.move(house.deliver(".Junk", "YES"), ".Work")
    house.watcher = house.begin()
    assert house.words() == [("ham", "learnt")]
    events = house.model.store.read
    with events() as view:
        assert view.totals().last_seq == 2


def test_the_first_run_leaves_old_mail_alone(tmp_path):
    """Years of mail that lie where they lie are for `train`."""
    house = House(tmp_path)
    house.watcher.close()
    house.stamp.seen = 0
    house.move(house.deliver("", "NO"), ".Junk")
    house.watcher = house.begin()
    assert house.words() == []
    house.close()


def test_lost_events_are_looked_for(house):
    """If the kernel lost events, files are looked at as after a restart."""
    from spamnb.endpoints.maildir.inotify import FileEvent

    house.move(house.deliver("", "NO"), ".Junk")
    list(house.watcher._inotify.read_events())
    lost = [FileEvent(house.root, "", is_folder=False, lost=True)]
    real, house.watcher._inotify.read_events = house.watcher._inotify.read_events, lambda: lost
    assert house.words() == [("spam", "learnt")]
    house.watcher._inotify.read_events = real


def test_what_came_within_a_tick_of_the_remembered_moment_is_found(house):
    """A file's ctime lags behind the clock: what seems just too old is looked at all the same."""
    path = house.move(house.deliver("", "NO"), ".Junk")
    list(house.watcher._inotify.read_events())
    house.watcher._look_back(path.stat().st_ctime_ns + 9_000_000)
    assert [(f.label, answer.state) for f, answer, _ in house.watcher.due()] == [("spam", "learnt")]


def test_links_and_pipes_are_no_mail(house):
    """A link to another user's file is not read, and a pipe does not block."""
    secret = house.root.parent / "secret"
    secret.write_text("X-Spam-Flag: NO\n\nsecret\n")
    (house.root / ".Junk/new/1.link").symlink_to(secret)
    os.mkfifo(house.root / ".Junk/new/2.pipe")
    house.watcher._arrived(house.root / ".Junk/new", "1.link", 0)
    house.watcher._arrived(house.root / ".Junk/new", "2.pipe", 0)
    assert house.words() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs several users")
@pytest.mark.parametrize("part", [".Junk", ".Junk/cur", ".Late"])
def test_a_folder_that_is_a_link_of_its_owner_is_not_watched(house, tmp_path, part):
    """Root watches for alice: where her link leads is other people's mail."""
    house.folder(".Other")
    others = tmp_path / "others"
    (house.root / ".Other").rename(others)
    place = house.root / part
    if place.exists():
        place.rename(tmp_path / "away")
    place.symlink_to(others / part.partition("/")[2])
    for path in (house.root, *house.root.rglob("*")):
        os.chown(path, 65531, 65531, follow_symlinks=False)
    house.watcher.close()
    house.watcher = house.begin()
    (others / "cur" / "1.host:2,S").write_text("X-Spam-Flag: NO\nSubject: x\n\ntheirs\n")
    assert house.words() == []
    if house.root / ".Junk/new" in house.watcher._owners:
        house.watcher._arrived(house.root / ".Junk/new", "1.host", 0)
    assert house.words() == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_watched_does_not_end_the_watch(house, monkeypatch, number):
    """A user may close a folder, or use up the kernel's watches; the other folders are watched."""
    real = house.watcher._inotify.watch

    def watch(handle, folder):
        if ".Closed" in str(folder):
            raise OSError(number, os.strerror(number))
        real(handle, folder)

    monkeypatch.setattr(house.watcher._inotify, "watch", watch)
    house.folder(".Closed")
    house.move(house.deliver("", "NO"), ".Junk")
    assert house.words() == [("spam", "learnt")]


def test_one_user_does_not_take_all_watches_of_the_kernel(house, monkeypatch):
    """The folders of one Maildir that are watched have a limit."""
    monkeypatch.setattr(watcher, "MOST_FOLDERS", 25)
    for number in range(20):
        house.folder(f".many{number}")
    assert house.words() == []
    assert len(house.watcher._owners) == 25
    assert house.root / ".Junk/cur" in house.watcher._owners


def test_one_user_does_not_keep_the_others_waiting(house, tmp_path, monkeypatch):
    """Each pass takes some messages of each Maildir."""
    monkeypatch.setattr(watcher, "EACH", 2)
    for part in ("tmp", "new", "cur", ".Junk/new", ".Junk/cur"):
        (tmp_path / "bob" / part).mkdir(parents=True)
    house.watcher.close()
    maildirs = [Maildir(house.root, "alice"), Maildir(tmp_path / "bob", "bob")]
    house.watcher = Watcher(maildirs, house.taught, house.teach, house.stamp, WatchOptions(0))
    house.watcher.begin()
    for _ in range(5):
        house.move(house.deliver("", "NO"), ".Junk")
    house.move(house.deliver("", "NO"), "../bob/.Junk")
    house.watcher.listen()
    assert [f.user for f, _, _ in house.watcher.due()] == ["alice", "alice", "bob"]
    assert [f.user for f, _, _ in house.watcher.all_due()] == ["alice"] * 3
    assert list(house.watcher.all_due()) == []


def test_deleted_messages_cost_one_listing_in_a_pass(house, monkeypatch):
    """A user who deletes as many messages as arrive does not make the watcher list each time."""
    listed = []
    real = watcher._names
    monkeypatch.setattr(watcher, "_names", lambda folder: listed.append(folder) or real(folder))
    for _ in range(20):
        house.move(house.deliver("", "NO"), ".Junk").unlink()
    assert house.words() == []
    assert listed == [house.root / ".Junk/cur"]


def test_a_clock_that_is_set_back_delays_no_message(house):
    """What arrived while the clock was ahead is due now, not when the clock is there again."""
    path = house.move(house.deliver("", "NO"), ".Junk")
    list(house.watcher._inotify.read_events())
    house.watcher._arrived(path.parent, path.name, time.time_ns() + 86_400 * 10**9)
    assert house.words() == [("spam", "learnt")]


def test_a_memory_of_a_time_to_come_is_none(house):
    """The clock was ahead when the last run ended: all that lies there is looked at again."""
    house.watcher.close()
    house.stamp.save(2 * time.time_ns())
    house.move(house.deliver("", "NO"), ".Junk")
    house.watcher = house.begin()
    assert house.words() == [("spam", "learnt")]


def test_what_is_no_maildir_is_refused(house, tmp_path):
    """One line that says what is missing."""
    nowhere = Watcher([Maildir(tmp_path, "x")], house.taught, house.teach, house.stamp)
    with pytest.raises(CorpusError, match="not a Maildir"):
        nowhere.begin()
    nowhere.close()
