"""The mail rig beside the project, if it is there: its own proof must end with `all good`."""

import os
import socket
import subprocess
import sys

import pytest
from support.daemon import let_others_enter
from support.postfix import PROJECT, Daemon, needs_rig

PROVE = PROJECT.parent / "shared" / "tools" / "mailrig" / "prove.py"
PORTS = (2524, 2525, 2543, 10025, 10026)
MESSAGE = "Subject: {tag}\r\n{extra}\r\n.dot line\r\nblå {number}\r\n"
VARIANTS = ("none", "proxy", "proxy-adjust", "after", "milter")
FORGED = "X-Spam-Flag: YES\r\n"
COSTS = "[costs]\njunk = [2, 0.04]\n"
"""The rig's junk differs from its ham by one word, so it is junk at a probability of .7 here."""


def busy():
    """The rig's ports are fixed."""
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
    return False


@needs_rig
@pytest.mark.timed  # alone, because its ports are fixed
@pytest.mark.skipif(not PROVE.exists(), reason="no mail rig beside the project")
def test_the_rigs_own_proof(tmp_path):
    """The rig files mail by the trained model in every variant, before and after the queue.

    The rig marks its junk with a forged X-Spam-Flag, which spamnb removes from all mail. So the
    model learns what the rig's junk looks like, and the flag of spamnb files it.
    """
    if busy():
        pytest.skip("another rig uses the ports")
    for label, tag, extra in (("ham", "t", ""), ("spam", "j-t", FORGED)):
        for number, variant in enumerate(VARIANTS * 60):
            path = tmp_path / label / f"{number}.eml"
            path.parent.mkdir(exist_ok=True)
            text = MESSAGE.format(tag=f"{tag}-{variant}-lmtp", extra=extra, number=number)
            path.write_bytes(text.encode())
    daemon = Daemon(tmp_path, '[scan]\nlocal = "enforce"\n' + COSTS)
    daemon.spamnb("train", tmp_path / "ham", tmp_path / "spam")
    program = f"{sys.executable} -m spamnb --home {daemon.home} --config {daemon.config}"
    serve = f"{program} serve --listen 127.0.0.1:{{port}} --upstream 127.0.0.1:{{up}}"
    command = [sys.executable, PROVE, "--dir", tmp_path / "rig", "--filter-cmd", serve]
    let_others_enter(tmp_path)  # Postfix's processes are other users
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | daemon.environment
    )
    assert done.stdout.splitlines()[-1:] == ["all good"], done.stdout[-2000:] + done.stderr[-2000:]
