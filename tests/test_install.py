"""The units for systemd are right, their cage is tight, and `scripts/install` places them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
MOST_EXPOSED = 2.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install below a folder, with a program of the name that is there."""
    root = tmp_path_factory.mktemp("root")
    program = root / "opt" / "spamnb"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m spamnb "$@"\n')
    program.chmod(0o755)
    words = [PROJECT / "scripts/install", "--root", root, "--program", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root


def units(root):
    return sorted((root / "etc/systemd/system").iterdir())


def test_units_name_the_program_by_its_full_path(installed):
    """Systemd looks for programs in few places; the unit says where ours is."""
    for unit in units(installed):
        for program in re.findall(r"^ExecStart=(\S+)", unit.read_text(), re.MULTILINE):
            assert program == str(installed / "opt/spamnb"), unit


def test_the_example_settings_are_read_without_a_complaint(installed):
    """What is put into /etc is a settings file that holds."""
    file = installed / "etc/spamnb/spamnb.toml.example"
    words = [sys.executable, "-m", "spamnb", "--config", file, "config", "check"]
    environment = os.environ | ({"SPAMNB_SERVE_USER": "root"} if os.geteuid() == 0 else {})
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment)


@needs_systemd
def test_systemd_understands_the_units(installed):
    """Not one warning."""
    words = ["systemd-analyze", "--man=no", "verify", *units(installed)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", ["spamnb.service", "spamnb-upkeep.service"])
def test_the_cage_is_tight(installed, unit):
    """An exposure of at most 2.0 by systemd's own measure."""
    words = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    words.append(installed / "etc/systemd/system" / unit)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposure[1]) <= MOST_EXPOSED


def test_settings_that_are_there_stay(installed):
    """A second run updates units and leaves the admin's settings alone."""
    mine = installed / "etc/spamnb/spamnb.toml"
    mine.write_text('home = "/var/lib/spamnb"\n')
    words = [PROJECT / "scripts/install", "--root", installed, "--program"]
    subprocess.run([*words, installed / "opt/spamnb"], check=True, stdout=subprocess.DEVNULL)
    assert mine.read_text() == 'home = "/var/lib/spamnb"\n'
