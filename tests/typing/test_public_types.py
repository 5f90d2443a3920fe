"""The types of the public interface, as a user's type checker sees the installed package."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import spamnb

PROGRAM = Path(__file__).with_name("public_interface.py")


def test_a_strict_user_program_passes(tmp_path):
    """`mypy --strict` reads the types of the installed package; wrong use is an error."""
    venv.create(tmp_path / "env", symlinks=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "spamnb").symlink_to(Path(spamnb.__file__).parent)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache",
             "--python-executable", tmp_path / "env/bin/python", PROGRAM]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n")
