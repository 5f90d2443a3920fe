"""Text that a sender wrote, wherever it is shown: pages, API, commands and log."""

import html
import json
import re
import smtplib

import pytest
from support.browser import pages
from support.cli import spamnb
from support.console import KEEP_ALL, Api, token, trained_home
from support.page_client import Rig
from support.waiting import LIMIT_S

TURNED = re.compile("[\u200b-\u200f\u202a-\u202e\u2066-\u2069]")
SUBJECT = "=?utf-8?q?pay_2026=E2=80=AEfdp=2Eexe?="
SHOWN_SUBJECT = "pay 2026<U+202E>fdp.exe"
NAME = "=?utf-8?q?my=E2=80=AEknab?="
SHOWN_NAME = "my<U+202E>knab"
SENDER = "pay\u202elap@x.example"
SHOWN_SENDER = "pay{U+202E}lap@x.example"
FILE = "Content-Type: a/b\r\nContent-Disposition: attachment; filename*=utf-8''a%E2%80%AEfdp.exe"
MAIL = (
    f"From: {NAME} <a@x.example>\r\nSubject: {SUBJECT}\r\nMessage-ID: <1@x.example>\r\n"
    f"MIME-Version: 1.0\r\n{FILE}\r\n\r\nMZ\r\n"
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    trained_home(folder)
    with pages(folder, KEEP_ALL) as (daemon, url):
        rig = Rig(folder, daemon, url)
        with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
            client.ehlo()
            client.sock.sendall(f"MAIL FROM:<{SENDER}> SMTPUTF8\r\n".encode())
            assert client.getreply()[0] == 250
            assert client.docmd("RCPT TO:<alice@example.org>")[0] == 250
            assert client.data(MAIL.encode())[0] == 250
        rig.signature = daemon.wait_for("message")["signature"]
        rig.api = Api(rig.host, token(rig.home, "all", "admin", "read", "quarantine"))
        rig.id = rig.api.get("/quarantine").body["messages"][0]["id"]
        yield rig


@pytest.mark.parametrize(
    ("login", "path"),
    [
        ("root", "/search"),
        ("root", "/message/{signature}"),
        ("root", "/quarantine"),
        ("alice", "/mail"),
        ("alice", "/quarantine"),
        ("alice", "/message/{signature}"),
    ],
)
def test_pages_show_the_logical_order(rig, login, path):
    """No page contains the control character; the subject and the name in From show it."""
    cookie = rig.log_in(login).cookie
    reply = rig.get(path.format(signature=rig.signature, id=rig.id), cookie)
    assert reply.status == 200
    assert not TURNED.search(reply.text)
    assert html.escape(SHOWN_SUBJECT) in reply.text
    assert html.escape(SHOWN_NAME) in reply.text


def test_the_page_of_a_message_shows_the_envelope(rig):
    """The control character of the envelope's sender is visible there, too."""
    reply = rig.get(f"/message/{rig.signature}", rig.log_in("root").cookie)
    assert html.escape(SHOWN_SENDER) in reply.text


def test_programs_get_the_visible_form(rig):
    """The API and the commands name the message as the pages do."""
    (found,) = rig.api.get("/verdicts").body["verdicts"]
    (kept,) = rig.api.get("/quarantine").body["messages"]
    assert (found["notes"]["subject"], found["notes"]["from"]) == (SHOWN_SUBJECT, SHOWN_SENDER)
    assert (kept["subject"], kept["sender"]) == (SHOWN_SUBJECT, SHOWN_SENDER)
    view = rig.api.get(f"/quarantine/{rig.id}/view").body.decode()
    assert not TURNED.search(view)
    for shown in (SHOWN_SUBJECT, "a<U+202E>fdp.exe"):
        assert html.escape(shown) in view
    assert "the file really ends in .exe." in view


def test_commands_and_the_log_show_it(rig):
    """The terminal gets no control character from a subject or an address."""
    config = ("--config", str(rig.folder / "spamnb.toml"))
    for command in (("history",), ("quarantine", "list"), ("quarantine", "show", rig.id)):
        shown = spamnb(rig.home, *config, *command)
        assert shown.code == 0, shown.err
        assert not TURNED.search(shown.out)
    for shown in (SHOWN_SUBJECT, SHOWN_SENDER):
        assert shown in spamnb(rig.home, *config, "quarantine", "list").out
    record = rig.daemon.wait_for("message")
    assert record["from"] == SHOWN_SENDER
    assert not TURNED.search(json.dumps(record, ensure_ascii=False))


def test_a_release_still_reaches_the_next_hop(rig):
    """The visible form of an address is one word, so the message can be sent on."""
    reply = rig.api.post(f"/quarantine/{rig.id}/release", {})
    assert reply.body["delivered"] is True, reply.body
