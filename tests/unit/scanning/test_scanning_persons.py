"""Recipients with corrections of their own: what they get, alone and together."""

from dataclasses import replace

import pytest
from support.history import recent
from support.scanning import COSTS, ENVELOPE, HARSH, fields

from spamnb.engine.filter import Filter
from spamnb.engine.values import Learn, Source
from spamnb.model.costs import Costs, OwnCosts
from spamnb.policy.actions import ActionMap, ActionPolicy, PersonNames, RecipientCosts
from spamnb.policy.headers import as_block
from spamnb.scan.access_lists import AccessLists, parse
from spamnb.scan.judge import SessionConfig
from spamnb.scan.scanner import ScanPolicy
from spamnb.telemetry import now_us

NAMES = PersonNames(logins=frozenset({"b.example"}), served=frozenset({"b.example"}))
FILED = ("junk", "reject")
BOB, CARL, DORA = "bob@b.example", "Carl+lists@B.example", "dora@b.example"


def taught(home, raw, **labels):
    """Give the message these labels for these persons."""
    with Filter.open(home, costs=COSTS) as model:
        for name, label in labels.items():
            source = Source(name, "imap", immediate=True, person=model.person(name))
            (receipt,) = model.teach(
                [Learn(model.example(raw), model.label(label), source, now_us(), again=True)]
            )
            assert receipt.changed


def shared(home, raw):
    """The shared decision on a message."""
    with Filter.open(home, readonly=True, costs=COSTS) as model:
        return model.score(raw, remember=False).decision


def envelope(*recipients):
    return replace(ENVELOPE, recipients=recipients)


@pytest.fixture
def rig(scan_rig, home):
    return scan_rig(HARSH, plan=SessionConfig(home, persons=NAMES))


def flag(outcome):
    return fields(as_block(outcome.add))["X-Spam-Flag"]


def test_each_person_gets_their_own_verdict(rig, home, surest):
    """Two persons with opposite labels for one message each get theirs, all others the shared."""
    raw = surest["unsure"]
    taught(home, raw, bob="ham", carl="spam")
    assert rig.scan(raw, envelope(BOB)).facts["decision"] == "deliver"
    assert rig.scan(raw, envelope(CARL)).facts["decision"] in FILED
    assert rig.scan(raw, envelope(DORA)).facts["decision"] == shared(home, raw)
    rig.close()
    with Filter.open(home) as model:
        newest = {entry.notes["to"]: entry.decision for entry in recent(model.history, 3)}
    assert (newest[BOB], newest[CARL] in FILED) == ("deliver", True)


def test_a_message_is_handled_as_the_mildest_recipient_wants(rig, home, surest):
    """It is refused or kept only if all recipients' verdicts say so."""
    raw = surest["spam"]
    taught(home, raw, bob="ham", carl="spam", dora="spam")
    both = rig.scan(raw, envelope(BOB, CARL), before_queue=True)
    assert both.facts["decision"] == shared(home, raw)
    assert both.facts["mail_action"] == "headers"
    agreed = rig.scan(raw, envelope(CARL, DORA), before_queue=True)
    assert agreed.facts["decision"] in FILED
    assert agreed.facts["mail_action"] in ("quarantine", "reject")


def test_recipients_who_agree_have_their_verdict(rig, home, surest):
    """Headers show the verdict of several recipients if it is the same for each of them."""
    raw = surest["spam"]
    taught(home, raw, bob="ham", carl="ham")
    assert shared(home, raw) != "deliver"
    headers = fields(as_block(rig.scan(raw, envelope(BOB, CARL)).add))
    assert headers["X-Spam-Flag"] == "NO"


def test_headers_do_not_tell_of_other_recipients(rig, home, surest):
    """A recipient sees the same headers with and without a hidden one who taught something."""
    raw = surest["unsure"]
    taught(home, raw, dora="ham")
    alone, hidden = (
        fields(as_block(rig.scan(raw, envelope(*recipients)).add))
        for recipients in ((BOB,), (BOB, DORA))
    )
    del alone["X-Spamnb-Signature"], hidden["X-Spamnb-Signature"]
    assert hidden == alone


def test_large_messages_have_personal_verdicts(scan_rig, home, surest):
    """A scan process answers with the verdicts of the recipients."""
    raw = surest["unsure"]
    taught(home, raw, carl="spam")
    policy = replace(HARSH, large_bytes=100)
    one = scan_rig(policy, plan=SessionConfig(home, persons=NAMES, clues=3))
    outcome = one.scan(raw, envelope(CARL))
    assert outcome.facts["decision"] in FILED
    assert "X-Spamnb-Clues" in fields(as_block(outcome.add))


def test_without_persons_all_get_the_shared_verdict(scan_rig, home, surest):
    """The corrections of persons have no effect while persons are not enabled."""
    raw = surest["unsure"]
    taught(home, raw, bob="ham", carl="spam")
    one = scan_rig(HARSH)
    decisions = {one.scan(raw, envelope(who)).facts["decision"] for who in (BOB, CARL, DORA)}
    assert decisions == {shared(home, raw)}


def test_damaged_corrections_cost_the_personal_verdict_alone(rig, home, surest):
    """A person with unreadable corrections is judged by the shared model; the log says so."""
    raw = surest["spam"]
    taught(home, raw, bob="ham")
    with Filter.open(home) as model, model.store.write() as view:
        view._tables.meta.put(b"person " + model.person("bob").to_bytes(8), b"\0\7")
    outcome = rig.scan(raw, envelope(BOB))
    assert outcome.facts["decision"] == shared(home, raw) != "deliver"
    assert "persons" in {record.get("where") for record in rig.records}


PATIENT = Costs(junk=(1e9, 0.05), reject=(1e9, 0.0))
"""never files a message"""
STRICT = Costs(unsure=(0.001, 0.9), junk=(0.001, 0.05), reject=(1e9, 0.0))
"""files all that is not surely ham"""


def with_own(scan_rig, home, names=NAMES, policy=HARSH):
    """A scanner where bob never gets mail filed, and carl and all of c.example nearly always."""
    costs = RecipientCosts(
        persons={
            "bob": OwnCosts("person.bob", PATIENT),
            "carl": OwnCosts("person.carl", STRICT),
        },
        domains={
            "b.example": OwnCosts("domain.b.example", PATIENT),
            "c.example": OwnCosts("domain.c.example", STRICT),
        },
    )
    return scan_rig(policy, plan=SessionConfig(home, persons=names, recipient_costs=costs))


def decision(rig, raw, *recipients):
    return rig.scan(raw, envelope(*recipients), before_queue=True).facts["decision"]


def test_recipients_with_own_costs_get_their_own_decision(scan_rig, home, surest):
    """A person's costs come before those of the domain; other domains have those of the model."""
    rig, raw = with_own(scan_rig, home), surest["unsure"]
    assert decision(rig, raw, BOB) == "unsure"
    assert decision(rig, raw, CARL) == "junk"
    assert decision(rig, surest["spam"], DORA) == "unsure"
    assert decision(rig, raw, "eve@c.example") == "junk"
    assert decision(rig, raw, "eve@d.example") == shared(home, raw)


def test_the_mildest_costs_of_all_recipients_decide_what_is_done(scan_rig, home, surest):
    """Recipients with different costs get the shared headers and the mildest action."""
    tagged = ScanPolicy(ActionPolicy(ActionMap("headers", "headers", "tag", "tag")))
    rig, raw = with_own(scan_rig, home, policy=tagged), surest["spam"]
    both = rig.scan(raw, envelope(BOB, CARL), before_queue=True)
    assert both.facts["decision"] == shared(home, raw)
    assert both.facts["mail_action"] == "headers"
    alone = rig.scan(raw, envelope(CARL), before_queue=True)
    assert (alone.facts["decision"], alone.facts["mail_action"]) == ("junk", "tag")


def test_own_costs_decide_on_corrected_verdicts(scan_rig, home, surest):
    """A label that files a message for a person does not file it against the person's costs."""
    raw = surest["unsure"]
    taught(home, raw, dora="ham", bob="spam")
    assert decision(scan_rig(HARSH, plan=SessionConfig(home, persons=NAMES)), raw, BOB) in FILED
    rig = with_own(scan_rig, home)
    assert decision(rig, raw, BOB) == "unsure"
    assert decision(rig, raw, DORA) == "deliver"


def test_the_costs_of_domains_need_no_persons(scan_rig, home, surest):
    """The costs of a domain hold while persons are not enabled."""
    rig = with_own(scan_rig, home, names=None)
    assert decision(rig, surest["spam"], BOB) == "unsure"
    assert decision(rig, surest["unsure"], "eve@c.example") == "junk"


def test_a_scan_process_uses_own_costs(scan_rig, home, surest):
    """The decision on a large message follows from the recipient's costs, too."""
    raw = surest["spam"]
    costs = RecipientCosts(domains={"b.example": OwnCosts("domain.b.example", PATIENT)})
    policy = replace(HARSH, large_bytes=100)
    rig = scan_rig(policy, plan=SessionConfig(home, recipient_costs=costs))
    assert decision(rig, raw, BOB, CARL) == "unsure"


def test_a_blocked_sender_is_refused_for_persons_too(scan_rig, home, surest):
    """The administrator's block list holds for each of several recipients, whatever they taught."""
    raw = surest["unsure"]
    taught(home, raw, bob="ham")
    rules = AccessLists(block=parse("sender ann@a.example", "block"))
    one = scan_rig(HARSH, plan=SessionConfig(home, persons=NAMES), rules=rules)
    outcome = one.scan(raw, envelope(BOB, CARL), before_queue=True)
    assert (outcome.action, outcome.facts["reason"]) == ("refuse", "block-sender")
