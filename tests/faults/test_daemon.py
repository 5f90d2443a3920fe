"""`spamnb serve` as the administrator runs it: real processes, real mail, faults in between."""

import email
import os
import shutil
import signal
import smtplib
import socket
import threading
from contextlib import closing, contextmanager, suppress

import pytest
from support.cli import forked as spamnb
from support.daemon import PROJECT, delivered, is_alive, send, serve, settings_in
from support.sink import Sink
from support.waiting import LIMIT_S, until

from spamnb.operations.protocol import ControlClient
from spamnb.store.maintenance import check
from spamnb.store.model_store import open_store

SAMPLE = PROJECT / "corpora" / "sample"


def header(raw, name):
    return email.message_from_bytes(raw)[name]


@pytest.fixture(scope="module")
def shipped(trained, tmp_path_factory):
    """A daemon with the settings as shipped; tests may kill its processes but not end it."""
    folder = tmp_path_factory.mktemp("shipped")
    shutil.copytree(trained, folder / "home")
    with serve(folder).ready() as daemon:
        daemon.folder = folder
        yield daemon


@contextmanager
def dialogue(port, *commands):
    """A client that has sent these commands."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        stream = connection.makefile("rwb")
        assert stream.readline().startswith(b"220")
        for command in ("HELO x", *commands):
            stream.write(command.encode() + b"\r\n")
            stream.flush()
            assert stream.readline()[:1] in b"23", command
        yield stream
        with closing(stream):
            pass


# --- as shipped -----------------------------------------------------------------------------------


def test_mail_goes_through_is_marked_and_lies_in_the_maildir(shipped):
    """The first sentence of the README: started on nothing but a model, it delivers and judges."""
    spam = (SAMPLE / "spam" / "0001.eml").read_bytes()
    with smtplib.SMTP("127.0.0.1", shipped.port(), timeout=LIMIT_S) as client:
        client.sendmail("alice@example.com", ["bob@example.org"], spam)
    (raw,) = delivered(shipped.folder, header(spam, "Message-ID"))
    assert header(raw, "X-Spam-Flag") == "YES"
    assert header(raw, "X-Spamnb-Verdict").startswith("junk; label=spam; p=")
    assert header(raw, "X-Spamnb-Signature")
    assert shipped.wait_for("message", verdict="spam")["code"] == 250


def test_a_correction_by_signature_works_immediately(shipped):
    """After a correction through the daemon, the same message gets the corrected verdict."""
    home = shipped.folder
    spam = (SAMPLE / "spam" / "0003.eml").read_bytes()
    for wanted in ("YES", "NO"):
        with smtplib.SMTP("127.0.0.1", shipped.port(), timeout=LIMIT_S) as client:
            client.sendmail("alice@example.com", ["bob@example.org"], spam)
        found = delivered(home, header(spam, "Message-ID"))
        assert wanted in [header(one, "X-Spam-Flag") for one in found]
        done = spamnb(home / "home", "correct", "ham", header(found[-1], "X-Spamnb-Signature"))
        assert done.code == 0, done.err


def test_a_large_message_is_scanned_in_a_scan_process(shipped):
    """A message above 64 KB gets its verdict from a process that can be killed."""
    ident = send(shipped.port(), "words and words\r\n" * 10_000)
    (raw,) = delivered(shipped.folder, ident)
    assert "p=" in header(raw, "X-Spamnb-Verdict")
    (worker,) = shipped.children("worker")
    assert len(shipped.children("scan", worker)) == 1


def test_options_stand_for_a_settings_file(home, sink):
    """`serve --listen ADDR --upstream ADDR` needs no file."""
    config = home / "spamnb.toml"
    config.write_text(f'[serve]\nuser = "{"root" if os.geteuid() == 0 else ""}"\nworkers = 1\n')
    arguments = ["--listen", "127.0.0.1:0", "--upstream", sink.address]
    with serve(home, *arguments, config=config).ready() as daemon:
        assert daemon.children("delivery") == []
        ident = send(daemon.port("option1"))
        assert ident.encode() in sink.messages[0]


def test_unix_sockets_on_both_sides(home):
    """A listener and a next hop may be paths."""
    delivery = f'[delivery]\naddress = "unix:{home}/post"\n'
    config = settings_in(home, address=f"unix:{home}/in", delivery=delivery)
    with serve(home, config=config).ready() as daemon:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(home / "in"))
            client.settimeout(LIMIT_S)
            stream = client.makefile("rwb")
            for command in (b"", b"HELO x\r\n", b"MAIL FROM:<a@b.example>\r\n",
                         b"RCPT TO:<bob@example.org>\r\n", b"DATA\r\n",
                         b"Message-ID: <1@x>\r\n\r\nhi\r\n.\r\n"):  # fmt: skip
                stream.write(command)
                stream.flush()
                assert stream.readline()[:1] in b"23"
        assert len(delivered(home, "<1@x>")) == 1
        assert daemon.stop() == 0
    assert not (home / "in").exists()


# --- at the start ---------------------------------------------------------------------------------


def failed(folder, *arguments, **options):
    with serve(folder, *arguments, **options) as daemon:
        code = daemon.process.wait(LIMIT_S)
    return code, "\n".join(daemon.plain)


def test_without_a_model_it_says_so(tmp_path):
    """Exit status 3 and a hint; no file is created."""
    code, error = failed(tmp_path)
    assert code == 3
    assert "there is no model" in error
    assert "--create" in error
    assert not (tmp_path / "home").exists()


def test_an_empty_model_is_made_if_asked_for(tmp_path):
    """--create makes a model without training; mail is scanned with it, and none is junk."""
    with serve(tmp_path, "--create").ready() as daemon:
        (raw,) = delivered(tmp_path, send(daemon.port()))
        assert header(raw, "X-Spamnb-Verdict").startswith("unsure; ")
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_a_port_in_use_is_reported_in_one_line(home):
    """Exit status 2; the error has the address."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, error = failed(home, config=settings_in(home, address=f"127.0.0.1:{port}"))
    assert code == 2
    assert error.startswith(f"spamnb: 127.0.0.1:{port} is in use")
    assert "\n" not in error


def test_wrong_settings_are_reported_in_one_line(home):
    """Exit status 2; the error has key, file and line."""
    code, error = failed(home, config=settings_in(home, listener='quque = "before"'))
    assert code == 2
    assert "did you mean listener.mx.queue?" in error
    assert "\n" not in error


def test_a_second_daemon_on_one_home_is_refused(shipped):
    """One learner writes a model: the control socket is taken."""
    code, error = failed(shipped.folder)
    assert code == 2
    assert "control.sock is in use" in error


# --- faults ---------------------------------------------------------------------------------------


def test_a_worker_killed_within_data_loses_nothing(shipped):
    """After SIGKILL amid a message: no 250, the next attempt arrives once, the store is sound."""
    home = shipped.folder
    deaths = len(shipped.logged("process died", role="worker"))
    (pid,) = shipped.children("worker")
    commands = ("MAIL FROM:<a@b.example>", "RCPT TO:<bob@example.org>", "DATA")
    with dialogue(shipped.port(), *commands) as stream:
        stream.write(b"Message-ID: <cut@x>\r\n\r\nhalf a ")
        stream.flush()
        os.kill(pid, signal.SIGKILL)
        with suppress(ConnectionResetError):
            assert stream.readline() == b""
    shipped.wait_for("process died", deaths + 1, role="worker")
    assert delivered(home, "<cut@x>") == []
    ident = send(shipped.port())
    assert len(delivered(home, ident)) == 1
    store = open_store(home / "home", readonly=True)
    with store.read() as view:
        assert check(view) == []
    store.close()


def test_a_dead_learner_stops_no_mail(shipped):
    """Mail is scanned without it, and corrections work again when it is replaced."""
    home = shipped.folder
    (pid,) = shipped.children("learner")
    os.kill(pid, signal.SIGKILL)
    ident = send(shipped.port())
    (raw,) = delivered(home, ident)
    signature = header(raw, "X-Spamnb-Signature")
    until(lambda: spamnb(home / "home", "correct", "spam", signature).code == 0, "a correction")


def test_a_dead_delivery_agent_defers_mail(shipped):
    """While the next hop is away the client gets a temporary error, and no false 250."""
    (pid,) = shipped.children("delivery")
    os.kill(pid, signal.SIGKILL)
    shipped.wait_for("process died", role="delivery")

    def sent():
        try:
            return send(shipped.port())
        except (smtplib.SMTPException, OSError) as error:
            codes.append(getattr(error, "smtp_code", 421))
            return None

    codes = []
    ident = until(sent, "a delivery")
    assert all(400 <= code < 500 for code in codes)
    assert len(delivered(shipped.folder, ident)) == 1


def test_a_damaged_model_lets_mail_flow_unscanned(home):
    """A fault in scoring never loses or bounces mail; header and log report it."""
    data = home / "home" / "data.mdb"
    data.write_bytes(b"\xff" * data.stat().st_size)
    with serve(home).ready() as daemon:
        (raw,) = delivered(home, send(daemon.port()))
        assert header(raw, "X-Spamnb-Verdict").startswith("unscanned")
        daemon.wait_for("fault", where="model")
        assert daemon.stop() == 0


def test_a_helper_that_hangs_is_cut_off(home):
    """At the deadline it is killed; a message not begun is scanned at the next attempt."""
    long = "x " * 40_000
    config = settings_in(home, more="[timeouts]\nscan_s = 3.0\n")
    with serve(home, config=config).ready() as daemon:
        port = daemon.port()
        send(port, long)  # the helper is there now
        (worker,) = daemon.children("worker")
        (helper,) = daemon.children("scan", worker)
        os.kill(helper, signal.SIGSTOP)
        with pytest.raises(smtplib.SMTPDataError, match=r"4\.3\.2"):
            send(port, f"hang {long}")
        daemon.wait_for("scan process died", reason="busy", known_crashers=[])
        assert not is_alive(helper)
        (raw,) = delivered(home, send(port, f"hang {long}"))
        assert "p=" in header(raw, "X-Spamnb-Verdict")


# --- reload, bypass, end --------------------------------------------------------------------------


BASE = """
[review]
max_messages = {most}
[spool]
max_invalid = {invalid}
[rules]
allow = "{folder}/friends"
"""
NEVER = "1 senders and domains of the allow list never match"


class Reloaded:
    """A daemon with settings that a test changes."""

    def __init__(self, folder):
        self.folder, self.home = folder, folder / "home"
        self.friends = folder / "friends"
        self.friends.write_text("sender ann@a.example\n")
        self.config = self.write()
        self.daemon = serve(folder, config=self.config).ready()

    def write(self, more="", most=8, invalid=0):
        text = BASE.format(most=most, invalid=invalid, folder=self.folder)
        return settings_in(self.folder, more=text + more)

    def reload(self, process=None, **values):
        """Change the settings; return when they are in force."""
        which = {"process": process} if process else {}
        count = len(self.daemon.logged("settings reloaded", **which))
        self.write(**values)
        self.daemon.signal(signal.SIGHUP)
        self.daemon.wait_for("settings reloaded", count + 1, **which)


@pytest.fixture(scope="module")
def reloaded(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reloaded")
    shutil.copytree(trained, folder / "home")
    site = Reloaded(folder)
    with site.daemon:
        yield site


@pytest.mark.parametrize(("way", "name"), [("SIGHUP", "0001"), ("spamnb reload", "0007")])
def test_a_reload_changes_what_holds_for_the_next_message(reloaded, way, name):
    """A signal or a command, and a good file: new settings, same processes, same sessions."""
    spam = (SAMPLE / "spam" / f"{name}.eml").read_bytes()
    daemon, home = reloaded.daemon, reloaded.folder

    def subject_after(client):
        client.sendmail("alice@example.com", ["bob@example.org"], spam)
        return [header(raw, "Subject") for raw in delivered(home, header(spam, "Message-ID"))]

    reloaded.reload()
    pids = daemon.children("worker")
    with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
        assert not any(s.startswith("[S]") for s in subject_after(client))
        reloaded.write('[scan]\ntag = "[S] "\n[actions]\njunk = "tag"\nreject = "tag"\n')
        if way == "SIGHUP":
            daemon.signal(signal.SIGHUP)
        else:
            assert spamnb(reloaded.home, "reload").code == 0
        until(lambda: any(s.startswith("[S]") for s in subject_after(client)), "the tag")
    assert daemon.children("worker") == pids


def test_a_reload_changes_how_much_the_review_list_and_the_spool_hold(reloaded):
    """The limits of the file hold at the start; after SIGHUP those of the changed file hold."""
    spool = reloaded.home / "spool"

    def label(number, stranger="a@a.example"):
        fields = {"label": "spam", "channel": "address", "trust": "stranger", "for": stranger}
        mail = f"Subject: {number}\n\nwords\n".encode()
        with ControlClient(reloaded.home / "control.sock") as caller:
            return caller.ask("teach", mail, **fields).header

    def left(name):
        (spool / f"{name}.spam").symlink_to("/dev/null")
        until(lambda: not os.path.lexists(spool / f"{name}.spam"), "the look at it")
        return sorted(path.name for path in spool.iterdir())

    assert label(1)["state"] == "review"
    assert "too many entries of one person" in label(2)["reason"]
    assert left("one") == []
    reloaded.reload(process="learner", most=32, invalid=1)
    assert label(2)["state"] == "review"
    assert left("two") == [".aside-two.spam"]
    assert left("three") == [".aside-two.spam"]


def test_a_reload_with_a_mistake_keeps_the_old_settings(reloaded):
    """SIGHUP with a bad file: mail flows as before, the log names key and line."""
    daemon = reloaded.daemon
    reloaded.write("[scan]\nclues = -5\n")
    daemon.signal(signal.SIGHUP)
    assert "scan.clues" in daemon.wait_for("settings not reloaded")["error"]
    (raw,) = delivered(reloaded.folder, send(daemon.port()))
    assert "p=" in header(raw, "X-Spamnb-Verdict")


def test_an_allow_list_without_effect_is_reported(reloaded):
    """The daemon's start, a reload and `config check` name allow lists that never match."""
    daemon = reloaded.daemon
    assert daemon.wait_for("list without effect")["error"].startswith(NEVER)
    reloaded.friends.write_text("sender ann@a.example unauthenticated\n")
    reloaded.reload()
    count = len(daemon.logged("list without effect"))
    reloaded.reload()
    assert len(daemon.logged("list without effect")) == count
    reloaded.friends.write_text("sender bob@a.example\n")
    reloaded.reload()
    assert daemon.wait_for("list without effect", count + 1)["error"].startswith(NEVER)
    assert NEVER in spamnb(None, "--config", reloaded.config, "config", "check").err


def test_bypass_lets_all_mail_pass(home):
    """`spamnb bypass on` holds immediately and over a restart, until `spamnb bypass off`."""

    def bypass(way):
        assert spamnb(home / "home", "bypass", way).code == 0

    def verdict(daemon):
        (raw,) = delivered(home, send(daemon.port()))
        return header(raw, "X-Spamnb-Verdict")

    with serve(home).ready() as daemon:
        bypass("on")
        until(lambda: "bypass" in verdict(daemon), "the bypass")
    with serve(home).ready() as daemon:
        assert "bypass" in verdict(daemon)
        bypass("off")
        until(lambda: "p=" in verdict(daemon), "the end of the bypass")


def test_sigterm_finishes_what_is_under_way(home):
    """A client that has sent its message gets the next hop's reply before the daemon ends.

    A client without a message under way gets 421, not a reset.
    """
    wait = threading.Event()
    sink = Sink(wait=wait)
    config = settings_in(home, listener=f'upstream = "{sink.address}"', delivery="")
    with serve(home, config=config).ready() as daemon, dialogue(daemon.port()) as idle:
        commands = ("MAIL FROM:<a@b.example>", "RCPT TO:<bob@example.org>", "DATA")
        with dialogue(daemon.port(), *commands) as stream:
            stream.write(b"Message-ID: <last@x>\r\n\r\nbye\r\n.\r\n")
            stream.flush()
            assert sink.at_end.wait(LIMIT_S)
            daemon.signal(signal.SIGTERM)
            daemon.wait_for("stopping")
            assert idle.readline().startswith(b"421")
            with (
                pytest.raises(OSError, match="refused"),
                socket.create_connection(("127.0.0.1", daemon.port())),
            ):
                pass
            wait.set()
            assert stream.readline() == b"250 2.0.0 kept\r\n"
        assert daemon.process.wait(LIMIT_S) == 0
        assert daemon.plain == []
    assert b"<last@x>" in sink.messages[0]
    sink.close()
