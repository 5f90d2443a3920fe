"""The learner as a process: rights of its clients, kills, and a home without a model."""

import os
import pwd
import resource
import signal
import threading
import time
from itertools import islice
from pathlib import Path

import pytest
from support.cpu_time import is_within
from support.learner import Learner, as_user, events, learner, mail, score
from support.waiting import LIMIT_S, until

from spamnb.daemon.learner import uids_of
from spamnb.engine.bulk import train
from spamnb.engine.filter import Filter, new_recipe
from spamnb.errors import (
    LabelError,
    SpamnbError,
    StoreBusyError,
    StoreDamagedError,
    StoreMissingError,
    UserError,
)
from spamnb.feedback.rights import TeachingRules
from spamnb.feedback.values import Feedback
from spamnb.maintenance.export import export
from spamnb.operations.parameters import read_known
from spamnb.operations.protocol import ControlClient
from spamnb.operations.request import FEEDBACK, Caller, answer_of, feedback_of

SAMPLE = Path(__file__).resolve().parents[2] / "corpora" / "sample"
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can become another user")
NOBODY = pwd.getpwnam("nobody")


# --- what it answers --------------------------------------------------------------------------


def test_a_label_is_learnt_durably_and_reported_in_a_receipt(running):
    """Another process finds the event immediately; the same label again changes nothing."""
    raw = mail(1, "hello pills")
    with running.caller() as caller:
        first = caller.teach(Feedback("spam", raw, trust="admin"))
        again = caller.teach(Feedback("spam", raw, trust="admin"))
        moved = caller.teach(Feedback("ham", raw, trust="admin"))
        back = answer_of(caller.ask("undo", event=moved.receipt.event).header)
        gone = caller.teach(Feedback("", raw, trust="admin"))
    assert [a.state for a in (first, again, moved, back, gone)] == [
        "learnt", "unchanged", "learnt", "learnt", "learnt",
    ]  # fmt: skip
    held = events(running.home)[first.receipt.digest]
    assert (held.user, held.channel) == (pwd.getpwuid(os.geteuid()).pw_name, "api")


def test_sorted_mail_is_learnt_in_one_transaction(running):
    """`batch`: many messages, one answer; duplicates and unknown labels are reported."""
    raws = [mail(f"b{n}") for n in range(50)]
    fields = {"sizes": [len(raw) for raw in raws], "labels": ["ham", "spam"] * 25}
    answer = running.ask("batch", b"".join(raws), **fields).header
    assert (answer["learnt"], answer["duplicates"], answer["refused"]) == (50, 0, 0)
    assert running.ask("batch", b"".join(raws), **fields).header["duplicates"] == 50
    for wrong in ({"sizes": [1]}, {"sizes": [-1] * 50}, {"sizes": "x"}, {"labels": ["ham"]}):
        with pytest.raises(UserError):
            running.ask("batch", b"".join(raws), **(fields | wrong))
    with pytest.raises(LabelError):
        running.ask("batch", b"".join(raws), **(fields | {"labels": ["junk"] * 50}))


def test_upkeep_goes_through_the_learner(running, tmp_path):
    """Import as one event that undo takes back; expire by the settings in force."""
    with Filter.open(running.home, readonly=True, history=False) as model:
        lines = "".join(export(model.store)).encode()
    before = running.ask("status").header["status"]["model"]["messages"]
    answer = running.ask("import", lines).header
    after = running.ask("status").header["status"]["model"]["messages"]
    assert answer["features"] > 0
    until(lambda: running.ask("status").header["status"]["model"]["messages"]
          == {label: 2 * count for label, count in before.items()}, f"{after}")  # fmt: skip
    assert answer_of(running.ask("undo", event=answer["receipt"]["event"]).header).state == "learnt"
    with pytest.raises(UserError):
        running.ask("import", b"no export at all\n")
    assert running.ask("expire").header["expired"]["events_folded"] == 0


def test_bypass_is_a_flag_for_all_and_a_file_for_the_next_start(running):
    """The status shows the bypass immediately; a file keeps it over a restart."""
    assert running.ask("bypass", on=True).header["bypass"] is True
    assert (running.home / "bypass").exists()
    assert running.ask("status").header["status"]["bypass"] is True
    running.ask("bypass", on=False)
    assert not (running.home / "bypass").exists()
    with pytest.raises(UserError):
        running.ask("bypass", on="yes")


def test_numbers_are_shown_for_people_and_for_prometheus(running):
    """After a training the metrics in Prometheus' format have the counters and histograms."""
    running.ask("teach", mail(1), label="spam")
    text = running.ask("metrics").body.decode()
    assert "spamnb_learned_spam_total 1\n" in text
    assert 'spamnb_learn_seconds_bucket{le="+Inf"} 1\n' in text
    assert 'spamnb_model_messages{label="ham"} 1\n' in text
    assert len([line for line in text.splitlines() if "TYPE spamnb_model_messages" in line]) == 1


def test_the_review_list_over_the_socket(running):
    """A user's unknown message is queued, and an admin accepts or refuses it."""
    with running.caller() as caller:
        answer = caller.teach(Feedback("ham", mail(1), user="alice@example.org"))
        assert answer.state == "review"
        assert caller.ask("review", do="list").header["entries"] == 1
        header, raw = caller.ask("review", do="show", name=answer.review)
        assert (header["entry"]["user"], raw) == ("alice@example.org", mail(1))
        done = answer_of(caller.ask("review", do="accept", name=answer.review).header)
        assert done.state == "learnt"
        assert caller.ask("review", do="list").header["entries"] == 0
        with pytest.raises(UserError):
            caller.ask("review", do="burn")


# --- rights -----------------------------------------------------------------------------------


def test_delegates_by_name_or_number():
    """An unknown user is logged and left out; the other delegates keep their rights."""
    logged = []
    assert uids_of(("nobody", "12", "no such user"), logged.append) == {NOBODY.pw_uid, 12}
    assert [record["user"] for record in logged] == ["no such user"]


def test_only_admins_may_name_the_channel():
    """The domain makes a stranger one of the site's users, and the network has a quota."""
    header = {"label": "spam", "domain": "evil.example", "client": "192.0.2.7", "trust": "stranger"}
    post = feedback_of(Caller(0, "admin", "root"), read_known(FEEDBACK, header), b"x")
    assert (post.domain, post.client) == ("evil.example", "192.0.2.7")
    for peer in (Caller(8, "delegate", "vmail"), Caller(1000, "self", "alice")):
        feedback = feedback_of(peer, read_known(FEEDBACK, header), b"x")
        assert (feedback.domain, feedback.client) == ("", "")


def test_user_and_trust_of_a_label():
    """An administrator may name any user and trust, a delegate any user, others no user."""
    admin, vmail = Caller(0, "admin", "root"), Caller(8, "delegate", "vmail")
    alice = Caller(1000, "self", "alice")

    def speaks(peer, **header):
        feedback = feedback_of(peer, read_known(FEEDBACK, header | {"label": "spam"}), b"x")
        return feedback.user, feedback.trust

    assert speaks(admin) == ("root", "admin")
    assert speaks(admin, **{"for": "bob"}) == ("bob", "user")
    assert speaks(admin, **{"for": "bob", "trust": "stranger"}) == ("bob", "stranger")
    assert speaks(admin, **{"for": "bob", "trust": "admin"}) == ("bob", "admin")
    assert speaks(vmail, **{"for": "bob"}) == ("bob", "user")
    assert speaks(vmail, **{"for": "bob", "trust": "admin"}) == ("bob", "user")
    assert speaks(vmail) == ("vmail", "user")
    assert speaks(alice) == speaks(alice, **{"for": "alice"}) == ("alice", "user")
    assert speaks(alice, trust="admin") == ("alice", "user")
    for wrong in ({"for": "bob"}, {"trust": "god"}, {"for": 5}, {"refs": "x"}, {"refs": [5]}):
        with pytest.raises(UserError):
            speaks(alice, **wrong)


@needs_root
def test_a_local_user_labels_only_under_the_own_name(place):
    """The kernel gives the uid: the user's own mail is learnt, others' is not."""
    with learner(place / "m", place) as running:
        mine, others = mail(1, "garden tools"), mail(2, "garden seeds")
        signature = score(running.home, mine, to="nobody@example.org")
        score(running.home, others, to="alice@example.org")

        def answer(op, body=b"", **fields):
            def run():
                with ControlClient(running.path, LIMIT_S) as caller:
                    header = caller.ask(op, body, **fields).header
                return header.get("state") or header

            return as_user(NOBODY.pw_uid, run)

        assert answer("teach", mine, label="spam") == "learnt"
        assert answer("teach", label="spam", refs=[signature]) == "unchanged"
        assert answer("teach", others, label="spam") == "review"
        assert answer("teach", label="spam", refs=["2@a.example"]) == "refused"
        assert answer("teach", mine, label="ham", **{"for": "alice"}).startswith("RefusedError")
        assert answer("undo", event=1) == "refused"
        assert "home" not in answer("status")
        for op in ("bypass", "review", "batch", "import", "expire", "reload"):
            assert answer(op, on=True, do="list").startswith("RefusedError"), op
    held = {event.user for event in events(place / "m").values()}
    assert held == {"owner", "nobody"}


@needs_root
@pytest.mark.parametrize(("unproven", "strangers"), [("review", "learnt"), ("refuse", "refused")])
def test_a_delegate_names_the_person(place, unproven, strangers):
    """A label from the IMAP server counts as a label of the mailbox's user.

    It counts also for messages that are not known as that user's, unless `unproven` says otherwise.
    A reference without the message proves nothing.
    """
    options = {
        "delegates": frozenset([NOBODY.pw_uid]),
        "teaching": TeachingRules(unproven=unproven),
    }
    with learner(place / "m", place, **options) as running:
        raw, other = mail(1, "garden tools"), mail(2, "garden seeds")
        signature = score(running.home, raw, to="alice@example.org")

        def state(user, raw=b"", refs=()):
            feedback = Feedback("spam", raw, refs, user, channel="imap")

            def run():
                with ControlClient(running.path, LIMIT_S) as caller:
                    return caller.teach(feedback).state

            return as_user(NOBODY.pw_uid, run)

        assert state("alice@example.org", raw) == "learnt"
        assert state("bob@example.org", other) == strangers
        assert state("bob@example.org", refs=(signature,)) == "refused"
    held = {event.user for event in events(place / "m").values()}
    assert held - {"bob@example.org"} == {"owner", "alice@example.org"}


# --- kills and faults -------------------------------------------------------------------------


def test_killed_while_eight_teach_every_answer_is_in_the_store(place):
    """After a kill the store has every acknowledged label, and no part of any other."""
    home = place / "m"
    answered, lock = [], threading.Lock()
    with Filter.open(home, create=True, recipe=new_recipe()) as model:
        model.learn(mail("h"), "ham")
    for turn in range(4):
        running = Learner(home, place)
        try:
            running.ask("ping")
            stop = threading.Event()

            def teach(name, running=running, stop=stop):
                number = 0
                try:
                    with running.caller() as caller:
                        while not stop.is_set():
                            raw = mail(f"{name}.{number}")
                            answer = caller.teach(Feedback("spam", raw, trust="admin"))
                            with lock:
                                answered.append(answer.receipt.digest)
                            number += 1
                except SpamnbError:
                    pass

            threads = [threading.Thread(target=teach, args=(f"{turn}.{n}",)) for n in range(8)]
            enough = len(answered) + 20 * (turn + 1)
            for thread in threads:
                thread.start()
            until(lambda enough=enough: len(answered) > enough)
            running.kill()
            stop.set()
            for thread in threads:
                thread.join()
        finally:
            running.kill()
            running.listener.close()
            running.path.unlink()
        held = events(home)
        assert set(answered) <= held.keys()
        assert len(held) <= len(answered) + 8 * (turn + 1) + 1


def test_eight_clients_share_transactions(place):
    """Group commit: while one transaction syncs, the next ones queue and go together."""
    with learner(place / "m", place) as running:
        each, go = 25, threading.Barrier(8)

        def teach(name):
            with running.caller() as caller:
                go.wait()
                for number in range(each):
                    feedback = Feedback("spam", mail(f"{name}.{number}"), trust="admin")
                    assert caller.teach(feedback).state == "learnt"

        before = transactions(running.home)
        threads = [threading.Thread(target=teach, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = transactions(running.home) - before
    print(f"{8 * each} trainings of 8 clients in {made} transactions")
    assert made < 8 * each * 0.8


def transactions(home):
    """Number of the newest transaction."""
    with Filter.open(home, readonly=True, history=False) as model:
        return model.store.environment._env.info()["last_txnid"]


def test_without_a_model_it_says_so_and_finds_it_when_it_is_made(place):
    """Labels are refused with the reason, the status works, and no restart is needed."""
    (place / "m").mkdir()
    with learner(place / "m", place, model=False) as running:
        with pytest.raises(StoreMissingError):
            running.ask("teach", mail(1), label="spam")
        assert running.ask("status").header["status"]["model"] is None
        assert "no model" in running.ask("status").header["status"]["fault"]
        assert str(running.home) in running.ask("ping").header["fault"]
        Filter.open(running.home, create=True, recipe=new_recipe()).close()
        until(lambda: not running.ask("ping").header["fault"])
        assert running.ask("teach", mail(1), label="spam").header["state"] == "learnt"


def test_a_dump_of_another_filter_makes_the_missing_model(place):
    """An invalid dump makes none; a valid one is served at once, without a restart."""
    fields = {"format": "bogofilter", "label_ham": "ham", "label_spam": "spam", "most": 3000}
    (place / "m").mkdir()
    with learner(place / "m", place, model=False) as running:
        with pytest.raises(UserError, match="does not say"):
            running.ask("import", b"pills 3 0 20240101\n", **fields)
        assert not (running.home / "data.mdb").exists()
        dump = b".MSG_COUNT 2 3 20240101\npills 3 0 20240101\n"
        assert running.ask("import", dump, **fields).header["receipt"]["event"] == 1
        assert running.ask("ping").header["fault"] == ""


@needs_root
def test_only_an_administrator_gets_the_text_of_a_fault(place):
    """The text of a fault may contain paths: only an administrator gets it."""
    (place / "m").mkdir()
    with learner(place / "m", place, model=False) as running:

        def run():
            with ControlClient(running.path, LIMIT_S) as caller:
                return caller.ask("ping").header["fault"]

        assert as_user(NOBODY.pw_uid, run) == "see the log"


def test_with_a_damaged_model_it_lives_on(place):
    """The fault is logged once, and a repaired model is opened."""
    home = place / "m"
    train(home, [(side, str(SAMPLE / side)) for side in ("ham", "spam")], recipe=new_recipe())
    whole = (home / "data.mdb").read_bytes()
    (home / "data.mdb").write_bytes(b"\xff" * 8192 + whole[8192:])
    with learner(home, place) as running:
        with pytest.raises(StoreDamagedError):
            running.ask("teach", mail(1), label="spam")
        running.ask("reload", settings=False)
        warned = running.ask("status").header["status"]["warnings"]
        assert any("cannot be used" in warning for warning in warned)
        (home / "data.mdb").write_bytes(whole)
        running.ask("reload", settings=False)
        assert running.ask("teach", mail(1), label="spam").header["state"] == "learnt"
        assert running.log.read_text().count("training is not possible") == 1


def test_without_a_learner_clients_get_a_temporary_error(place):
    """The supervisor keeps the socket: a client waits for its limit and gets StoreBusyError."""
    with learner(place / "m", place) as running:
        assert running.end() == 0
        with running.caller(wait_s=0.2) as caller, pytest.raises(StoreBusyError):
            caller.ask("ping")


def test_after_sigterm_it_closes_the_store(running):
    """After SIGTERM it exits with 0, and another process can open the model."""
    running.ask("teach", mail(1), label="spam")
    os.kill(running.process.pid, signal.SIGTERM)
    running.process.join(LIMIT_S)
    assert running.process.exitcode == 0
    assert len(events(running.home)) == 3


# --- the spool --------------------------------------------------------------------------------


def leave(home, name, data, uid=None):
    path = home / "spool" / f".{name}"
    path.write_bytes(data)
    path.chmod(0o644)
    voucher = path.with_name(f".{name}.{path.stat().st_ino}")
    voucher.mkdir(0o755)
    for made in (path, voucher) if uid is not None else ():
        os.chown(made, uid, uid)
    path.rename(home / "spool" / name)


def test_what_was_left_while_it_was_away_is_learnt_once(place):
    """Files are learnt once, in order of arrival, and removed after that."""
    with learner(place / "m", place) as running:
        until((running.home / "spool").is_dir)
    for number in range(20):
        leave(place / "m", f"{number:02}.spam", mail(f"sp{number}"))
    place.joinpath("c.sock").unlink()
    with learner(place / "m", place, delegates=frozenset({os.geteuid()})) as running:
        until(lambda: running.ask("status").header["status"]["spool"]["waiting"] == 0)
        until(lambda: running.ask("status").header["status"]["counters"]["learned_spam"] == 20)
    found = [e for e in events(place / "m").values() if e.message_id.startswith("sp")]
    assert [e.message_id for e in sorted(found, key=lambda e: e.seq)] == [
        f"sp{number}@a.example" for number in range(20)
    ]
    assert {e.channel for e in found} == {"imap"}


@needs_root
def test_the_owner_of_a_spool_file_is_the_user(place):
    """A user's file counts for their own mail only, and never in another user's name."""
    home = place / "m"
    with learner(home, place) as running:
        mine, others = mail(1, "garden tools"), mail(2, "garden seeds")
        score(home, mine, to="nobody@example.org")
        score(home, others, to="alice@example.org")
        until((home / "spool").is_dir)
        head = b'{"for": "alice@example.org"}\n'
        leave(home, "1.spam", mine, NOBODY.pw_uid)
        leave(home, "2.spam", others, NOBODY.pw_uid)
        leave(home, "3.spam", head + others, NOBODY.pw_uid)
        (home / "spool" / "4.spam").symlink_to("/etc/shadow")
        os.mkfifo(home / "spool" / "5.spam")
        status = lambda: running.ask("status").header["status"]  # noqa: E731 - asked again
        until(lambda: status()["spool"] == {"waiting": 0, "set_aside": 2})
        until(lambda: status()["counters"]["learned_spam"] == 1)
        assert status()["review"] == 1
    assert {e.user for e in events(home).values()} == {"owner", "nobody"}


@needs_root
def test_a_file_of_roots_teaches_as_a_user_at_most(place):
    """No file counts as an admin's, neither one moved from a user's folder nor one of root."""
    home = place / "m"
    with learner(home, place) as running:
        until((home / "spool").is_dir)
        home.chmod(0o711)
        theirs = place / "theirs"
        theirs.mkdir()
        os.chown(theirs, NOBODY.pw_uid, NOBODY.pw_uid)
        head = b'{"for": "alice@example.org", "trust": "admin", "channel": "trap"}\n'
        for name, data in (("1.spam", mail(1)), ("2.spam", head + mail(2))):
            (theirs / name).write_bytes(data)
            target = home / "spool" / name
            moved = as_user(NOBODY.pw_uid, lambda a=theirs / name, b=target: a.rename(b))
            assert moved == str(target)
        leave(home, "3.spam", mail(3))
        leave(home, "4.spam", head + mail(4))
        status = lambda: running.ask("status").header["status"]  # noqa: E731 - asked again
        until(lambda: status()["spool"] == {"waiting": 0, "set_aside": 2})
        until(lambda: status()["review"] == 1)
        assert status()["counters"]["learned_spam"] == 0
    assert {e.user for e in events(home).values()} == {"owner"}


# --- cost -------------------------------------------------------------------------------------


@pytest.mark.timed
def test_a_correction_by_signature_is_cheap(place):
    """At most 5 ms of CPU in client and learner together."""
    home = place / "m"
    train(home, [(side, str(SAMPLE / side)) for side in ("ham", "spam")], recipe=new_recipe())
    raws = [path.read_bytes() for path in sorted((SAMPLE / "ham").iterdir())[:100]]
    signatures = [score(home, raw + b"\n.", to="alice@example.org") for raw in raws]
    with learner(home, place) as running, running.caller() as caller:
        labels = iter([Feedback("ham", b"", (ref,), "alice@example.org") for ref in signatures])

        def teach():
            for one in islice(labels, 20):
                assert caller.teach(one).state in ("learnt", "unchanged")

        teach()
        assert is_within(teach, 20 * 0.005, lambda: time.process_time() + used(running.process.pid))


def used(pid):
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_memory_does_not_grow_with_requests(running):
    """Memory grows by less than 10 MB over thousands of requests."""

    def held():
        text = Path(f"/proc/{running.process.pid}/statm").read_text()
        return int(text.split()[1]) * resource.getpagesize()

    raw = mail(1)
    with running.caller() as caller:
        for _ in range(200):
            caller.teach(Feedback("spam", raw, trust="admin"))
        before = held()
        for _ in range(800):
            caller.teach(Feedback("spam", raw, trust="admin"))
        assert held() - before < 10 << 20
