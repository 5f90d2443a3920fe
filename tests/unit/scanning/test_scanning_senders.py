"""Lists of senders in the mail path: what recipients get, alone and together."""

from dataclasses import replace
from functools import partial

import pytest
from support.history import recent
from support.scanning import ENVELOPE, fields

from spamnb.engine.filter import Filter
from spamnb.imap.sync import MailboxModel
from spamnb.mail.envelope import LocalHosts
from spamnb.policy.actions import ActionMap, ActionPolicy, PersonNames
from spamnb.policy.headers import as_block
from spamnb.policy.senders import ListOwner, SenderList
from spamnb.scan.access_lists import AccessLists, parse
from spamnb.scan.judge import SessionConfig
from spamnb.scan.scanner import ScanPolicy
from spamnb.settings.values import TeachingRules

POLICY = ScanPolicy(ActionPolicy(ActionMap("headers", "headers", "tag", "reject")))
NAMES = PersonNames(logins=frozenset({"b.example"}), served=frozenset({"b.example"}))
LOCAL = LocalHosts(hosts=("mx.example",), authserv_ids=("mx.example",))
BOB, CARL, DORA = "bob@b.example", "Carl+lists@B.example", "dora@b.example"
PASSED = (
    b"Authentication-Results: mx.example; spf=pass smtp.mailfrom=a.example\r\n"
    b"Received: by mx.example\r\n"
)
SENDER = ENVELOPE.sender


@pytest.fixture
def rig(scan_rig, home):
    return scan_rig(POLICY, plan=SessionConfig(home, persons=NAMES, local=LOCAL))


def put(rig, kind, name="", **words):
    """Set the words of senders: `bob(unwanted=SENDER)`."""
    rig.close()
    with Filter.open(rig.model_session.plan.home, history=False) as model:
        owner = ListOwner(kind, name, model.person(name))
        senders = SenderList(kind, name)
        for word, sender in words.items():
            senders = senders.put(sender, word, 1)
        model.store.transact(lambda view: view.put_senders(owner.key, senders))


def scan(rig, raw, *recipients, **request):
    return rig.scan(raw, replace(ENVELOPE, recipients=recipients), **request)


def test_a_wanted_sender_is_delivered_if_authentic(rig, surest):
    """The surest spam is delivered to the person who wants the sender, and to no other."""
    put(rig, "person", "bob", wanted=SENDER)
    raw = PASSED + surest["spam"]
    done = scan(rig, raw, BOB)
    assert (done.facts["decision"], done.facts["reason"]) == ("deliver", "wanted-by-person")
    assert done.facts["rule"] == SENDER
    headers = fields(as_block(done.add))
    assert headers["X-Spam-Flag"] == "NO"
    assert "reason=wanted-by-person" in headers["X-Spamnb-Verdict"].replace("\r\n", "")
    assert scan(rig, surest["spam"], BOB).facts["decision"] == "reject"
    assert scan(rig, raw, CARL).facts["decision"] == "reject"
    rig.close()
    with Filter.open(rig.model_session.plan.home) as model:
        notes = [entry.notes.get("list") for entry in recent(model.history, 3)]
    assert sorted(notes, key=str) == [None, None, "wanted-by-person"]


def test_an_unwanted_sender_is_junk_for_the_person_alone(rig, surest):
    """It is never refused for several recipients, unless each verdict says so."""
    put(rig, "person", "bob", unwanted="a.example")
    alone = scan(rig, surest["ham"], BOB, before_queue=True)
    assert (alone.facts["decision"], alone.facts["mail_action"]) == ("junk", "tag")
    both = scan(rig, surest["ham"], BOB, CARL, before_queue=True)
    assert (both.facts["decision"], both.action) == ("deliver", "relay")
    assert both.facts["rule"] == "a.example"
    assert "unwanted" not in as_block(both.add).decode()
    put(rig, "person", "carl", unwanted=SENDER)
    agreed = scan(rig, surest["ham"], BOB, CARL, before_queue=True)
    assert (agreed.facts["decision"], agreed.facts["mail_action"]) == ("junk", "tag")
    refused = scan(rig, surest["spam"], BOB, CARL, before_queue=True)
    assert refused.action == "refuse"


def test_headers_do_not_tell_of_the_lists_of_others(rig, surest):
    """A recipient sees the same headers with and without a hidden one who does not want it."""
    put(rig, "person", "dora", unwanted=SENDER)
    alone, hidden = (
        fields(as_block(scan(rig, surest["ham"], *recipients).add))
        for recipients in ((BOB,), (BOB, DORA))
    )
    del alone["X-Spamnb-Signature"], hidden["X-Spamnb-Signature"]
    assert hidden == alone


def test_lists_come_before_each_other(scan_rig, home, surest):
    """The files of the administrator, then the lists of person, domain and site, then the model."""
    plan = SessionConfig(home, persons=NAMES, local=LOCAL)
    rig = scan_rig(POLICY, plan=plan)
    put(rig, "site", unwanted=SENDER)
    reasons = [scan(rig, surest["ham"], one).facts["reason"] for one in (BOB, "x@c.example")]
    assert reasons == ["unwanted-by-site"] * 2
    assert scan(rig, surest["ham"]).facts["reason"] == "unwanted-by-site"
    put(rig, "domain", "b.example", wanted=SENDER)
    raw = PASSED + surest["ham"]
    reasons = [scan(rig, raw, one).facts["reason"] for one in (BOB, "x@c.example")]
    assert reasons == ["wanted-by-domain", "unwanted-by-site"]
    put(rig, "person", "bob", unwanted="a.example")
    reasons = [scan(rig, raw, one).facts["reason"] for one in (BOB, CARL)]
    assert reasons == ["unwanted-by-person", "wanted-by-domain"]
    rules = AccessLists(allow=parse(f"sender {SENDER} unauthenticated", "allow"))
    ruled = scan_rig(POLICY, plan=plan, rules=rules)
    assert scan(ruled, raw, BOB).facts["reason"] == "allow-sender"


def test_without_persons_the_lists_of_persons_do_not_count(scan_rig, home, surest):
    """Those of domains and of the site do."""
    rig = scan_rig(POLICY, plan=SessionConfig(home))
    put(rig, "person", "bob", unwanted=SENDER)
    assert scan(rig, surest["ham"], BOB).facts["reason"] == ""
    put(rig, "domain", "b.example", unwanted=SENDER)
    assert scan(rig, surest["ham"], BOB).facts["reason"] == "unwanted-by-domain"


def test_a_large_message_is_decided_by_lists(scan_rig, home, surest):
    """Also if another process scans it; a change counts from the next message on."""
    policy = replace(POLICY, large_bytes=100)
    rig = scan_rig(policy, plan=SessionConfig(home, persons=NAMES))
    assert scan(rig, surest["ham"], BOB).facts["decision"] == "deliver"
    put(rig, "person", "bob", unwanted=SENDER)
    assert scan(rig, surest["ham"], BOB).facts["decision"] == "junk"
    put(rig, "person", "bob")
    assert scan(rig, surest["ham"], BOB).facts["decision"] == "deliver"


def test_a_damaged_list_costs_the_lists_alone(rig, surest):
    """The recipients get their verdicts; the log says why."""
    put(rig, "person", "bob", unwanted=SENDER)
    rig.close()
    with Filter.open(rig.model_session.plan.home) as model, model.store.write() as view:
        key = b"senders " + ListOwner("person", id=model.person("bob")).key
        view._tables.meta.put(key, b"\1nonsense")
    assert scan(rig, surest["ham"], BOB).facts["decision"] == "deliver"
    assert "senders" in {record.get("where") for record in rig.records}


def test_many_recipients_with_lists_get_one_action(rig, surest):
    """A thousand recipients of a domain that does not want the sender: junk for all of them."""
    put(rig, "domain", "b.example", unwanted=SENDER)
    done = scan(rig, surest["ham"], *[f"u{number}@b.example" for number in range(1000)])
    assert (done.facts["decision"], done.facts["reason"]) == ("junk", "unwanted-by-domain")


def test_mail_of_a_mailbox_is_decided_by_the_lists_of_its_user(rig, home, surest):
    """What is read from an IMAP server follows the lists as mail in the mail path does."""
    opened = partial(Filter.open, home, readonly=True)
    mailbox = MailboxModel(rig.model_session, opened, TeachingRules())
    put(rig, "person", "bob", unwanted="a.example", wanted="x@friend.example")
    raw = b"Return-Path: <ann@a.example>\r\n" + surest["ham"]
    passed = (
        PASSED.replace(b"a.example", b"friend.example") + b"From: x@friend.example\r\n\r\nHi\r\n"
    )
    forged = b"From: x@friend.example\r\n\r\nHi\r\n"
    found = mailbox.judge([raw, passed, forged], BOB)
    assert [one.reason for one in found[:2]] == ["unwanted-by-person", "wanted-by-person"]
    assert [one.decision for one in found[:2]] == ["junk", "deliver"]
    assert found[2].reason == ""
    assert mailbox.judge([raw], CARL)[0].decision == "deliver"
