"""The script that Dovecot runs, and what keeps it from leaving a message in the spool."""

import os
import subprocess
from pathlib import Path

import pytest

from spamnb.feedback.spool import Spool, problem

TEACH = Path(__file__).resolve().parents[2] / "scripts" / "dovecot" / "spamnb-teach"


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path / "spool")
    spool.make()
    return spool


def drained(spool):
    found = []
    spool.drain(("ham", "spam"), found.append)
    return found


def teach(script, *arguments, raw=b"Subject: x\n\nx\n", **environment):
    """Run the script that Dovecot runs, with no other variables than these."""
    done = subprocess.run(
        ["/bin/sh", script, *arguments], input=raw, check=True, capture_output=True,
        env={"PATH": os.environ["PATH"]} | environment,
    )  # fmt: skip
    return done.stderr.decode()


@pytest.mark.parametrize("end", ["\n", ""])
def test_the_script_finds_the_spool_by_the_file_beside_it(spool, tmp_path, end):
    """Dovecot passes no variable to the script: a file beside it names the spool."""
    script = tmp_path / "bin" / "spamnb-teach"
    script.parent.mkdir()
    script.write_text(TEACH.read_text())
    (tmp_path / "bin" / "spool").write_text(f"{spool.folder}{end}")
    assert teach(script, "spam", "alice") == ""
    assert [left.label for left in drained(spool)] == ["spam"]


@pytest.mark.parametrize("arguments", [("spam", "a user"), ("", "alice"), ("spam", "x/../y")])
def test_a_message_that_cannot_be_left_leaves_a_mark(spool, arguments):
    """The script succeeds, so that the move succeeds; the mark is counted and is no feedback."""
    assert "spamnb-teach: invalid" in teach(TEACH, *arguments, SPAMNB_SPOOL=str(spool.folder))
    assert spool.failed() == 1
    assert spool.waiting() == 0
    assert drained(spool) == []


def test_a_spool_that_others_cannot_use_is_reported(tmp_path):
    """Not there, no folder, another mode: each has its reason."""
    one = Spool(tmp_path / "s")
    assert "No such file" in str(problem(one.folder))
    one.make()
    assert problem(one.folder) is None
    one.folder.chmod(0o700)
    assert "has the mode 700, not 1733" in str(problem(one.folder))
    (tmp_path / "file").write_text("")
    assert "is not a folder" in str(problem(tmp_path / "file"))
