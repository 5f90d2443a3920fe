"""Children of a test: forked processes that write lines, and are killed."""

import os
import signal
import time
import traceback


def fork_child(run):
    """Fork a process that runs a function, which gets `write_line`; return pid and pipe."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read

    def write_line(line):
        os.write(write, f"{line}\n".encode())

    code = 1
    try:
        os.close(read)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run(write_line)
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:  # noqa: BLE001 - shown to the test, and this process must not go on
        write_line(traceback.format_exc())
    finally:
        os._exit(code)


def output_of(pid, pipe):
    """Wait until a child ends; return its whole lines, each as a list of words."""
    with os.fdopen(pipe, "rb") as lines:
        written = lines.read().splitlines(keepends=True)
    os.waitpid(pid, 0)
    return [line.decode().split() for line in written if line.endswith(b"\n")]


def killed_after(run, seconds, how=signal.SIGKILL, lines_first=1):
    """Kill a child some time after a line of its output; return the whole lines that it wrote."""
    pid, pipe = fork_child(run)
    with os.fdopen(pipe, "rb") as lines:
        written = [lines.readline() for _ in range(lines_first)]
        time.sleep(seconds)  # the instant of the kill, not a wait for anything
        os.kill(pid, how)
        written += lines.read().splitlines(keepends=True)
    os.waitpid(pid, 0)
    assert written[0], "the child ended before it began"
    return [line.decode().split() for line in written if line.endswith(b"\n")]
