"""The real spamc, rspamc and curl ask the real daemon, as the documentation says."""

import contextlib
import email
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.clients import RSPAMC, needs_curl, needs_rspamc, needs_spamc, run_line
from support.docs_snippets import changed, snippet
from support.postfix import PROJECT, Daemon, free_ports

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the daemon's socket belongs to root")
SAMPLE = PROJECT / "corpora" / "sample"
OWN = ("X-Spam-Flag", "X-Spam-Status", "X-Spam-Score", "X-Spam-Level", "X-Spamnb-Verdict")


class Site:
    """The daemon with a listener on TCP and one on a unix socket."""

    def __init__(self, folder):
        self.folder = folder
        self.port, other = self.port, self.deferring = free_ports(2)
        self.here = {"127.0.0.1:783": f"127.0.0.1:{self.port}"}
        sock = {"/run/spamnb/scan.sock": str(folder / "scan.sock")}
        toml = changed(snippet("spamc.md", "The listener", "spamnb.toml"), self.here | sock)
        taught = snippet("rspamd.md", "The listener", "spamnb.toml").partition("[listener.local]")[
            0
        ]
        toml += changed(taught, {"127.0.0.1:11333": f"127.0.0.1:{other}"})
        toml += 'teachers = ["127.0.0.1"]\non_fault = "defer"\n'
        toml += "[scan]\nclues = 2\n[serve]\nworkers = 1\n"
        self.daemon = Daemon(folder, toml)
        self.daemon.spamnb("train", SAMPLE / "ham", SAMPLE / "spam")
        self.changes = {
            "-p 783": f"-p {self.port}",
            "127.0.0.1:11333": f"127.0.0.1:{other}",
        } | sock

    def message(self, label, number):
        """A file with a message of the sample."""
        path = self.folder / "message"
        shutil.copy(sorted((SAMPLE / label).iterdir())[number], path)
        return path

    def lines(self, page, section):
        """The lines of a snippet, with the ports and paths of the test."""
        text = snippet(page, section, "shell")
        known = {old: new for old, new in self.changes.items() if old in text}
        return changed(text, known).splitlines()[1:]

    def spamc(self, options, message, *, unix=False):
        """Exit code and output of spamc."""
        line = self.lines("spamc.md", "spamc")[unix].removesuffix("< message")
        done = run_line(f"{line} -x {options} < message", message)
        return done.returncode, done.stdout.decode()


@pytest.fixture(scope="module")
def site():
    """A daemon with a model of the sample."""
    folder = Path(tempfile.mkdtemp(prefix="spamnb-scan-"))  # the names of sockets are short
    one = Site(folder)
    try:
        one.daemon.start()
        yield one
    finally:
        with contextlib.suppress(OSError):  # shown if the test fails
            print(one.daemon.log.read_text()[-8000:])
        one.daemon.stop()
        shutil.rmtree(folder)


@needs_spamc
@pytest.mark.parametrize("unix", [False, True])
def test_spamc_marks_messages(site, unix):
    """Spamc returns the message with the fields before it; the rest is as it was."""
    for label, flag in (("ham", "NO"), ("spam", "YES")):
        message = site.message(label, 3)
        code, out = site.spamc("", message, unix=unix)
        found = email.message_from_string(out)
        assert (code, found["X-Spam-Flag"]) == (0, flag)
        assert tuple(found.keys()[:5]) == OWN
        assert out.encode().endswith(message.read_bytes())
    code, header = site.spamc("--headers", message, unix=unix)
    assert email.message_from_string(header)["X-Spam-Flag"] == "YES"


@needs_spamc
def test_each_option_of_spamc(site):
    """Exit codes, score, report, names of tests, and what spamc does not ask about."""
    ham = site.message("ham", 3)
    code, out = site.spamc("-c", ham)
    assert code == 0
    assert out.strip().endswith("/5.0")
    assert site.spamc("-r", ham) == (0, "")
    spam = site.message("spam", 3)
    assert site.spamc("-c", spam)[0] == 1
    code, out = site.spamc("-E", spam)
    assert code == 1
    assert "X-Spam-Flag: YES" in out
    for option in ("-R", "-r"):
        assert "label spam, probability" in site.spamc(option, spam)[1]
    assert "SPAMNB_CLUE_1" in site.spamc("-y", spam)[1]
    code, out = site.spamc("-s 500", spam)
    assert "X-Spam-Flag" not in out
    assert site.spamc("-K", spam) == (0, "SPAMD/1.5 0\n")


@needs_spamc
def test_spamc_without_the_daemon(site):
    """Without `-x` the message passes unmarked; with it the caller gets an error and the score."""
    message = site.message("ham", 3)
    (closed,) = free_ports(1)
    line = site.lines("spamc.md", "spamc")[0].replace(f"-p {site.port}", f"-p {closed}")
    line = line.removesuffix("< message")
    passed = run_line(f"{line} < message", message)
    assert (passed.returncode, passed.stdout) == (0, message.read_bytes())
    assert run_line(f"{line} -x < message", message).returncode == os.EX_UNAVAILABLE
    assert run_line(f"{line} -c < message", message).stdout == b"0/0\n"


@needs_spamc
def test_spamc_teaches_on_the_unix_socket_only(site):
    """An administrator's corrections are learnt, a second one is known; TCP is refused."""
    message = site.message("ham", 9)
    said = [site.spamc(f"-L {what}", message, unix=True)[1] for what in ("spam", "spam", "forget")]
    assert [line.strip() for line in said] == [
        "Message successfully un/learned",
        "Message was already un/learned",
        "Message successfully un/learned",
    ]
    code, _ = site.spamc("-L spam", message)
    assert code == os.EX_IOERR  # spamc does not pass on the code in the reply
    assert site.spamc("-L ham", message, unix=True)[1].strip() == "Message successfully un/learned"
    for what in ("report", "revoke"):
        assert "Unable" in site.spamc(f"-C {what}", message, unix=True)[1]


@needs_spamc
def test_a_user_without_rights_cannot_act_for_others(site):
    """The kernel names the user of the unix socket, whatever user a client claims to be."""
    nobody = pwd.getpwnam("nobody")
    site.folder.chmod(0o755)
    (site.folder / "scan.sock").chmod(0o666)
    message = site.message("ham", 9)
    message.chmod(0o644)
    line = site.lines("spamc.md", "spamc")[1].removesuffix("< message")
    drop = f"setpriv --reuid={nobody.pw_uid} --regid={nobody.pw_gid} --clear-groups "
    spamc = os.environ.get("SPAMC") or shutil.which("spamc")
    rest = line.removeprefix("spamc ")
    done = run_line(f"sh -c '{drop}{spamc} {rest} -x -u alice -L spam' < message", message, sh="sh")
    assert done.returncode == os.EX_IOERR


@needs_spamc
def test_spamc_with_a_fault_of_the_daemon(site):
    """`on_fault` decides between a message that is marked as unscanned and a temporary error."""
    message = site.message("ham", 3)
    with site.daemon.damaged():
        code, out = site.spamc("", message)
        assert (code, email.message_from_string(out)["X-Spam-Flag"]) == (0, None)
        assert "X-Spamnb-Verdict: unscanned; reason=" in out
        assert site.spamc("-c", message) == (0, "0.0/5.0\n")
        line = site.lines("spamc.md", "spamc")[0].replace(f"-p {site.port}", f"-p {site.deferring}")
        done = run_line(line.replace("<", "-x <"), message)
        assert (done.returncode, done.stdout) == (os.EX_IOERR, b"")
        check, *_ = site.lines("rspamd.md", "rspamc")
        if RSPAMC:
            assert "Action: soft reject" in run_line(check, message).stdout.decode()


@needs_rspamc
def test_rspamc_reads_every_reply(site):
    """Symbols and statistics as documented; learning by a client in `teachers`."""
    symbols, stat = site.lines("rspamd.md", "rspamc")
    shown = run_line(symbols, site.message("spam", 3)).stdout.decode()
    assert "Spam: true" in shown
    assert "Symbol: SPAMNB_" in shown
    assert "Messages scanned: " in run_line(stat).stdout.decode()
    assert "rspamc -h" in symbols
    packed = run_line(symbols.replace("rspamc -h", "rspamc -z -h"), site.message("spam", 3))
    assert packed.stdout.decode().splitlines()[1:4] == shown.splitlines()[1:4], packed
    message = site.message("ham", 11)
    named = symbols.replace("symbols", "-d alice@example.org learn_ham")
    for line in (named, named.replace("learn_ham", "learn_spam")):
        learnt = run_line(line, message)
        assert "success = true" in learnt.stdout.decode(), learnt.stdout
    refused = named.replace(site.changes["127.0.0.1:11333"], site.here["127.0.0.1:783"])
    assert "403" in run_line(refused, message).stdout.decode()


@needs_rspamc
def test_rspamc_teaches_with_a_token(site):
    """The lines of the page; a revoked token, and one of another user, are refused."""
    site.message("ham", 13)
    program = site.folder / "spamnb"
    command = f"{sys.executable} -m spamnb --home {site.daemon.home} --config {site.daemon.config}"
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    there = {"127.0.0.1:11333": site.here["127.0.0.1:783"]}
    page = changed(snippet("rspamd.md", "Corrections", "shell"), there)
    page = changed(page, {"rspamc -h": f"'{RSPAMC}' -h"})
    environment = site.daemon.environment | {
        "PATH": f"{site.folder}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": os.environ.get("RSPAMC_LIBRARIES", ""),
    }

    def told(lines):
        done = subprocess.run(
            ["sh", "-c", "\n".join(lines)], cwd=site.folder, env=environment, capture_output=True,
            check=False,
        )  # fmt: skip
        return done.stdout.decode()

    create, learn, revoke = page.splitlines()[1:]
    assert "success = true" in told([create, learn, revoke])
    assert "403" in told([create, revoke, learn])
    create = create.replace("--scope", "--for alice@example.org --scope")
    learn = learn.replace("learn_spam", "-d bob@example.org learn_ham")
    assert "403" in told([create, learn, revoke])


def test_the_settings_for_a_container_network_are_valid(tmp_path):
    """Teachers and peers of the page; the documented unit lets none of them in by itself."""
    daemon = Daemon(tmp_path, snippet("spamc.md", "Corrections", "spamnb.toml"))
    assert "no problems found" in daemon.spamnb("config", "check")
    shown = daemon.spamnb("config", "show")
    assert "172.22.1.0/24" in shown
    unit = (PROJECT / "systemd/spamnb.service").read_text()
    assert "IPAddressAllow=localhost\nIPAddressDeny=any\n" in unit


@needs_curl
def test_curl_on_the_unix_socket(site):
    """The lines of the documentation, as scripts of mail suites use them."""
    message = site.message("spam", 3)
    check, learn, own, metrics = site.lines("rspamd.md", "HTTP")
    head, _, body = run_line(check, message).stdout.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert json.loads(body)["score"] >= 5
    assert b'{"success":true}' in run_line(learn, message).stdout
    head, _, body = run_line(own, message).stdout.partition(b"\r\n\r\n")
    assert b"Spamnb-Outcome: {" in head
    assert email.message_from_bytes(body)["X-Spam-Flag"] == "YES"
    assert b"spamnb_scanned_total" in run_line(metrics).stdout
    chunked = f"{check} -H 'Transfer-Encoding: chunked' -H 'Expect: 100-continue'"
    assert b"HTTP/1.1 100 Continue" in run_line(chunked, message).stdout
    assert b"HTTP/1.1 400" in run_line(f"{check} -H 'File: /etc/passwd'", message).stdout


@needs_curl
def test_curl_as_in_container_suites(site):
    """Messages on standard input, a probe of `required_score`, hashes that are not kept."""
    message, sock = site.message("spam", 5), site.folder / "scan.sock"
    to = f"curl -s -H 'Password: any' --unix-socket {sock}"

    def asked(rest):
        head, _, body = run_line(f"{to} {rest}", message).stdout.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        return body

    for path in ("learnspam", "learnham"):
        assert json.loads(asked(f"--data-binary @- http://rspamd/{path} < message"))["success"]
    for path in ("fuzzyadd", "fuzzydel"):
        found = json.loads(asked(f"-H 'Flag: 13' --data-binary @- http://rspamd/{path} < message"))
        assert found["error"].startswith("No content to generate fuzzy hashes")
    probe = asked("-d 'From: a@localhost\nTo: b@localhost\n\nEmpty' http://rspamd/scan")
    assert 5 < json.loads(probe)["default"]["required_score"] < 999
    assert json.loads(asked("http://rspamd/stat"))["scanned"] > 0
    assert asked("http://rspamd/ping") == b"pong\r\n"
