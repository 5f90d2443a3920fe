"""The program as a user starts it: time, terminals, interrupts, pipes, root."""

import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.cli import HAM, ONE_HAM, ONE_SPAM, PROGRAM, PROJECT, SAMPLE, SPAM, environment, program
from support.waiting import LIMIT_S


def cost(home, *arguments):
    """Measure the least wall and the least processor seconds of seven runs."""
    walls, spent = [], []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        assert program(home, *arguments).code == 0
        walls.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(walls), min(spent)


@pytest.mark.timed
def test_version_starts_in_a_sixth_of_a_second(trained):
    """`--version` takes at most 0.15 s of a core: nothing heavy is imported."""
    _, spent = cost(trained, "--version")
    assert spent <= 0.15


@pytest.mark.timed
def test_one_message_is_scored_in_a_third_of_a_second(trained):
    """`score one.eml` takes at most 0.35 s of a core, from start to end."""
    _, spent = cost(trained, "score", ONE_SPAM)
    assert spent <= 0.35


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["score", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    """Help and version need no numpy, no store and no tables."""
    code = (
        "import sys\nfrom spamnb.cli.main import run\n"
        f"try:\n    run({arguments!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'lmdb', 'rich', 'regex', 'selectolax'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr


def test_what_comes_by_a_pipe_leaves_nothing_behind(trained, tmp_path):
    """It is kept in a file while it is read, and the program ends without taking things apart."""
    done = subprocess.run(
        [*PROGRAM, "--home", trained, "score", "-"], input=ONE_SPAM.read_bytes(),
        capture_output=True, check=False, env=environment(TMPDIR=str(tmp_path)),
    )  # fmt: skip
    assert (done.returncode, done.stdout[:6], done.stderr) == (0, b"reject", b"")
    assert list(tmp_path.iterdir()) == []


def test_numpy_starts_no_threads(trained):
    """The engine's threads would take longer to start than a message takes to score."""
    code = (
        "import os, sys\nfrom spamnb.cli.main import run\n"
        f"try:\n    run(['--home', {str(trained)!r}, 'score', {str(ONE_SPAM)!r}])\n"
        "except SystemExit:\n    pass\n"
        "sys.exit(len(os.listdir('/proc/self/task')) - 1)\n"
    )
    kept = {k: v for k, v in environment().items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, env=kept)
    assert done.returncode == 0, done.stderr


def test_an_interrupt_keeps_what_was_learnt(trained, tmp_path):
    """Ctrl-C ends with 130 and one line; what was acknowledged is in the journal."""
    home = shutil.copytree(trained, tmp_path / "home")
    command = [*PROGRAM, "--home", str(home), "correct", "ham", str(ONE_SPAM), "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), **pipes) as running:
        receipt = running.stdout.readline().decode()
        # It has acknowledged the first message and waits for the second on its standard input.
        running.send_signal(signal.SIGINT)
        running.wait(timeout=LIMIT_S)  # the standard input stays open: its end would be an answer
        err = running.stderr.read()
    assert running.returncode == 130
    assert err.decode() == "spamnb: interrupted; all completed training is saved\n"
    assert receipt.startswith("spam -> ham")
    assert program(home, "journal", "--limit", 1).out.split()[0] == "401"
    assert program(home, "check").code == 0


def test_an_interrupt_at_the_end_shows_no_traceback(trained):
    """The command is over or interrupted, whatever Python does at that instant."""
    command = [*PROGRAM, "--home", str(trained), "score", str(ONE_SPAM)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for _ in range(5):
        with subprocess.Popen(command, env=environment(), **pipes) as running:
            running.stdout.readline()
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=LIMIT_S)
        assert running.returncode in {0, 130}
        assert b"Traceback" not in err


def test_an_interrupt_under_exit_code_is_75(trained):
    """With --exit-code an interrupt has an exit code that is no verdict."""
    command = [*PROGRAM, "--home", str(trained), "score", "--exit-code", "-"]
    opened = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), **opened) as running:
        # More than a pipe holds: when it is written, the program reads, and waits for the end.
        running.stdin.write(b"Subject: x\n\n" + b"x" * (1 << 20))
        running.stdin.flush()
        running.send_signal(signal.SIGINT)
        running.wait(timeout=LIMIT_S)
    assert running.returncode == 75


def test_a_closed_pipe_ends_quietly(trained):
    """`export - | head` writes no complaint."""
    command = [*PROGRAM, "--home", str(trained), "export", "-"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), **pipes) as running:
        assert running.stdout.read(10) == b'{"format":'
        running.stdout.close()
        err = running.stderr.read()
        running.wait(timeout=LIMIT_S)
    assert err == b""
    assert running.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "shut", "code"),
    [
        (["score", "--exit-code", ONE_HAM], "1>&-", 0),
        (["score", "--exit-code", "/nowhere"], "2>&-", 75),
        (["score", "--exit-code", "/nowhere"], "2>/dev/full", 75),
        (["score", "--exit-code", ONE_HAM], ">/dev/full", 75),
        (["score", ONE_HAM], ">/dev/full", 3),
        (["--help"], ">/dev/full", 3),
        (["--version"], ">&-", 0),
        (["score"], "<&-", 2),
        (["score", "/nowhere"], "2>&-", 2),
    ],
)
def test_streams_that_are_closed_or_full_make_no_verdict(trained, arguments, shut, code):
    """The exit code stays the same, without a traceback or the report of a bug."""
    command = " ".join(map(str, (*PROGRAM, "--home", trained, *arguments, shut)))
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, check=False, env=environment(), timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr.count(b"\n") <= 1) == (code, True), done.stderr
    assert b"bug" not in done.stderr


def at_terminal(home, *arguments, **more):
    """Run with stdout and stderr on a terminal; what was seen there."""
    ours, theirs = pty.openpty()
    command = [*PROGRAM, "--home", str(home), *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env=environment(TERM="xterm", **more),
    ) as running:  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # Linux: the other side is closed
                break
            if not piece:
                break
            seen += piece
    os.close(ours)
    return running.returncode, seen.decode()


def test_colours_are_for_terminals_without_no_color(trained):
    """A terminal gets colours, NO_COLOR and pipes do not."""
    assert "\x1b[31m" in at_terminal(trained, "score", ONE_SPAM)[1]
    assert "\x1b" not in at_terminal(trained, "score", ONE_SPAM, NO_COLOR="1")[1]
    assert "\x1b" not in program(trained, "score", ONE_SPAM).out


def test_a_bar_shows_how_far_training_is(tmp_path):
    """On a terminal training shows a bar; in a pipe it says nothing until it is done."""
    code, seen = at_terminal(tmp_path / "one", "train", HAM, SPAM)
    assert code == 0
    assert "learning" in seen
    assert "400/400" in seen
    done = program(tmp_path / "two", "train", HAM, SPAM)
    assert (done.err, len(done.lines)) == ("", 2)


def test_paths_that_are_no_text_are_scored_all_the_same(trained, tmp_path):
    """A path is bytes; one that is no UTF-8 comes out as it went in."""
    path = os.fsencode(tmp_path) + b"/m\xe9moire.eml"
    Path(os.fsdecode(path)).write_bytes(ONE_SPAM.read_bytes())
    command = [*PROGRAM, "--home", str(trained), "score", path]
    done = subprocess.run(command, capture_output=True, check=True, env=environment())
    assert done.stdout.endswith(path + b"\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_terminal_gets_what_it_can_show(trained, encoding):
    """A character that the terminal's encoding lacks does not stop the command."""
    command = [*PROGRAM, "--home", str(trained), "explain", str(ONE_SPAM)]
    kept = environment(PYTHONIOENCODING=encoding)
    done = subprocess.run(command, capture_output=True, check=False, env=kept)
    assert done.returncode == 0, done.stderr
    assert b"log-odds in total" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_what_root_writes_belongs_to_the_owner_of_the_home():
    """Run as root on the daemon's home, nothing is left that the daemon cannot write."""
    place = Path(tempfile.mkdtemp(prefix="spamnb-owner-"))
    try:
        place.chmod(0o755)
        mail = shutil.copytree(SAMPLE, place / "mail")
        (place / "home").mkdir(mode=0o700)
        os.chown(place / "home", 54_321, 54_321)
        done = program(place / "home", "train", mail / "ham", mail / "spam", cwd="/")
        assert done.code == 0, done.err
        owners = {path.stat().st_uid for path in (place / "home").rglob("*")}
        assert owners == {54_321}
    finally:
        shutil.rmtree(place)


def test_python_m_is_the_same_program():
    """`python -m spamnb` serves where no script is installed."""
    done = subprocess.run(
        [*PROGRAM, "--version"], capture_output=True, check=True, env=environment(), cwd=PROJECT
    )
    assert done.stdout.startswith(b"spamnb ")
