"""A burst of large mail at a real daemon: no message passes unscanned or becomes known_crasher."""

import email
import json
import os
import smtplib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.daemon import (
    PROJECT,
    delivered,
    environment,
    send,
    serve,
    serve_slowly,
    settings_in,
)
from support.daemon_children import HANG, SLOW_S
from support.waiting import LIMIT_S, until

from spamnb.operations.protocol import ControlClient

BURST = 40
SCAN_S = 2.0
"""above the time of one message, and below the time of the queue before it"""

REFUSED = """
import os
def refused(_):
    raise PermissionError(1, "Operation not permitted")
os.nice = refused
"""


@pytest.fixture
def slow(home):
    """Start daemons with scan processes that take SLOW_S for a message."""
    running = []

    def start(*, scan_wait_s=300, **values):
        more = f"[timeouts]\nscan_s = {SCAN_S}\nscan_wait_s = {scan_wait_s}\nfinal_s = 1000\n"
        config = settings_in(home, more=more, **values)
        running.append(serve_slowly(home, config))
        return running[-1].ready()

    yield start
    for daemon in running:
        daemon.__exit__()


def verdict_of(folder, ident):
    """The verdict header of a delivered message."""
    (raw,) = delivered(folder, ident)
    return email.message_from_bytes(raw)["X-Spamnb-Verdict"]


def code_of(port, text):
    """Send a message; the code of the reply."""
    try:
        send(port, text)
    except smtplib.SMTPResponseException as error:
        return error.smtp_code
    return 250


def accepted(port, *text):
    """Send a message as a mail server does, again while the daemon is busy; its Message-ID."""

    def attempt():
        try:
            return send(port, *text)
        except smtplib.SMTPDataError as error:
            assert error.smtp_code == 451  # noqa: PT017 - any other code fails at once
            return None

    return until(attempt, "room for the message")


def large(number, size):
    return f"message {number} " + "words of some length " * (size // 21)


@pytest.mark.parametrize("scan_wait_s", [300, 1])
def test_a_burst_is_scanned_or_deferred_and_makes_no_known_crasher(home, slow, scan_wait_s):
    """A queue that takes longer than one scan may take lets no message pass unscanned.

    A message that has waited is scanned at the next attempt: waiting makes no known crasher.
    """
    assert BURST * SLOW_S > 2 * SCAN_S
    daemon = slow(scan_wait_s=scan_wait_s)
    port = daemon.port()
    sizes = [66_000 + number * 184_000 // BURST for number in range(BURST)]
    with ThreadPoolExecutor(BURST) as pool:
        codes = pool.map(code_of, [port] * BURST, map(large, range(BURST), sizes))
        # On a busy machine a small message may wait for a second, too, and is then deferred.
        sent = send if scan_wait_s == 300 else accepted
        small = [verdict_of(home, sent(port)) for _ in range(20)]
        codes = list(codes)
    assert set(codes) <= {250, 451}
    assert scan_wait_s == 300 or 451 in codes
    assert all("p=" in verdict for verdict in small)
    taken = codes.count(250) + len(small)
    until(lambda: len(daemon.logged("message", code=250)) == taken, "all log lines")
    records = daemon.logged("message")
    assert {record["reason"] for record in records if record["code"] == 451} <= {"busy"}
    assert all(record["verdict"] != "unscanned" for record in records if record["code"] == 250)
    assert daemon.logged("scan process died") == []
    late = [number for number, code in enumerate(codes) if code == 451] or list(range(BURST))
    again = [verdict_of(home, accepted(port, large(number, sizes[number]))) for number in late[-3:]]
    assert all("p=" in verdict for verdict in again)


@pytest.mark.parametrize("known_crasher", ["head", "deliver", "defer"])
def test_a_scan_that_hangs_blames_its_message_alone(home, slow, known_crasher):
    """It is deferred once; then the policy decides. The messages behind it are scanned."""
    daemon = slow(listener=f'known_crasher = "{known_crasher}"')
    port = daemon.port()

    def hang():
        with smtplib.SMTP("127.0.0.1", port, timeout=LIMIT_S) as client:
            client.ehlo()
            client.mail("alice@example.com")
            client.rcpt("bob@example.org")
            return client.data(f"Message-ID: <hang@x>\n\n{large(0, 70_000)}{HANG.decode()}\n")[0]

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(hang)
        others = list(pool.map(code_of, [port] * 4, [large(n, 70_000) for n in range(1, 5)]))
        assert first.result() == 451
    assert others == [250] * 4
    assert len(daemon.wait_for("scan process died", reason="overrun")["known_crashers"]) == 1
    assert hang() == (451 if known_crasher == "defer" else 250)
    found = {"head": "reason=head", "deliver": "unscanned; reason=known_crasher"}
    if known_crasher in found:
        assert found[known_crasher] in verdict_of(home, "<hang@x>")


def test_a_message_above_the_limit_is_scanned_by_its_head_while_it_streams(home):
    """Its size alone lets no message pass unscanned; its text arrives unchanged."""
    body = "words of some length\r\n" * 100_000
    reasons = ("reason=head", "reason=partly-read")  # the second if the head has too much text
    with serve(home).ready() as daemon:
        ident = send(daemon.port(), body)
        assert verdict_of(home, ident).endswith(reasons)
        (raw,) = delivered(home, ident)
        assert raw.replace(b"\r\n", b"\n").count(b"\nwords of some length") == 100_000
        assert daemon.wait_for("message")["verdict"] != "unscanned"


def test_a_scan_process_starts_where_its_priority_cannot_be_changed(home):
    """A filter of system calls answers EPERM to nice(2): all processes work."""
    (home / "sitecustomize.py").write_text(REFUSED)
    path = os.pathsep.join([str(home), environment()["PYTHONPATH"]])
    with serve(home, env=environment(PYTHONPATH=path)).ready() as daemon:
        assert "p=" in verdict_of(home, send(daemon.port(), large(0, 70_000)))


def test_the_bench_of_bursts_runs(tmp_path):
    """`scripts/bench/burst --short` exits 0: no message passed unscanned."""
    out = tmp_path / "burst.json"
    script = PROJECT / "scripts" / "bench" / "burst"
    done = subprocess.run([sys.executable, script, "--short", "--json", out], check=False)
    assert done.returncode == 0
    for case in json.loads(out.read_text()):
        assert sum(case["counts"]["burst"].values()) == case["messages"]
        assert sum(case["counts"]["large"].values()) == 5
        assert case["counts"]["small"].keys() == {"scanned"}


def test_status_and_metrics_count_unscanned_mail(home):
    """They count it by reason; above the bound the log and the status warn."""
    data = home / "home" / "data.mdb"
    data.write_bytes(b"\xff" * data.stat().st_size)
    with serve(home).ready() as daemon:
        for _ in range(6):
            send(daemon.port())
        record = daemon.wait_for("mail passes unscanned")
        assert record["unscanned"].keys() == {"model"}
        with ControlClient(home / "home" / "control.sock") as caller:
            facts = caller.ask("status").header["status"]
            metrics = caller.ask("metrics").body.decode()
        assert facts["lately"]["alarm"]
        assert any("unscanned: model" in warning for warning in facts["warnings"])
        assert "spamnb_unscanned_model_total 6" in metrics
        assert "spamnb_unscanned_alarm 1.0" in metrics
