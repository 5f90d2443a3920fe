"""The process that OpenSMTPD starts: it answers in time, and ends only with its input."""

import os
import signal
import subprocess
import sys

import pytest
from support.cli import ONE_SPAM, PROGRAM, environment, program
from support.filtering import answering, daemon_in, short_home
from support.opensmtpd_process import CONFIG, Process, message
from support.waiting import LIMIT_S

SPAM = ONE_SPAM.read_bytes()


@pytest.fixture
def home(trained):
    """A home with a short name."""
    with short_home(trained) as place:
        yield place


def test_it_passes_mail_unscanned_without_a_daemon(home):
    """In time, whole, and with a line in the log for each message; it ends with its input."""
    with Process(home / "scan.sock", "--deadline", 1) as running:
        for session in (b"S1", b"S2"):
            running.send(message(session))
        for session in (b"S1", b"S2"):
            found = running.wait_for(session)
            assert found == b"X-Spamnb-Verdict: unscanned; reason=fault\n" + SPAM + b"."
    assert running.code == 0
    assert running.log.count(b"passes unscanned: no scanner at unix:") == 2


def test_it_passes_mail_at_the_deadline(home):
    """A daemon that never answers delays each message once."""
    with answering(home, None), Process(home / "scan.sock", "--deadline", 1) as running:
        running.send(message(b"S1"))
        assert running.wait_for(b"S1").endswith(SPAM + b".")
    assert b"passes unscanned: the scanner gave no answer: timed out" in running.log


def test_it_waits_for_a_daemon_that_starts(home):
    """A message that comes during a restart gets its verdict."""
    with Process(home / "scan.sock", "--deadline", 280) as running:
        running.send(message(b"S1"))
        with daemon_in(home):
            found = running.wait_for(b"S1")
            if b"unscanned" in found:  # the start took longer than messages wait
                running.send(message(b"S2"))
                found = running.wait_for(b"S2")
            assert found.startswith(b"X-Spam-Flag: YES\n")


def test_nothing_but_the_end_of_its_input_ends_it(home):
    """Signals, senseless lines and messages without an answer leave it running."""
    with Process(home / "scan.sock", "--deadline", 1) as running:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            running.process.send_signal(number)
        running.send(b"\n|||\nfilter|\nreport|0.6|1|smtp-in|tx-mail|S1\nfilter|" + b"x" * 100_000)
        running.send(b"\n\xff\0\n" + message(b"S1"))
        assert running.wait_for(b"S1").endswith(SPAM + b".")
    assert running.code == 0
    assert b"internal error" in running.log


def test_it_ends_when_opensmtpd_does_not_read(home):
    """OpenSMTPD has ended then."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*PROGRAM, "opensmtpd", home / "scan.sock"], input=CONFIG, stdout=write,
        stderr=subprocess.PIPE, env=environment(), timeout=LIMIT_S, check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_old_opensmtpd_does_not_start(home):
    """The error names the version."""
    done = subprocess.run(
        [*PROGRAM, "opensmtpd", home / "scan.sock"], input=b"config|smtpd-version|6.6.4\n",
        capture_output=True, env=environment(), timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"OpenSMTPD 6.6.4 is too old" in done.stderr


def test_it_needs_only_the_standard_library():
    """An update of a library cannot end OpenSMTPD."""
    code = (
        "import sys\nimport spamnb.opensmtpd\n"
        "names = {name.partition('.')[0] for name in sys.modules if 'editable' not in name}\n"
        "site = {'site', 'sitecustomize', 'usercustomize', 'apport_python_hook', 'spamnb'}\n"
        "print(*(names - sys.stdlib_module_names - site - set(sys.builtin_module_names)))\n"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, env=environment(), check=True)
    assert [name for name in done.stdout.split() if not name.startswith("_")] == []


def test_wrong_usage(home):
    """A wrong address or number is reported when OpenSMTPD starts."""
    for arguments in (["nonsense"], ["--deadline", "never"]):
        done = program(home, "opensmtpd", *arguments)
        assert done.code == 2
        assert done.err.startswith("spamnb: ")
