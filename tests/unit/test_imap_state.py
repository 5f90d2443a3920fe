"""The state of a mailbox on disk, and the password of its account."""

import os
from contextlib import suppress

import pytest

from spamnb.errors import SettingsError, StoreBusyError, StoreDamagedError, UserError
from spamnb.imap.away import AwayMailboxes
from spamnb.imap.client import account_problems, secret_of
from spamnb.imap.sync import MOST_MESSAGES, Cursor, KnownMessage, MailboxState
from spamnb.settings.values import ImapParams


def opened(home, name="box", place="alice at a:993"):
    return MailboxState.open(home, name, place)


@pytest.fixture
def state(tmp_path):
    made = opened(tmp_path)
    yield made
    made.close()


def test_what_was_noted_is_there_after_a_restart(tmp_path):
    """Positions and states of messages; a block that fails changes nothing."""
    state = opened(tmp_path, "a/b")
    with state.changing():
        state.set_cursor("INBOX", Cursor(5, 7))
        state.note_all([b"1", b"2"], KnownMessage("moving", 9))
    with suppress(ZeroDivisionError), state.changing():
        state.note(b"1", KnownMessage("junk"))
        raise ZeroDivisionError
    state.close()
    state = opened(tmp_path, "a/b")
    assert state.cursor("INBOX") == Cursor(5, 7)
    assert state.cursor("Junk") is None
    assert state.find(b"1") == KnownMessage("moving", 9)
    assert state.find(b"3") is None
    assert state.has_pending()
    with state.changing():
        state.settle()
    assert state.counts() == {"junk": 2}
    state.close()


def test_another_mailbox_under_the_same_name_begins_anew(tmp_path):
    """A server or login that the user replaced in the settings has other UIDs."""
    state = opened(tmp_path)
    with state.changing():
        state.set_cursor("INBOX", Cursor(5, 7))
        state.note(b"1", KnownMessage("junk"))
    state.close()
    other = opened(tmp_path, place="bob at a:993")
    assert (other.cursor("INBOX"), other.counts()) == (None, {})
    other.close()


def test_one_process_has_an_account(tmp_path, state):
    """A second one would move and learn everything twice."""
    with pytest.raises(StoreBusyError, match="another process reads the mailbox box"):
        opened(tmp_path)


def test_a_damaged_file_is_an_error_with_the_way_out(tmp_path):
    """It is not removed without a word: the user may have a backup."""
    opened(tmp_path).close()
    (tmp_path / "imap" / "box.sqlite").write_bytes(b"x" * 8192)
    with pytest.raises(StoreDamagedError) as caught:
        opened(tmp_path)
    assert "remove it" in caught.value.hint


def test_the_oldest_messages_are_forgotten(tmp_path, monkeypatch):
    """By their number, so that a clock step forgets none."""
    assert MOST_MESSAGES >= 100_000
    monkeypatch.setattr("spamnb.imap.sync.MOST_MESSAGES", 3)
    state = opened(tmp_path)
    with state.changing():
        for number in range(5):
            state.note(b"%d" % number, KnownMessage("ham"))
    state.close()
    state = opened(tmp_path)
    assert [number for number in range(5) if state.find(b"%d" % number)] == [2, 3, 4]
    state.close()


# --- passwords -----------------------------------------------------------------------------------


def account(**more):
    return ImapParams(host="imap.example.org", user="alice", **more)


def password_file(tmp_path, text="s3cret\nnot this", mode=0o600):
    path = tmp_path / "password"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_password_is_the_first_line_of_a_private_file_or_of_a_command(tmp_path):
    """Both ways give the same."""
    path = password_file(tmp_path)
    assert secret_of(account(password_file=path)) == "s3cret"
    assert secret_of(account(password_command=("cat", path))) == "s3cret"
    assert list(account_problems(account(password_file=path))) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path, mode):
    """Also when it is used, not only by `config check`."""
    params = account(password_file=password_file(tmp_path, mode=mode))
    with pytest.raises(UserError, match="other users") as caught:
        secret_of(params)
    assert "s3cret" not in str(caught.value)
    assert [str(one) for one in account_problems(params)] == [str(caught.value)]


def test_a_file_of_another_user_or_no_file_is_refused(tmp_path):
    """A pipe would block; a folder or a missing file is named."""
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    for place in (path, tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match=str(place)):
            secret_of(account(password_file=str(place)))
    if os.geteuid() == 0:
        path = password_file(tmp_path)
        os.chown(path, 12345, 12345)
        with pytest.raises(UserError, match="another user"):
            secret_of(account(password_file=path))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("sh", "-c", "echo s3cret; exit 3"), "exit code 3"),
        (("sh", "-c", "echo s3cret >&2"), "gives no password"),
        (("no-such-program",), "No such file"),
    ],
)
def test_a_command_that_fails_is_named_without_its_output(words, error, capfd):
    """Its output may be the password."""
    with pytest.raises(UserError, match=error) as caught:
        secret_of(account(password_command=words))
    assert "s3cret" not in f"{caught.value}{capfd.readouterr()}"


def test_what_is_missing_or_contradicts_is_reported():
    """By `config check`, before anything is connected."""
    assert len(list(account_problems(ImapParams()))) == 3
    (problem,) = account_problems(account(password_command=("no-such-program", "x")))
    assert "no-such-program" in str(problem)
    with pytest.raises(SettingsError, match="both set"):
        account(password_file="x", password_command=("y",))
    with pytest.raises(SettingsError, match="without encryption"):
        account(tls="none")
    assert ImapParams(host="127.0.0.1", tls="none").effective_port == 143
    assert account().effective_port == 993


def test_a_mailbox_is_away_since_its_first_failure(tmp_path):
    """The reason is the last one; accounts without settings, and damaged files, are not shown."""
    away = AwayMailboxes(tmp_path)
    assert away.found() == []
    away.note("../a b", "no answer")
    (first,) = away.found()
    away.note("../a b", "refused")
    away.note("other", "no answer")
    (tmp_path / "imap" / "damaged.away").write_bytes(b"{")
    assert away.found()[0] == ("../a b", first.since_us, "refused")
    away.keep(["../a b"])
    assert [one.account for one in away.found()] == ["../a b"]
    away.remove("../a b")
    away.remove("../a b")
    assert away.found() == []
