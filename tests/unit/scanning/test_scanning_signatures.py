"""Only mail to recipients at this site gets a signature, since it permits corrections."""

from dataclasses import replace

import pytest
from support.scanning import ENVELOPE, fields

from spamnb.mail.envelope import Client, LocalDomains, address_of, domain_of, domains_of
from spamnb.policy.actions import ActionMap, ActionPolicy
from spamnb.policy.headers import as_block
from spamnb.scan.scanner import ScanPolicy

SITE = domains_of(["b.example", "B\u00fccher.example."])
OWN = "198.51.100.7"
SIGNATURE = "X-Spamnb-Signature"


@pytest.mark.parametrize(
    ("policy", "client", "to", "has"),
    [
        # a listener on trial keeps the signature of what comes in
        ({"observe": True}, "192.0.2.7", "bob@b.example", True),
        ({"observe": True}, "192.0.2.7", "bob@elsewhere.example", True),
        # what own clients send out has none, on trial or not
        ({}, OWN, "eve@out.example", False),
        ({"observe": True}, OWN, "eve@out.example", False),
        # nor has what reaches an outsider beside a colleague: they could write in his name
        ({"served": LocalDomains(SITE)}, OWN, "bob@b.example eve@out.example", False),
        ({"served": LocalDomains(SITE)}, OWN, "bob@b.example", True),
        ({"served": LocalDomains(SITE)}, OWN, "Bob+x@B.EXAMPLE. carl@b\u00fccher.example", True),
        ({"served": LocalDomains(SITE)}, OWN, "bob@b.example.out.example", False),
        ({"served": LocalDomains(SITE)}, OWN, '"bob@b.example"@out.example', False),
        # from elsewhere all is taken to come in, unless every domain of the site is named
        ({"served": LocalDomains(SITE)}, "192.0.2.7", "bob@other.example", True),
        ({"served": LocalDomains(SITE, complete=True)}, "192.0.2.7", "bob@other.example", False),
        ({"served": LocalDomains(SITE, complete=True)}, "192.0.2.7", "bob@b.example", True),
        # a next hop that holds the mailboxes sends nothing on
        ({"served": LocalDomains(final=True)}, OWN, "bob@b.example", True),
    ],
)
def test_mail_to_other_sites_gets_no_signature(scan_rig, surest, policy, client, to, has):
    """With a signature an outside recipient could prove ownership and teach."""
    one = scan_rig(ScanPolicy(own_clients=("198.51.100.0/24",), **policy))
    envelope = replace(ENVELOPE, client=Client(address=client), recipients=tuple(to.split()))
    outcome = one.scan(surest["ham"], envelope)
    assert (SIGNATURE in fields(as_block(outcome.add))) is has
    assert bool(outcome.facts["signature"]) is has


def test_local_mail_to_other_sites_gets_no_signature(scan_rig, surest):
    """Mail that Postfix reports as local is observed, unless scan.local is enforce."""
    local = replace(ENVELOPE, client=Client(source="LOCAL"))
    assert SIGNATURE not in fields(as_block(scan_rig(ScanPolicy()).scan(surest["ham"], local).add))
    judged = scan_rig(ScanPolicy(local="enforce")).scan(surest["ham"], local)
    assert SIGNATURE in fields(as_block(judged.add))


def test_what_is_kept_for_another_site_is_released_without_a_signature(scan_rig, surest):
    """The quarantine writes the line of its notes, so there is none in them."""
    kept = []

    class Keeper:
        def keep(self, raw, _, facts):
            kept.append((raw, dict(facts)))
            return "k1"

        def delete(self, identity):
            raise AssertionError(identity)

    action_policy = ActionPolicy(ActionMap("headers", "headers", "quarantine", "quarantine"))
    policy = ScanPolicy(action_policy, served=LocalDomains(SITE, complete=True))
    scan_rig(policy, quarantine=Keeper()).scan(surest["spam"])
    ((raw, facts),) = kept
    assert (SIGNATURE.encode() in raw, facts["signature"]) == (False, "")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Bob@B.example", "bob@b.EXAMPLE.", True),
        ("bob+list@b.example", "bob@b.example", True),
        ('"bob"@b.example', "bob@b.example", True),
        ('"b\\ob"@b.example', "bob@b.example", True),
        ("bob@B\u00dcCHER.example", "bob@xn--bcher-kva.example", True),
        ("bob@b.example", "bob@c.b.example", False),
        ("\u212ate@b.example", "kte@b.example", False),
        ('"bob@b.example"@c.example', "bob@b.example", False),
        ("+bob@b.example", "+eve@b.example", False),
    ],
)
def test_which_addresses_are_one_mailbox(one, other, same):
    """Case, quotes, a delimiter, a dot and the script of a domain make no other mailbox."""
    assert (address_of(one) == address_of(other)) is same


@pytest.mark.parametrize(
    ("address", "domain"),
    [("a@b", "b"), ("a", ""), ("", ""), ("a@", ""), ("<a@B.>", "b"), ("a@\ud800", "\ud800")],
)
def test_the_domain_of_an_address(address, domain):
    """In one form, and without a failure."""
    assert domain_of(address) == domain
