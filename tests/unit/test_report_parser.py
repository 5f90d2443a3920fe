"""Reports: attached, resent, quoted and ARF messages are found, byte for byte if possible."""

import tracemalloc
from email import message_from_bytes
from email.encoders import encode_base64
from email.message import EmailMessage
from email.mime.application import MIMEApplication
from email.mime.base import MIMEBase
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cpu_time import is_within

from spamnb.engine.filter import Filter
from spamnb.feedback.review import MAX_MESSAGES, read_report
from spamnb.mail.message import read

SAMPLES = Path(__file__).resolve().parents[2] / "corpora" / "sample"
SIGNATURE = "s" + "abcdefghijklmnopqrstuvwxyz"
BLOCK = (
    b"X-Spam-Flag: YES\r\nX-Spamnb-Verdict: junk; label=spam; p=0.9987\r\n"
    b"X-Spamnb-Signature: " + SIGNATURE.encode() + b"\r\n"
)
SCORED = (
    b"Received: from a.example by b.example; Sat, 21 Nov 2026 09:00:00 +0000\r\n"
    b"From: =?utf-8?q?J=C3=B6rg?= <j@spam.example>\r\n"
    b"To: alice@x.example,\r\n\tbob@x.example\r\n"
    b"Subject: Cheap watches,\r\n  really cheap\r\n"
    b"Message-ID: <watch.1@spam.example>\r\n"
    b"Date: Sat, 21 Nov 2026 09:00:00 +0000\r\n"
    b"MIME-Version: 1.0\r\n"
    b'Content-Type: multipart/alternative; boundary="in=side"\r\n'
    b"\r\nnever read\r\n--in=side\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Transfer-Encoding: 8bit\r\n\r\nBuy \xc3\xa4 watch \r\n.\r\n..dots\r\nFrom here\r\n"
    b"--in=side\r\nContent-Type: text/html\r\n\r\n<p>Buy a <b>watch</b></p>\r\n"
    b"--in=side--\r\n\r\n"
)
KEPT = b"Return-Path: <j@spam.example>\r\nDelivered-To: alice@x.example\r\n" + BLOCK + SCORED
"""as it lies in a mailbox"""


def crlf(message):
    return message.as_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def outer(*parts, **fields):
    mail = MIMEMultipart("mixed")
    mail["From"], mail["To"], mail["Subject"] = "alice@x.example", "spam@x.example", "Fwd: junk"
    mail["Message-ID"] = "<report.1@x.example>"
    for name, value in fields.items():
        mail[name.replace("_", "-")] = value
    mail.attach(MIMEText("see the attachment"))
    for part in parts:
        mail.attach(part)
    return crlf(mail)


def as_thunderbird():
    """message/rfc822, inline, as it lies there."""
    head = (
        b"From: alice@x.example\r\nTo: spam@x.example\r\nSubject: Fwd: Cheap watches\r\n"
        b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="------------0C1"\r\n\r\n'
        b"This is a multi-part message in MIME format.\r\n--------------0C1\r\n"
        b"Content-Type: text/plain; charset=UTF-8\r\n\r\n\r\n\r\n--------------0C1\r\n"
        b'Content-Type: message/rfc822; charset=UTF-8; name="Cheap watches.eml"\r\n'
        b'Content-Disposition: attachment; filename="Cheap watches.eml"\r\n'
        b"Content-Transfer-Encoding: 8bit\r\n\r\n"
    )
    return head + KEPT + b"\r\n--------------0C1--\r\n"


def as_outlook():
    part = MIMEApplication(KEPT, "octet-stream", name="Cheap watches.eml")
    part.add_header("Content-Disposition", "attachment", filename="Cheap watches.EML")
    return outer(part)


def as_base64():
    part = MIMEBase("message", "rfc822")
    part._payload = KEPT.decode("latin-1")
    part.set_payload(KEPT)
    encode_base64(part)
    return outer(part)


def as_python():
    return outer(MIMEMessage(message_from_bytes(KEPT.replace(b"\r\n", b"\n"))))


def as_digest():
    body = b"--d\r\n\r\n" + KEPT + b"\r\n--d--\r\n"
    return b"From: a@x.example\r\nContent-Type: multipart/digest; boundary=d\r\n\r\n" + body


def as_the_whole():
    return b"From: alice@x.example\r\nContent-Type: message/rfc822\r\n\r\n" + KEPT


def as_resent():
    return (
        b"Return-Path: <alice@x.example>\r\nX-Spamnb-Signature: szzzzzzzzzzzzzzzzzzzzzzzzzz\r\n"
        b"Received: from laptop by mx.x.example; Sat, 21 Nov 2026 10:00:00 +0000\r\n"
        b"Resent-From: alice@x.example\r\nResent-To:\r\n spam@x.example\r\n"
        b"Resent-Date: Sat, 21 Nov 2026 10:00:00 +0000\r\nResent-Message-ID: <r@x.example>\r\n"
    ) + SCORED


WAYS = [as_thunderbird, as_outlook, as_base64, as_python, as_digest, as_the_whole, as_resent]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with Filter.open(tmp_path_factory.mktemp("model"), create=True) as made:
        yield made


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_reported_message_is_the_one_that_was_scored(model, way):
    """A message has the digest of its scan in every form in which a user reports it."""
    scored = model.score(SCORED)
    report = read_report(way(), "spam")
    assert len(report.items) == 1
    assert model.example(report.items[0].raw).digest == scored.digest
    assert report.how == ("resent" if way is as_resent else "attached")
    assert report.items[0].subject == "Cheap watches, really cheap"


def test_line_ends_do_not_matter():
    """A report with LF line ends, as it lies in a Maildir, gives the same messages."""
    for way in WAYS:
        one, two = (read_report(raw, "ham").items for raw in (way(), way().replace(b"\r\n", b"\n")))
        assert [read(item.raw).digest for item in one] == [read(item.raw).digest for item in two]


def test_real_messages_come_out_as_they_went_in():
    """Every message of the sample corpus, attached in three ways, keeps its digest."""
    paths = sorted(path for path in SAMPLES.rglob("*") if path.suffix == ".eml")[::20]
    assert paths
    for path in paths:
        raw = path.read_bytes()
        plain = (
            b"Content-Type: multipart/mixed; boundary=qq77\r\n\r\n--qq77\r\n"
            b"Content-Type: message/rfc822\r\n\r\n" + raw + b"\r\n--qq77--\r\n"
        )
        part = MIMEApplication(raw, "octet-stream", name="x.eml")
        for report in (plain, outer(part)):
            items = read_report(report, "spam").items
            assert [read(item.raw).digest for item in items] == [read(raw).digest]


def test_several_attached_messages_are_several():
    """One report may carry many messages, in their order; beyond the limit they are counted."""
    made = []
    for number in range(MAX_MESSAGES + 7):
        mail = EmailMessage()
        mail["Subject"] = f"number {number}"
        mail.set_content("x")
        made.append(MIMEMessage(mail))
    report = read_report(outer(*made), "spam")
    assert [item.subject for item in report.items] == [f"number {n}" for n in range(MAX_MESSAGES)]
    assert report.left_out == 7


def test_what_is_attached_to_an_attached_message_is_not_reported():
    """A reported message with another message inside is one report, of the outer one."""
    inner = message_from_bytes(outer(MIMEMessage(message_from_bytes(SCORED))))
    report = read_report(outer(MIMEMessage(inner)), "spam")
    assert [item.subject for item in report.items] == ["Fwd: junk"]


def test_a_name_is_taken_only_where_there_are_no_bytes():
    """Bytes need no reference: a message id may name another message."""
    assert [item.refs for item in read_report(as_thunderbird(), "spam").items] == [()]


def arf(kind, original="message/rfc822", content=KEPT):
    return (
        b"From: fbl@isp.example\r\nTo: spam@x.example\r\nAuto-Submitted: auto-generated\r\n"
        b'Content-Type: multipart/report; report-type=feedback-report; boundary="b"\r\n\r\n'
        b"--b\r\nContent-Type: text/plain\r\n\r\nThis is a report.\r\n"
        b"--b\r\nContent-Type: message/feedback-report\r\n\r\n"
        b"Feedback-Type: " + kind + b"\r\nUser-Agent: x/1\r\nVersion: 1\r\n\r\n"
        b"--b\r\nContent-Type: " + original.encode() + b"\r\n\r\n" + content + b"\r\n--b--\r\n"
    )


@pytest.mark.parametrize(
    ("kind", "label"),
    [(b"abuse", "spam"), (b"Fraud", "spam"), (b"not-spam", "ham"), (b"opt-out", ""), (b"x", "")],
)
def test_an_arf_report_contains_its_label(kind, label):
    """RFC 5965: the feedback type gives the label, for any address; other types give none."""
    report = read_report(arf(kind), "spam")
    assert (report.how, report.label, report.automatic) == ("arf", label, True)
    assert read(report.items[0].raw).digest == read(SCORED).digest


def test_an_arf_report_with_a_header_alone_gives_names():
    """Without the body there are no bytes to learn, but the names that it had."""
    report = read_report(arf(b"abuse", "text/rfc822-headers", KEPT.split(b"\r\n\r\n")[0]), "spam")
    assert report.items[0].raw == b""
    assert report.items[0].refs == (SIGNATURE, "watch.1@spam.example")


@pytest.mark.parametrize(
    "quoted",
    [
        "X-Spamnb-Signature: {s}\nMessage-ID: <watch.1@spam.example>\n",
        "> X-Spamnb-Signature: {s}\n> Message-ID: <watch.1@spam.example>\n",
        "|  X-Spamnb-Signature:\n|   {s}\n*Message-Id:* <watch.1@spam.example>\n",
    ],
)
def test_a_plain_forward_is_found_by_what_it_quotes(quoted):
    """Our signature comes first, then the message id; also quoted and folded."""
    text = MIMEText("look:\n\n" + quoted.format(s=SIGNATURE) + "\nBuy!")
    text["Subject"] = "Fwd: Cheap watches"
    report = read_report(crlf(text), "spam")
    assert report.how == "quoted"
    assert [item.refs for item in report.items] == [(SIGNATURE, "watch.1@spam.example")]


def test_a_forward_names_its_original_in_its_header():
    """Thunderbird says what it forwards; others refer to it."""
    text = MIMEText("look")
    text["References"] = "<old@x.example> <watch.1@spam.example>"
    text["X-Forwarded-Message-Id"] = "<watch.2@spam.example>"
    refs = read_report(crlf(text), "spam").items[0].refs
    assert refs == ("watch.2@spam.example", "watch.1@spam.example")


def test_our_line_on_the_outside_names_the_report_and_not_the_message():
    """The relay signs reports as all mail; that signature is never used as a reference."""
    text = MIMEText("see above")
    text["X-Spamnb-Signature"] = SIGNATURE
    text["Message-ID"] = "<report.1@x.example>"
    report = read_report(crlf(text), "spam")
    assert (report.how, report.items) == ("nothing", ())
    assert report.message_id == "report.1@x.example"


@pytest.mark.parametrize(
    ("name", "value", "automatic"),
    [
        ("Auto-Submitted", "auto-replied", True),
        ("Auto-Submitted", "no", False),
        ("Precedence", "bulk", True),
        ("List-Id", "<x.example>", True),
        ("X-Mailer", "x", False),
    ],
)
def test_mail_by_machines_is_known(name, value, automatic):
    """RFC 3834: messages from programs get no receipt."""
    assert read_report(outer(**{name.replace("-", "_"): value}), "spam").automatic is automatic


def is_read_in_time(raw):
    return is_within(lambda: read_report(raw, "spam"), 1)


def test_hostile_structure_is_bounded():
    """Ten thousand parts, deep nesting, endless quotes: no report takes a second."""
    head = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
    part = b"--b\r\nContent-Type: message/rfc822\r\n\r\nSubject: x\r\n\r\nx\r\n"
    assert is_read_in_time(head + part * 10_000)
    assert len(read_report(head + part * 10_000, "spam").items) <= MAX_MESSAGES
    deep = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%05d\r\n\r\n--b%05d\r\n" % (n, n)
        for n in range(5_000)
    )
    assert is_read_in_time(deep)
    assert read_report(deep + part, "spam").how == "nothing"
    nested = b"Content-Type: message/rfc822\r\n\r\n" * 20_000
    assert is_read_in_time(head + b"--b\r\n" + nested)
    assert is_read_in_time(b"\r\n" + b">" * 1_000_000)
    assert is_read_in_time(b"\r\n" + b"> > Message-ID: <" * 50_000)
    assert is_read_in_time(b"Resent-From: a\r\n" + b"Resent-To: a\r\n " * 50_000 + b"\r\n\r\n")
    assert is_read_in_time(b"X-Spamnb-Signature:" + b" " * 1_000_000 + b"\r\n\r\n")


def test_a_field_of_a_million_lines_takes_no_more_than_the_message():
    """A pattern that may go back keeps a mark for each line: three gigabytes for ten megabytes."""
    raw = b"Resent-From: alice@x.example\r\n" + b" x\r\n" * 1_000_000 + b"Subject: it\r\n\r\nx\r\n"
    tracemalloc.start()
    try:
        (item,) = read_report(raw, "spam").items
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert item.subject == "it"
    assert most < 10 * len(raw)


@given(st.binary(max_size=400), st.sampled_from([way() for way in WAYS]), st.integers(0, 3000))
def test_anything_can_be_read(noise, report, at):
    """No bytes make reading fail."""
    for raw in (noise, report[:at] + noise + report[at:], report[:at] + noise):
        read_report(raw, "spam")
