"""Mailboxes as the doctor uses them: one message is moved and removed, no other is touched."""

import os
import sys

import pytest

from spamnb.errors import PeerError
from spamnb.imap.sync import ImapAccount, ImapMailbox
from spamnb.maildir import MaildirLocation, MaildirMailbox

IDENT = "<doctor.1@spamnb.invalid>"
MINE = f"Subject: x\r\nMessage-ID: {IDENT}\r\n\r\nbody\r\n"
FOLDERS = ("", ".Junk", ".Archive.2026")


@pytest.fixture
def root(tmp_path):
    for folder in FOLDERS:
        for part in ("tmp", "new", "cur"):
            (tmp_path / "Maildir" / folder / part).mkdir(parents=True)
    return tmp_path / "Maildir"


@pytest.fixture
def mailbox(root):
    return MaildirMailbox.open(MaildirLocation(root, "bob"))


def write_message(root, text, where="new/1.a"):
    (root / where).write_bytes(text.encode())
    return root / where


@pytest.mark.parametrize(
    ("where", "side"),
    [("new/1.a", "inbox"), ("cur/1.a:2,S", "inbox"), (".Junk/new/1.a", "junk")],
)
def test_it_is_found_where_it_lies(root, mailbox, where, side):
    """The message is found new or seen, in the inbox or in Junk, also if it arrives later."""
    assert mailbox.find(IDENT) is None
    write_message(root, MINE, where)
    found = mailbox.find(IDENT)
    assert (found.side, found.raw) == (side, MINE.encode())


@pytest.mark.parametrize(
    ("name", "moved"),
    [("new/1.a", "1.a:2,S"), ("cur/1.a:2,F", "1.a:2,F"), ("new/1.a:2,", "1.a:2,")],
)
def test_it_is_moved_as_mail_programs_do(root, mailbox, name, moved):
    """A move renames the file into cur, with its old and new flags, in both directions."""
    write_message(root, MINE, name)
    assert mailbox.move(IDENT, "inbox", "junk") == "renaming"
    assert [path.name for path in root.rglob("*1.a*")] == [moved]
    assert mailbox.find(IDENT).side == "junk"
    mailbox.move(IDENT, "junk", "inbox")
    assert (root / "cur" / moved).exists()


def test_what_is_not_there_cannot_be_moved(root, mailbox):
    """A message that another program has moved is reported as missing."""
    write_message(root, MINE, ".Junk/new/1.a")
    with pytest.raises(PeerError, match="not in"):
        mailbox.move(IDENT, "inbox", "junk")


OTHERS = [
    f"Message-ID: <2@x>\r\nIn-Reply-To: {IDENT}\r\nReferences:\r\n {IDENT}\r\n\r\n",
    f"Subject: x\r\nMessage-ID: <2@x>\r\n\r\nMessage-ID: {IDENT}\r\n",
    f"Subject: x\r\nX-Message-ID: {IDENT}\r\n\r\n",
    f"Subject: x\r\nMessage-ID: {IDENT.replace('.', '-')}\r\n\r\n",
    "",
]


@pytest.mark.parametrize("text", OTHERS)
def test_other_messages_are_not_it(root, mailbox, text):
    """Replies to the message and quotes of its id are not touched."""
    path = write_message(root, text)
    assert mailbox.find(IDENT) is None
    assert mailbox.purge(IDENT) == 0
    assert path.exists()


def test_a_folded_message_id_is_it(root, mailbox):
    """A Message-ID on a folded line is found, because servers may fold long lines."""
    write_message(root, MINE.replace("Message-ID: ", "Message-ID:\r\n "))
    assert mailbox.find(IDENT).side == "inbox"


def test_links_are_not_read(root, mailbox, tmp_path):
    """A link that may lead to another user's mail is not followed."""
    (tmp_path / "elsewhere").write_text(MINE)
    (root / "new" / "1.link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(root / "new" / "2.pipe")
    assert mailbox.find(IDENT) is None


def test_it_is_taken_out_of_every_folder(root, mailbox):
    """It is removed also from folders in which a rule of the user has put it or a copy."""
    for where in ("cur/1.a:2,S", ".Junk/new/1.b", ".Archive.2026/cur/1.c:2,"):
        write_message(root, MINE, where)
    other = write_message(root, OTHERS[0], "cur/3.x:2,")
    assert mailbox.purge(IDENT) == 3
    assert [path for path in root.rglob("*") if path.is_file()] == [other]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of a file between its open and its `with`
def test_an_interrupt_at_any_line_of_a_move_is_raised(root, mailbox):
    """Python drops an exception in code that runs while it closes a generator."""
    write_message(root, MINE)
    for line in range(1, 1000):
        left = line

        def interrupt(*_):
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return interrupt

        side = mailbox.find(IDENT).side
        sys.settrace(interrupt)
        try:
            mailbox.move(IDENT, side, "junk" if side == "inbox" else "inbox")
        except KeyboardInterrupt:
            continue
        finally:
            sys.settrace(None)
        break
    assert left > 0, "the interrupt was dropped"
    assert line > 50


def test_a_folder_that_is_missing_is_reported(tmp_path):
    """A missing folder is reported before any message is sent."""
    with pytest.raises(PeerError, match="is not a Maildir"):
        MaildirMailbox.open(MaildirLocation(tmp_path, "bob"))
    (tmp_path / "new").mkdir()
    with pytest.raises(PeerError, match=r"\.Junk is not a Maildir"):
        MaildirMailbox.open(MaildirLocation(tmp_path, "bob"))


def test_a_closed_port_is_reported_in_one_line():
    """The error is one line, and no exception of the library."""
    with pytest.raises(PeerError, match="Connection refused"):
        ImapMailbox.open(ImapAccount("127.0.0.1", 1, "alice", "secret"))
