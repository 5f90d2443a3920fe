"""A dump of two million lines is mapped in bounded memory."""

import random
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

LINES = 2_000_000
MEGABYTES = 230
LETTERS = "abcdefghijklmnopqrstuvwxyzABC."
PROGRAM = """
import resource, sys
from spamnb.engine.filter import new_recipe
from spamnb.maintenance.imports import read_dump
from spamnb.maintenance.imports import DumpOptions
with open(sys.argv[1], "rb") as file:
    found = read_dump(new_recipe(), file, DumpOptions("bogofilter"))
used = resource.getrusage(resource.RUSAGE_SELF)
# ru_maxrss begins with that of the process that has started this one.
with open("/proc/self/status") as file:
    most = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
print(found.taken, most // 1024, used.ru_utime + used.ru_stime)
"""


def test_two_million_lines_take_little_memory(tmp_path):
    """Nearly all words are different, and no count is scaled away: the worst case of a dump."""
    chance, path = random.Random(1), tmp_path / "words.dump"
    with path.open("w") as file:
        file.write(".MSG_COUNT 1500 1500 20240101\n")
        for _ in range(LINES):
            prefix = chance.choice(["", "", "", "subj:", "rcvd:", "mime:", "from:"])
            word = "".join(chance.choices(LETTERS, k=chance.randint(3, 14)))
            ham, spam = chance.randint(0, 9), chance.randint(0, 9)
            file.write(f"{prefix}{word} {spam} {ham} 20240101\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True
    )
    taken, megabytes, seconds = done.stdout.split()
    assert int(taken) > 0.9 * LINES
    assert int(megabytes) < MEGABYTES, seconds
