"""`scripts/run`: from a clone to mail that is judged, by its own words."""

import os
import re
import shutil
import signal
import smtplib
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PARTS = ("scripts/run", "scripts/setup.sh", "scripts/make-sample", "scripts/mailcraft.py")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def clone(tmp_path):
    """The folder as a clone has it, with an environment that is made already."""
    for part in (*PARTS, "pyproject.toml", "constraints.txt", "spamnb"):
        source, place = PROJECT / part, tmp_path / part
        place.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, place)
    (tmp_path / "corpora").symlink_to(PROJECT / "corpora")
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "spamnb").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spamnb "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    # What setup.sh compares: then it installs nothing.
    script = f". scripts/setup.sh; VENV=$PWD/.venv/bin; {stamp()} >.venv/installed"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True)
    return tmp_path


def stamp():
    """The line of setup.sh that says for what the environment was made."""
    text = (PROJECT / "scripts/setup.sh").read_text()
    wanted = re.search(r"^ *wanted=(.*)$", text, re.MULTILINE)[1]
    return f"printf '%s\\n' {wanted}"


def wait_for(running, said, text, seconds=60):
    end = time.monotonic() + seconds
    while text not in said.read_text():
        assert running.poll() is None, said.read_text()
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.1)


def test_it_serves_as_it_says(clone):
    """Judges, explains, serves; a message sent as it says lies in the Maildir; Ctrl-C ends all."""
    front, post = free_port(), free_port()
    environment = os.environ | {
        "SPAMNB_POST_ADDRESS": f"127.0.0.1:{post}",
        "PYTHONPATH": str(clone),
        "PYTHONUNBUFFERED": "1",
    }
    said = clone / "said"
    words = ["scripts/run", "--listen", f"127.0.0.1:{front}"]
    with said.open("w") as out:
        running = subprocess.Popen(
            words, cwd=clone, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        wait_for(running, said, "Ctrl-C ends it.")
        raw = (clone / "run/new/spam/0000.eml").read_bytes()
        with smtplib.SMTP("127.0.0.1", front) as client:
            client.sendmail("me@example.net", ["you@example.org"], raw)
        maildir = clone / "run/home/mail/you/Maildir"
        arrived = [*maildir.glob("new/*"), *maildir.glob(".Junk/new/*")]
        assert len(arrived) == 1
        assert b"X-Spamnb-Verdict: spam" in arrived[0].read_bytes()
    finally:
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(60) == 0, said.read_text()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", front), 5)
