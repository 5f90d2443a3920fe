"""Which results of authentication are believed: by their place, by a border, by a list."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.forged_results import AR, DKIM, DOMAIN, HOP, SITE, VARIANTS, forged

from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import parted, read
from spamnb.mail.site_results import border_mark
from spamnb.policy.headers import header_end, placed, remove_claims, remove_forged
from spamnb.policy.senders import SenderEvidence, evidence_of

LOCAL = LocalHosts(hosts=(SITE, "store.example.org"), authserv_ids=(SITE,)).keyed(b"k" * 32)
FORGED_AR = f"{AR}{DKIM}\r\n".encode()
TRUE_AR = FORGED_AR
"""a verifier writes the same: only the place differs"""
RECEIVED = f"Received: from evil.example ([192.0.2.66])\r\n\tby {SITE} (Postfix) with ESMTP id 4A"
RECEIVED = f"{RECEIVED};\r\n\tMon, 5 Jan 2026 10:00:00 +0000\r\n".encode()
LMTP = b"Received: from mx.example.org\r\n\tby store.example.org with LMTP\r\n\tid xYz; now\r\n"
BACK = (
    b"Received: from localhost (localhost [127.0.0.1])\r\n\tby mx.example.org (Postfix) with ESMTP"
    b" id 5B; now\r\n"
)
MAIL = forged("", "true")
QUEUE = b"4A"


def is_believed(raw, local=LOCAL):
    """Whether the author is authentic, and whether the model sees a result; they must agree."""
    author = evidence_of(raw, local).is_authentic(f"boss@{DOMAIN}")
    seen = b"authentication-results" in dict(read(raw, local).headers)
    assert author == seen
    return author


def bordered(raw, queue=QUEUE, local=LOCAL):
    """A message as the border milter marks it."""
    mark = border_mark(*parted(raw, local, set()), local, queue)
    return f"X-Spamnb-Border: {mark}\r\n".encode() + raw


def listed(raw, local=LOCAL):
    """A message with the list that its scan writes."""
    return f"X-Spamnb-Results: {evidence_of(raw, local).statement}\r\n".encode() + raw


def in_milter(raw, queue="4A"):
    """A message as a milter's scan reads it."""
    return placed(raw, raw.index(b"\r\n\r\n") + 4, queue)[0]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "way",
    [
        lambda raw: RECEIVED + raw,
        lambda raw: LMTP + RECEIVED + raw,
        lambda raw: BACK + b"X-Spam-Flag: NO\r\n" + RECEIVED + raw,
        in_milter,
        lambda raw: in_milter(bordered(raw)),
        lambda raw: RECEIVED + bordered(raw),
    ],
    ids=["queue", "stored", "returned", "milter", "behind a border", "queue behind a border"],
)
def test_no_forged_field_is_believed(name, way):
    """Sixty variants on each way, with neither a border nor a list, or below a true border."""
    assert not is_believed(way(forged(name, name)))


@pytest.mark.parametrize(
    "raw",
    [
        TRUE_AR + RECEIVED + MAIL,
        LMTP + TRUE_AR + RECEIVED + MAIL,
        RECEIVED + TRUE_AR + bordered(MAIL),
        LMTP + RECEIVED + b"X-Spam-Flag: NO\r\n" + TRUE_AR + bordered(MAIL),
        in_milter(TRUE_AR + bordered(MAIL)),
        LMTP + BACK + listed(TRUE_AR + RECEIVED + MAIL),
        BACK + listed(RECEIVED + TRUE_AR + bordered(MAIL)),
        listed(in_milter(TRUE_AR + bordered(MAIL))),
    ],
)
def test_a_true_result_is_believed(raw):
    """Above the MTA's hop, above the border, or by the list that the scan wrote."""
    assert is_believed(raw)


@pytest.mark.parametrize("change", ["key", "site", "name"])
def test_other_names_and_other_keys_prove_nothing(change):
    """Without the key a border is void; without the names nothing counts."""
    raw = RECEIVED + TRUE_AR + bordered(MAIL)
    other = {
        "key": LOCAL._replace(key=b"x" * 32),
        "site": LOCAL._replace(hosts=("other.example",)),
        "name": LOCAL._replace(authserv_ids=("other.example",)),
    }[change]
    assert not is_believed(raw, other)


def test_a_border_is_of_one_message_in_one_queue_file():
    """A stranger who sees a true border cannot use it again, with this message or another."""
    border = re.match(rb"X-Spamnb-Border: [^\r]+\r\n", bordered(MAIL))[0]
    assert is_believed(in_milter(FORGED_AR + border + MAIL))
    assert not is_believed(in_milter(FORGED_AR + border + MAIL, "4B"))
    assert not is_believed(in_milter(FORGED_AR + border + MAIL, ""))
    assert not is_believed(RECEIVED.replace(b"id 4A", b"id 4B") + FORGED_AR + border + MAIL)
    assert not is_believed(in_milter(FORGED_AR + border + MAIL.replace(b"text", b"spam")))
    assert not is_believed(in_milter(FORGED_AR + border + b"To: all@example.org\r\n" + MAIL))


def test_a_list_is_of_one_message_and_its_results():
    """A list that was copied proves only the same results of the same message."""
    other_ar = FORGED_AR.replace(b"wanted", b"other")
    true = re.match(rb"X-Spamnb-Results: [^\r]+\r\n", listed(other_ar + RECEIVED + MAIL))[0]
    assert not is_believed(BACK + true + FORGED_AR + RECEIVED + MAIL)
    own = re.match(rb"X-Spamnb-Results: [^\r]+\r\n", listed(TRUE_AR + RECEIVED + MAIL))[0]
    assert is_believed(BACK + own + TRUE_AR + RECEIVED + MAIL)
    assert not is_believed(BACK + own + TRUE_AR + RECEIVED + MAIL.replace(b"text", b"spam"))
    assert evidence_of(BACK + own + TRUE_AR + RECEIVED + MAIL, LOCAL).statement == ""
    assert evidence_of(RECEIVED + FORGED_AR + MAIL, LOCAL).statement == ""


def test_a_sender_without_a_hop_or_with_one_of_the_site_gains_nothing():
    """The first Received field decides; without the MTA's own, nothing is believed."""
    hop = f"{HOP}\r\n".encode()
    foreign = b"Received: from a by relay.example; now\r\n"
    assert not is_believed(FORGED_AR + MAIL)
    assert not is_believed(FORGED_AR + foreign + hop + MAIL)
    assert not is_believed(RECEIVED + FORGED_AR + hop + MAIL)
    assert not is_believed(LMTP + RECEIVED + FORGED_AR + hop + MAIL)
    attached = b"Content-Type: message/rfc822\r\n\r\n" + TRUE_AR + RECEIVED + MAIL
    assert not evidence_of(RECEIVED + attached, LOCAL).is_authentic(f"boss@{DOMAIN}")


def test_an_identity_that_a_verifier_copies_makes_results_void():
    """OpenDKIM writes the decoded i= of any signature into its field."""
    signature = b"DKIM-Signature: v=1; d=evil.example; i=x=3B=20dkim=3Dpass@evil.example; b=x\r\n"
    assert is_believed(TRUE_AR + RECEIVED + signature.replace(b"=3B=20dkim=3Dpass", b"") + MAIL)
    assert not is_believed(TRUE_AR + RECEIVED + signature + MAIL)


def test_a_message_has_one_digest_with_and_without_results():
    """Results come at different places, and may be removed; the digest never has them."""
    plain = read(MAIL, LOCAL).digest
    for raw in (
        TRUE_AR + RECEIVED + MAIL,
        RECEIVED + TRUE_AR + bordered(MAIL),
        LMTP + BACK + listed(TRUE_AR + RECEIVED + MAIL),
        in_milter(FORGED_AR + MAIL),
    ):
        assert read(raw, LOCAL).digest == plain


@pytest.mark.parametrize("name", VARIANTS)
def test_a_relay_in_front_of_the_verifier_removes_what_claims_the_site(name):
    """After it, no reader finds the site's name in results; the rest stays byte for byte."""
    if name == "arc field":
        pytest.skip("a field of the ARC set belongs to its seal")
    header = forged(name, name).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    clean = remove_claims(remove_forged(header), LOCAL, received=False, sent=True)
    folded = re.sub(rb"[\s\"\\\\]|\([^)]*\)", b"", clean).lower()
    assert b"authentication-results:mx.example.org" not in folded
    assert b"x-spamnb-" not in folded
    stays = [line for line in header.split(b"\r\n")[-7:] if line]
    assert all(line in clean for line in stays)


def test_results_above_the_hop_and_of_others_stay():
    """An MTA in front has written its own above its Received; strangers' names are no claim."""
    other = b"Authentication-Results: mx.other.example; spf=pass smtp.mailfrom=a@b.example\r\n"
    header = TRUE_AR + RECEIVED + other + b"From: a@b.example\r\n\r\n"
    assert remove_claims(header, LOCAL, received=True, sent=False) == header
    below = TRUE_AR + RECEIVED + FORGED_AR + other + b"From: a@b.example\r\n\r\n"
    assert remove_claims(below, LOCAL, received=True, sent=False) == header
    assert TRUE_AR not in remove_claims(header, LOCAL, received=False, sent=False)


@pytest.mark.parametrize(
    "greeting",
    [
        "x by mx.example.org with LMTP",
        "x by mx.example.org (a) with LMTP id 4A",
        "x by mx.example.org id 4A",
        "x BY\tmx.example.org id 4A",
        "x by evil.example",
    ],
)
def test_a_greeting_cannot_make_a_hop_into_another(greeting):
    """Postfix copies all words of HELO into its field: a second `by` proves nothing."""
    hop = RECEIVED.replace(b"from evil.example", f"from {greeting}".encode())
    border = re.match(rb"X-Spamnb-Border: [^\r]+\r\n", bordered(MAIL))[0]
    assert not is_believed(hop.replace(b"id 4A;", b"id 4B;") + FORGED_AR + border + MAIL)
    assert not is_believed(hop + FORGED_AR + f"{HOP}\r\n".encode() + MAIL)
    assert not is_believed(LMTP + hop + FORGED_AR + f"{HOP}\r\n".encode() + MAIL)
    assert read(hop + MAIL, LOCAL).digest == read(MAIL, LOCAL).digest


PIECES = (
    FORGED_AR, RECEIVED, LMTP, BACK, f"{HOP}\r\n".encode(), b"X-Spamnb-Place: 4A\r\n",
    f"X-Spamnb-Border: {'0' * 32}\r\n".encode(),
    f"X-Spamnb-Results: {'0' * 16} {'0' * 32}\r\n".encode(),
    b"From: Boss <boss@wanted.example>\r\n", b"From x\r\n", b">From x\r\n", b"\r\n", b"\n",
    b"\r", b" a\r\n",
    b"no field\r\n", b"\0", b":\r\n", b"\xef\xbb\xbf", b"Content-Type: message/rfc822\r\n\r\n",
    b"Return-Path: <x@y>\r\n", b"Received: x\r\n", b"X-Spam-Flag: NO\r\n",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([RECEIVED, LMTP + RECEIVED]))
def test_no_order_of_fields_proves_anything_below_the_hop(pieces, top):
    """Whatever a sender writes: below the MTA's hop, below an LMTP hop, or in a milter."""
    raw = b"".join(pieces) + MAIL
    assert not evidence_of(top + raw, LOCAL).is_authentic(f"boss@{DOMAIN}")
    end = header_end(raw)
    seen, size = placed(raw, end, "4A")
    head = SenderEvidence(seen[:size], LOCAL, "boss@wanted.example", seen)
    assert not head.is_authentic(f"boss@{DOMAIN}")
    assert b"authentication-results" not in dict(read(seen, LOCAL).headers)
