"""Roles for tests of the supervisor, and the program that starts it with them.

python daemon_children.py HOME CONFIG ROLE=FUNCTION...

Each function imports what it needs itself, because every child process imports this module.
"""

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from spamnb.daemon.shared import ProcessState
from spamnb.errors import SpamnbError


def echo(start, shared, channel):
    """Answer each connection with role, slot, pid and log level; send beats; end on SIGTERM."""
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    listeners = [socket.socket(fileno=fd) for fds in start.sockets.values() for fd in fds]
    level = start.settings["log.level"]
    shared.set_state(start.slot, ProcessState.READY)
    poll = select.poll()
    for one in [*listeners, channel]:
        poll.register(one, select.POLLIN)
    while not ended:
        shared.beat(start.slot)
        for fd, _ in poll.poll(20):
            if fd == channel.fileno():
                order = channel.next()
                if order is None:
                    return 0
                level = order.settings["log.level"]
                continue
            connection, _ = next(one for one in listeners if one.fileno() == fd).accept()
            with connection:
                connection.settimeout(5)
                _answer(connection, start, shared, level)
    with (Path(start.home) / "ended").open("a") as file:
        file.write(f"{start.role}\n")
    return 0


def _answer(connection, start, shared, level):
    word = connection.recv(100).decode().strip()
    if word.startswith("mark "):
        shared.mark(start.slot, bytes.fromhex(word[5:]))
    if word.startswith("crasher "):
        level = shared.is_known_crasher(bytes.fromhex(word[8:]))
    if word == "bypass":
        level = shared.is_on("bypass")
    if word == "restarts":
        level = shared.total().value("restarts")
    if word == "variables":
        level = ",".join(os.environ)
    if word == "descriptors":
        level = ",".join(_descriptors())
    connection.sendall(f"{start.role} {start.slot} {os.getpid()} {level}\n".encode())
    if word in ("hang", "mark 00112233445566778899aabbccddeeff"):
        time.sleep(600)


def _descriptors():
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            found.append(str(one.readlink()).replace(" ", ""))
    return found


def deaf(start, shared, channel):
    """Be ready, and ignore orders and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shared.set_state(start.slot, ProcessState.READY)
    while os.getppid() == start.parent:
        shared.beat(start.slot)
        time.sleep(0.05)
    return 0


def broken(start, shared, channel):
    """End before it is ready."""
    return 3


def once(start, shared, channel):
    """End before it is ready three times, then work as `echo`."""
    tries = Path(start.home) / "tries"
    with tries.open("a") as file:
        file.write(f"{time.monotonic()}\n")
    return echo(start, shared, channel) if len(tries.read_text().split()) > 3 else 3


SLOW_S = 0.15
HANG = b"this hangs"


def slow_worker(start, shared, channel):
    """Be a worker with slow scan processes."""
    from spamnb.daemon import worker

    pool = partial(worker.ScanPool, entry="support.daemon_children:slow_helper")
    worker.ScanPool = pool  # type: ignore[assignment]
    return worker.main(start, shared, channel)


def slow_helper(start, shared, channel):
    """Scan each message in SLOW_S. A message with HANG takes until `hanging-PID` is removed."""
    from spamnb.daemon import worker
    from spamnb.scan.judge import digest_of, scan_to_json

    def slowly(model_session, raw, notes, recipients):
        model_session.crash_register.mark(digest_of(raw))
        if HANG in raw:
            mark = Path(start.home) / f"hanging-{os.getpid()}"
            mark.touch()
            while mark.exists():
                time.sleep(0.01)
        time.sleep(SLOW_S)
        model_session.crash_register.release()
        return scan_to_json(model_session, raw, notes, recipients)

    worker.scan_to_json = slowly  # type: ignore[attr-defined, assignment]
    return worker.scan_main(start, shared, channel)


WAIT_S = 0.001


def waiting_worker(start, shared, channel):
    """Be a worker that asks the server of the fleet's log, and waits for its answer, in each scan.

    It waits at most WAIT_S. Real workers must not wait for the server.
    """
    from contextlib import suppress

    from spamnb.daemon import worker
    from spamnb.scan.judge import ModelSession
    from support.namespaces import Network

    scan = ModelSession.scan

    def slowly(*args, **fields):
        with suppress(OSError):
            socket.create_connection((Network.server, 6379), WAIT_S).close()
        return scan(*args, **fields)

    ModelSession.scan = slowly
    return worker.main(start, shared, channel)


def main(home, config, *roles):
    """Serve with these roles: functions of this module, or `real`."""
    from spamnb.daemon.start import ENTRIES, ServeRequest, serve
    from spamnb.settings import load

    entries = dict.fromkeys(ENTRIES, "support.daemon_children:echo")
    for role, _, name in (word.partition("=") for word in roles):
        entries[role] = ENTRIES[role] if name == "real" else f"support.daemon_children:{name}"
    read = partial(load, config, flags={"home": home})
    home = Path(home)
    try:
        serve(ServeRequest(read(), home, read, (home / "data.mdb").touch, entries))
    except SpamnbError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
