"""The two commands of the README on a bare Debian, without a network and with their ports in use.

The packages that they would fetch are in a folder that pip is told about. `scripts/test` runs the
tests of single modules here; continuous integration runs all of them.
"""

from __future__ import annotations

import json

import pytest
from support.debian import (
    bare,
    inside,
    needs_debootstrap,
    project_in,
    this_release,
    with_network,
)

pytestmark = [pytest.mark.full, needs_debootstrap]

PORTS = (10025, 10026, 8025)
FOLDERS = {"root": "root/spamnb", "alice": "home/alice/spamnb"}
OFFLINE = "export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels"
FETCH = """
        apt-get install -y -qq --no-install-recommends python3 python3-venv
        useradd -m -s /bin/sh alice
        chown -R alice: /home/alice
        python3 -m venv /root/fetching
        cd /root/spamnb
        /root/fetching/bin/pip download -q -c constraints.txt -d /wheels \\
            '.[auth,fast,console]' '.[test,fast,plots]' 'setuptools>=77'
        rm -rf build *.egg-info
"""
RUN = """
import json, os, pathlib, re, signal, subprocess, sys
said = []
running = subprocess.Popen(["scripts/run"], stdout=subprocess.PIPE, text=True,
                           start_new_session=True)
for line in running.stdout:
    said.append(line)
    if line.startswith("Ctrl-C"):
        break
text = "".join(said)
command = re.search(r"send a message +(.*)", text)[1]
subprocess.run(command, shell=True, check=True)
(mail,) = pathlib.Path("run/home/mail/you/Maildir").rglob("new/*")
os.killpg(running.pid, signal.SIGINT)
result = {"code": running.wait(), "mail": mail.read_text(), "text": text}
pathlib.Path(sys.argv[1]).write_text(json.dumps(result))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A bare Debian with Python, a user, and a clone for her and for root."""
    root = bare(tmp_path_factory.mktemp("debian") / "root", this_release())
    for folder in FOLDERS.values():
        project_in(root / folder)
    with_network(root, FETCH)
    return root


@pytest.mark.parametrize("user", FOLDERS)
def test_scripts_run(machine, user):
    """It takes free ports, and serves; the printed command sends a message; Ctrl-C ends all."""
    (machine / "tmp" / "try.py").write_text(RUN)
    run = f"su {user} -c 'python3 /tmp/try.py /tmp/{user}.json'"
    inside(machine, f"{OFFLINE}\ncd /{FOLDERS[user]}\n{run}", PORTS)
    result = json.loads((machine / "tmp" / f"{user}.json").read_text())
    assert result["code"] == 0
    assert "X-Spamnb-Verdict: junk; label=spam" in result["mail"]
    assert "http://127.0.0.1:8026" in result["text"]


@pytest.mark.parametrize("user", FOLDERS)
def test_scripts_test(machine, user):
    """It sets everything up, and passes."""
    inside(
        machine,
        f"{OFFLINE}\ncd /{FOLDERS[user]}\nsu {user} -c 'scripts/test tests/unit >said 2>&1'",
        PORTS,
    )
    last = (machine / FOLDERS[user] / "said").read_text().splitlines()[-1]
    assert " passed" in last
    assert "failed" not in last
