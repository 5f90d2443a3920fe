"""Run commands in tests: in this process, in a fork of it, or as the installed program."""

import atexit
import faulthandler
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple, cast

from spamnb.__main__ import main
from spamnb.cli.main import run
from spamnb.store.model_store import environments

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "corpora" / "sample"
HAM, SPAM = str(SAMPLE / "ham"), str(SAMPLE / "spam")
ONE_HAM, ONE_SPAM = SAMPLE / "ham" / "0001.eml", SAMPLE / "spam" / "0001.eml"
PROGRAM = [sys.executable, "-m", "spamnb"]
SECONDS = 300
"""limit of a command, so that a test which hangs ends; a busy machine stays far below it"""


class Done(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def json(self):
        """The object of each line."""
        return [json.loads(line) for line in self.lines]


def undated(export):
    """An export without the days on which features were last learnt: undo does not restore them."""
    return re.sub(r'"day":\d+,', "", export)


class _Input(io.TextIOWrapper):
    def isatty(self):
        return False


def spamnb(home, *arguments, stdin=b""):
    """Run a command in this process on a real store, and catch its output."""
    out, err = io.StringIO(), io.StringIO()
    given = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    given.write(stdin)
    given.seek(0)
    old, sys.stdin = sys.stdin, _Input(given)
    where = [] if home is None else ["--home", str(home)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            run([*where, *map(str, arguments)])
    except SystemExit as ended:
        return Done(cast("int", ended.code), out.getvalue(), err.getvalue())
    finally:
        # At its end the program blocks and ignores interrupts, but this process continues.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sys.stdin.close()
        sys.stdin = old
        _let_go(home)
    raise AssertionError("the program did not end")


def _let_go(home):
    """Close the stores that a command leaves open at its end, because this process continues."""
    thing = environments._objects.get(os.path.realpath(home)) if home is not None else None
    for _ in range(environments._users.get(thing, 0)):
        environments.give_back(thing)


def environment(**more):
    """Return the environment of the program, without the settings of this machine."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPAMNB_")}
    own = {"PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1", "SPAMNB_AUTH_VERIFY": "false"}
    return kept | own | more


def program(home, *arguments, **more):
    """Run a command as the installed program does: a new interpreter."""
    command = [*PROGRAM, "--home", str(home), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, check=False, timeout=SECONDS, env=environment(), **more
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def forked(home, *arguments, stdin=b"", user=None, cwd=None, **variables):
    """Run a command in a fork of this process: a process with the modules already imported.

    It takes a quarter of the CPU time of `program`. With `user`, it runs as that uid. Bytes of the
    output that are not text are restored with `surrogateescape`.
    """
    here = [] if home is None else ["--home", str(home)]
    argv = ["spamnb", *here, *map(str, arguments)]
    read, write = os.pipe()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            os.close(write)
            for number, source in enumerate((read, out.fileno(), err.fileno())):
                os.dup2(source, number)
            _run_as_program(argv, variables, user, cwd)
        os.close(read)
        feeding = threading.Thread(target=_feed, args=(write, stdin))
        feeding.start()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        feeding.join()
        for file in (out, err):
            file.seek(0)
        return Done(code, out.read().decode(errors="surrogateescape"), err.read().decode())


def _feed(pipe, data):
    with suppress(BrokenPipeError), open(pipe, "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(data)


def _run_as_program(argv, variables, user, cwd):
    """Restore the state of a new interpreter, run the program, and end."""
    code: int | str | None = 1
    try:
        signal.alarm(SECONDS)
        atexit._clear()  # the handlers are those of the tests
        faulthandler.disable()
        logging.getLogger().handlers.clear()
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8")  # noqa: PTH123, SIM115 - descriptors, until exit
            for number, mode in enumerate("rww")
        )
        for name in [name for name in os.environ if name.startswith("SPAMNB_")]:
            del os.environ[name]
        os.environ.update({"SPAMNB_AUTH_VERIFY": "false"} | variables)
        tempfile.tempdir = None
        if cwd is not None:
            os.chdir(cwd)
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        sys.argv = argv
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - shown to the test
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
