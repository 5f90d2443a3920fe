"""The daemon under a wrong clock: a jump of the clock deletes no quarantined mail."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from support.daemon import NO_DELIVERY, environment, serve, settings_in
from support.waiting import LIMIT_S, until

from spamnb.mail.envelope import Envelope
from spamnb.operations.protocol import ControlClient
from spamnb.scan.quarantine import Quarantine

WRONG = """
import os, time
ahead = int(os.environ["CLOCK_AHEAD_S"])
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + ahead
time.time_ns = lambda: real_ns() + ahead * 10**9
"""
"""sitecustomize.py, which every Python process runs at its start"""


@pytest.fixture
def wrong(home):
    """Return the environment of a machine with a clock that is so many days ahead."""
    (home / "wrong").mkdir()
    (home / "wrong" / "sitecustomize.py").write_text(WRONG)

    def days(number):
        right = environment()
        path = f"{home / 'wrong'}:{right['PYTHONPATH']}"
        return right | {"PYTHONPATH": path, "CLOCK_AHEAD_S": str(number * 86_400)}

    return days


def spamnb(home, config, env, *arguments):
    command = [sys.executable, "-m", "spamnb", "--home", home / "home", "--config", config]
    return subprocess.run(
        [*command, *arguments], env=env, capture_output=True, text=True, check=True, timeout=LIMIT_S
    )


def warnings(home):
    with ControlClient(home / "home" / "control.sock") as caller:
        return caller.ask("status").header["status"]["warnings"]


def test_a_start_under_a_clock_40_days_ahead_empties_no_quarantine(home, wrong):
    """Daemon and commands expire nothing and say so, until the administrator passes --trust-clock.

    Also without a record of the clock, as a home of an older version has none.
    """
    config = settings_in(home, **NO_DELIVERY)
    with serve(home, config=config).ready() as daemon:
        until((home / "home" / "clock").exists, "the record")
        assert daemon.stop() == 0
    quarantine = Quarantine(home / "home" / "quarantine")
    ids = {quarantine.keep(b"Subject: x\r\n\r\nx\r\n", Envelope(), {}) for _ in range(40)}
    for record in (True, False):
        if not record:
            (home / "home" / "clock").unlink()
        with serve(home, config=config, env=wrong(40)).ready() as daemon:
            until(lambda: any("40.0 days ahead" in line for line in warnings(home)), "the warning")
            done = spamnb(home, config, wrong(40), "quarantine", "expire")
            assert done.stdout == "0 messages expired\n"
            assert "nothing expires" in done.stderr
            assert "nothing expires" in spamnb(home, config, wrong(40), "expire").stderr
            assert daemon.stop() == 0
        assert ids <= {entry.id for entry in quarantine.messages()}
    spamnb(home, config, wrong(40), "expire", "--trust-clock")
    done = spamnb(home, config, wrong(40), "quarantine", "expire")
    assert not ids & {entry.id for entry in quarantine.messages()}
    assert all(f"id={one} " in done.stderr for one in ids)


def test_a_clock_is_confirmed_after_30_days_of_uptime(home):
    """A machine that was off for long expires again, without the administrator."""
    config = settings_in(home, **NO_DELIVERY)
    with serve(home, config=config).ready() as daemon:
        until((home / "home" / "clock").exists, "the record")
        assert daemon.stop() == 0
    path = home / "home" / "clock"
    mark = json.loads(path.read_text())
    off = timedelta(days=40) // timedelta(microseconds=1)
    steady = timedelta(days=30, minutes=-1) // timedelta(microseconds=1)
    path.write_text(json.dumps(mark | {"time_us": mark["time_us"] - off, "steady_us": steady}))
    with serve(home, config=config).ready() as daemon:
        until(lambda: any("days ahead" in line for line in warnings(home)), "the warning")
        assert daemon.stop() == 0
    minute = 60_000_000
    mark = json.loads(path.read_text())
    passed = {"clock_us": mark["clock_us"] - 2 * minute, "up_us": mark["up_us"] - 2 * minute}
    path.write_text(json.dumps(mark | passed))
    with serve(home, config=config).ready() as daemon:
        until(lambda: not any("days ahead" in line for line in warnings(home)), "the end")
        assert daemon.stop() == 0
    confirmed = json.loads(path.read_text())["time_us"] / 1e6
    assert abs(datetime.now(UTC).timestamp() - confirmed) < 600
