"""The examples of properties: the same in each run by default, so no run fails by luck."""

import subprocess
import sys


def drawn(request, *options):
    """Run a property with pytest, and return the examples that it drew."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", *options, "tests/support/draws.py"]
    done = subprocess.run(
        command,
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("drew")]


def test_each_run_has_the_same_examples(request):
    """Two runs draw the same; with `--examples`, two runs draw others, as many as it says."""
    assert len(first := drawn(request)) >= 20
    assert drawn(request) == first
    assert len(one := drawn(request, "--examples", "50")) >= 50
    assert drawn(request, "--examples", "50") != one
