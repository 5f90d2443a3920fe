"""The Maildir watcher: what a person's filing teaches, and what it does not."""

import os
import time

import pytest

from spamnb import maildir as module
from spamnb.engine.filter import Filter
from spamnb.errors import CorpusError
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.maildir import (
    Folders,
    Maildir,
    Watcher,
    WatchOptions,
    delivered_as,
    label_from_folder,
    role_of,
)
from spamnb.model.events import NO_LABEL

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
def test_the_name_of_a_folder_gives_its_role(folder, role):
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
def test_only_the_header_shows_how_a_message_was_delivered(head, role):
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
def test_only_a_folder_that_contradicts_the_delivery_gives_a_label(place, delivered, taught, word):
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


class Site:
    """A Maildir, a model, and a watcher without delays."""

    def __init__(self, tmp_path):
        self.root = tmp_path / "Maildir"
        for folder in FOLDERS:
            self.folder(folder)
        self.model = Filter.open(tmp_path / "model", create=True)
        self.feedback_service = FeedbackService(self.model, ReviewQueue(tmp_path / "review"))
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

        return self.feedback_service.teach(replace(feedback, trust="admin"))

    def taught(self, raw, _):
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

    def labels(self):
        self.watcher.listen()
        return [(f.label, answer.state) for f, answer, _ in self.watcher.due()]

    def close(self):
        self.watcher.close()
        self.model.close()


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    yield made
    made.close()


def test_deliveries_teach_nothing(site):
    """A message that the delivery agent files is no label of the user."""
    site.deliver("", "NO")
    site.deliver(".Junk", "YES")
    site.deliver("")
    assert site.labels() == []


def test_a_move_teaches_and_a_move_back_too(site):
    """Into Junk it is spam, out of it ham; every move is one word."""
    path = site.move(site.deliver("", "NO"), ".Junk")
    assert site.labels() == [("spam", "learnt")]
    path = site.move(path, "")
    assert site.labels() == [("ham", "learnt")]
    site.move(path, ".Work")
    assert site.labels() == []


def test_a_message_that_passes_through_a_folder_gives_no_label(site):
    """Only the folder in which a message stays gives a label, not each folder on its way."""
    path = site.move(site.deliver("", "NO"), ".Junk")
    site.move(path, ".Work")
    assert site.labels() == []


def test_what_is_thrown_away_teaches_nothing(site):
    """Junk into Trash, and inbox into Trash."""
    site.move(site.deliver(".Junk", "YES"), ".Trash")
    site.move(site.deliver("", "NO"), ".Trash")
    assert site.labels() == []


def test_flags_do_not_hide_a_message(site):
    """A mail program renames the file between its move and the look of the watcher."""
    path = site.move(site.deliver("", "NO"), ".Junk")
    site.watcher.listen()
    path.rename(path.with_name(path.name + "T"))
    assert site.labels() == [("spam", "learnt")]


def test_a_folder_made_later_is_watched(site):
    """Also what came before we watched it."""
    message = site.deliver(".Junk", "YES")
    site.folder(".New")
    site.move(message, ".New")
    assert site.labels() == [("ham", "learnt")]


def test_a_restart_goes_on_where_it_stopped(site):
    """Files that moved while the watcher was down are found, and nothing is learnt twice."""
    site.move(site.deliver("", "NO"), ".Junk")
    assert site.labels() == [("spam", "learnt")]
    site.watcher.close()
    site.move(site.deliver(".Junk", "YES"), ".Work")
    site.watcher = site.begin()
    assert site.labels() == [("ham", "learnt")]
    events = site.model.store.read
    with events() as view:
        assert view.totals().last_seq == 2


def test_the_first_run_leaves_old_mail_alone(tmp_path):
    """Years of mail that lie where they lie are for `train`."""
    site = Site(tmp_path)
    site.watcher.close()
    site.stamp.seen = 0
    site.move(site.deliver("", "NO"), ".Junk")
    site.watcher = site.begin()
    assert site.labels() == []
    site.close()


def test_lost_events_are_looked_for(site):
    """If the kernel lost events, files are looked at as after a restart."""
    from spamnb.maildir import FileEvent

    site.move(site.deliver("", "NO"), ".Junk")
    list(site.watcher._inotify.read_events())
    lost = [FileEvent(site.root, "", is_folder=False, lost=True)]
    real, site.watcher._inotify.read_events = site.watcher._inotify.read_events, lambda: lost
    assert site.labels() == [("spam", "learnt")]
    site.watcher._inotify.read_events = real


def test_what_came_within_a_tick_of_the_remembered_moment_is_found(site):
    """A file's ctime lags behind the clock: what seems just too old is looked at all the same."""
    path = site.move(site.deliver("", "NO"), ".Junk")
    list(site.watcher._inotify.read_events())
    site.watcher._look_back(path.stat().st_ctime_ns + 9_000_000)
    assert [(f.label, answer.state) for f, answer, _ in site.watcher.due()] == [("spam", "learnt")]


def test_a_flood_in_one_maildir_fills_no_memory_and_hides_no_message(site, monkeypatch):
    """Of one Maildir few messages wait in memory; the others are found when these are done."""
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    path = site.deliver("", "NO")
    for number in range(40):
        path = path.rename(site.root / ".Junk" / "cur" / f"again-{number}:2,S")
    moved = [site.move(site.deliver("", "NO"), ".Junk") for _ in range(12)]
    site.watcher.listen()
    assert len(site.watcher._waiting) == 5
    found = list(site.watcher.all_due())
    assert {path.name for _, _, path in found} == {one.name for one in (path, *moved)}
    assert {answer.state for _, answer, _ in found} == {"learnt"}
    assert not site.watcher._waiting
    assert not site.watcher._left_out


def test_links_and_pipes_are_no_mail(site):
    """A link to another user's file is not read, and a pipe does not block."""
    secret = site.root.parent / "secret"
    secret.write_text("X-Spam-Flag: NO\n\nsecret\n")
    (site.root / ".Junk/new/1.link").symlink_to(secret)
    os.mkfifo(site.root / ".Junk/new/2.pipe")
    site.watcher._arrived((0, site.root / ".Junk/new", "1.link"), 0)
    site.watcher._arrived((0, site.root / ".Junk/new", "2.pipe"), 0)
    assert site.labels() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs several users")
@pytest.mark.parametrize("part", [".Junk", ".Junk/cur", ".Late"])
def test_a_folder_that_is_a_link_of_its_owner_is_not_watched(site, tmp_path, part):
    """Root watches for alice: her link leads to mail of other users."""
    site.folder(".Other")
    others = tmp_path / "others"
    (site.root / ".Other").rename(others)
    place = site.root / part
    if place.exists():
        place.rename(tmp_path / "away")
    place.symlink_to(others / part.partition("/")[2])
    for path in (site.root, *site.root.rglob("*")):
        os.chown(path, 65531, 65531, follow_symlinks=False)
    site.watcher.close()
    site.watcher = site.begin()
    (others / "cur" / "1.host:2,S").write_text("X-Spam-Flag: NO\nSubject: x\n\ntheirs\n")
    assert site.labels() == []
    if site.root / ".Junk/new" in site.watcher._owners:
        site.watcher._arrived((0, site.root / ".Junk/new", "1.host"), 0)
    assert site.labels() == []


def test_a_memory_of_a_time_to_come_is_none(site):
    """The clock was ahead when the last run ended: all that lies there is looked at again."""
    site.watcher.close()
    site.stamp.save(2 * time.time_ns())
    site.move(site.deliver("", "NO"), ".Junk")
    site.watcher = site.begin()
    assert site.labels() == [("spam", "learnt")]


def test_what_is_no_maildir_is_refused(site, tmp_path):
    """One line that says what is missing."""
    nowhere = Watcher([Maildir(tmp_path, "x")], site.taught, site.teach, site.stamp)
    with pytest.raises(CorpusError, match="not a Maildir"):
        nowhere.begin()
    nowhere.close()
