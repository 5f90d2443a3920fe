"""Envelopes at the delivery agent: exact addresses, known users, no relaying, XFORWARD."""

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.delivery_agent import MESSAGE, files, running_agent, sent, start_child

from spamnb.mail.envelope import Client
from spamnb.settings.values import DeliveryParams
from spamnb.smtp import delivery_replies
from spamnb.smtp.delivery_values import Recipients
from spamnb.smtp.syntax import read_client, read_path

# -- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("FROM:<a@b.example>", "a@b.example"),
        ("from: <a@b.example>", "a@b.example"),
        ("FROM:<>", ""),
        ("FROM:<=?utf-8?q?alice?=@d.example>", "=?utf-8?q?alice?=@d.example"),
        ("FROM:<@relay.example,@other.example:a@b.example>", "a@b.example"),
        ("FROM:<@relay.example:a@b.example>", "a@b.example"),
        ('FROM:<"a b\\"c"@b.example>', '"a b\\"c"@b.example'),
        ("FROM:<a@[192.0.2.1]>", "a@[192.0.2.1]"),
        ("FROM:<jörg@b.example>", "jörg@b.example"),
        ("FROM:<a b@b.example>", None),
        ("FROM:a@b.example", None),
        ("FROM:<a@b.example", None),
        ("FROM:<a@b@c.example>", None),
        ("FROM:<a\x00@b.example>", None),
        ("FROM:<a\r@b.example>", None),
        ("FROM:<a(comment)@b.example>", None),
        ("FROM:<" + "a" * 65 + "@b.example>", None),
        ("FROM:<a@" + "b" * 256 + ">", None),
        ("TO:<a@b.example>", None),
        (None, None),
    ],
)
def test_an_address_is_what_is_written(written, address):
    """An address of RFC 5321 is taken as it is; any other text is refused, never repaired."""
    found = read_path("FROM:", written)
    assert (found.address if found else None) == address


def test_parameters_keep_their_values():
    """Names are folded, values stay as they are; one given twice is an error."""
    found = read_path("TO:", "TO:<a@b> NOTIFY=success orcpt=rfc822;A+2Bb@C")
    assert found.params == {"NOTIFY": "success", "ORCPT": "rfc822;A+2Bb@C"}
    assert read_path("TO:", "TO:<a@b> X=1 x=2") is None
    assert read_path("TO:", "TO:<a@b>X=1") is None


@given(st.text(max_size=300))
def test_no_address_has_a_control_character(text):
    """No accepted address contains a control character."""
    for written in (f"FROM:<{text}>", f"FROM:<{text}@b.example>", f"FROM:{text}"):
        found = read_path("FROM:", written)
        assert found is None or not re.search(r"[\x00-\x1f\x7f]", found.address)


def test_an_encoded_line_end_in_an_address_is_no_line_end(agent, mail):
    """`=0d=0a` in an encoded word made other servers send commands of the sender's choice."""
    hidden = b"=?utf-8?q?a=40b=3e=0d=0aRCPT_TO=3a=3cevil?="
    with start_child(agent) as client:
        assert client.ask(b"RCPT TO:<" + hidden + b"@x.example>")[:3] == b"550"
        assert client.ask(b"RCPT TO:<bob@x.example>")[:3] == b"250"
    with agent.raw() as client:
        assert client.ask(b"EHLO x", b"MAIL FROM:<" + hidden + b"@b.example>")[:3] == b"250"
        client.ask(b"RCPT TO:<bob@x.example>", b"DATA")
        assert client.ask(MESSAGE + b".")[:3] == b"250"
    text = files(mail)[0].read_bytes()
    assert text.startswith(b"Return-Path: <" + hidden + b"@b.example>\n")


# -- recipients -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [b"../../etc/passwd@x", b"..@x", b".hidden@x", b"a/b@x", b"a%2fb@x", b'"a/../b"@x',
     b'".."@x', b"a" * 64 + b"b@x", b"nobody", b"Postmaster/../x"],
)  # fmt: skip
def test_no_address_leaves_the_root(agent, mail, address):
    """A local part becomes a folder only if it is made of safe characters."""
    with start_child(agent) as client:
        assert client.ask(b"RCPT TO:<" + address + b">")[:1] == b"5"
    assert not mail.exists()


def test_other_domains_are_not_relayed(mail):
    """Nothing is ever relayed: an unknown domain is rejected, however it is written."""
    with (
        running_agent(root=str(mail), domains=("x.example",)) as agent,
        start_child(agent) as client,
    ):
        for address in (b"bob@y.example", b"bob%y.example@z.example", b"@x.example:bob@y.example",
                        b"bob@x.example.y.example", b"bob@[127.0.0.1]"):  # fmt: skip
            assert client.ask(b"RCPT TO:<" + address + b">")[:9] == b"550 5.7.1"
        assert client.ask(b"RCPT TO:<Bob@X.Example.>")[:3] == b"250"
        assert client.ask(b"RCPT TO:<postmaster>")[:3] == b"250"


def test_a_table_names_the_recipients(tmp_path):
    """With a table others are unknown; details after a plus sign and a domain's rest are found."""
    table = tmp_path / "users"
    table.write_text(
        f"# people\nalice@x.example {tmp_path}/alice\n@y.example {tmp_path}/all\n"
        f"postmaster@x.example {tmp_path}/pm\n"
    )
    with running_agent(users=str(table)) as agent, start_child(agent) as client:
        for address in (b"Alice+list@x.example", b"anybody@y.example", b"POSTMASTER"):
            assert client.ask(b"RCPT TO:<" + address + b">")[:3] == b"250"
        assert client.ask(b"RCPT TO:<bob@x.example>")[:9] == b"550 5.1.1"
        table.write_text(f"bob@x.example {tmp_path}/bob\n")
        assert client.ask(b"RCPT TO:<bob@x.example>")[:3] == b"250"
        client.ask(b"DATA")
        assert sent(client, MESSAGE + b".\r\n")[:3] == b"250"
    assert {path.parent.parent.name for path in files(tmp_path)} == {"alice", "all", "pm", "bob"}


def test_guessing_names_does_not_fill_the_disk(mail):
    """A catch-all makes folders up to a number; mail for existing folders is accepted."""
    with running_agent(root=str(mail), mailboxes=2) as agent, start_child(agent) as client:
        for name in (b"one", b"two"):
            assert client.ask(b"RCPT TO:<" + name + b"@x.example>")[:3] == b"250"
        client.ask(b"DATA")
        assert sent(client, MESSAGE + b".\r\n")[:3] == b"250"
        client.ask(b"MAIL FROM:<a@b.example>")
        assert client.ask(b"RCPT TO:<three@x.example>")[:9] == b"550 5.1.1"
        assert client.ask(b"RCPT TO:<two@x.example>")[:3] == b"250"


def test_guessing_names_costs_no_listing_each(tmp_path, monkeypatch):
    """Thousands of guessed recipients do not list the mailboxes each time, in the event loop."""
    for name in ("one", "two"):
        (tmp_path / "root" / name).mkdir(parents=True)
    os.utime(tmp_path / "root", (1, 1))
    listed, real = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or real(path))
    recipients = Recipients(DeliveryParams(root=str(tmp_path / "root"), mailboxes=2))
    for number in range(10):
        assert recipients.find(f"guess{number}@x.example") == delivery_replies.UNKNOWN_USER
    assert len(listed) == 1
    (tmp_path / "root" / "two").rmdir()
    assert not isinstance(recipients.find("three@x.example"), str)


# -- XFORWARD -------------------------------------------------------------------------------------


def test_xforward_names_the_client(agent):
    """The log has the client that a trusted peer names; xtext is decoded, unknown is empty."""
    with agent.raw() as client:
        assert b"XFORWARD NAME ADDR PORT PROTO HELO IDENT SOURCE" in client.ask(b"EHLO mx")
        line = b"NAME=[UNAVAILABLE] ADDR=IPV6:2001:db8::7 HELO=a+2Bb+0Ac IDENT=4bXq SOURCE=REMOTE"
        assert client.ask(b"XFORWARD " + line)[:3] == b"250"
        client.ask(b"MAIL FROM:<a@b.example>")
        assert client.ask(b"XFORWARD ADDR=192.0.2.1")[:3] == b"503"
        client.ask(b"RCPT TO:<bob@x.example>", b"DATA")
        sent(client, MESSAGE + b".\r\n")
        client.ask(b"MAIL FROM:<a@b.example>", b"RCPT TO:<bob@x.example>", b"DATA")
        sent(client, MESSAGE + b".\r\n")
    clients = [(line["client"], line["helo"], line["ident"]) for line in agent.logs]
    assert clients == [("2001:db8::7", "a+b{U+000A}c", "4bXq"), ("127.0.0.1", "mx", "")]


def test_xforward_by_others_is_refused(mail):
    """A client that is not a trusted peer gets no XFORWARD, and its values are ignored."""
    with running_agent(root=str(mail), peers=("192.0.2.0/24",)) as agent, agent.raw() as client:
        assert b"XFORWARD" not in client.ask(b"EHLO mx")
        assert client.ask(b"XFORWARD ADDR=192.0.2.1")[:9] == b"550 5.7.1"


@given(st.text(max_size=200))
def test_xforward_reads_anything(text):
    """No value raises an exception or puts a control character into the log."""
    found = read_client(Client(), f"HELO={text} ADDR={text}")
    assert found is None or (found.helo + found.address).isprintable()
