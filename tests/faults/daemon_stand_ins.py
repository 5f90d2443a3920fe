"""Roles for tests of the supervisor, and the program that starts it with them.

python daemon_stand_ins.py HOME CONFIG ROLE=FUNCTION...
"""

import os
import select
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

from spamnb.daemon.processes.bootstrap import ENTRIES, Wish, serve
from spamnb.daemon.processes.shared_state import State
from spamnb.daemon.roles import scan_process, scan_setup, worker
from spamnb.daemon.roles.scan_pool import ScanPool
from spamnb.errors import SpamnbError
from spamnb.service.scanning.model_session import digest_of, judged_aside
from spamnb.settings import load


def echo(start, board, orders):
    """Answer each connection with who we are and what we were told; beat, obey, end on SIGTERM."""
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    listeners = [socket.socket(fileno=fd) for fds in start.sockets.values() for fd in fds]
    level = start.settings["log.level"]
    board.set_state(start.slot, State.READY)
    poll = select.poll()
    for one in [*listeners, orders]:
        poll.register(one, select.POLLIN)
    while not ended:
        board.beat(start.slot)
        for fd, _ in poll.poll(20):
            if fd == orders.fileno():
                order = orders.next()
                if order is None:
                    return 0
                level = order.settings["log.level"]
                continue
            connection, _ = next(one for one in listeners if one.fileno() == fd).accept()
            with connection:
                connection.settimeout(5)
                _answer(connection, start, board, level)
    with (Path(start.home) / "ended").open("a") as file:
        file.write(f"{start.role}\n")
    return 0


def _answer(connection, start, board, level):
    word = connection.recv(100).decode().strip()
    if word.startswith("hold "):
        board.hold(start.slot, bytes.fromhex(word[5:]))
    if word.startswith("poisonous "):
        level = board.is_poisonous(bytes.fromhex(word[10:]))
    if word == "bypass":
        level = board.bypass
    if word == "restarts":
        level = board.total().value("restarts")
    connection.sendall(f"{start.role} {start.slot} {os.getpid()} {level}\n".encode())
    if word in ("hang", "hold 00112233445566778899aabbccddeeff"):
        time.sleep(600)


def deaf(start, board, orders):
    """Be ready, and hear nothing: neither orders nor SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    board.set_state(start.slot, State.READY)
    while os.getppid() == start.parent:
        board.beat(start.slot)
        time.sleep(0.05)
    return 0


def broken(start, board, orders):
    """End at once."""
    return 3


def once(start, board, orders):
    """End at once the first three times, then be as the others."""
    tries = Path(start.home) / "tries"
    with tries.open("a") as file:
        file.write(f"{time.monotonic()}\n")
    return echo(start, board, orders) if len(tries.read_text().split()) > 3 else 3


SLOW_S = 0.15
HANG = b"this hangs"


def slow_worker(start, board, orders):
    """Be a worker with helpers that take their time."""
    scan_setup.ScanPool = partial(ScanPool, entry="daemon_stand_ins:slow_helper")
    return worker.main(start, board, orders)


def slow_helper(start, board, orders):
    """Take a moment for each message, and hours for some."""

    def slowly(bench, raw, notes):
        bench.hand.hold(digest_of(raw))
        time.sleep(600 if HANG in raw else SLOW_S)
        bench.hand.release()
        return judged_aside(bench, raw, notes)

    scan_process.judged_aside = slowly
    return scan_process.main(start, board, orders)


def main(home, config, *roles):
    """Serve with these roles: stand-ins of this module, or `real`."""
    entries = dict.fromkeys(ENTRIES, "daemon_stand_ins:echo")
    for role, _, name in (word.partition("=") for word in roles):
        entries[role] = ENTRIES[role] if name == "real" else f"daemon_stand_ins:{name}"
    read = partial(load, config, flags={"home": home})
    home = Path(home)
    try:
        serve(Wish(read(), home, read, (home / "data.mdb").touch, entries))
    except SpamnbError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
