"""`spamnb filter` in tests: as the real program, with a daemon that listens in its home."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

from support.cli import PROGRAM, SECONDS, environment, forked
from support.daemon import NO_DELIVERY, serve, settings_in
from support.waiting import LIMIT_S

PATIENT = ("-t", "600")
"""a busy machine stays far below it; a later option overrides it"""
LISTENER = '[listener.local]\nprotocol = "scanner"\naddress = "unix:{home}/scan.sock"\n{more}'


class Filtered(NamedTuple):
    """Exit code and output of the filter."""

    code: int
    out: bytes
    err: str


def filtered(message, *options, home, **more):
    """Pass a message through the filter, in a fork of this process."""
    code, out, err = forked(home, "filter", *PATIENT, *options, stdin=message, **more)
    return Filtered(code, out.encode(errors="surrogateescape"), err)


def run_filter(message, *options, home, program=PROGRAM, **more):
    """Pass a message through the filter as a user starts it: a new interpreter."""
    done = subprocess.run(
        [*program, "--home", home, "filter", *PATIENT, *map(str, options)],
        **({"input": message, "stdout": subprocess.PIPE} | more),
        stderr=subprocess.PIPE,
        env=environment(),
        timeout=SECONDS,
        check=False,
    )
    return Filtered(done.returncode, done.stdout, done.stderr.decode())


@contextlib.contextmanager
def short_home(home=None):
    """A folder with a copy of a home, short enough for the name of a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix="spamnb-f-"))
    try:
        if home is not None:
            shutil.copytree(home, folder / "home")
        yield folder / "home"
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def daemon_in(home, more="", **settings):
    """A daemon that serves a home, with a scanner listener there."""
    listener = LISTENER.format(home=home, more=more)
    config = settings_in(home.parent, more=listener, **(NO_DELIVERY | settings))
    with serve(home.parent, config=config) as running:
        yield running.ready()


@contextlib.contextmanager
def answering(home, reply):
    """A socket in a home on which each client gets a reply; None: the client gets none.

    Yields a semaphore that counts the clients.
    """
    came, ended = threading.Semaphore(0), threading.Event()

    def serve(server):
        while not ended.is_set():
            with server.accept()[0] as client:
                came.release()
                if reply is None:
                    ended.wait(LIMIT_S)
                else:
                    with contextlib.suppress(OSError):  # the last client does not read
                        client.sendall(reply)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home / "scan.sock"))
        server.listen()
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield came
        ended.set()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(home / "scan.sock"))
        thread.join()
