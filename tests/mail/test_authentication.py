"""Real verifiers in each place of the documentation: true results are believed, forged ones never.

OpenDKIM, OpenDMARC and rspamd are milters of a real Postfix; a policy service is a PREPEND.
"""

import email

import pytest
from support.authentication import BORDER, OPENDKIM, PLACES, UNPROVEN, Site
from support.forged_results import DOMAIN, VARIANTS, forged
from support.other_filters import needs_rspamd
from support.postfix import needs_rig
from support.verifiers import needs_opendkim, signed
from support.waiting import until

from spamnb import Filter
from spamnb.mail.message import read
from spamnb.policy.senders import evidence_of

pytestmark = [needs_rig, needs_opendkim, needs_rspamd]
BOSS = f"boss@{DOMAIN}"
GREETINGS = ("x by mx.example.org with LMTP", "x by mx.example.org with LMTP id 1", "by by by")
"""Postfix writes all words of a greeting into its Received field"""
IDENTITY = f"x=3B=20dkim=3Dpass=20header.d=3D{DOMAIN}=20header.z=3D@evil.example"
"""the tag i= of a true signature, which OpenDKIM copies without quotes"""
SENDER = f'"a); dkim=pass header.d={DOMAIN} (x"@evil.example'
"""rspamd quotes it within a comment"""


@pytest.fixture(params=[*PLACES, *UNPROVEN])
def site(request, tmp_path_factory):
    place = (PLACES | UNPROVEN)[request.param]
    with Site(place, tmp_path_factory.mktemp("auth")) as made:
        made.is_proven = request.param in PLACES
        yield made


def delivered(site, subject):
    """The one copy of a message, and what its verdict says."""
    tag = f"Subject: {subject}\n"
    (raw,) = until(lambda: site.rig.delivered("alice", tag), f"the delivery of {subject}")
    return raw, "".join(email.message_from_bytes(raw)["X-Spamnb-Verdict"].split())


def test_sixty_forged_results_and_a_true_one(site):
    """None of 60 is believed by the scan, nor in the mailbox; the true one is, where documented."""
    rig, place = site.rig, site.place
    for name in VARIANTS:
        rig.send(forged(name, f"forged {name} end"), ["alice@example.org"])
    sender = BOSS if place.policy else "stranger@example.net"
    rig.send(signed(forged("", "true"), DOMAIN), ["alice@example.org"], sender=sender)
    raw, verdict = delivered(site, "true")
    for number, greeting in enumerate(GREETINGS):
        more = forged("above a forged hop", f"greeting {number} end")
        rig.send(more, ["alice@example.org"], greeting=greeting)
    copied = signed(forged("", "copied end"), "evil.example", IDENTITY)
    rig.send(copied, ["alice@example.org"], sender=SENDER)
    got = {name: delivered(site, f"forged {name} end") for name in VARIANTS}
    got["copied"] = delivered(site, "copied end")
    if OPENDKIM in (*place.milters, *place.back):  # it has written this; a late border deletes it
        is_deleted = place.milters[-2:-1] == (BORDER,)
        assert (b"header.z=@evil.example" in got["copied"][0]) != is_deleted
    more = [f"greeting {number}" for number in range(len(GREETINGS))]
    got |= {name: delivered(site, f"{name} end") for name in more}
    rows = {row["signature"]: row["id"] for row in site.history()}
    with Filter.open(rig.daemon.home, readonly=True, local=site.local) as model:
        local = model.reader.local
        assert ("reason=allow-domain" in verdict) == (site.is_proven and not place.is_late)
        if site.is_proven:
            assert evidence_of(raw, local).is_authentic(BOSS)
        believed = [
            name
            for name, (one, said) in got.items()
            if "reason=allow" in said or evidence_of(one, local).is_authentic(BOSS)
        ]
        assert believed == []
        if place.way == "before":  # Postfix removes the NUL, after the scan
            del got["after a NUL"]
        for name, (one, _) in (got | {"true": (raw, verdict)}).items():
            signature = email.message_from_bytes(one)["X-Spamnb-Signature"]
            assert read(one, local).digest.hex() == rows[signature], name
