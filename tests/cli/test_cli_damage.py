"""Commands on a damaged model: one line and the exit code of a failed store, never an abort."""

import random
import shutil
import signal
import subprocess

import pytest
from support.cli import HAM, ONE_HAM, PROGRAM, SPAM, environment, forked, spamnb
from support.waiting import LIMIT_S

from spamnb.cli.child_process import GUARDED, command_of

PAGE = 4096
STORE_FAILED = 3
FOUND = 1


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    home = tmp_path_factory.mktemp("damage") / "sound"
    assert spamnb(home, "train", HAM, SPAM).code == 0
    return home


def zeroed(data, share):
    """Every second page, of those in some share of the file, is nothing but zeros."""
    pages = len(data) // PAGE
    for page in range(2, int(pages * share), 2):
        data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)


def zeroed_leaves(data):
    """One page in ten, which leaves enough of the tree to walk into a hole."""
    found = random.Random(3)
    for page in range(2, len(data) // PAGE):
        if found.random() < 0.1:
            data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)


def noise(data):
    found = random.Random(1)
    for _ in range(3000):
        data[found.randrange(2 * PAGE, len(data))] = found.randrange(256)


def without_meta(data):
    data[: 2 * PAGE] = bytes(2 * PAGE)


def cut(data):
    del data[len(data) // 2 :]


def emptied(data):
    del data[:]


DAMAGES = {
    "zeros": zeroed_leaves,
    "most zeros": lambda data: zeroed(data, 1.0),
    "first zeros": lambda data: zeroed(data, 0.3),
    "noise": noise,
    "meta": without_meta,
    "cut": cut,
    "empty": emptied,
}


@pytest.fixture(params=DAMAGES)
def damaged(request, sound, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(sound, home)
    data = bytearray((home / "data.mdb").read_bytes())
    DAMAGES[request.param](data)
    (home / "data.mdb").write_bytes(data)
    return home


@pytest.mark.parametrize(
    "arguments", [("check",), ("stats",), ("backup", "copy"), ("export", "text")]
)
def test_a_damaged_model_is_reported_in_one_line(damaged, arguments, tmp_path):
    """A command that reads the whole model reports damage in one line with exit 3."""
    done = forked(damaged, *arguments, cwd=tmp_path)
    assert done.code in ({FOUND, STORE_FAILED} if arguments == ("check",) else {0, STORE_FAILED})
    if done.code == STORE_FAILED:
        assert len(done.err.splitlines()) == 1
        assert done.err.startswith("spamnb: ")


@pytest.mark.parametrize("arguments", [("score", str(ONE_HAM)), ("explain", str(ONE_HAM))])
def test_one_message_is_judged_or_the_damage_is_reported(damaged, arguments):
    """A verdict needs few pages; if one of them is damaged, the command reports it."""
    done = forked(damaged, *arguments)
    assert done.code in {0, STORE_FAILED}
    assert done.code == 0 or len(done.err.splitlines()) == 1


def test_an_abort_of_the_engine_is_reported(sound, tmp_path):
    """The line contains LMDB's message; the exit code makes a mail system try again."""
    code = (
        "import ctypes, sys\n"
        "from spamnb.cli.child_process import guarded\n"
        "def run():\n"
        "    print('spamnb: before', file=sys.stderr)\n"
        "    libc = ctypes.CDLL(None)\n"
        "    libc.write(2, b'Assertion failed\\n', 17)\n"
        "    libc.abort()\n"
        "guarded(run, sys.argv[1:])\n"
    )
    for arguments, code_wanted in ((("check",), STORE_FAILED), (("score", "--exit-code"), 75)):
        done = subprocess.run(
            [PROGRAM[0], "-c", code, *arguments], capture_output=True, text=True, check=False,
            env=environment(), timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == code_wanted
        before, message = done.stderr.splitlines()
        assert before == "spamnb: before"
        assert message.startswith("spamnb: LMDB ended the process (Assertion failed) - ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_command(sound, number):
    """A signal ends the command as if it ran without a child process."""
    with subprocess.Popen(
        [*PROGRAM, "--home", str(sound), "score", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.send_signal(number)
        _, errors = process.communicate(b"Subject: x\n\ny\n", timeout=LIMIT_S)
    # Python exits with 1 if SIGINT arrives while it starts, before it runs the command.
    starting = process.returncode == 1 and b"KeyboardInterrupt" in errors
    assert starting or process.returncode in {-number, 130, 0}, errors


def test_the_command_is_found_behind_options():
    """Options of the program do not hide which command runs."""
    assert command_of(["--home", "check", "-v", "stats", "check"]) == "stats"
    assert command_of(["--home=x", "check"]) == "check"
    assert command_of(["--help"]) == ""
    assert {"check", "stats", "score", "backup", "export"} <= GUARDED
    assert not {"serve", "train", "watch"} & GUARDED
