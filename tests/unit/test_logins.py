"""Logins: hashes, their file, and the delay after wrong passwords."""

import hashlib
from base64 import b64decode

import pytest
from support.cpu_time import least_seconds

from spamnb.errors import SettingsError
from spamnb.operations.logins import (
    Cost,
    FailedByStrangers,
    FailedLogins,
    Login,
    LoginGuard,
    Passwords,
    hashed,
    read_logins,
    write_logins,
)
from spamnb.records.console import KNOWN_US, SessionStore

CHEAP = Cost(ln=4, r=8, p=1)


def file_of(path, *logins):
    write_logins(path, {login.name.lower(): login for login in logins})
    return path


def test_a_hash_is_standard_scrypt():
    """Hashes are standard scrypt: hashlib.scrypt gives the same."""
    _, name, cost, salt, digest = hashed("tr0ub4dor", CHEAP).split("$")
    assert (name, cost) == ("scrypt", "ln=4,r=8,p=1")
    again = hashlib.scrypt(b"tr0ub4dor", salt=b64decode(salt), n=16, r=8, p=1, dklen=32)
    assert again == b64decode(digest)


def test_the_default_cost_is_what_is_recommended():
    """N * r * p is at least what OWASP's table of equal choices asks for (2^15, 8, 3)."""
    cost = Cost()
    assert (cost.ln, cost.r, cost.p) == (15, 8, 3)


def test_the_right_password_is_right_and_others_are_not(tmp_path):
    """A login is given for its own password only, whatever the case of its name."""
    alice = Login("Alice", hashed("pass", CHEAP), ("a@x.example", "b@x.example"))
    path = file_of(tmp_path / "p", alice)
    known = Passwords(path)
    assert known.check("alice", b"pass").addresses == ("a@x.example", "b@x.example")
    assert known.check("alice", b"Pass") is None
    assert known.check("alice", b"") is None
    assert known.check("bob", b"pass") is None
    assert known.check("alice", b"pass" + b"\0" * 2000) is None


def test_an_unknown_login_costs_as_much_as_a_wrong_password(tmp_path):
    """The time of a rejection does not reveal whether the user exists."""
    known = Passwords(file_of(tmp_path / "p", Login("alice", hashed("x", Cost(ln=13, r=8, p=1)))))

    def cost(name):
        return least_seconds(lambda: known.check(name, b"wrong"), 5)

    assert 0.4 < cost("nobody") / cost("alice") < 2.5


def test_a_file_that_others_can_read_is_refused(tmp_path):
    """A readable password file is rejected: its hashes could be attacked offline."""
    path = file_of(tmp_path / "p", Login("alice", hashed("x", CHEAP)))
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(SettingsError, match="readable by other users"):
        read_logins(path)


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice:secret",
        "alice:$scrypt$ln=4,r=8,p=1$AAAA$BBBB",
        "alice:$scrypt$ln=30,r=8,p=1$AAAAAAAAAAAAAAAAAAAAAA==$" + "A" * 44,
        "alice:$scrypt$ln=21,r=99,p=99$AAAAAAAAAAAAAAAAAAAAAA==$" + "A" * 44,
        pytest.param("a b:" + hashed("x", CHEAP), id="a name with a blank"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    """A line that is no login is an error with file and line, also a hash that would take hours."""
    path = tmp_path / "p"
    path.write_text(f"# people\n{line}\n")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match=":2: the line is not a login"):
        read_logins(path)


def test_a_changed_file_is_read_again(tmp_path):
    """A new password works without a restart, and the old one no more."""
    path = file_of(tmp_path / "p", Login("alice", hashed("old", CHEAP)))
    known = Passwords(path)
    assert known.check("alice", b"old")
    file_of(path, Login("alice", hashed("new", CHEAP)))
    assert known.check("alice", b"new")
    assert known.check("alice", b"old") is None


def test_a_missing_file_says_what_makes_one(tmp_path):
    """The error of a file that is not there has a hint."""
    with pytest.raises(SettingsError) as error:
        Passwords(tmp_path / "none")
    assert "spamnb passwd" in error.value.hint


def test_writing_keeps_everything(tmp_path):
    """Logins are the same after writing and reading the file."""
    alice = Login("alice", hashed("x", CHEAP), ("a@x.example",))
    logins = {"alice": alice, "bob": Login("bob", hashed("y", CHEAP), ("bob",))}
    write_logins(tmp_path / "p", logins)
    assert read_logins(tmp_path / "p") == logins
    assert list(tmp_path.iterdir()) == [tmp_path / "p"]


def test_guessing_gets_slower_and_slower():
    """After three wrong passwords each further one doubles the wait, up to a minute."""
    attempts = FailedLogins()
    waits = []
    for _ in range(12):
        attempts.wrong("192.0.2.1", 0.0)
        waits.append(attempts.wait_s("192.0.2.1", 0.0))
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert attempts.wait_s("192.0.2.1", 59.0) == 1.0
    assert attempts.wait_s("192.0.2.2", 0.0) == 0.0
    assert attempts.wait_s("192.0.2.1", FailedLogins.FORGET_S + 1) == 0.0


def test_the_right_password_is_no_wrong_one():
    """A right password is not delayed, however often it is used; IPv6 counts by /64."""
    attempts = FailedLogins()
    for second in range(50):
        assert attempts.wait_s("2001:db8::1", second) == 0.0
        attempts.wrong("2001:db8::1", second)
        attempts.right("2001:db8::ffff")
    for second in range(9):
        attempts.wrong("2001:db8::1", second)
    assert attempts.wait_s("2001:db8::ffff", 8.0) == 60.0
    # After that wait the right password is accepted without a delay, again and again.
    for second in range(70, 80):
        assert attempts.wait_s("2001:db8::1", second) == 0.0
        attempts.wrong("2001:db8::1", second)
        attempts.right("2001:db8::1")


def test_a_login_of_ones_own_does_not_help_to_guess_at_others():
    """A right password does not reset the count of wrong ones from the same address."""
    attempts = FailedLogins()
    tried = 0
    for second in range(30):
        if attempts.wait_s("192.0.2.1", second / 100) == 0.0:
            tried += 1
            attempts.wrong("192.0.2.1", second / 100)
        if attempts.wait_s("192.0.2.1", second / 100) == 0.0:
            attempts.wrong("192.0.2.1", second / 100)
            attempts.right("192.0.2.1")
    assert tried == FailedLogins.FREE


def test_many_addresses_take_no_memory():
    """Guesses from many addresses do not fill the memory."""
    attempts = FailedLogins()
    for number in range(FailedLogins.KNOWN + 500):
        attempts.wrong(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert len(attempts._known) == FailedLogins.KNOWN


def test_strangers_cannot_guess_fast_nor_lock_out(tmp_path):
    """Many addresses together get few checks of one login; known ones and other logins are free."""
    guard = LoginGuard(SessionStore(tmp_path))
    assert guard.begin("Alice", "192.0.2.1", 0.0) == 0.0
    guard.right("Alice", "192.0.2.1")
    guard.remember("Alice", "192.0.2.1")
    checked = sum(
        guard.begin("alice", f"10.0.{n // 250}.{n % 250}", 1.0) == 0.0 for n in range(900)
    )
    assert checked == FailedByStrangers.FREE
    day = sum(
        guard.begin("alice", f"10.1.{s // 250}.{s % 250}", 1.0 + s) == 0.0 for s in range(3600)
    )
    assert day <= 3600 / FailedByStrangers.LONGEST_S + 7
    for second in range(3):
        assert guard.begin("ALICE", "192.0.2.1", 3601.0 + second) == 0.0
        guard.right("ALICE", "192.0.2.1")
    assert guard.begin("bob", "10.9.9.9", 3601.0) == 0.0
    assert guard.begin("alice", "10.9.9.9", 3602.0 + FailedByStrangers.LONGEST_S) == 0.0


def test_a_known_address_may_not_guess_freely(tmp_path):
    """An address where the login was right has the delay by address as before."""
    guard = LoginGuard(SessionStore(tmp_path))
    guard.remember("alice", "192.0.2.1")
    waits = [guard.begin("alice", "192.0.2.1", 0.0) for _ in range(5)]
    assert waits == [0, 0, 0, 1, 1]


def test_known_addresses_outlive_a_restart(tmp_path):
    """They are on disk for 90 days, and a login knows its own only."""
    store = SessionStore(tmp_path)
    store.remember("alice", "192.0.2.1", 1)
    store.close()
    again = SessionStore(tmp_path)
    assert again.knows("alice", "192.0.2.1", KNOWN_US)
    assert not again.knows("alice", "192.0.2.1", KNOWN_US + 2)
    assert not again.knows("alice", "192.0.2.2", 1)
    assert not again.knows("bob", "192.0.2.1", 1)
