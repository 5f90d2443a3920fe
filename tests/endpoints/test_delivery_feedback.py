"""The feedback addresses: trusted senders, what is learnt, receipts."""

import queue
import threading
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart

import pytest
from support.delivery_agent import MESSAGE, files, logins, running_agent
from support.waiting import LIMIT_S

from spamnb.engine.filter import Filter
from spamnb.engine.scoring import score_batches
from spamnb.errors import PeerError, RefError, StoreBusyError
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.feedback.values import Answer
from spamnb.mail.message import read

SPAM = (
    b"From: s@spam.example\r\nTo: alice@x.example\r\nSubject: Cheap watches\r\n"
    b"Message-ID: <w1@spam.example>\r\n\r\nBuy cheap watches and replica bags today\r\n"
)
ALICE, BOB = "alice@x.example", "bob@x.example"
THANKS = "250 2.0.0 Report accepted, thank you"
NOTHING = "2.0.0 Received, but nothing was learnt from it"


def report(*messages, **fields):
    """A forward as attachment."""
    mail = MIMEMultipart()
    mail["From"], mail["Subject"], mail["Message-ID"] = ALICE, "Fwd", "<r1@x.example>"
    for name, value in fields.items():
        mail[name] = value
    for raw in messages:
        mail.attach(MIMEMessage(message_from_bytes(raw)))
    return mail.as_bytes(policy=policy.SMTP)


@pytest.fixture
def settings(tmp_path):
    return {
        "root": str(tmp_path / "mail"),
        "passwords": logins(tmp_path / "passwords", alice_at_x_example=("secret", ALICE, "a@y")),
        "plain_login": True,
        "hostname": "mx.x.example",
    }


def send(rig, raw, to="spam@x.example", sender=ALICE, **how):
    """Send a report; return the last reply. `login`: as alice; `xforward`: its parameters."""
    with rig.smtp() as client:
        client.ehlo()
        if how.get("login"):
            client.login(ALICE, "secret")
        if "xforward" in how:
            assert client.docmd("XFORWARD", how["xforward"])[0] == 250
        assert client.mail(sender)[0] == 250
        assert client.rcpt(to)[0] == 250
        code, text = client.data(raw)
        return f"{code} {text.decode()}"


# -- trust ----------------------------------------------------------------------------------------


LAN = {"trusted": ("192.0.2.0/24",)}
LOCAL = {"trust_local": True}
LOOP = {"trusted": ("127.0.0.0/8", "unix")}


@pytest.mark.parametrize(
    ("more", "how", "user", "trust"),
    [
        ({}, {"login": True}, ALICE, "user"),
        ({}, {"login": True, "sender": "A@Y"}, "a@y", "user"),
        ({}, {"login": True, "sender": BOB}, ALICE, "user"),
        ({}, {"login": True, "sender": ""}, ALICE, "user"),
        # other clients are not trusted by default
        ({}, {}, ALICE, "stranger"),
        ({}, {"xforward": "ADDR=192.0.2.7"}, ALICE, "stranger"),
        ({}, {"xforward": "ADDR=192.0.2.7 SOURCE=LOCAL"}, ALICE, "stranger"),
        # networks that were named, for clients that a peer names
        (LAN, {"xforward": "ADDR=192.0.2.7"}, ALICE, "user"),
        (LAN, {"xforward": "ADDR=198.51.100.7"}, ALICE, "stranger"),
        (LAN, {"xforward": "ADDR=[UNAVAILABLE]"}, ALICE, "stranger"),
        (LAN, {"xforward": "NAME=192.0.2.7"}, ALICE, "stranger"),
        (LAN, {"xforward": "ADDR=192.0.2.7", "sender": ""}, "", "stranger"),
        # loopback is never trusted, even if listed
        (LOOP, {}, ALICE, "stranger"),
        (LOOP | {"peers": ()}, {}, ALICE, "stranger"),
        (LOOP, {"xforward": "ADDR=127.0.0.1"}, ALICE, "stranger"),
        ({"trusted": ("::/0",)}, {"xforward": "ADDR=IPV6:::1"}, ALICE, "stranger"),
        ({"trusted": ("0.0.0.0/0",)}, {"xforward": "ADDR=::ffff:127.0.0.1"}, ALICE, "stranger"),
        # what Postfix calls local, if that was chosen
        (LOCAL, {"xforward": "ADDR=192.0.2.7 SOURCE=LOCAL"}, ALICE, "user"),
        (LOCAL, {"xforward": "ADDR=192.0.2.7 SOURCE=REMOTE"}, ALICE, "stranger"),
        (LOCAL, {"xforward": "ADDR=127.0.0.1 SOURCE=LOCAL"}, ALICE, "user"),  # a webmail's login
        (LOCAL, {"xforward": "ADDR=IPV6:::1 SOURCE=LOCAL"}, ALICE, "user"),
        (LOCAL, {"xforward": "ADDR=127.0.0.1 SOURCE=REMOTE"}, ALICE, "stranger"),
        (LOCAL, {"xforward": "ADDR=127.0.0.1"}, ALICE, "stranger"),
        (LOCAL | LOOP, {"xforward": "ADDR=127.0.0.1 SOURCE=REMOTE"}, ALICE, "stranger"),
        (LOCAL, {"xforward": "ADDR=[UNAVAILABLE] SOURCE=LOCAL"}, ALICE, "stranger"),
        (LOCAL, {"xforward": "SOURCE=LOCAL"}, ALICE, "stranger"),  # Postfix's sendmail command
        (LOCAL, {}, ALICE, "stranger"),
    ],
)  # fmt: skip
def test_sender_of_a_report(settings, more, how, user, trust):
    """Logins and clients of trusted networks are believed, From and MAIL FROM never.

    A loopback address is believed only where the mail server says that the client logged in.
    """
    with running_agent(**settings | more) as rig:
        reply = send(rig, report(SPAM), **how)
    assert reply[:9] == "250 2.0.0"
    (feedback,) = rig.taught
    assert (feedback.user, feedback.trust) == (user, trust)
    assert (feedback.label, feedback.channel) == ("spam", "address")
    assert read(feedback.raw).digest == read(SPAM).digest


def test_an_untrusted_client_cannot_name_another(settings):
    """XFORWARD by a client that is no peer is rejected, and the report is a stranger's."""
    more = {"peers": ("198.51.100.1",), "trusted": ("192.0.2.0/24",)}
    with running_agent(**settings | more) as rig, rig.smtp() as client:
        client.ehlo()
        assert client.docmd("XFORWARD", "ADDR=192.0.2.7")[0] == 550
        client.sendmail(ALICE, ["spam@x.example"], report(SPAM))
    assert [feedback.trust for feedback in rig.taught] == ["stranger"]


def test_a_client_is_named_for_one_message_only(settings):
    """XFORWARD names the client of the next message only, not of later ones."""
    with running_agent(**settings | {"trusted": ("192.0.2.0/24",)}) as rig, rig.smtp() as client:
        client.ehlo()
        client.docmd("XFORWARD", "ADDR=192.0.2.7")
        client.sendmail(ALICE, ["spam@x.example"], report(SPAM))
        client.sendmail(ALICE, ["spam@x.example"], report(SPAM))
    assert [feedback.trust for feedback in rig.taught] == ["user", "stranger"]


# -- labels and addresses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "label"),
    [("spam@x.example", "spam"), ("HAM@any.example", "ham"), ("Spam@x.example", "spam")],
)
def test_the_address_is_the_label(settings, to, label):
    """In any local domain and any case."""
    with running_agent(**settings) as rig:
        send(rig, report(SPAM, MESSAGE), to, login=True)
    assert [feedback.label for feedback in rig.taught] == [label] * 2


def test_the_addresses_can_be_named_otherwise(settings, tmp_path):
    """With other names, or none, spam@ is a mailbox like others."""
    with running_agent(**settings | {"spam": "junk", "ham": ""}) as rig:
        send(rig, report(SPAM), "junk@x.example")
        send(rig, report(SPAM), "spam@x.example")
        send(rig, report(SPAM), "ham@x.example")
    assert len(rig.taught) == 1
    assert len(files(tmp_path / "mail")) == 2


def test_a_report_goes_alone(settings):
    """A report has no other recipient in its transaction: the second one gets a 4xx."""
    with running_agent(**settings) as rig, rig.smtp() as client:
        client.ehlo()
        client.mail(ALICE)
        assert client.rcpt("spam@x.example")[0] == 250
        assert client.rcpt("bob@x.example") == (452, replied("A report must have"))
        assert client.rcpt("ham@x.example")[0] == 452
        client.rset()
        client.mail(ALICE)
        assert client.rcpt("bob@x.example")[0] == 250
        assert client.rcpt("spam@x.example")[0] == 452


def replied(text):
    return f"4.5.3 {text} no other recipient, send it separately".encode()


def test_a_report_of_nothing_teaches_nothing(settings):
    """The reply reports it; a stranger's mail is not rejected, because its sender may be forged."""
    with running_agent(**settings) as rig:
        assert send(rig, MESSAGE, login=True) == "250 2.0.0 nothing was learnt"
        assert send(rig, MESSAGE) == f"250 {NOTHING}"
    assert rig.taught == []
    assert rig.meters.value("feedback_refused") == 2
    assert rig.meters.value("reports") == 2


@pytest.mark.parametrize("trouble", [StoreBusyError("busy"), PeerError("gone"), OSError("x")])
def test_without_its_teacher_a_report_is_put_off(settings, trouble):
    """451, so the sender keeps it: no 250 before the answer is durable, and no 5xx for a fault."""
    with running_agent(**settings) as rig:
        rig.trouble = trouble
        assert send(rig, report(SPAM), login=True)[:9] == "451 4.3.0"
        rig.trouble = None
        assert send(rig, report(SPAM), login=True)[:9] == "250 2.0.0"
    assert rig.meters.value("faults") == rig.meters.value("deferred") == 1


def test_a_teacher_that_does_not_answer_is_not_waited_for(settings):
    """After the time limit the sender gets a temporary error."""
    late = threading.Event()
    with running_agent(**settings | {"teach_timeout_s": 0.2}) as rig:
        rig.teach = lambda _: late.wait(LIMIT_S)
        assert send(rig, report(SPAM), login=True)[:9] == "451 4.3.0"
        assert not late.is_set()
        late.set()


def test_mail_does_not_wait_for_a_slow_teacher(settings, tmp_path):
    """Deliveries and reports have separate threads."""
    late, start_child = threading.Event(), threading.Semaphore(0)

    def slow(_):
        start_child.release()
        assert late.wait(LIMIT_S)
        raise StoreBusyError("busy")

    with running_agent(**settings) as rig:
        rig.teach = slow
        reports = [threading.Thread(target=send, args=(rig, report(SPAM))) for _ in range(12)]
        for one in reports:
            one.start()
        assert all(start_child.acquire(timeout=LIMIT_S) for _ in range(8))
        assert send(rig, MESSAGE, to=ALICE, sender="x@a.example")[:3] == "250"
        assert len(files(tmp_path / "mail")) == 1
        late.set()
        for one in reports:
            one.join()


def test_reports_wait_in_bounds(settings, tmp_path):
    """64 reports may wait; a further one gets a 4xx, and mail is delivered meanwhile."""
    late, codes = threading.Event(), queue.SimpleQueue()

    def slow(_):
        assert late.wait(LIMIT_S)
        raise StoreBusyError("busy")

    def reported():
        codes.put(send(rig, report(SPAM))[:3])

    with running_agent(**settings) as rig:
        rig.teach = slow
        waiting = [threading.Thread(target=reported) for _ in range(64 + 6)]
        for one in waiting:
            one.start()
        assert [codes.get(timeout=LIMIT_S) for _ in range(6)] == ["451"] * 6
        assert send(rig, MESSAGE, to=ALICE, sender="x@a.example")[:3] == "250"
        assert len(files(tmp_path / "mail")) == 1
        late.set()
        for one in waiting:
            one.join()
        assert [codes.get(timeout=1) for _ in range(64)] == ["451"] * 64
        rig.teach = lambda _: Answer("unchanged", reason="known")
        assert send(rig, report(SPAM))[:3] == "250"


def test_what_is_refused_is_reported_and_not_tried_again(settings):
    """A report with an error of its sender gets a final reply, not a temporary error."""
    with running_agent(**settings) as rig:
        rig.trouble = RefError("no message is known by it")
        assert send(rig, report(SPAM), login=True) == "250 2.0.0 1 not learnt"
    assert rig.meters.value("faults") == 0


# -- receipts -------------------------------------------------------------------------------------


def receipts(tmp_path):
    return [
        message_from_bytes(path.read_bytes(), policy=policy.default)
        for path in files(tmp_path / "mail")
    ]


def test_a_receipt_tells_what_changed(settings, tmp_path):
    """A receipt has the result, the undo command, and headers that prevent automatic replies."""
    with running_agent(**settings) as rig:
        assert send(rig, report(SPAM), login=True) == "250 2.0.0 1 learnt"
    (receipt,) = receipts(tmp_path)
    assert receipt["Return-Path"] == "<>"
    assert receipt["To"] == ALICE
    assert receipt["Auto-Submitted"] == "auto-replied"
    assert receipt["In-Reply-To"] == "<r1@x.example>"
    text = receipt.get_content()
    assert "Cheap watches" in text
    assert "not taught -> spam; spam 25.00% -> 99.90%" in text
    assert "spamnb undo 1" in text


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, {}),
        ({}, {"login": True, "sender": ""}),
        ({"Auto-Submitted": "auto-replied"}, {"login": True}),
        ({"Precedence": "bulk"}, {"login": True}),
        ({"List-Id": "<l.x.example>"}, {"login": True}),
    ],
)
def test_strangers_and_programs_get_no_receipt(settings, tmp_path, fields, how):
    """The address of a stranger may be forged, and a program might answer."""
    with running_agent(**settings | {"trusted": ("192.0.2.0/24",)}) as rig:
        send(rig, report(SPAM, **fields), **how)
        send(rig, report(SPAM, **fields), **how | {"login": False, "xforward": "ADDR=192.0.2.7"})
    assert len(rig.taught) == 2
    assert receipts(tmp_path) == []


def test_a_hostile_subject_stays_in_its_line(settings, tmp_path):
    """A subject cannot add header fields or lines to a receipt."""
    evil = SPAM.replace(b"Cheap watches", b"=?utf-8?q?a=0d=0aBcc:_evil=1b[2J?=")
    with running_agent(**settings) as rig:
        send(rig, report(evil), login=True)
    (receipt,) = receipts(tmp_path)
    assert receipt["Bcc"] is None
    assert "* a Bcc: evil<U+001B>[2J" in receipt.get_content()


# -- with a real model ----------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    with Filter.open(tmp_path / "model", create=True) as made:
        for number in range(5):
            made.learn(b"Subject: hi\n\nhello friend, lunch at %d?\n" % number, "ham")
            made.learn(b"Subject: buy\n\npills and casino %d now\n" % number, "spam")
        yield made


@pytest.fixture
def feedback_service(model, tmp_path):
    return FeedbackService(model, ReviewQueue(tmp_path / "review"))


def scored(model, raw, to):
    """Score as the relay does; returns the message as it is delivered."""
    feature_batch = model.reader.feature_batch([raw])
    with model.store.read() as view:
        verdicts = score_batches(model.recipe, model.costs, view, [feature_batch])
    (verdict,) = model.remember([feature_batch], verdicts, [{"to": to}])
    return b"X-Spamnb-Signature: " + verdict.signature.encode() + b"\r\n" + raw


@pytest.fixture
def agent(settings, feedback_service):
    with running_agent(**settings) as rig:
        rig.teach = feedback_service.teach
        yield rig


def learnt(model, raw):
    return model.trained_label(raw)


def test_a_report_by_mail_is_learnt_before_its_reply(agent, model):
    """A user reports a delivered message as spam, then as ham; the model has each label."""
    kept = scored(model, SPAM, ALICE)
    before = model.score(SPAM, remember=False).probability
    assert send(agent, report(kept), login=True) == "250 2.0.0 1 learnt"
    assert learnt(model, SPAM) == "spam"
    assert model.score(SPAM, remember=False).probability > max(before, 0.5)
    assert send(agent, report(kept), login=True) == "250 2.0.0 1 no change"
    assert send(agent, report(kept), "ham@x.example", login=True) == "250 2.0.0 1 learnt"
    assert learnt(model, SPAM) == "ham"


def test_a_person_teaches_their_own_mail_only(agent, feedback_service, model):
    """A report on a message that was delivered to another user is queued for review."""
    kept = scored(model, SPAM, BOB)
    assert send(agent, report(kept), login=True) == "250 2.0.0 1 waits for review"
    assert learnt(model, SPAM) is None
    assert len(list(feedback_service.review_queue.entries())) == 1


def test_a_stranger_teaches_nothing(agent, feedback_service, model):
    """A stranger's report of their own message, or of one they sent here, is not learnt."""
    scored(model, SPAM, ALICE)
    replies = {MESSAGE: f"250 {NOTHING}", SPAM: f"250 {NOTHING}"}
    for raw in (report(SPAM), report(MESSAGE), MESSAGE, SPAM):
        for sender in ("s@spam.example", ALICE):
            assert send(agent, raw, sender=sender) == replies.get(raw, THANKS)
    assert learnt(model, SPAM) is None
    assert learnt(model, MESSAGE) is None
    assert all(entry.trust == "stranger" for entry in feedback_service.review_queue.entries())


def test_a_signature_proves_the_recipient(agent, model):
    """Without a login, a signature counts only for the address of the delivered message."""
    kept = scored(model, SPAM, ALICE)
    assert send(agent, report(kept), sender=BOB)[:3] == "250"
    assert learnt(model, SPAM) is None
    assert send(agent, report(kept), sender=ALICE)[:3] == "250"
    assert learnt(model, SPAM) == "spam"


def test_an_outsider_with_a_signature_teaches_nothing(agent, feedback_service, model):
    """A recipient at another site shows the signature of mail that was sent to them: no proof."""
    kept = scored(model, SPAM, "mallory@evil.example")
    for sender in ("mallory@evil.example", "mallory", "mallory@EVIL.example.", "bob@x.example"):
        assert send(agent, report(kept), sender=sender) == THANKS
    assert learnt(model, SPAM) is None
    assert {entry.trust for entry in feedback_service.review_queue.entries()} == {"stranger"}


def test_a_plain_forward_is_found_again(agent, model):
    """Quoted headers name the message: by signature, or by its id if the user logged in."""
    kept = scored(model, SPAM, ALICE)
    head = kept.split(b"\r\n\r\n")[0].decode()
    mail = EmailMessage()
    mail["Subject"] = "Fwd: Cheap watches"
    mail.set_content("is this spam?\n\n" + "\n".join(f"> {line}" for line in head.splitlines()))
    assert send(agent, mail.as_bytes(policy=policy.SMTP), sender=ALICE)[:3] == "250"
    assert learnt(model, SPAM) == "spam"
    other = SPAM.replace(b"w1@", b"w2@")
    scored(model, other, ALICE)
    mail = EmailMessage()
    mail.set_content("Message-ID: <w2@spam.example>\n")
    assert send(agent, mail.as_bytes(policy=policy.SMTP), sender=ALICE)[:3] == "250"
    assert learnt(model, other) is None
    assert send(agent, mail.as_bytes(policy=policy.SMTP), login=True) == "250 2.0.0 1 learnt"
    assert learnt(model, other) == "spam"


def test_a_resent_message_is_the_message(agent, model):
    """Redirected to spam@, it is learnt under the digest that it was scored with."""
    kept = scored(model, SPAM, ALICE)
    resent = (
        b"Resent-From: alice@x.example\r\nResent-To: spam@x.example\r\n"
        b"Resent-Message-ID: <r@x.example>\r\n" + kept
    )
    assert send(agent, resent, login=True) == "250 2.0.0 1 learnt"
    assert learnt(model, SPAM) == "spam"


def test_a_provider_reports_and_it_waits(agent, feedback_service, model):
    """An abuse report of an unverified provider is queued for review."""
    scored(model, SPAM, ALICE)
    arf = (
        b"From: fbl@isp.example\r\n"
        b"Content-Type: multipart/report; report-type=feedback-report; boundary=b\r\n\r\n"
        b"--b\r\n\r\nreport\r\n--b\r\nContent-Type: message/feedback-report\r\n\r\n"
        b"Feedback-Type: abuse\r\nVersion: 1\r\n\r\n--b\r\nContent-Type: message/rfc822\r\n\r\n"
        + SPAM + b"\r\n--b--\r\n"
    )  # fmt: skip
    assert send(agent, arf, sender="fbl@isp.example") == THANKS
    assert learnt(model, SPAM) is None
    (entry,) = feedback_service.review_queue.entries()
    assert (entry.channel, entry.label) == ("arf", "spam")
    feedback_service.accept(entry.name)
    assert learnt(model, SPAM) == "spam"
