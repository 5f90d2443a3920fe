"""docs/getting-started.md works word for word in a fresh clone."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.docs_snippets import changed, shell
from support.postfix import free_ports
from support.standin_pip import without_network
from support.waiting import LIMIT_S

PROJECT = Path(__file__).resolve().parent.parent
PARTS = ("scripts/make-sample", "scripts/mailcraft.py", "constraints.txt", "spamnb", "corpora")


@pytest.fixture
def clone():
    """The folder as a clone has it, with a short path: the page makes a socket in it."""
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS:
            source, place = PROJECT / part, Path(folder) / part
            place.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, place)
        yield Path(folder)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_command_works_in_a_fresh_clone(clone, tmp_path):
    """A shell gets the page and nothing else; a correction counts until it is undone."""
    environment = without_network(tmp_path)
    (tmp_path / "python").rename(tmp_path / "python3")
    environment["SPAMNB_MODEL_PRIOR"] = "true"
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    environment["TEST_PATH"] = environment["TEST_PATH"].replace(str(PROJECT), str(clone), 1)
    front, post = free_ports(2)
    script = changed(
        shell("getting-started.md"), {"127.0.0.1:10025": f"127.0.0.1:{front}", ":10027": f":{post}"}
    )
    done = subprocess.run(
        ["sh", "-e"],
        input=script,
        cwd=clone,
        env={key: value for key, value in environment.items() if key != "PYTHON"},
        capture_output=True,
        text=True,
        timeout=10 * LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    junk = re.findall(r"^(\w+) +\w+ +([\d.]+) run/hour/mail/.*\.Junk", done.stdout, re.MULTILINE)
    assert [decision for decision, _ in junk] == ["deliver", "junk"]
    assert f"-> ham, {junk[1][1]} -> {junk[0][1]}, event 402" in done.stdout
    assert done.stdout.count("X-Spamnb-Signature") == 2
    assert list((clone / "run").iterdir()) == []
