"""`spamnb passwd`: logins added, changed and removed, at a terminal and by programs."""

import os
import pty

from support.cli import PROGRAM, environment, program, spamnb

from spamnb.operations.logins import Passwords, read_logins


def test_a_login_is_made_and_works(tmp_path):
    """From a program: the first line is the password; the file belongs to its owner alone."""
    done = spamnb(tmp_path, "passwd", "Alice@x.example", stdin=b"se:cret pass\nsecond line\n")
    assert done.code == 0
    assert "secret" not in done.out + done.err
    path = tmp_path / "passwords"
    assert path.stat().st_mode & 0o777 == 0o600
    found = Passwords(path).check("alice@x.example", b"se:cret pass")
    assert found.addresses == ("Alice@x.example",)


def test_a_new_password_keeps_the_addresses(tmp_path):
    """A user with several addresses gives them once; a new password keeps them."""
    spamnb(tmp_path, "passwd", "alice", "a@x.example", "b@x.example", stdin=b"one\n")
    spamnb(tmp_path, "passwd", "bob@x.example", stdin=b"two\n")
    spamnb(tmp_path, "passwd", "ALICE", stdin=b"three\n")
    known = Passwords(tmp_path / "passwords")
    assert known.check("alice", b"three").addresses == ("a@x.example", "b@x.example")
    assert known.check("alice", b"one") is None
    assert known.check("bob@x.example", b"two")
    listed = spamnb(tmp_path, "passwd", "--list", "--json").json
    assert listed == [
        {"login": "ALICE", "addresses": ["a@x.example", "b@x.example"]},
        {"login": "bob@x.example", "addresses": ["bob@x.example"]},
    ]


def test_a_login_is_removed(tmp_path):
    """`passwd --remove` removes a login; an unknown login is an error."""
    spamnb(tmp_path, "passwd", "alice", stdin=b"one\n")
    assert spamnb(tmp_path, "passwd", "--remove", "Alice").code == 0
    assert read_logins(tmp_path / "passwords") == {}
    gone = spamnb(tmp_path, "passwd", "--remove", "alice")
    assert (gone.code, gone.err) == (
        2,
        "spamnb: there is no login 'alice' - `spamnb passwd --list`\n",
    )


def test_mistakes_change_nothing(tmp_path):
    """No login, no password, a name that would break the file: one line, exit 2."""
    for arguments, stdin in (
        (["passwd"], b"x\n"),
        (["passwd", "alice"], b""),
        (["passwd", "alice"], b"\n"),
        (["passwd", "alice"], b"x" * 2000),
        (["passwd", "alice"], b"caf\xe9\n"),
        (["passwd", "alice"], b"a\0b\n"),
        (["passwd", "al:ice"], b"x\n"),
        (["passwd", "alice", "a b@x"], b"x\n"),
        (["passwd", "alice\nroot"], b"x\n"),
    ):
        done = spamnb(tmp_path, *arguments, stdin=stdin)
        assert done.code == 2
        assert done.err.count("\n") == 1
    assert not (tmp_path / "passwords").exists()


def test_the_settings_name_the_file(tmp_path):
    """The file is delivery.passwords; without this setting the error names it."""
    silent = program(tmp_path, "passwd", "alice", input=b"x\n")
    assert f'[delivery] passwords = "{tmp_path}/passwords"' in silent.err
    (tmp_path / "s.toml").write_text(f'[delivery]\npasswords = "{tmp_path}/here"\n')
    done = program(tmp_path, "--config", tmp_path / "s.toml", "passwd", "alice", input=b"x\n")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "here").exists()


def test_at_a_terminal_the_password_is_asked_for_twice_and_not_shown(tmp_path):
    """The typed password is not echoed."""
    command = [*PROGRAM, "--home", str(tmp_path), "passwd", "alice"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environment())
    shown = b""
    for _ in range(2):
        while not shown.endswith(b": "):
            shown += os.read(terminal, 1024)
        os.write(terminal, b"hidden\n")
        shown += b"|"
    try:
        while more := os.read(terminal, 1024):
            shown += more
    except OSError:  # the terminal is gone with the program
        pass
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)
    assert b"hidden" not in shown
    assert Passwords(tmp_path / "passwords").check("alice", b"hidden")
