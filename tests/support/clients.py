"""Programs that ask a filter about messages: spamc and rspamc, installed or only unpacked.

$SPAMC and $RSPAMC may name programs of packages that were unpacked, because rspamd's package would
start a service; $RSPAMC_LIBRARIES has the folders of its libraries.
"""

import os
import shutil
import subprocess

import pytest

SPAMC = os.environ.get("SPAMC") or shutil.which("spamc")
RSPAMC = os.environ.get("RSPAMC") or shutil.which("rspamc")
CURL = shutil.which("curl")

needs_spamc = pytest.mark.skipif(not SPAMC, reason="spamc is neither installed nor in $SPAMC")
needs_rspamc = pytest.mark.skipif(not RSPAMC, reason="rspamc is neither installed nor in $RSPAMC")
needs_curl = pytest.mark.skipif(not CURL, reason="curl is not installed")


def run_line(line, message=None, **programs):
    """Run a line of a shell snippet; `message` is its file of that name."""
    folder = message.parent if message else "/"
    libraries = os.environ.get("RSPAMC_LIBRARIES")
    environment = os.environ | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
    name, _, rest = line.partition(" ")
    if name == "curl":
        environment, rest = dict(os.environ), f"-sS -i {rest}"
    return subprocess.run(
        ["/bin/sh", "-c", f'"{programs.get(name) or _PROGRAMS[name]}" {rest}'],
        capture_output=True,
        cwd=folder,
        env=environment,
        timeout=60,
        check=False,
    )


_PROGRAMS = {"spamc": SPAMC, "rspamc": RSPAMC, "curl": CURL}
