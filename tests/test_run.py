"""`scripts/run`: from a clone to scanned mail, with the printed commands."""

import os
import re
import shutil
import signal
import smtplib
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from support.postfix import free_ports
from support.waiting import LIMIT_S, until

PROJECT = Path(__file__).resolve().parent.parent
PARTS = ("scripts/run", "scripts/setup.sh", "scripts/make-sample", "scripts/mailcraft.py")


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


def wait_for(running, output, text):
    until(lambda: text in output.read_text() or running.poll() is not None, text)
    assert running.poll() is None, output.read_text()


def test_the_commands_that_it_prints_work(clone):
    """Judges, explains, serves; a message sent as it says lies in the Maildir; Ctrl-C ends all."""
    front, post, pages = free_ports(3)
    environment = os.environ | {
        "SPAMNB_DELIVERY_ADDRESS": f"127.0.0.1:{post}",
        "SPAMNB_CONSOLE_ADDRESS": f"127.0.0.1:{pages}",
        "SPAMNB_MODEL_PRIOR": "true",
        "PYTHONPATH": str(clone),
        "PYTHONUNBUFFERED": "1",
    }
    output = clone / "said"
    command = ["scripts/run", "--listen", f"127.0.0.1:{front}"]
    with output.open("w") as out:
        running = subprocess.Popen(
            command, cwd=clone, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        wait_for(running, output, "Ctrl-C stops it.")
        raw = (clone / "run/new/spam/0000.eml").read_bytes()
        with smtplib.SMTP("127.0.0.1", front) as client:
            client.sendmail("me@example.net", ["you@example.org"], raw)
        maildir = clone / "run/home/mail/you/Maildir"
        arrived = [*maildir.glob("new/*"), *maildir.glob(".Junk/new/*")]
        assert len(arrived) == 1
        assert b"X-Spamnb-Verdict: junk; label=spam" in arrived[0].read_bytes()
        password = re.search(r"login admin, password: (\S+)$", output.read_text(), re.MULTILINE)[1]
        assert "sample@example.org" in live_page(pages, password)
    finally:
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(LIMIT_S) == 0, output.read_text()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", front), LIMIT_S)


def live_page(port, password):
    """Log in as the administrator; the first page, when the sent messages are on it."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    form = urllib.parse.urlencode({"login": "admin", "password": password}).encode()
    url = f"http://127.0.0.1:{port}"
    login = urllib.request.Request(f"{url}/login", form, {"Sec-Fetch-Site": "same-origin"})
    opener.open(login, timeout=LIMIT_S).close()

    def come():
        with opener.open(f"{url}/live", timeout=LIMIT_S) as reply:
            page = reply.read().decode()
        return page if "/message/" in page else None

    return until(come, "a message on the page")


def found(environment):
    """The Python that setup.sh would take."""
    return subprocess.run(
        ["sh", "-c", ". scripts/setup.sh; find_python"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def stub(folder, name, *, version=True, venv=True):
    """A Python of which only this is known: whether it is new enough, and whether it has venv."""
    says = f'case "$2" in *version_info*) exit {int(not version)};; *) exit {int(not venv)};; esac'
    path = folder / name
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3": {}, "python3.13": {}}, "python3"),
        ({"python3": {"version": False}, "python3.12": {}}, "python3.12"),
        ({"python3": {"venv": False}, "python3.12": {}}, "python3.12"),
        # make_venv will say what it lacks
        ({"python3": {"venv": False}}, "python3"),
    ],
)
def test_the_first_python_that_can_make_an_environment_is_taken(tmp_path, pythons, taken):
    for name, able in pythons.items():
        stub(tmp_path, name, **able)
    text = (PROJECT / "scripts/setup.sh").read_text().replace("/usr/bin/python3 ", "")
    (tmp_path / "setup.sh").write_text(text)
    done = subprocess.run(
        [shutil.which("sh"), "-c", f". {tmp_path}/setup.sh; find_python"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [taken]


def test_a_python_that_is_named_is_taken_or_refused(tmp_path):
    named = stub(tmp_path, "mine", venv=False)
    assert found(os.environ | {"PYTHON": str(named)}).stdout.split() == [str(named)]
    refused = found(os.environ | {"PYTHON": str(stub(tmp_path, "old", version=False))})
    assert refused.returncode == 1
    assert "no Python 3.11 or later found" in refused.stderr


def installed(folder, what):
    """The arguments of pip when an environment is set up."""
    words = folder / "words"
    words.write_text("")
    done = subprocess.run(
        ["sh", "-c", f". scripts/setup.sh; set_up {what}"], cwd=folder, check=True, text=True,
        capture_output=True,
    )  # fmt: skip
    assert ("installing" in done.stdout) == bool(words.read_text())
    return words.read_text().split()[-1:]


def test_the_tools_of_the_tests_are_installed_for_the_tests_alone(tmp_path):
    """A first try of the program needs no half a gigabyte; what the tests have is enough for it."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(PROJECT / "scripts/setup.sh", tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("")
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$2" != pip ] || echo "$@" >>words\n')
    python.chmod(0o755)
    assert installed(tmp_path, "run") == [".[auth,fast,console]"]
    assert installed(tmp_path, "run") == []
    assert installed(tmp_path, "test") == [".[test,fast,plots]"]
    assert installed(tmp_path, "test") == installed(tmp_path, "run") == []
    (tmp_path / "constraints.txt").write_text("numpy==9\n")
    assert installed(tmp_path, "run") == [".[auth,fast,console]"]
    assert installed(tmp_path, "test") == [".[test,fast,plots]"]
