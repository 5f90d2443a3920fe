"""The learner dies while it empties the spool: each label is still learnt once, in order.

Dovecot's script writes the pending files; the listing that finds them is no snapshot.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.learner import Learner, mail
from support.waiting import LIMIT_S, until

from spamnb.engine.filter import Filter, new_recipe
from spamnb.feedback.spool import Spool, SpoolLimits
from spamnb.maintenance.export import export
from spamnb.store import maintenance as audit

PROJECT = Path(__file__).resolve().parents[2]
TEACH = PROJECT / "scripts" / "dovecot" / "spamnb-teach"
SERVER = frozenset({os.geteuid()})
"""the mail server's script runs as the user of this test, so this user is a delegate"""


def dies_at(turn, *, early):
    """Kill the process at a file: `early`, before the learnt file is removed, else after it."""
    removed, remove = 0, os.unlink

    def dying(name, *, dir_fd=None):
        # Only the spool removes files by name in an open folder.
        nonlocal removed
        removed += dir_fd is not None
        if removed == turn and early:
            os.kill(os.getpid(), signal.SIGKILL)
        remove(name, dir_fd=dir_fd)
        if removed == turn:
            os.kill(os.getpid(), signal.SIGKILL)

    os.unlink = dying


def model_in(home):
    with Filter.open(home, create=True, recipe=new_recipe()) as made:
        made.learn(mail("h1", "the minutes of our meeting on tuesday"), "ham")
        made.learn(mail("s1", "cheap pills and a casino bonus"), "spam")
    Spool(home / "spool").make()


def contradictions(count):
    """Labels of two users on eight messages: repeated, taken back, given again."""
    rng = random.Random(count)
    return [
        (rng.choice(["alice", "bob"]), rng.choice(["ham", "spam"]), f"w{rng.randrange(8)}")
        for _ in range(count)
    ]


def file_it(home, user, label, name):
    """Put a message into the spool with the script, as Dovecot does."""
    spool = os.environ | {"SPAMNB_SPOOL": str(home / "spool")}
    subprocess.run([TEACH, label, user], input=mail(name), env=spool, check=True)


def changes_of(labels):
    """The label changes that they make: each user has an own label; a repeated one is none."""
    held, changes = {}, []
    for user, label, name in labels:
        if held.get((user, name)) != label:
            changes.append((user, label, name))
            held[user, name] = label
    return changes


def journal(home):
    """Events of the spool, oldest first: number, user, label before and after, message."""
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        assert audit.check(view) == []
        name = dict(enumerate(model.labels)).get
        return [
            (e.seq, e.user, name(e.before), name(e.after), e.message_id.removesuffix("@a.example"))
            for e in view.events()
            if e.channel == "imap"
        ]


def counts(home):
    with Filter.open(home, readonly=True, history=False) as model:
        return list(export(model.store))


def waiting(home):
    return sorted(path.name for path in (home / "spool").glob("[!.]*"))


def live(running, done):
    """Run a learner until a condition holds or it dies; return its exit status."""
    try:
        until(lambda: not running.process.is_alive() or done(), "its end")
        return running.end()
    finally:
        running.kill()
        running.listener.close()
        running.path.unlink()


@pytest.mark.parametrize("early", [True, False], ids=["still there", "just gone"])
def test_a_learner_killed_at_any_step_learns_each_label_once(place, early):
    """A learner is killed at its second file, the next at its third, and so on.

    In the end journal and counts are those of a learner that was not killed. The messages are much
    alike, so a label that is given again may train again: that is no second time.
    """
    home, spared = place / "m", place / "spared"
    model_in(home)
    labels = contradictions(20)
    shutil.copytree(home, spared)
    for label in labels:
        file_it(home, *label)
        file_it(spared, *label)
    exit_codes = []
    while waiting(home):
        dies = partial(dies_at, len(exit_codes) + 2, early=early)
        running = Learner(home, place, prepare=dies, delegates=SERVER)
        exit_codes.append(live(running, lambda: not waiting(home)))
    assert exit_codes[:-1] == [-9] * (len(exit_codes) - 1)
    assert len(exit_codes) > 4
    assert live(Learner(spared, place, delegates=SERVER), lambda: not waiting(spared)) == 0
    Spool(home / "spool").drain(("ham", "spam"), lambda _: None)
    assert list((home / "spool").iterdir()) == []
    events = journal(home)
    assert events == journal(spared)
    changes = [(user, after, name) for _, user, before, after, name in events if before != after]
    assert changes == changes_of(labels)
    assert counts(home) == counts(spared)


WRITER = """
import os, sys
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
for number in range(1500):
    hidden = f"{sys.argv[1]}/.{number}"
    with open(hidden, "w") as file:
        file.write(str(number))
    name = f"{boot}.1.{number}.{os.urandom(8).hex()}.spam"
    os.mkdir(f"{sys.argv[1]}/.{name}.{os.stat(hidden).st_ino}")
    os.rename(hidden, f"{sys.argv[1]}/{name}")
"""


def test_a_file_that_arrives_during_the_listing_overtakes_no_other(tmp_path):
    """The spool is read in order of arrival, also when a listing shows only the second new file.

    ext4 lists a large folder in parts; file systems in memory list in order of arrival.
    """
    spool = Spool(tmp_path / "spool", SpoolLimits(each_owner=50))
    spool.make()
    for number in range(3000):
        (spool.folder / f"{os.urandom(8).hex()}.{number}.tmp").touch()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, spool.folder])
    found = []
    while writer.poll() is None or spool.waiting() > 3000:
        spool.drain(("ham", "spam"), lambda left: found.append(int(left.raw)))
    assert writer.wait(LIMIT_S) == 0
    assert found == list(range(1500))
