"""The process that OpenSMTPD starts, on pipes, and the lines that OpenSMTPD writes to it."""

import contextlib
import subprocess
import threading

from support.cli import ONE_SPAM, PROGRAM, environment
from support.waiting import LIMIT_S, until

SPAM = ONE_SPAM.read_bytes()
CONFIG = b"config|smtpd-version|6.8.0p2\nconfig|ready\n"


def message(session, raw=SPAM):
    """The lines of OpenSMTPD for a message."""
    start = b"filter|0.6|1.5|smtp-in|data-line|%b|T|" % session
    text = raw.replace(b"\r\n", b"\n").removesuffix(b"\n")
    lines = [b"." * line.startswith(b".") + line for line in text.split(b"\n")]
    return b"".join(start + line + b"\n" for line in [*lines, b"."])


class Process:
    """The filter on pipes; `written` has its output so far."""

    def __init__(self, address, *options):
        self.process = subprocess.Popen(
            [*PROGRAM, "opensmtpd", str(address), *map(str, options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(),
        )  # fmt: skip
        self.written, self.log = b"", b""
        readers = [self._read_output, self._read_log]
        self.threads = [threading.Thread(target=one) for one in readers]
        for thread in self.threads:
            thread.start()

    def _read_output(self):
        for line in self.process.stdout:
            self.written += line

    def _read_log(self):
        for line in self.process.stderr:
            self.log += line

    def __enter__(self):
        self.send(CONFIG)
        until(lambda: b"register|ready\n" in self.written or self.process.poll(), "the start")
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.code = self.process.wait(LIMIT_S)
        for thread in self.threads:
            thread.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def send(self, data):
        """Write as OpenSMTPD does."""
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait_for(self, session):
        """Wait for the end of a message; its lines."""
        start = b"filter-dataline|%b|T|" % session
        until(lambda: start + b".\n" in self.written, "the message")
        lines = [line for line in self.written.split(b"\n") if line.startswith(start)]
        return b"\n".join(line.removeprefix(start) for line in lines)
