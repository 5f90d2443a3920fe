"""`spamnb filter` marks what comes on standard input, and never loses it."""

import os
import re
import resource
import signal
import smtplib
import subprocess
import sys
from functools import partial

import pytest
from support.cli import ONE_HAM, ONE_SPAM, PROGRAM, environment
from support.daemon import let_others_enter
from support.filtering import answering, daemon_in, filtered, run_filter, short_home
from support.sink import Sink
from support.waiting import LIMIT_S

from spamnb.policy.headers import OWN_HEADERS

HAM, SPAM = ONE_HAM.read_bytes(), ONE_SPAM.read_bytes()
CRLF = SPAM.replace(b"\n", b"\r\n")
MBOX = b"From alice@example.com Mon Jan  6 10:00:00 2025\n"
FORGED = b"X-Spam-Flag: NO\nX-Spamnb-Verdict: deliver\n folded\n"
HOSTILE = {
    "one line": b"x",
    "nul": b"Subject: a\0b\n\0\n\n\0\xff\n",
    "bare cr": b"Subject: a\rX-Spam-Flag: NO\r\rbody\r",
    "mixed line ends": b"Subject: a\r\nTo: b\n\r\nx\ny\r\n",
    "no header": b"\nbody\n",
    "no field first": b"hello\nX-Spam-Flag: NO\n\nbody\n",
    "long line": b"Subject: " + b"x" * 2_000_000,
    "many fields": b"X: y\n" * 100_000 + b"\n",
    "nested": b"Content-Type: message/rfc822\n\n" * 5000,
}


@pytest.fixture(scope="module")
def served(trained):
    """A home that a daemon serves."""
    with short_home(trained) as home, daemon_in(home):
        yield home


@pytest.fixture(scope="module")
def alone(trained):
    """A home without a daemon, in which the filter writes its history."""
    with short_home(trained) as home:
        yield home


@pytest.fixture(params=["served", "alone"])
def home(request):
    """A home, with and without a daemon."""
    return request.getfixturevalue(request.param)


def split(marked):
    """The added fields in a marked message, and the rest."""
    names = tuple(name + b":" for name in OWN_HEADERS)
    lines = marked.splitlines(keepends=True)
    start = int(lines[0].startswith(b"From "))
    end = start
    while end < len(lines) and (
        lines[end].lower().startswith((*names, b"x-spamnb-")) or lines[end][:1] in b" \t"
    ):
        end += 1
    return b"".join(lines[start:end]), b"".join(lines[:start] + lines[end:])


# --- the message ---------------------------------------------------------------------------------


def test_a_message_above_the_limit_is_not_scanned(served):
    """It passes whole, also where a verdict is required; one of exactly the limit is scanned."""
    size = str(len(SPAM))
    for options, fields in (
        (("--limit", size), b"X-Spam-Flag: YES"),
        (("-s", str(len(SPAM) - 1)), b"X-Spamnb-Verdict: unscanned; reason=large"),
        (("-x", "-s", "10"), b"X-Spamnb-Verdict: unscanned; reason=large"),
    ):
        done = filtered(SPAM, *options, home=served)
        added, rest = split(done.out)
        assert fields in added
        assert rest == SPAM
    assert filtered(SPAM, "-E", "-s", "10", home=served).code == 75


@pytest.mark.parametrize(
    "message", [HAM, SPAM, CRLF, MBOX + SPAM], ids=["ham", "lf", "crlf", "mbox"]
)
def test_the_fields_are_added_and_all_other_bytes_stay(home, message):
    """The fields come before the first byte, after an mbox line, with the message's line ends."""
    done = filtered(message, home=home)
    added, rest = split(done.out)
    assert (done.code, done.err, rest) == (0, "", message)
    assert added.startswith(b"X-Spam-Flag: " + (b"NO" if message == HAM else b"YES"))
    assert added.count(b"\r\n") == (added.count(b"\n") if message == CRLF else 0)
    assert b"X-Spamnb-Signature: " in added


def test_forged_copies_are_removed(home):
    """As in the relay: also behind other fields, and also if there is no verdict."""
    message = MBOX + b"Subject: x\n" + FORGED + b"\nbody\n"
    for place in (home, home / "absent"):
        added, rest = split(filtered(message, home=place).out)
        assert rest == MBOX + b"Subject: x\n\nbody\n"
        assert b"X-Spamnb-Verdict: " in added


def test_the_fields_are_those_of_the_relay(trained):
    """The relay, the daemon's scanner and the own scan give a message the same header lines."""
    message = CRLF.replace(b"Subject:", FORGED.replace(b"\n", b"\r\n") + b"Subject:", 1)
    sink = Sink()
    try:
        with short_home(trained) as home:
            with daemon_in(home, listener=f'upstream = "{sink.address}"') as daemon:
                with smtplib.SMTP("127.0.0.1", daemon.port(), timeout=LIMIT_S) as client:
                    client.sendmail("alice@example.com", ["bob@example.org"], message)
                asked = filtered(message, home=home).out
            alone = filtered(message, home=home).out
    finally:
        sink.close()
    relayed, asked, alone = (
        re.sub(rb"(X-Spamnb-Signature: )\w+", rb"\1", raw)
        for raw in (sink.messages[0], asked, alone)
    )
    assert relayed == asked == alone
    assert relayed.endswith(b"\r\nX-Spamnb-Signature: \r\n" + CRLF)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_mail_passes_whole(served, alone, name):
    """Each message gets the same fields from the daemon and without it, and keeps its body."""
    message = HOSTILE[name]
    found = [filtered(message, home=home) for home in (served, alone)]
    assert [done.code for done in found] == [0, 0]
    ours = [done.out.partition(b"X-Spamnb-Signature")[0] for done in found]
    assert ours[0] == ours[1]
    assert b"X-Spam-Flag: " in ours[0]
    body = message.partition(b"\n\n")[2] or message[-100:]
    assert all(done.out.endswith(body.rpartition(b"\r")[2]) for done in found)


def test_a_message_of_any_size_passes(home):
    """Beyond what is held in memory, the message is copied."""
    message = SPAM + b"A line of text that goes on and on and on.\n" * 900_000
    done = filtered(message, home=home)
    assert done.code == 0
    assert split(done.out)[1] == message


# --- the verdict ---------------------------------------------------------------------------------


def test_exit_codes_by_verdict(home):
    """As `score --exit-code`: 0 ham, 1 spam; 75 without a verdict; the message is written."""
    assert filtered(HAM, "-E", home=home).code == 0
    assert filtered(SPAM, "--exit-code", home=home).code == 1
    done = filtered(SPAM, "-E", home=home / "absent")
    assert done.code == 75
    assert done.out == b"X-Spamnb-Verdict: unscanned; reason=model\n" + SPAM
    assert "no verdict: no scanner at unix:" in done.err
    assert "; unscanned, reason model\n" in done.err


def test_a_verdict_may_be_required(home):
    """Without a verdict nothing is written, and the caller tries again."""
    assert filtered(SPAM, "-x", home=home).out.endswith(SPAM)
    done = filtered(SPAM, "-x", home=home / "absent")
    assert (done.code, done.out) == (75, b"")
    assert "there is no verdict - nothing was written" in done.err


def test_a_daemon_that_only_observes_leaves_the_message(trained):
    """Only the signature is added, and nothing is spam."""
    with short_home(trained) as home, daemon_in(home, "observe = true\n"):
        done = filtered(SPAM, "-E", home=home)
    assert done.code == 0
    assert done.out.startswith(b"X-Spamnb-Signature: ")
    assert done.out.endswith(b"\n" + SPAM)


def test_a_daemon_may_put_a_message_off(trained):
    """What a relay would answer with 451 passes unscanned, or is left to the caller."""
    with short_home(trained) as home:
        (home / "data.mdb").write_bytes(b"damaged")
        with daemon_in(home, 'on_fault = "defer"\n'):
            passed, refused = (filtered(SPAM, *options, home=home) for options in ([], ["-x"]))
    assert (passed.code, passed.out) == (0, b"X-Spamnb-Verdict: unscanned; reason=fault\n" + SPAM)
    assert (refused.code, refused.out) == (75, b"")


def test_the_recipient_is_remembered(served):
    """An administrator's program names the recipients of the envelope."""
    filtered(SPAM, "--recipient", "alice@example.org", "--sender", "a@b.example", home=served)
    found = subprocess.run(
        [*PROGRAM, "--home", served, "history", "--json", "--limit", "1"],
        capture_output=True, env=environment(), check=True,
    )  # fmt: skip
    assert b"alice@example.org" in found.stdout


# --- a daemon that fails -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [None, b"", b"HTTP/1.1 500 no\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nX-Spam"],
    ids=["hangs", "closes", "fails", "breaks off"],
)
def test_without_a_whole_answer_the_message_is_scanned_here(trained, reply):
    """Whatever the daemon does, the own scan follows; it has as much time as the daemon had."""
    with short_home(trained) as home, answering(home, reply):
        done = filtered(SPAM, "-E", "-t", 2 if reply is None else 600, home=home)
    assert split(done.out)[1] == SPAM
    assert done.code == 1 or (reply is None and "timed out; " in done.err)


def test_a_scan_that_crashes_or_hangs_costs_the_verdict_only(trained):
    """A damaged model may kill the process that reads it; a deadline ends every scan."""
    with short_home(trained) as home:
        os.mkfifo(home / "list")  # to open it waits for a writer
        done = filtered(SPAM, "-t", 1, home=home, SPAMNB_RULES_BLOCK=str(home / "list"))
        assert (done.code, done.out) == (0, b"X-Spamnb-Verdict: unscanned; reason=fault\n" + SPAM)
        assert "timed out" in done.err
        with (home / "data.mdb").open("r+b") as file:
            file.truncate(8192)
        done = filtered(SPAM, home=home)
        assert (done.code, split(done.out)[1]) == (0, SPAM)
        assert "no verdict" in done.err


# --- failures that the caller must see -----------------------------------------------------------


def test_what_cannot_be_written_fails_temporarily(served):
    """A full disk, a closed output and a reader that has left: 75."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        assert run_filter(SPAM, home=served, stdout=full).code == 75
    read, write = os.pipe()
    os.close(read)
    assert run_filter(SPAM, home=served, stdout=write).code == 75
    os.close(write)
    for closed in (0, 1):
        assert run_filter(SPAM, home=served, preexec_fn=partial(os.close, closed)).code == 75


@pytest.mark.parametrize("options", [["--bogus"], ["-U", "nonsense"], ["-t", "soon"], ["more"]])
def test_wrong_usage_fails_temporarily(served, options):
    """An option that is misspelt in a recipe must neither bounce mail nor pass for a verdict."""
    done = filtered(SPAM, *options, home=served)
    assert (done.code, done.out) == (75, b"")
    assert done.err.startswith("spamnb: ")


def test_no_input_fails_temporarily(served):
    """An empty input is no message."""
    done = filtered(b"", home=served)
    assert (done.code, done.out) == (75, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_fails(trained, number):
    """A filter that is ended while the daemon has the message has no exit code of a success."""
    with short_home(trained) as home, answering(home, None) as came:
        # Under nohup, the tests and their programs ignore SIGHUP.
        filtering = subprocess.Popen(
            ["env", "--default-signal=HUP", *PROGRAM, "--home", home, "filter"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment(),
        )  # fmt: skip
        filtering.stdin.write(SPAM)
        filtering.stdin.close()
        assert came.acquire(timeout=LIMIT_S)
        filtering.send_signal(number)
        with filtering.stdout:
            out = filtering.stdout.read()
        assert filtering.wait(LIMIT_S) in (75, -number)
    assert out == b""


def test_too_little_memory_fails_or_passes_whole(alone):
    """Never a part of a message with an exit code of a success."""
    message = SPAM + b"text\n" * 5_000_000
    for megabytes in (60, 90, 120, 200):
        limit = partial(resource.setrlimit, resource.RLIMIT_AS, (megabytes << 20,) * 2)
        done = run_filter(message, home=alone, preexec_fn=limit)
        assert done.code != 0 or done.out.endswith(message), done.err


# --- the start -----------------------------------------------------------------------------------


def test_with_a_daemon_nothing_heavy_is_imported(served):
    """Neither numpy nor the store nor the listeners: the daemon has them."""
    program = [sys.executable, "-X", "importtime", "-m", "spamnb"]
    done = run_filter(SPAM, home=served, program=program)
    assert done.code == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.err.splitlines()}
    assert "spamnb.net.clients" in loaded
    heavy = {"numpy", "lmdb", "aiosmtpd", "asyncio", "rich", "regex", "selectolax", "http.client"}
    assert loaded & heavy == set()


@pytest.mark.timed
def test_a_message_takes_a_tenth_of_a_second(served):
    """With a daemon, start to end takes at most 0.1 s of a core."""
    spent = []
    for _ in range(15):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run_filter(SPAM, home=served).code == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) <= 0.1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_any_user_may_ask_a_daemon_whose_socket_lets_it(trained):
    """The filter of a user without rights on the home is marked by the daemon."""
    with short_home(trained) as home, daemon_in(home):
        let_others_enter(home)
        home.chmod(0o711)
        (home / "scan.sock").chmod(0o666)
        done = filtered(SPAM, home=home, user=65534)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(b"X-Spam-Flag: YES\n")
