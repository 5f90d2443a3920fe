"""`spamnb watch` as a user starts it."""

import os
import shutil
import signal
import subprocess
from contextlib import nullcontext

import pytest
from support.cli import PROGRAM, environment, program, spamnb
from support.daemon import serve, settings_in
from support.waiting import LIMIT_S, until

MAIL = "X-Spam-Flag: {flag}\nSubject: {name}\nMessage-ID: <{name}@x>\n\nwords about {name}\n"


@pytest.fixture
def home(trained, tmp_path):
    """A model of the sample, and a Maildir."""
    shutil.copytree(trained, tmp_path / "home")
    for folder in ("", ".Junk", ".Trash"):
        for part in ("tmp", "new", "cur"):
            (tmp_path / "Maildir" / folder / part).mkdir(parents=True)
    return tmp_path


def write_message(home, name, folder="", flag="NO"):
    path = home / "Maildir" / folder / "cur" / f"{name}:2,S"
    fresh = home / "Maildir" / folder / "tmp" / name
    fresh.write_text(MAIL.format(flag=flag, name=name))
    return fresh.rename(path)


def test_once_learns_what_was_moved_since_the_last_run(home):
    """For cron: the first run begins, later ones learn the moves between them."""
    one, two = write_message(home, "one"), write_message(home, "two", ".Junk", "YES")
    write_message(home, "three", ".Junk", "YES")
    assert spamnb(home / "home", "watch", "--once", f"alice={home}/Maildir").lines == []
    one.rename(home / "Maildir/.Junk/cur" / one.name)
    two.rename(home / "Maildir/cur" / two.name)
    answers = spamnb(home / "home", "watch", "--once", "--json", f"alice={home}/Maildir").json
    assert sorted((one["after"], one["state"]) for one in answers) == [
        ("ham", "learnt"),
        ("spam", "learnt"),
    ]
    assert spamnb(home / "home", "watch", "--once", f"alice={home}/Maildir").lines == []
    journal = spamnb(home / "home", "journal", "--limit", "2", "--json").json
    assert {(event["user"], event["channel"]) for event in journal} == {("alice", "maildir")}


def test_it_watches_until_sigterm(home):
    """A move is learnt while it runs; SIGTERM is a good end."""
    one = write_message(home, "one")
    command = [*PROGRAM, "--home", home / "home", "watch", "--quiet", "0.1", home / "Maildir"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as running:
        try:
            state = home / "home" / "watch.json"
            until(lambda: state.exists() or running.poll() is not None, "its state")
            assert running.poll() is None
            one.rename(home / "Maildir/.Junk/cur" / one.name)
            assert "-> spam" in running.stdout.readline()
        finally:
            os.kill(running.pid, signal.SIGTERM)
        assert running.wait(LIMIT_S) == 0


def test_a_message_that_the_daemon_refuses_does_not_end_the_watch(home):
    """Any user may have a message above feedback.limit_bytes; the others' are still learnt."""
    config = settings_in(home, more="[feedback]\nlimit_bytes = 10000\n")
    arguments = ["--config", config, "watch", "--once", "--json", home / "Maildir"]
    with serve(home, config=config) as daemon:
        daemon.ready()
        assert program(home / "home", *arguments).code == 0
        large, small = write_message(home, "1-large"), write_message(home, "2-small")
        large.write_bytes(large.read_bytes() + b"words " * 2000)
        for one in (large, small):
            one.rename(home / "Maildir/.Junk/cur" / one.name)
        done = program(home / "home", *arguments)
    assert (done.code, [one["state"] for one in done.json]) == (0, ["learnt"])
    assert "the limit is 10000" in done.err


@pytest.mark.parametrize("served", [False, True], ids=["alone", "with the daemon"])
def test_a_maildir_of_another_user_counts_within_that_users_quota(home, served):
    """Root that watches alice's Maildir does not teach as an administrator what alice put there."""
    config = settings_in(home, more="[feedback]\nuser_per_day = 2\n")
    words = ["--config", config, "watch", "--once", "--json", f"alice={home}/Maildir"]
    with serve(home, config=config) if served else nullcontext() as daemon:
        if daemon:
            daemon.ready()
        assert program(home / "home", *words).code == 0
        for number in range(4):
            write_message(home, f"forged-{number}", ".Junk", "NO")
        done = program(home / "home", *words)
    assert (done.code, [one["state"] for one in done.json]) == (0, ["learnt"] * 2)
    assert done.err.count("2 changes a day are accepted from one user") == 2


def test_what_is_no_maildir_is_one_line(home):
    """The error has the problem and its remedy."""
    done = spamnb(home / "home", "watch", "--once", str(home))
    assert done.code == 2
    assert "is not a Maildir" in done.err
    assert spamnb(home / "home", "watch", "--once", str(home / "nowhere")).code == 2
