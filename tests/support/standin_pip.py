"""A Python whose environments get a stand-in for pip, which needs no network."""

import os
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PIP = """
import os, shutil, sys
from pathlib import Path
there = Path(sys.prefix)
site = next(there.glob("lib/python*/site-packages"))
if sys.argv[1] == "uninstall":
    shutil.rmtree(site / "pip")
    sys.exit()
(site / "spamnb.pth").write_text(os.environ["TEST_PATH"].replace(":", "\\n"))
program = there / "bin/spamnb"
program.write_text(f"#!{sys.executable}\\nfrom spamnb.__main__ import main\\nmain()\\n")
program.chmod(0o755)
"""
PYTHON = """#!/bin/sh
case "$*" in
"-m venv "*)
    "{python}" -m venv --without-pip "$3" || exit 1
    site=$(echo "$3"/lib/python*/site-packages)
    mkdir -p "$site/pip" && : >"$site/pip/__init__.py" && cp "{pip}" "$site/pip/__main__.py"
    ;;
*) exec "{python}" "$@" ;;
esac
"""


def without_network(folder):
    """Return the environment for a script that creates a virtual environment and runs pip in it."""
    pip, python = folder / "pip.py", folder / "python"
    pip.write_text(PIP)
    python.write_text(PYTHON.format(python=sys.executable, pip=pip))
    python.chmod(0o755)
    packages = [path for path in sys.path if path.endswith("-packages")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPAMNB_")}
    return environment | {"PYTHON": str(python), "TEST_PATH": ":".join([str(PROJECT), *packages])}
