"""Running the command line in tests: in this process, or as the program that people start."""

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple, cast

from spamnb.cli.main import run
from spamnb.store.lmdb.environment import environments

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "corpora" / "sample"
HAM, SPAM = str(SAMPLE / "ham"), str(SAMPLE / "spam")
ONE_HAM, ONE_SPAM = SAMPLE / "ham" / "0001.eml", SAMPLE / "spam" / "0001.eml"
PROGRAM = [sys.executable, "-m", "spamnb"]


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def json(self):
        """The objects on its lines."""
        return [json.loads(line) for line in self.lines]


class _Input(io.TextIOWrapper):
    def isatty(self):
        return False


def spamnb(home, *words, stdin=b""):
    """Run a command here, on real stores, with its output caught."""
    out, err = io.StringIO(), io.StringIO()
    old, sys.stdin = sys.stdin, _Input(io.BytesIO(stdin))
    where = [] if home is None else ["--home", str(home)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            run([*where, *map(str, words)])
    except SystemExit as ended:
        return Done(cast("int", ended.code), out.getvalue(), err.getvalue())
    finally:
        # A program that ends ignores further interrupts; this process goes on.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = old
        _let_go(home)
    raise AssertionError("the program did not end")


def _let_go(home):
    """Close what a command leaves to the end of its process, which is not the end of ours."""
    thing = environments._objects.get(os.path.realpath(home)) if home is not None else None
    for _ in range(environments._users.get(thing, 0)):
        environments.give_back(thing)


def environment(**more):
    """Give the environment of a program that people start, without our own settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPAMNB_")}
    return kept | {"PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"} | more


def program(home, *words, **more):
    """Run a command as a process of its own."""
    command = [*PROGRAM, "--home", str(home), *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, check=False, timeout=60, env=environment(), **more
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
