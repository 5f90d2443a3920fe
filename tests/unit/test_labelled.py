"""Labels that users and SpamAssassin gave are found again, and nothing else is taken for one."""

import hashlib

import pytest

from spamnb.engine.mailboxes import MessageSpan
from spamnb.engine.seen_list import read_seen, seen_as
from spamnb.errors import UserError
from spamnb.maildir import label_by_folder, label_by_keyword

RAW = (
    b"From: a@one.example\r\nTo: Bob\r\n\t<bob@two.example>\r\nDate: Mon, 1 Jan 2024 00:00:00 +0000"
    b"\r\nMessage-ID: <id.1@one.example>\r\nSubject: s\r\n\r\nline one\r\nline two\r\n"
)
BODY = b"line one\nline two\n"
TO, DATE = b"Bob <bob@two.example>\n", b"Mon, 1 Jan 2024 00:00:00 +0000\n"


def generated(*parts):
    return hashlib.sha1(b"\0".join(parts)).hexdigest() + "@sa_generated"


@pytest.mark.parametrize(
    "name",
    [
        generated(TO, DATE, hashlib.sha1(BODY).hexdigest().encode()),
        generated(DATE, b"line oneline two"),
        "id.1@one.example",
    ],
)
def test_a_message_has_the_names_that_spamassassin_gave(name):
    """Versions 4 and 3.4 made names of the content, older ones took the Message-ID."""
    assert seen_as(RAW, {name: "spam"}) == "spam"
    assert seen_as(RAW.replace(b"\r\n", b"\n"), {name: "ham"}) == "ham"
    assert seen_as(RAW.replace(b"\r\n", b"\n").replace(b"line one", b"x", 1), {name: "spam"}) == (
        "spam" if name.startswith("id.") else None
    )


def test_encoded_headers_are_decoded():
    """To is hashed as SpamAssassin shows it, in UTF-8; a missing header is empty."""
    raw = b"To: =?iso-8859-1?q?Gr=FCn?= <g@two.example>\n\nbody\n"
    digest = hashlib.sha1(b"body\n").hexdigest().encode()
    name = generated("Grün <g@two.example>\n".encode(), b"", digest)
    assert seen_as(raw, {name: "ham"}) == "ham"
    for broken in (b"", b"\n\n", b"To: =?x?q?a?=\n\nb", b"To: =?utf-8?b?!?=", b"\xff" * 3000):
        assert seen_as(broken, {"a": "spam"}) is None


def test_only_the_list_of_a_backup_is_read(tmp_path):
    """Tokens and variables of a backup are no messages; a file without a list is refused."""
    path = tmp_path / "backup.txt"
    path.write_bytes(
        b"v\t3\tdb_version # this must be the first line!!!\nv\t1\tnum_spam\n"
        b"t\t1\t0\t1700000000\t0a0b0c0d0e\ns\ts\tone@x\ns\th\ttwo@x\ns\tf\tthree@x\ns\n\xff\xff\n"
    )
    assert read_seen(str(path)) == {"one@x": "spam", "two@x": "ham"}
    path.write_bytes(b"v\t3\tdb_version\n")
    with pytest.raises(UserError, match="lists no trained messages"):
        read_seen(str(path))


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("cur/1:2,S", None),
        ("new/1", None),
        ("cur/1:2,RS", "ham"),
        (".Junk/cur/1:2,S", "spam"),
        ("Spam/cur/1:2,S", "spam"),
        (".Junk/cur/1:2,RS", "spam"),
        (".Junk/cur/1:2,ST", None),
        (".Archive/cur/1:2,S", "ham"),
        (".lists.python/cur/1:2,", "ham"),
        (".Trash/cur/1:2,RS", None),
        (".Sent/cur/1:2,S", None),
        (".Drafts/cur/1:2,DS", None),
        ("alice/Maildir/cur/1:2,S", None),
        ("alice/Maildir/.Junk/cur/1:2,S", "spam"),
    ],
)
def test_folders_tell_what_users_did(path, label):
    """Junk is spam, own folders and answered mail are ham, and the rest says nothing."""
    assert label_by_folder(MessageSpan(f"/m/{path}"), "/m") == label


def test_mboxes_are_folders():
    """A message of a file with several ones is in the folder of the file's name."""
    assert label_by_folder(MessageSpan("/m/Junk", 0, 9, 1), "/m") == "spam"
    assert label_by_folder(MessageSpan("/m/inbox", 0, 9, 1), "/m") is None
    assert label_by_folder(MessageSpan("/m/lists", 0, 9, 1), "/m") == "ham"


def test_keywords_tell_what_a_mail_program_learnt(tmp_path):
    """The letters of a file name are keywords by the folder's own table."""
    folder = tmp_path / ".Lists"
    (folder / "cur").mkdir(parents=True)
    (folder / "dovecot-keywords").write_bytes(b"0 $Forwarded\n1 $Junk\n2 NonJunk\nx y\n99 Junk\n")
    for name, label in (("1:2,Sb", "spam"), ("1:2,Sc", "ham"), ("1:2,Sbc", None), ("1:2,a", None)):
        assert label_by_keyword(MessageSpan(str(folder / "cur" / name)), "") == label
    assert label_by_keyword(MessageSpan(str(tmp_path / "cur" / "1:2,b")), "") is None
