"""Corrections by reference, on any host of a fleet, of verdicts that any host has given."""

import threading
from contextlib import suppress
from dataclasses import replace

import pytest
from support.fleet import everything
from support.fleet_storm import letter
from support.outbox_host import OutboxHost
from support.waiting import LIMIT_S

from spamnb.engine.filter import new_recipe
from spamnb.errors import LogAwayError
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Feedback
from spamnb.fleet import elsewhere, waiting
from spamnb.fleet.elsewhere import AllHosts
from spamnb.fleet.log import MemoryLog, host_mark
from spamnb.fleet.outbox import OutboxReader
from spamnb.fleet.pulse import Pulse
from spamnb.fleet.waiting import answer_next
from spamnb.model.verdict import signature_bytes
from spamnb.records.verdicts import History
from spamnb.settings.values import TeachingRules

NAMES = ("a", "b", "c")
ANN = "ann@a.example"
RULES = TeachingRules(served=frozenset({"a.example"}))
RECIPE = new_recipe()


class Judge(OutboxHost):
    """A host that gives verdicts, answers the others, and takes corrections."""

    def __init__(self, home, log, name):
        super().__init__(home, log, RECIPE, name)
        self.model.history = History.open(home / "history")
        self.model.host_mark = host_mark(name)
        self.service = FeedbackService(
            self.model, ReviewQueue(home / "review"), RULES, hosts=AllHosts(self.model, RULES)
        )
        self.beat()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._answer)
        self.thread.start()

    def beat(self):
        Pulse(self.home, self.model.store).beat()

    def _answer(self):
        while not self.stopped.is_set():
            with suppress(LogAwayError):
                answer_next(self.model.store.member, self.model.history, 0.1)

    def stop(self):
        self.stopped.set()
        self.thread.join(LIMIT_S)

    def judge(self, raw, to=ANN):
        """Judge a message as a worker does; return its references."""
        batch = self.model.reader.feature_batch([raw])
        verdicts = self.model.score_batches([batch])
        (verdict,) = self.model.remember([batch], verdicts, [{"to": to}])
        self.model.history.flush()
        mid = f"<{verdict.message_id}>"
        return {"signature": verdict.signature, "digest": verdict.digest.hex(), "mid": mid}

    def teach(self, ref, label="spam", *, user=ANN, trust="user", raw=b""):
        refs = (ref,) if ref else ()
        return self.service.teach(Feedback(label, raw, refs, user=user, trust=trust))


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Three hosts that know a ham and a spam; they have time to answer."""
    monkeypatch.setattr(waiting, "ASK_S", LIMIT_S)
    log = MemoryLog()
    found = [Judge(tmp_path / name, log, name) for name in NAMES]
    found[0].model.learn(letter("h", 0), "ham")
    found[0].model.learn(letter("s", 1), "spam")
    yield found
    for host in found:
        host.stop()
    for host in found:
        host.model.close()


def equal(hosts):
    for host in hosts:
        host.model.store.follow()
    found = [everything(host.model.store) for host in hosts]
    return all(one == found[0] for one in found)


@pytest.mark.parametrize("kind", ["signature", "digest", "mid"])
def test_a_verdict_of_any_host_is_corrected_on_any_host(hosts, kind):
    """By each kind of reference, on each host, for verdicts of each; all hosts learn it."""
    for judging in hosts:
        for asked in hosts:
            raw = letter(f"{judging.name}{asked.name}", 0)
            answer = asked.teach(judging.judge(raw)[kind])
            assert (answer.state, answer.receipt.after) == ("learnt", "spam"), answer.reason
            assert asked.model.trained_label(raw) == "spam"
    assert equal(hosts)


def test_a_signature_names_its_host(hosts, monkeypatch):
    """Only the host that gave the signature is asked; other references are asked of all."""
    first, second, _ = hosts
    asked = []
    run = first.log._log.ask
    monkeypatch.setattr(
        first.log._log, "ask", lambda hosts, *rest: asked.append(list(hosts)) or run(hosts, *rest)
    )
    refs = second.judge(letter("x", 0))
    assert signature_bytes(refs["signature"])[:2] == host_mark("b")
    for kind in ("signature", "digest"):
        assert first.teach(refs[kind], "ham" if kind == "digest" else "spam").state == "learnt"
    assert first.teach("", raw=letter("y", 0), trust="admin").state == "learnt"
    assert asked[0] == ["b"]
    assert all(one == ["b", "c"] for one in asked[1:])


def test_rights_are_checked_with_the_entry_of_the_judging_host(hosts):
    """A stranger needs the signature, a user the delivery; an administrator needs neither."""
    first, second, _ = hosts
    refs = second.judge(letter("x", 0), to="ann@a.example bob@a.example")
    for user, trust, kind in [
        ("eve@a.example", "user", "signature"),
        ("eve@a.example", "stranger", "signature"),
        (ANN, "stranger", "digest"),
        (ANN, "stranger", "mid"),
    ]:
        answer = first.teach(refs[kind], user=user, trust=trust)
        assert answer.state != "learnt", (user, trust, kind)
        assert first.model.trained_label(letter("x", 0)) is None
    assert first.teach(refs["signature"], trust="stranger").state == "learnt"
    assert first.teach(refs["mid"], "ham", user="bob@a.example").state == "learnt"
    assert first.teach(refs["digest"], "spam", user="root", trust="admin").state == "learnt"
    assert equal(hosts)


def test_what_no_host_knows_is_refused(hosts):
    """If all hosts answer that they do not know a message, the correction is refused at once."""
    unknown = hosts[1].judge(letter("x", 0))
    for ref in (unknown["signature"][:-3] + "aaa", "0" * 32, "<none@a.example>"):
        answer = hosts[0].teach(ref)
        assert (answer.state, answer.receipt) == ("refused", None)
        assert hosts[0].teach(ref, trust="admin", user="root").state == "refused"
    assert hosts[0].waiting == 0


def dead(host, hosts):
    """Stop a host; the others see after a while that it does not beat."""
    host.stop()
    log = host.log._log
    made, beat = log._beats[host.name]
    log._beats[host.name] = made - 100, beat
    for other in hosts:
        if other is not host:
            other.beat()


def back(host):
    """Let a stopped host answer and beat again."""
    host.stopped.clear()
    host.thread = threading.Thread(target=host._answer)
    host.thread.start()
    host.beat()


@pytest.mark.parametrize("kind", ["signature", "digest", "mid"])
def test_a_correction_waits_for_the_host_that_gave_the_verdict(hosts, kind):
    """While the judging host is away the correction waits; it is learnt when it is back."""
    first, second, _ = hosts
    raw = letter("x", 0)
    refs = second.judge(raw)
    dead(second, hosts)
    answer = first.teach(refs[kind])
    assert (answer.state, answer.receipt.waiting) == ("waiting", 1), answer.reason
    assert "b" in answer.reason
    assert (first.waiting, OutboxReader(first.home).waiting()) == (1, 1)
    assert first.service.ask_again() == []
    back(second)
    assert [one.state for one in first.service.ask_again()] == ["learnt"]
    assert (first.waiting, first.model.trained_label(raw)) == (0, "spam")
    assert equal(hosts)


def test_a_host_with_another_name_is_asked_for_its_older_verdicts(hosts):
    """Its old beat is silent, so its signatures name a host that never answers."""
    first, second, _ = hosts
    raw = letter("x", 0)
    refs = second.judge(raw)
    dead(second, hosts)
    member = second.model.store.member._replace(host="renamed")
    second.model.store.member = member
    back(second)
    assert first.teach(refs["signature"], trust="stranger").state == "waiting"
    assert first.teach(refs["signature"]).state == "learnt"
    assert first.model.trained_label(raw) == "spam"


@pytest.mark.parametrize("forget", [False, True])
def test_a_later_label_wins_over_a_correction_that_waited(hosts, forget):
    """The user labels the message itself meanwhile: the older label is not learnt after it.

    Also not if the user has taken the later label back: it was the last word.
    """
    first, second, _ = hosts
    raw = letter("x", 0)
    refs = second.judge(raw)
    dead(second, hosts)
    assert first.teach(refs["signature"], "spam").state == "waiting"
    assert first.teach("", "ham", raw=raw, trust="admin").state == "learnt"
    if forget:
        assert first.teach("", "", raw=raw, trust="admin").state == "learnt"
    back(second)
    (answer,) = first.service.ask_again()
    assert (answer.state, "labelled again" in answer.reason) == ("refused", True)
    assert (first.waiting, first.model.trained_label(raw)) == (0, None if forget else "ham")
    assert equal(hosts)


def test_a_correction_of_a_host_that_stays_away_is_refused_after_a_day(hosts, monkeypatch):
    """The reason names the host; a stranger's or a wrong user's correction waits, too."""
    first, second, _ = hosts
    refs = second.judge(letter("x", 0))
    dead(second, hosts)
    assert first.teach(refs["signature"]).state == "waiting"
    assert first.teach(refs["signature"], trust="stranger").state == "waiting"
    today = elsewhere.now_us()
    monkeypatch.setattr(elsewhere, "now_us", lambda: today + 86_401_000_000)
    answers = first.service.ask_again()
    assert [(one.state, "from b" in one.reason) for one in answers] == [("refused", True)] * 2
    assert first.waiting == 0


def test_a_waiting_correction_can_be_taken_back(hosts):
    """Its user and an administrator take it back, and no other user; numbers are not reused."""
    first, second, _ = hosts
    refs = second.judge(letter("x", 0))
    dead(second, hosts)
    numbers = [first.teach(refs[kind]).receipt.waiting for kind in ("signature", "mid")]
    assert numbers == [1, 2]
    eve = Feedback("", user="eve", trust="user")
    assert first.service.take_back(1, eve).state == "refused"
    assert first.service.take_back(1, replace(eve, user=ANN)).state == "unchanged"
    assert first.service.take_back(2, replace(eve, trust="admin")).state == "unchanged"
    assert first.waiting == 0
    assert first.teach(refs["digest"]).receipt.waiting == 3


def test_a_host_that_cannot_ask_keeps_the_correction(hosts):
    """Without the log no host can be asked: the correction waits, and is learnt afterwards."""
    first, second, _ = hosts
    raw = letter("x", 0)
    refs = second.judge(raw)
    first.log.away = True
    assert first.teach(refs["signature"]).state == "waiting"
    with pytest.raises(LogAwayError):
        first.service.ask_again()
    first.log.away = False
    assert [one.state for one in first.service.ask_again()] == ["learnt"]
    assert first.model.trained_label(raw) == "spam"


def test_a_message_needs_no_answer(hosts):
    """A correction with the message is not kept for hosts that are away."""
    first, second, _ = hosts
    raw = letter("x", 0)
    second.judge(raw)
    dead(second, hosts)
    assert first.teach("", raw=raw, trust="admin", user="root").state == "learnt"
    assert first.teach("", raw=letter("y", 0)).state == "review"
    assert first.waiting == 0


def test_many_questions_are_tried_in_several_passes(hosts, monkeypatch):
    """A pass ends after its time, and the next one begins behind it: none waits for ever."""
    first, second, _ = hosts
    letters = [letter("x", number) for number in range(3)]
    refs = [second.judge(raw)["signature"] for raw in letters]
    dead(second, hosts)
    assert {first.teach(ref).state for ref in refs} == {"waiting"}
    back(second)
    monkeypatch.setattr(elsewhere, "PASS_S", -1.0)
    tried = []
    run = first.service._hosts._tried
    with monkeypatch.context() as silent:  # the host lives, and says nothing
        silent.setattr(second.log._log, "answer", lambda *_: None)
        silent.setattr(waiting, "ASK_S", 0.01)
        silent.setattr(
            first.service._hosts, "_tried", lambda one: tried.append(one.number) or run(one)
        )
        for _ in range(4):
            assert first.service.ask_again() == []
    assert tried == [1, 2, 3, 1]
    done = [len(first.service.ask_again()) for _ in range(3)]
    assert (done, first.waiting) == ([1, 1, 1], 0)


def test_a_full_outbox_keeps_its_questions(hosts):
    """A question that is known already is noted again, however full the outbox is."""
    first, second, _ = hosts
    refs = second.judge(letter("x", 0))
    dead(second, hosts)
    assert first.teach(refs["signature"]).state == "waiting"
    outbox = first.service._hosts._outbox
    outbox._limit_bytes = 0
    (question,) = outbox.questions()
    assert outbox.put_question(question._replace(hosts=("c",))) == question.number
    assert outbox.questions()[0].hosts == ("c",)
    with pytest.raises(LogAwayError):
        outbox.put_question(question._replace(number=0))
