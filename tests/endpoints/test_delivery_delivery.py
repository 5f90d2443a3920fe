"""The delivery agent delivers to every recipient, or the sender keeps the message."""

import os
import signal
import smtplib
import socket
import subprocess
import sys
import threading

import pytest
from support.delivery_agent import MESSAGE, certificate, files, running_agent
from support.waiting import LIMIT_S

from spamnb.errors import SettingsError
from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import read
from spamnb.smtp import delivery

JUNK = b"X-Spam-Flag: YES\r\nX-Spamnb-Verdict: junk; label=spam; p=0.9987\r\n"


def send(rig, *recipients, message=MESSAGE, hello=b"EHLO me.example"):
    """One transaction; the replies to the message."""
    with rig.raw() as client:
        client.ask(hello, b"MAIL FROM:<a@b.example>")
        taken = [client.ask(b"RCPT TO:<" + r + b">")[:3] == b"250" for r in recipients]
        client.ask(b"DATA")
        client.send(message + b".\r\n")
        many = sum(taken) if hello.startswith(b"LHLO") else 1
        return [client.reply()[:9] for _ in range(many)]


def block(folder):
    """Make a Maildir that even root cannot deliver to: its `tmp` is a file."""
    folder.mkdir(parents=True)
    (folder / "tmp").write_bytes(b"")


def test_mail_goes_to_each_recipient_with_its_trace(mail):
    """Each Maildir has the message, with sender and recipient in the first headers."""
    with running_agent(root=str(mail)) as agent:
        assert send(agent, b"bob@x.example", b"Carol+news@x.example") == [b"250 2.0.0"]
    one = (mail / "bob" / "Maildir", "bob@x.example")
    two = (mail / "carol" / "Maildir", "Carol+news@x.example")
    for folder, address in (one, two):
        (path,) = files(folder)
        head = f"Return-Path: <a@b.example>\nDelivered-To: {address}\n".encode()
        assert path.read_bytes() == head + MESSAGE.replace(b"\r\n", b"\n")
    assert agent.meters.value("delivered") == 2


def test_delivery_does_not_change_the_digest(mail):
    """The digest in the Maildir is the one before, also with a Received line of the agent."""
    local_hosts = LocalHosts(hosts=("mx.x.example",))
    settings = {"received": True, "hostname": "mx.x.example"}
    with running_agent(root=str(mail), **settings) as agent:
        for message in (MESSAGE, JUNK + MESSAGE, b"no header\r\n", b" begins\r\n\r\nx\r\n",
                        b"\r\nbody\r\n", b"From x y\r\nA: b\r\n\r\nx\r\n", b""):  # fmt: skip
            send(agent, b"bob@x.example", message=message)
            (path,) = files(mail)
            raw = path.read_bytes()
            assert b"\tby mx.x.example with ESMTP;\n" in raw
            assert read(raw, local_hosts).digest == read(message, local_hosts).digest
            path.unlink()


def test_a_message_cannot_write_into_our_lines(mail):
    """A message that begins with a blank does not continue the address above it."""
    with running_agent(root=str(mail)) as agent:
        send(agent, b"bob@x.example", message=b" evil\r\nX: y\r\n")
    (path,) = files(mail)
    assert b"\nDelivered-To: bob@x.example\n\n evil\n" in path.read_bytes()


@pytest.mark.parametrize(
    ("head", "junk"),
    [
        (JUNK, True),
        (b"x-spam-flag :\tyes\r\n", True),
        (b"X-Spam-Flag: NO\r\nX-Spam-Flag: YES\r\n", False),
        (b"Subject: x\r\n X-Spam-Flag: YES\r\n", False),
        (b"\r\nX-Spam-Flag: YES\r\n\r\n", False),
    ],
)
def test_junk_goes_to_its_folder(mail, head, junk):
    """Mail that the relay marked as junk goes to .Junk; only the first X-Spam-Flag field counts."""
    with running_agent(root=str(mail)) as agent:
        send(agent, b"bob@x.example", message=head + MESSAGE)
    (path,) = files(mail)
    assert (path.parent.parent.name == ".Junk") is junk
    assert agent.meters.value("delivered_junk") == junk


def test_if_one_maildir_refuses_no_recipient_has_it_in_smtp(mail):
    """One reply stands for all: 451, nothing half-delivered, and the next try delivers to all."""
    block(mail / "carol" / "Maildir")
    with running_agent(root=str(mail)) as agent:
        assert send(agent, b"bob@x.example", b"carol@x.example") == [b"451 4.3.0"]
        assert [path for path in mail.rglob("*") if path.is_file()] == [
            mail / "carol" / "Maildir" / "tmp"
        ]
        assert agent.meters.value("faults") == agent.meters.value("deferred") == 1
        assert "mail" not in str(agent.logs[-1]["replies"])
        (mail / "carol" / "Maildir" / "tmp").unlink()
        assert send(agent, b"bob@x.example", b"carol@x.example") == [b"250 2.0.0"]
    assert len(files(mail)) == 2


def test_lmtp_answers_for_each_recipient(mail):
    """Two recipients of which one fails: one 250, one 451, in order, and one message."""
    block(mail / "carol" / "Maildir")
    with running_agent("lmtp", root=str(mail)) as agent:
        got = send(agent, b"carol@x.example", b"none", b"bob@x.example", hello=b"LHLO mx")
        assert got == [b"451 4.3.0", b"250 2.0.0"]
        with agent.raw() as client:
            assert client.ask(b"EHLO mx")[:3] == client.ask(b"HELO mx")[:3] == b"502"
    assert [path.parent.parent.parent.name for path in files(mail)] == ["bob"]


def test_lmtp_refuses_for_each_recipient(mail):
    """A message that is too big gets one reply for each recipient."""
    with running_agent("lmtp", root=str(mail), size_limit_bytes=100) as agent:
        big = MESSAGE + b"x" * 200 + b"\r\n"
        got = send(agent, b"a@x.example", b"b@x.example", message=big, hello=b"LHLO mx")
        assert got == [b"552 5.3.4"] * 2


def test_a_unix_socket_is_a_listener_too(tmp_path, mail):
    """LMTP over a unix socket, as an MTA on the same host uses it; the peer is named `unix`."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "lmtp"))
    with (
        running_agent("lmtp", sock=listening, root=str(mail)) as agent,
        smtplib.LMTP(str(tmp_path / "lmtp")) as client,
    ):
        client.ehlo("mx")
        assert client.docmd("XFORWARD", "ADDR=192.0.2.7")[0] == 250
        client.sendmail("a@b.example", ["bob@x.example"], MESSAGE)
    assert (agent.logs[0]["peer"], agent.logs[0]["client"]) == ("unix", "192.0.2.7")
    assert len(files(mail)) == 1


def test_ipv6_is_spoken(mail):
    """A listener on ::1 serves, and knows its peer."""
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with (
        running_agent(sock=listening, root=str(mail)) as agent,
        smtplib.SMTP("::1", agent.port, timeout=LIMIT_S) as client,
    ):
        client.sendmail("a@b.example", ["bob@x.example"], MESSAGE)
        assert client.has_extn("xforward")
    assert agent.logs[0]["peer"] == "::1"


def test_a_full_disk_puts_mail_off(mail, monkeypatch):
    """If the k-th sync fails, for each k, the reply is 451 and no file is visible."""
    real = os.fsync
    with running_agent(root=str(mail)) as agent:
        assert send(agent, b"bob@x.example", b"carol@x.example") == [b"250 2.0.0"]
        for path in files(mail):
            path.unlink()
        for fails in range(1, 5):
            calls = []

            def sync(where, calls=calls, fails=fails):
                calls.append(where)
                if len(calls) == fails:
                    raise OSError(28, "No space left on device")
                real(where)

            monkeypatch.setattr(delivery.os, "fsync", sync)
            assert send(agent, b"bob@x.example", b"carol@x.example") == [b"451 4.3.0"]
            monkeypatch.setattr(delivery.os, "fsync", real)
            assert files(mail) == []
            assert not list(mail.rglob("tmp/*"))
            assert len(calls) == fails


SERVER = """
import asyncio, socket, sys
from spamnb.settings.values import DeliveryParams
from spamnb.smtp.delivery_values import AgentDeps, Listener
from spamnb.smtp.delivery_session import Server
async def life():
    sock = socket.create_server(("127.0.0.1", 0))
    await Server(DeliveryParams(root=sys.argv[1]), AgentDeps(None)).listen([Listener(sock)])
    print(sock.getsockname()[1], flush=True)
    await asyncio.Event().wait()
asyncio.run(life())
"""


def test_a_killed_delivery_agent_has_every_message_it_said_250_for(mail):
    """After kill -9 amid deliveries, every message with a 250 is in its Maildir, complete."""
    for turn in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(mail)], stdout=subprocess.PIPE, text=True
        )
        port = int(process.stdout.readline())
        answered = []
        killer = threading.Timer(turn / 10, os.kill, (process.pid, signal.SIGKILL))
        try:
            with smtplib.SMTP("127.0.0.1", port, timeout=LIMIT_S) as client:
                for number in range(100_000):
                    body = f"Subject: {turn}-{number}\r\n\r\n{'x' * 5000}\r\nend\r\n".encode()
                    client.sendmail("a@b.example", ["bob@x.example"], body)
                    answered.append(f"{turn}-{number}")
                    if not number:
                        killer.start()
        except (smtplib.SMTPException, OSError):
            pass
        finally:
            killer.join()
            process.wait()
            process.stdout.close()
        assert answered
        texts = [path.read_bytes() for path in files(mail)]
        assert all(text.endswith(b"end\n") for text in texts)
        found = {text.split(b"Subject: ")[1].split(b"\n")[0].decode() for text in texts}
        assert set(answered) <= found


def test_a_bad_certificate_is_a_settings_error(tmp_path):
    """Settings that cannot be served fail at the start, in one line with the file."""
    (tmp_path / "cert.pem").write_text("no certificate")
    with (
        pytest.raises(SettingsError, match=r"cert\.pem cannot be used"),
        running_agent(certificate=str(tmp_path / "cert.pem")),
    ):
        pass


def test_settings_are_renewed_between_transactions(tmp_path, mail):
    """Other settings hold from the next command on; settings that are wrong change nothing."""
    import asyncio

    from spamnb.settings.values import DeliveryParams
    from spamnb.smtp.delivery_session import Server
    from spamnb.smtp.delivery_values import AgentDeps

    async def reloaded():
        server = Server(DeliveryParams(root=str(mail)), AgentDeps(lambda _: None))
        before = server.agent.find("bob@y.example")
        with pytest.raises(SettingsError):
            server.apply_settings(DeliveryParams(root=str(mail), users=str(tmp_path / "none")))
        assert server.agent.find("bob@y.example") == before
        server.apply_settings(DeliveryParams(root=str(mail), domains=("x.example",)))
        found = server.agent.find("bob@y.example")
        await server.drain(0)
        return found

    assert asyncio.run(reloaded()) == "550 5.7.1 Relaying denied"


def test_a_certificate_works(tmp_path, mail):
    """STARTTLS works, and resets all state of the client (RFC 3207 4.2)."""
    import ssl

    cert, key = certificate(tmp_path)
    with running_agent(root=str(mail), certificate=cert, key=key) as agent, agent.smtp() as client:
        client.ehlo()
        assert client.has_extn("starttls")
        assert not client.has_extn("auth")
        client.mail("a@b.example")
        client.starttls(context=ssl.create_default_context(cafile=cert))
        assert client.rcpt("bob@x.example")[0] == 503
        assert client.mail("a@b.example")[0] == 503
        client.ehlo()
        assert not client.has_extn("starttls")
        assert client.docmd("STARTTLS")[0] == 503
        client.sendmail("a@b.example", ["bob@x.example"], MESSAGE)
    assert len(files(mail)) == 1


def test_commands_sent_before_tls_are_discarded(tmp_path, mail):
    """Commands sent in the clear behind STARTTLS are thrown away (CVE-2024-34083)."""
    import ssl

    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(cafile=cert)
    with running_agent(root=str(mail), certificate=cert, key=key) as agent, agent.raw() as client:
        client.ask(b"EHLO me.example")
        client.send(b"STARTTLS\r\nMAIL FROM:<injected@b.example>\r\n")
        assert client.reply()[:3] == b"220"
        try:
            with context.wrap_socket(client.sock, server_hostname="localhost") as secure:
                secure.sendall(b"EHLO me.example\r\nRCPT TO:<bob@x.example>\r\n")
                received = b""
                while b"503" not in received:
                    received += secure.recv(4096)
        except ssl.SSLError:
            return  # the clear text broke the handshake, which is as good
        assert b"2.1.0" not in received
