"""The check of a sender: name servers and their faults, DMARC, the results as a field."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.names import CUT, NOISE, SERVFAIL, SILENT, WRONG_ID, name_server, unused_address
from support.signing import Signer

from spamnb.auth import dmarc
from spamnb.auth.lists import Zones
from spamnb.auth.names import NameFault, NameServers
from spamnb.auth.verifier import ReceivedMail, Verifier
from spamnb.daemon.sender_check import received_mail
from spamnb.mail.envelope import Client, Envelope, LocalHosts
from spamnb.mail.results import read_results
from spamnb.policy.senders import SenderEvidence
from spamnb.scan.values import ScanRequest

RAW = (
    b"From: Ann <ann@shop.example>\r\nTo: bob@example.org\r\nSubject: Hi\r\nDate: now\r\n"
    b"Message-ID: <1@shop.example>\r\n\r\nDear Bob,\r\n\r\nthe report is here.\r\n"
)
SIGNER = Signer("shop.example")
ZONE = SIGNER.zone() | {
    ("shop.example", "TXT"): ["v=spf1 ip4:192.0.2.7 -all"],
    ("_dmarc.shop.example", "TXT"): ["v=DMARC1; p=reject"],
}


def mail_of(raw, client="192.0.2.7", sender="news@shop.example", author="ann@shop.example"):
    head, _, body = raw.partition(b"\r\n\r\n")
    return ReceivedMail(head + b"\r\n", body, author, sender, client, "mx.shop.example")


def checked(address, *mails, wait_s=2.0):
    """The results of some messages, one after the other, and the seconds of each."""

    async def check():
        names = NameServers.open([address])
        verifier = Verifier(names, wait_s, lambda _: None)
        found = []
        for mail in mails:
            began = time.monotonic()
            found.append((await verifier.results(mail), time.monotonic() - began))
        await verifier.close()
        return found

    return asyncio.run(check())


def results_of(zone, *mails):
    with name_server(zone) as server:
        return [found for found, _ in checked(server.address, *mails)]


# -- what is found ---------------------------------------------------------------------------------

DKIM = "header.d=shop.example header.s=s1 header.a=rsa-sha256"
DMARC = "header.from=shop.example policy.dmarc=reject"
OTHER = Signer("other.example")
ATTACKS = {
    "signed and sent by the domain": (
        mail_of(SIGNER.sign(RAW)),
        f"spf=pass smtp.mailfrom=shop.example; dkim=pass {DKIM}; dmarc=pass {DMARC}",
    ),
    "forwarded: another client": (
        mail_of(SIGNER.sign(RAW), client="198.51.100.1"),
        f"spf=fail smtp.mailfrom=shop.example; dkim=pass {DKIM}; dmarc=pass {DMARC}",
    ),
    "a list that changes the body": (
        mail_of(SIGNER.sign(RAW) + b"-- \r\nlist\r\n", "198.51.100.1", "list@list.example"),
        (
            "spf=none smtp.mailfrom=list.example;"
            f' dkim=fail reason="body hash did not verify" {DKIM}; dmarc=fail {DMARC}'
        ),
    ),
    "a forged author": (
        mail_of(RAW, "198.51.100.1", "eve@other.example"),
        f"spf=none smtp.mailfrom=other.example; dkim=none; dmarc=fail {DMARC}",
    ),
    "a forged author under a signature of another domain": (
        mail_of(OTHER.sign(RAW), "198.51.100.1", "eve@other.example"),
        (
            "spf=none smtp.mailfrom=other.example; dkim=pass header.d=other.example header.s=s1"
            f" header.a=rsa-sha256; dmarc=fail {DMARC}"
        ),
    ),
    "a neighbour of the domain": (
        mail_of(RAW, "198.51.100.1", "eve@sh0p.example", "ann@sh0p.example"),
        "spf=none smtp.mailfrom=sh0p.example; dkim=none; dmarc=none header.from=sh0p.example",
    ),
    "two authors": (
        mail_of(RAW, author=""),
        "spf=pass smtp.mailfrom=shop.example; dkim=none",
    ),
    "no client": (
        mail_of(SIGNER.sign(RAW), client=""),
        f"dkim=pass {DKIM}; dmarc=pass {DMARC}",
    ),
    "a bounce: HELO is checked": (
        mail_of(RAW, sender=""),
        f"spf=none smtp.helo=mx.shop.example; dkim=none; dmarc=fail {DMARC}",
    ),
    "a subdomain": (
        mail_of(SIGNER.sign(RAW), author="ann@a.b.shop.example"),
        (
            f"spf=pass smtp.mailfrom=shop.example; dkim=pass {DKIM};"
            " dmarc=pass header.from=a.b.shop.example policy.dmarc=reject"
        ),
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_found(name):
    """Each case of the table has its results, which a reader of RFC 8601 reads."""
    mail, wanted = ATTACKS[name]
    (found,) = results_of(ZONE | OTHER.zone(), mail)
    assert found == wanted
    assert read_results(f"mx.example.org; {found}".encode(), ["mx.example.org"])


def test_a_chain_names_its_sealer():
    """The last server that forwarded the message."""
    sealer = Signer("list.example", names=("from", "subject"))
    (found,) = results_of(ZONE | sealer.zone(), mail_of(sealer.seal(RAW, 1, "none")))
    assert found.endswith("; arc=pass policy.sealer=list.example")


def test_a_hundred_signatures():
    """Six of them are checked; those of the author's organisation first."""
    many = b"".join(Signer(f"x{n}.example").signature(RAW) for n in range(100))
    (found,) = results_of(ZONE, mail_of(many + SIGNER.sign(RAW)))
    assert found.count("dkim=") == 6
    assert "dkim=pass header.d=shop.example" in found


HOSTILE = {
    "quotes and semicolons in tags": b'v=1; a=rsa-sha256; d=a"; dkim=pass; s=x; h=from; bh=x; b=x',
    "another result in d=": b"v=1; a=rsa-sha256; d=x.example dkim=pass; s=x; h=from; bh=x; b=x",
    "no tags": b"x" * 9_000,
    "8-bit": b"v=1; a=rsa-sha256; d=\xe9.example; s=\xff; h=from; bh=x; b=x",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_signature_adds_no_results(name):
    """What a sender wrote adds no result: there is one for the signature, and it is no pass."""
    raw = b"DKIM-Signature: " + HOSTILE[name] + b"\r\n" + RAW
    (found,) = results_of(ZONE, mail_of(raw, client="198.51.100.1"))
    read = read_results(f"mx.example.org; {found}".encode(), ["mx.example.org"])
    assert [(one.method, one.result) for one in read] == [
        ("spf", "fail"),
        ("dkim", "permerror"),
        ("dmarc", "fail"),
    ]


@given(st.binary(max_size=300), st.binary(max_size=100), st.text(max_size=20), st.data())
def test_any_message_has_results(head, body, sender, data):
    """Nothing raises, and the results are readable, whatever sender and name servers write."""
    text = st.one_of(
        st.text(max_size=60), st.sampled_from(["v=spf1 a mx ptr -all", "v=DMARC1; p=x"])
    )
    raw = b"DKIM-Signature: d=a.example; s=s; " + head.replace(b"\n", b"") + b"\r\n" + head

    async def query(name, kind):
        return data.draw(st.lists(text, max_size=3)), 60.0

    async def check():
        verifier = Verifier(NameServers(query), 5.0, lambda _: None, ZONES)
        mail = ReceivedMail(raw, body, sender + "@a.example", sender, "192.0.2.1", sender)
        return await verifier.results(mail)

    found = asyncio.run(check())
    assert read_results(f"mx.example.org; {found}".encode(), ["mx.example.org"]), found


def test_a_header_of_a_megabyte():
    """Its signatures are not checked; SPF and DMARC are."""
    raw = b"X-A: b\r\n" * 40_000 + SIGNER.sign(RAW)
    (found,) = results_of(ZONE, mail_of(raw))
    assert 'dkim=permerror reason="header too large"' in found
    assert "dmarc=pass" in found


RECORDS = {
    "none": ([], "none"),
    "two": (["v=DMARC1; p=none", "v=DMARC1; p=reject"], "none"),
    "of another version": (["v=DMARC2; p=reject"], "none"),
    "strict": (["v=DMARC1; p=reject; adkim=s; aspf=s"], "fail"),
    "relaxed": (["v=DMARC1; p=reject"], "pass"),
    "an unknown policy": (["v=DMARC1; p=maybe"], "pass"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_policies_of_domains(name):
    """A signature of the organisation speaks for its parts, unless the record is strict."""
    values, wanted = RECORDS[name]
    zone = ZONE | {("_dmarc.news.shop.example", "TXT"): values, ("_dmarc.shop.example", "TXT"): []}
    mail = mail_of(SIGNER.sign(RAW), author="ann@news.shop.example")
    (found,) = results_of(zone, mail)
    assert f"dmarc={wanted}" in found


def test_organizations():
    """Domains below a public suffix are different organisations."""
    assert dmarc.organization("mail.example.co.uk") == "example.co.uk"
    assert dmarc.organization("a.b.example.com") == "example.com"
    assert dmarc.organization("co.uk") == "co.uk"
    assert dmarc.organization("alice.github.io") != dmarc.organization("eve.github.io")


# -- lists by DNS ----------------------------------------------------------------------------------

ZONES = Zones(("bl.example", "wl.example"), ("dbl.example",))
LINKS = (
    b"<a href=3D'https://www.evil.example/x'>one</a> http://user@sub.bad.co.uk:80/ "
    b"http://shop.example"
)
LINKED = RAW.replace(
    b"\r\n\r\nDear",
    b"\r\nContent-Type: text/html\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n%s\r\nDear"
    % LINKS,
)
LISTED = {
    ("7.2.0.192.bl.example", "A"): ["127.0.0.4", "127.0.0.2"],
    ("evil.example.dbl.example", "A"): ["127.0.1.2"],
    ("bad.co.uk.dbl.example", "A"): ["127.0.1.5"],
}


def listed(records, mail, zones=ZONES):
    """The results of lists."""

    async def check(address):
        verifier = Verifier(NameServers.open([address]), 2.0, lambda _: None, zones)
        found = await verifier.results(mail)
        await verifier.close()
        return [one for one in found.split("; ") if one.startswith("x-dnslist")]

    with name_server(ZONE | records) as server:
        return asyncio.run(check(server.address)), server.asked


def test_lists_are_asked_for_client_and_domains():
    """Each zone and role has one result, with the codes of all that is listed."""
    found, asked = listed(LISTED, mail_of(LINKED))
    assert found == [
        "x-dnslist=listed policy.zone=bl.example policy.of=client policy.code=127.0.0.2+127.0.0.4",
        "x-dnslist=none policy.zone=wl.example policy.of=client",
        "x-dnslist=none policy.zone=dbl.example policy.of=author",
        "x-dnslist=none policy.zone=dbl.example policy.of=sender",
        "x-dnslist=listed policy.zone=dbl.example policy.of=link policy.code=127.0.1.2+127.0.1.5",
    ]
    assert [name for name, _ in asked].count("shop.example.dbl.example") == 1
    assert listed(LISTED, mail_of(LINKED), Zones())[0] == []


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (["203.0.113.1"], "none"),
        (["127.255.255.254"], "none"),
        ([SERVFAIL], "temperror"),
        ([f"127.0.0.{n}" for n in range(2, 60)], "listed"),
    ],
)
def test_answers_that_are_none(answer, result):
    """A resolver that answers for every name, a refusal, a fault; and many codes."""
    records = {("7.2.0.192.bl.example", "A"): answer}
    (found,), _ = listed(records, mail_of(RAW), Zones(("bl.example",)))
    assert found.startswith(f"x-dnslist={result} ")
    assert found.count("+") <= 3
    assert read_results(f"mx.example.org; {found}".encode(), ["mx.example.org"])


def test_many_links_are_asked_for_a_few():
    """Eight domains of links at most; a client by IPv6 is asked by its nibbles."""
    body = b" ".join(b"http://d%d.example/" % number for number in range(50))
    mail = mail_of(RAW + body, client="2001:db8::1")
    found, asked = listed({}, mail)
    assert sum(name.startswith("d") and "dbl" in name for name, _ in asked) == 8
    assert any(name.startswith("1.0.0.0.") and name.endswith("2.bl.example") for name, _ in asked)
    assert len(found) == 5


# -- name servers ----------------------------------------------------------------------------------


def asked(zone, name, kind="TXT", times=1):
    """The answers to one question, asked again and again."""

    async def ask(address):
        names = NameServers.open([address])
        loop = asyncio.get_running_loop()
        found = []
        for _ in range(times):
            try:
                found.append(await names.questions(loop.time() + 1.0).ask(name, kind))
            except NameFault:
                found.append("fault")
        await names.close()
        return found

    with name_server(zone) as server:
        return asyncio.run(ask(server.address)), server.asked


def test_answers_of_each_kind():
    """Values come as text, names without a dot at the end."""
    zone = {
        ("a.example", "A"): ["192.0.2.1", "192.0.2.2"],
        ("a.example", "AAAA"): ["2001:db8::1"],
        ("a.example", "MX"): ["10 mx.a.example."],
        ("1.2.0.192.in-addr.arpa", "PTR"): ["a.example."],
        ("a.example", "TXT"): ["x" * 600, 'with "quotes" and \\ too'],
        ("big.example", "TXT"): [CUT, "y" * 3_000],
    }
    for (name, kind), values in zone.items():
        wanted = [one.rstrip(".") for one in values if one != CUT]
        (found,), _ = asked(zone, name, kind)
        assert sorted(found) == sorted(wanted)
    assert asked(zone, "none.example")[0] == [()]
    assert asked(zone, "a.example", "PTR")[0] == [()]


@pytest.mark.parametrize("fault", [SERVFAIL, SILENT, NOISE, WRONG_ID])
def test_a_server_that_does_not_answer(fault):
    """A fault is remembered for some seconds: the second question is not asked."""
    found, questions = asked({("a.example", "TXT"): [fault]}, "a.example", times=2)
    assert found == ["fault", "fault"]
    assert len(questions) <= 4  # of one message: both of its tries, by UDP


def test_answers_are_cached_by_their_time():
    """Fifty messages ask once."""
    found, questions = asked(ZONE, "shop.example", times=50)
    assert set(found) == {("v=spf1 ip4:192.0.2.7 -all",)}
    assert len(questions) == 1


@pytest.mark.parametrize(
    "name", ["", ".", "a..example", "x" * 64 + ".example", "a." * 127 + "example", "ä.example"]
)
def test_names_that_no_server_can_have(name):
    """They are not asked, and have no values."""
    found, questions = asked({}, name)
    assert (found, questions) == ([()], [])


def test_a_message_waits_no_longer_than_its_time():
    """Silent servers: temperror for what they would say, within the time; then they get a rest."""
    silent = {key: [SILENT] for key in ZONE}
    mails = [mail_of(SIGNER.sign(RAW))] * 2 + [
        mail_of(RAW, sender=f"x@d{n}.example", author=f"x@d{n}.example") for n in range(8)
    ]
    silent |= {(f"d{n}.example", "TXT"): [SILENT] for n in range(8)}
    silent |= {(f"_dmarc.d{n}.example", "TXT"): [SILENT] for n in range(8)}
    with name_server(silent) as server:
        found = checked(server.address, *mails, wait_s=0.2)
    assert found[0][0].count("temperror") == 3
    assert all("temperror" in one for one, _ in found)
    assert all(seconds < 10 for _, seconds in found)  # of a busy machine; a question waits 1.8 s


def test_no_server_at_all():
    """It does not answer, so the daemon leaves the check off."""

    async def answers(address):
        return await NameServers.open([address]).answers(0.5)

    assert asyncio.run(answers(unused_address())) is False
    with name_server({}) as server:
        assert asyncio.run(answers(server.address)) is True


def test_a_fault_of_one_domain_spares_the_others():
    """DMARC is not `fail` while a check that could have passed has no answer."""
    zone = ZONE | {("s1._domainkey.shop.example", "TXT"): [SERVFAIL]}
    with name_server(zone) as server:
        ((found, _),) = checked(server.address, mail_of(SIGNER.sign(RAW), client="198.51.100.1"))
    assert found == (
        f'spf=fail smtp.mailfrom=shop.example; dkim=temperror reason="no key in time" {DKIM};'
        f" dmarc=temperror {DMARC}"
    )


# -- the client ------------------------------------------------------------------------------------

LOCAL = LocalHosts(("mx.example.org",), ("mx.example.org",))
HOP = b"Received: from a.shop.example (b.shop.example [192.0.2.7]) by mx.example.org; now\r\n"
INNER = b"Received: from localhost (localhost [127.0.0.1]) by mx.example.org with LMTP; now\r\n"


@pytest.mark.parametrize(
    ("client", "raw", "wanted"),
    [
        ("192.0.2.9", HOP + RAW, "192.0.2.9"),
        ("127.0.0.1", HOP + RAW, "192.0.2.7"),
        ("", INNER + HOP + RAW, "192.0.2.7"),
        ("10.0.0.3", HOP + RAW, "192.0.2.7"),
        ("", HOP.replace(b"mx.example.org", b"mx.shop.example") + RAW, ""),
        ("", RAW + HOP, ""),
        ("", HOP.replace(b"192.0.2.7", b"IPv6:2001:db8::7") + RAW, "2001:db8::7"),
    ],
)
def test_the_client_of_a_message(client, raw, wanted):
    """The mail server's word, else the site's own Received field; a sender's field is not read."""
    envelope = Envelope("news@shop.example", (), Client(client))
    end = raw.index(b"\r\n\r\n") + 4
    message = SenderEvidence(raw[:end], LOCAL, "", raw)
    assert received_mail(ScanRequest(raw, end, envelope), message).client == wanted
