"""The daemon is away while users file mail: each label is learnt once and in order.

The promise is for a minute, so under --all the tests wait for a minute.
"""

import random
import threading
import time
from collections import Counter, defaultdict
from functools import partial

import pytest
from support.dovecot import Site, copy_and_delete, fetch_and_append, move
from support.postfix import needs_rig
from support.waiting import until

pytestmark = needs_rig

TOGETHER = 5
"""messages that both have, and do not agree on"""


def flag(imap, at, _, *, word):
    assert imap.store(at, "+FLAGS", f"({word})")[0] == "OK"


# What a user does to one message: how, from and to which folder, and its label.
IN, OUT, BACK = ("INBOX", "Junk", "spam"), ("Junk", "Work", "ham"), ("Work", "Junk", "spam")
junk, not_junk = partial(flag, word="$Junk"), partial(flag, word="$NotJunk")
FLAGGED, UNFLAGGED = (junk, "INBOX", "INBOX", "spam"), (not_junk, "INBOX", "INBOX", "ham")
STORIES = [
    [(move, *IN)],
    [(copy_and_delete, *IN)],
    [(fetch_and_append, *IN)],
    [FLAGGED],
    [(move, *IN), (move, *OUT)],
    [(copy_and_delete, *IN), (copy_and_delete, *OUT), (move, *BACK)],
    [(fetch_and_append, *IN), (move, *OUT)],
    [FLAGGED, UNFLAGGED],
    [FLAGGED, (move, *IN), (copy_and_delete, *OUT)],
    [(move, *IN), (move, *OUT), (fetch_and_append, *BACK), (copy_and_delete, *OUT)],
]


def laid(person, times, run):
    """Put new messages into the inbox; return name and steps of each."""
    plan = []
    for number, story in enumerate(STORIES * times):
        name = f"{run}.{person.name}.{number:04}."
        person.append(name)
        plan.append((name, story))
    return plan


def mixed(plan):
    """Shuffle the steps of all messages; those of one message stay in order."""
    rng, steps = random.Random(len(plan)), []
    left = [(name, list(story)) for name, story in plan]
    while left:
        one = rng.choice(left)
        steps += [(one[0], one[1].pop(0)) for _ in range(rng.randint(1, len(one[1])))]
        if not one[1]:
            left.remove(one)
    return steps


def file_all(person, steps, until_s, given):
    """Take the steps from now until then; `said` gets each label when it is given."""
    began = time.monotonic()
    for number, (name, (way, source, to, label)) in enumerate(steps):
        due = began + (until_s - began) * number / len(steps)
        time.sleep(max(0.0, due - time.monotonic()))
        way(person.imap, person.select(source, name), to)
        given.append((person.name, name, label))


def at_once(people, steps, until_s):
    """Let all users file in parallel; return the labels of each in order."""
    given = [[] for _ in people]
    threads = [
        threading.Thread(target=file_all, args=(person, its, until_s, its_labels))
        for person, its, its_labels in zip(people, steps, given, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(its_labels) for its_labels in given] == [len(its) for its in steps], "a step failed"
    return [word for its_labels in given for word in its_labels]


def changes_of(labels):
    """Return the changes of labels: each user has an own label; the same label again is none."""
    held, changes = {}, []
    for user, name, label in labels:
        before = held.get((user, name))
        if before != label:
            changes.append((user, name, before, label))
            held[user, name] = label
    return changes


def sorted_by(key, rows):
    found = defaultdict(list)
    for row in rows:
        found[row[key]].append(row)
    return dict(found)


def check(site, before, labels):
    """Compare the journal with the labels; spool and review list are empty."""
    rows = [
        (event["user"], event["message_id"].removesuffix("@x"), event["before"], event["after"])
        for event in site.journal()[before:]
    ]
    changes, wanted = [row for row in rows if row[2] != row[3]], changes_of(labels)
    for key in (0, 1):  # in the order of each person, and in that of each message
        assert sorted_by(key, changes) == sorted_by(key, wanted)
    # A label given twice may train twice, if other trainings have contradicted it in between.
    learnt = Counter((user, name, label) for user, name, _, label in rows)
    assert learnt <= Counter(labels), learnt - Counter(labels)
    assert list(site.spool.iterdir()) == []
    assert site.daemon.spamnb("review", "list").strip() == ""
    site.daemon.spamnb("check")


def away(site, end, for_s, times, deaths=0):
    """End the daemon while users file, start it, and kill it `deaths` times before the end."""
    people, before = (site.alice, site.bob), len(site.journal())
    steps = [mixed(laid(person, times, before)) for person in people]
    lists = [f"{before}.list.{number}." for number in range(TOGETHER)]
    for person in people:
        for name in lists:
            person.append(name)
    end()
    back = time.monotonic() + for_s
    labels = at_once(people, steps, back - 1)
    for name in lists:
        for person, step in zip(people, ((move, *IN), UNFLAGGED), strict=True):
            file_all(person, [(name, step)], 0, labels)
    assert site.waiting() == len(labels), "each word is one file"
    time.sleep(max(0.0, back - time.monotonic()))
    for death in range(1, deaths + 1):
        site.daemon.begin()
        few = len(labels) * (deaths + 1 - death) // (deaths + 1)
        until(lambda few=few: site.waiting() <= few, what="the middle of the spool")
        site.daemon.kill()
        assert site.waiting() > 0, "it was killed too late"
    site.daemon.start()
    until(lambda: not site.waiting(), what="the spool's end")
    check(site, before, labels)
    print(f"{len(labels)} words, {len(changes_of(labels))} events, away for {for_s} s")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("away"))
    yield made
    made.close()


ENDS = {"stopped": "stop", "killed": "kill"}


def test_status_counts_the_moves_that_wait_for_a_daemon(site):
    """Without a daemon nothing is learnt, and `status` says how many moves wait."""
    name = site.append()
    site.daemon.stop()
    try:
        move(site.alice.imap, site.alice.select("INBOX", name), "Junk")
        until(lambda: site.waiting() == 1, what="the file of the move")
        done = site.daemon.command("status")
        assert done.code == 1
        assert "moves of messages wait in the spool (1)" in done.out
    finally:
        site.daemon.start()
    assert site.learnt(name) == ["spam"]


@pytest.mark.parametrize("end", ENDS)
def test_away_for_some_seconds(site, end):
    """The labels of the meantime are learnt once and in order: the last label is in force."""
    away(site, getattr(site.daemon, ENDS[end]), 1, times=1)


@pytest.mark.full
@pytest.mark.parametrize("end", ENDS)
def test_away_for_a_minute(site, end):
    """The same for a minute and two hundred messages."""
    away(site, getattr(site.daemon, ENDS[end]), 60, times=10)


@pytest.mark.full
@pytest.mark.parametrize("end", ENDS)
def test_killed_in_the_middle_of_catching_up(site, end):
    """The same with three kills of the daemon before all labels are learnt."""
    away(site, getattr(site.daemon, ENDS[end]), 60, times=10, deaths=3)
