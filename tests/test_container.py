"""What the Containerfile starts works in namespaces, without an engine for containers.

The root is that of this machine, read-only; the volume is a folder of its own. The image itself is
built only where an engine is installed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.waiting import LIMIT_S, until

from spamnb.cli.import_ahead import is_world_readable

PROJECT = Path(__file__).resolve().parent.parent
FILE = (PROJECT / "scripts" / "package" / "Containerfile").read_text("utf-8")
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind / && exec "$@"'


def instruction(name):
    """Return the last value of an instruction of the Containerfile."""
    return re.findall(rf"^{name} (.*)$", FILE, re.MULTILINE)[-1]


def why_not():
    """Return why the test cannot run here; empty if it can."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return "needs root, unshare and setpriv"
    done = subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False)
    return "no namespaces here" if done.returncode else ""


def succeeds(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
@pytest.mark.skipif(not is_world_readable(), reason="no other user can run the program here")
def test_the_container_serves_as_process_1_with_a_read_only_root():
    """It needs no rights, answers its health check, and ends at SIGTERM with exit code 0."""
    user = re.search(r"--uid (\d+)", FILE)[1]
    volume = Path(tempfile.mkdtemp(prefix="spamnb-container-"))  # open to its user
    os.chown(volume, int(user), int(user))
    volume.chmod(0o700)
    program = [sys.executable, "-m", *json.loads(instruction("ENTRYPOINT"))]
    confined = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    confined += ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PROJECT),
        "SPAMNB_HOME": str(volume),
        "SPAMNB_DELIVERY_ADDRESS": f"unix:{volume}/lmtp.sock",
    }
    inside = [*NAMESPACES, "sh", "-c", READ_ONLY, volume, *confined, *program]
    serve = [*json.loads(instruction("CMD")), "--listen", f"unix:{volume}/smtp.sock"]
    with subprocess.Popen([*inside, *serve], env=environment, stderr=subprocess.PIPE) as outer:
        try:
            name, *asked = json.loads(instruction("HEALTHCHECK .* CMD"))
            assert name == "spamnb"
            health = [*confined, *program, *asked]
            until(
                lambda: outer.poll() is not None or succeeds(health, environment),
                "the health check",
            )
            assert outer.poll() is None, outer.stderr.read()
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
            assert outer.wait(LIMIT_S) == 0, outer.stderr.read()
        finally:
            outer.kill()
            shutil.rmtree(volume)
