"""DKIM and ARC: signatures of a signer of their own, the example of RFC 8463, and OpenDKIM."""

import shutil
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.signing import Signer
from support.zones import Zone, run

from spamnb.auth import arc, dkim
from spamnb.auth.dkim import SignedMail

RAW = (
    b"From: Ann <ann@example.com>\r\nTo: bob@example.org\r\nSubject: Hi  there\r\n\tand more\r\n"
    b"Date: Fri, 27 Nov 2026 10:00:00 +0000\r\nMessage-ID: <1@example.com>\r\n\r\n"
    b"Dear Bob, \r\n\r\nthe  report\t is here. \r\n.\r\nAnn\r\n\r\n\r\n"
)
RFC_8463 = b"""\
DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed;
 d=football.example.com; i=@football.example.com;
 q=dns/txt; s=brisbane; t=1528637909; h=from : to :
 subject : date : message-id : from : subject : date;
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;
 b=/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11Bus
 Fa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw==
DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed;
 d=football.example.com; i=@football.example.com;
 q=dns/txt; s=test; t=1528637909; h=from : to : subject :
 date : message-id : from : subject : date;
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;
 b=F45dVWDfMbQDGHJFlXUNB2HKfbCeLRyhDXgFpEL8GwpsRe0IeIixNTe3
 DhCVlUrSjV4BwcVcOF6+FF3Zo9Rpo1tFOeS9mPYQTnGdaSGsgeefOsk2Jz
 dA+L10TeYt9BgDfQNZtKdN1WO//KgIqXP7OdEFE4LjFYNcUxZQ4FADY+8=
From: Joe SixPack <joe@football.example.com>
To: Suzie Q <suzie@shopping.example.net>
Subject: Is dinner ready?
Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)
Message-ID: <20030712040037.46341.5F8J@football.example.com>

Hi.

We lost the game.  Are you hungry yet?

Joe.
"""
RFC_KEY = (
    "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRiGs5V6NpP3idY6Wk08"
    "a5qhdR6wy5bdOKb2jLQiY/J16JYi0Qvx/byYzCNb3W91y3FutACDfzwQ/BC/e/8uBsCR"
    "+yz1Lxj+PL6lHvqMKrM3rG4hstT5QjvHO9PzoxZyVYLzBfO2EeC3Ip3G+2kryOTIKT+l"
    "/K4w3QIDAQAB"
)
RFC_KEYS = {
    ("brisbane._domainkey.football.example.com", "TXT"): [
        "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
    ],
    ("test._domainkey.football.example.com", "TXT"): [f"v=DKIM1; k=rsa; p={RFC_KEY}"],
}
FORMS = [(head, body) for head in ("simple", "relaxed") for body in ("simple", "relaxed")]


def mail_of(raw):
    head, _, body = raw.partition(b"\r\n\r\n")
    return SignedMail(head + b"\r\n", body)


def checked(raw, zone):
    """The results of the signatures, as (result, reason)."""
    mail = mail_of(raw)
    lines = mail.named(b"dkim-signature")
    found = [run(dkim.check(mail, line, Zone(zone), time.time())) for line in lines]
    return [(one.result, one.reason) for one in found]


def test_the_example_of_rfc_8463():
    """A signature by Ed25519 and one by RSA verify; with another body neither does."""
    raw = RFC_8463.replace(b"\n", b"\r\n")
    assert checked(raw, RFC_KEYS) == [("pass", ""), ("pass", "")]
    broken = [("fail", "body hash did not verify")] * 2
    assert checked(raw.replace(b"lost", b"won"), RFC_KEYS) == broken


def variants():
    """Signed and broken messages by name: (raw, zone, result)."""
    signer = Signer()
    key = signer.zone()
    ((name, (record,)),) = key.items()
    signed = signer.sign(RAW)
    found = {
        f"{kind}, {'/'.join(forms)}": (one.sign(RAW), one.zone(), "pass")
        for kind in ("rsa", "ed25519")
        for forms in FORMS
        for one in [Signer(kind=kind, forms=forms)]
    }
    found |= {
        "1,024 bits": (Signer(bits=1024).sign(RAW), Signer(bits=1024).zone(), "pass"),
        "another body": (signed + b"x\r\n", key, "fail"),
        "lines at the end": (signed + b"\r\n\r\n", key, "pass"),
        "another subject": (signed.replace(b"Hi", b"Ho"), key, "fail"),
        "subject folded anew": (signed.replace(b"\r\n\tand", b" and"), key, "pass"),
        "subject folded anew, simple": (
            Signer(forms=("simple", "simple")).sign(RAW).replace(b"\r\n\tand", b" and"),
            key,
            "fail",
        ),
        "names in other case": (signed.replace(b"\r\nTo:", b"\r\ntO:"), key, "pass"),
        "a second From in front": (b"From: evil@example.net\r\n" + signed, key, "pass"),
        "a second From, oversigned": (
            b"From: evil@example.net\r\n" + Signer(names=("from", "from", "to")).sign(RAW),
            key,
            "fail",
        ),
        "no key": (signed, {}, "permerror"),
        "key revoked": (signed, {name: ["v=DKIM1; p="]}, "permerror"),
        "another key": (signed, {name: [Signer(bits=1024).record()]}, "fail"),
        "key of another kind": (signed, {name: [Signer(kind="ed25519").record()]}, "permerror"),
        "key for other services": (signed, {name: [signer.record(s="tlsrpt")]}, "permerror"),
        "key for SHA-1": (signed, {name: [signer.record(h="sha1")]}, "permerror"),
        "broken key": (signed, {name: ["v=DKIM1; k=rsa; p=AAAA"]}, "permerror"),
        "key with blanks": (signed, {name: [record.replace("p=MII", "p= M II")]}, "pass"),
        "expired": (signer.sign(RAW, t="1000", x="2000"), key, "fail"),
        "i= of a part": (signer.sign(RAW, i="ann@news.example.com"), key, "pass"),
        "i= of another": (signer.sign(RAW, i="ann@example.net"), key, "permerror"),
        "i= of a part, key for d= alone": (
            signer.sign(RAW, i="ann@news.example.com"),
            {name: [signer.record(t="s")]},
            "permerror",
        ),
        "From not signed": (Signer(names=("to", "subject")).sign(RAW), key, "permerror"),
        "no version": (signer.sign(RAW, v=None), key, "permerror"),
        "a tag twice": (signed.replace(b"v=1;", b"v=1; v=1;"), key, "permerror"),
        "unknown algorithm": (signer.sign(RAW, a="rsa-sha512"), key, "permerror"),
        "unknown form": (signer.sign(RAW, c="nofws/simple"), key, "permerror"),
        "unknown tag": (signer.sign(RAW, zz="1"), key, "pass"),
        "l= of all": (Signer(length=len(b"Dear Bob,\r\n\r\nthe report is here.\r\n.\r\nAnn\r\n"))
                      .sign(RAW), key, "pass"),
        "l= beyond the body": (Signer(length=5_000).sign(RAW), key, "permerror"),
    }  # fmt: skip
    return found


STRICTER = {
    "l= with a part left out": (Signer(length=10).sign(RAW), Signer().zone(), "policy"),
    "SHA-1": (Signer(digest="sha1").sign(RAW), Signer().zone(), "policy"),
    "2,048 bits, signature of 17 KB": (
        Signer().sign(RAW, z="x" * 17_000),
        Signer().zone(),
        "permerror",
    ),
}
"""Where this program is stricter than OpenDKIM: nothing of these is a pass"""
VARIANTS = variants()


@pytest.mark.parametrize("name", [*VARIANTS, *STRICTER])
def test_signed_and_broken_messages(name):
    """Each variant has its result."""
    raw, zone, wanted = (VARIANTS | STRICTER)[name]
    ((found, reason),) = checked(raw, zone)
    assert found == wanted, reason


@pytest.mark.skipif(shutil.which("opendkim") is None, reason="OpenDKIM is not installed")
@pytest.mark.parametrize(
    "name", [name for name in VARIANTS if "ed25519" not in name and "blanks" not in name]
)
def test_opendkim_agrees(name, tmp_path):
    """OpenDKIM verifies the same messages, and no other.

    OpenDKIM 2.11 has no Ed25519, and its file of keys has no blanks.
    """
    raw, zone, wanted = VARIANTS[name]
    lines = [f"{owner} {text}\n" for (owner, _), values in zone.items() for text in values]
    (tmp_path / "keys").write_text("".join(lines))
    (tmp_path / "conf").write_text(
        f"Mode v\nTestPublicKeys {tmp_path}/keys\nMinimumKeyBits 1024\nSyslog no\n"
    )
    (tmp_path / "message").write_bytes(raw)
    command = ["opendkim", "-x", tmp_path / "conf", "-t", tmp_path / "message"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ("succeeded" in done.stdout + done.stderr) == (wanted == "pass"), done


def test_many_signatures_of_one_body_are_hashed_a_few_times():
    """Each l= is another hash of a body: after eight of them a signature is not usable."""
    raw = RAW + b"line\r\n" * 100
    for length in range(12):
        raw = Signer(length=length).signature(raw) + raw
    found = checked(raw, Signer().zone())
    assert [one for one, _ in found].count("policy") == 12
    assert ("policy", "too many lengths") in found


@given(st.binary(max_size=300), st.sampled_from(["relaxed", "simple"]))
def test_any_body_can_be_signed(body, form):
    """The forms of any body are those of a second implementation, which reads line by line."""
    body = body.replace(b"\n", b"\r\n")
    signer = Signer(forms=("relaxed", form))
    ((found, reason),) = checked(signer.sign(b"From: a@example.com\r\n\r\n" + body), signer.zone())
    assert found == "pass", reason


@pytest.mark.parametrize("form", ["relaxed", "simple"])
@pytest.mark.parametrize(
    "body",
    [
        b"x" * 200_000,
        b"x" * (dkim.PIECE - 2) + b" \t" * 70_000 + b"\r\n" * 40_000 + b"end",
        b"x \r\n" * 50_000 + b" " * 70_000,
        b"\r\n" * 100_000,
    ],
    ids=["a line", "blanks at the cut", "blanks at the end", "empty lines"],
)
def test_a_body_of_several_pieces(body, form):
    """Pieces have the form of the whole."""
    signer = Signer(forms=("relaxed", form))
    raw = signer.sign(b"From: a@example.com\r\n\r\n" + body)
    assert checked(raw, signer.zone()) == [("pass", "")]


@given(st.binary(max_size=200))
def test_any_field_has_a_result(text):
    """No signature raises."""
    raw = b"DKIM-Signature: " + text.replace(b"\n", b"").replace(b"\r", b"") + b"\r\n" + RAW
    for result, _ in checked(raw, {}):
        assert result in {"permerror", "fail", "policy"}


def chain(length):
    raw = RAW
    for number in range(1, length + 1):
        signer = Signer(f"list{number}.example", names=("from", "subject"))
        raw = signer.seal(raw, number, "none" if number == 1 else "pass")
    return raw


def arc_of(raw, zone=None):
    keys = {}
    for number in range(1, 12):
        keys |= Signer(f"list{number}.example").zone()
    return run(arc.check(mail_of(raw), Zone(keys if zone is None else zone), time.time()))


@pytest.mark.parametrize("length", [1, 3])
def test_a_chain_of_forwarders(length):
    """An intact chain names its sealers; one that was changed is broken."""
    raw = chain(length)
    found = arc_of(raw)
    assert (found.result, found.sealers) == (
        "pass",
        tuple(f"list{number}.example" for number in range(1, length + 1)),
    )
    for before, after in (
        (b"Subject: Hi", b"Subject: Ho"),
        (b"spf=pass", b"spf=fail"),
        (b"ARC-Seal: i=1;", b"ARC-Seal: i=2;"),
        (b"cv=none", b"cv=fail"),
        (b"Ann\r\n\r\n", b"Eve\r\n\r\n"),
    ):
        assert arc_of(raw.replace(before, after, 1)).result == "fail", before
    assert arc_of(raw, {}).result == "fail"
    assert arc_of(RAW) is None


def test_a_chain_has_at_most_ten_sets():
    """Each set costs a signature, and its key a question."""
    assert arc_of(chain(10)).result == "pass"
    assert arc_of(chain(11)).result == "fail"
