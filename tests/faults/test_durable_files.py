"""Atomic, durable files: readers see the old or the new one; content and name are synced."""

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spamnb.store.files import durable_file, durable_write

PROJECT = Path(__file__).resolve().parents[2]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_makes_and_replaces(tmp_path):
    """The chunks are written in order, to a file that other users cannot read."""
    path = tmp_path / "x"
    durable_write(path, b"one")
    durable_write(path, b"two", b" ", b"three")
    assert path.read_bytes() == b"two three"
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["x"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    """Any exception in the block leaves the target unchanged."""
    path = tmp_path / "x"
    durable_write(path, b"old")

    class Stop(BaseException):
        pass

    with pytest.raises(Stop), durable_file(path) as file:  # noqa: PT012 - it raises in the block
        file.write(b"new" * 100_000)
        raise Stop
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


def test_a_target_that_cannot_be_replaced_leaves_nothing(tmp_path):
    """A folder of the same name raises an error."""
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="directory"):
        durable_write(tmp_path / "x", b"new")
    assert names(tmp_path) == ["x"]
    with pytest.raises(FileNotFoundError):
        durable_write(tmp_path / "none" / "x", b"new")


def test_a_link_is_replaced_and_not_written_through(tmp_path):
    """The target of a link is not changed."""
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "x").symlink_to(tmp_path / "secret")
    durable_write(tmp_path / "x", b"new")
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert (tmp_path / "x").read_bytes() == b"new"
    assert not (tmp_path / "x").is_symlink()


def test_a_long_name(tmp_path):
    """The temporary name is not longer than the longest file name."""
    durable_write(tmp_path / ("ä" * 127), b"new")
    assert names(tmp_path) == ["ä" * 127]


def test_readers_see_one_or_the_other(tmp_path):
    """With several writers, each read gives the complete content of one of them."""
    path = tmp_path / "x"
    wholes = [bytes([65 + n]) * 50_000 for n in range(4)]
    durable_write(path, wholes[0])
    writers = [
        threading.Thread(target=lambda one=one: [durable_write(path, one) for _ in range(20)])
        for one in wholes
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in wholes
    assert names(tmp_path) == ["x"]


# -- each caller, watched from outside -----------------------------------------------------------

CALLERS = {
    "quarantine": """
from spamnb.mail.envelope import Envelope
from spamnb.scan.quarantine import Quarantine
Quarantine(place / "q").keep(b"x", Envelope(), {})
""",
    "review": """
from spamnb.feedback.review import ReviewQueue, ReviewItem
ReviewQueue(place / "r")._write("0" * 13 + "-" + "0" * 24, waiting(ReviewItem), b"x")
""",
    "spool": """
from spamnb.feedback.spool import leave
(place / "s").mkdir()
leave(place / "s", "spam", b"Subject: x\\n\\nx\\n", {})
""",
    "passwords": """
from spamnb.operations.logins import Login, write_logins
write_logins(place / "p" / "logins", {"x": Login("x", "y")})
""",
    "promise": """
from spamnb.cli.evaluate_streams import write_found
write_found(place, found(), Costs())
""",
    "thresholds": """
from spamnb.lab.label_thresholds import save
save(place, {"a": 1.0})
""",
    "export": """
from spamnb.cli.store import _written
with _written(str(place / "export")) as out:
    out.write("x")
""",
}
HEAD = """
import os, sys
from pathlib import Path
from dataclasses import fields
place = Path(sys.argv[1])
def waiting(made):
    return made(**{f.name: 0 if f.name.endswith("_us") else "x"
                   for f in fields(made) if f.name not in ("refs", "verdict")})
from types import SimpleNamespace
from spamnb.model.costs import Costs
def found():
    return SimpleNamespace(ham_above=0, ham=1, at_worst_percent=0.1, one_in=1000)
"""
_CALL = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")


def traced(tmp_path, program):
    """The calls of a program that concern durability, with the files' paths (strace -y)."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode:
        pytest.skip("this machine does not allow to trace processes")
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-y", "-s", "300", "-e", "trace=/rename,fsync,fdatasync,/write"]
    done = subprocess.run(
        [*command, "-o", trace, sys.executable, "-c", HEAD + program, tmp_path / "place"],
        env=os.environ | {"PYTHONPATH": str(PROJECT)}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [_CALL.search(line) for line in trace.read_text().splitlines()]
    return [(one[1], one[2]) for one in found if one and one[3] != "-1"]


@pytest.mark.parametrize("caller", CALLERS)
def test_file_and_folder_are_synced(tmp_path, caller):
    """After the last write the file is synced, then renamed; after each rename its folder is."""
    (tmp_path / "place").mkdir()
    calls = traced(tmp_path, CALLERS[caller])
    renames = [at for at, (name, _) in enumerate(calls) if name.startswith("rename")]
    assert renames, calls
    for at in renames:
        before, after = calls[:at], calls[at + 1 :]
        named = re.findall(r'(?:<([^>]*)>, )?"([^"]*)"', calls[at][1])
        source, target = (Path(folder, name) for folder, name in named)
        concerned = [name for name, text in before if f"<{source}>" in text]
        assert concerned[-1] in ("fsync", "fdatasync"), calls
        assert "write" in concerned, calls
        assert any(name == "fsync" and f"<{target.parent}>" in text for name, text in after), calls
