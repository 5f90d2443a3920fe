"""Scan processes for tests: each message says what to do. They import little, to start fast."""

import json
import os
import signal
import socket
import time
from pathlib import Path

from spamnb.daemon.shared import InFlightGuard, ProcessState

DIGEST = b"d" * 16


def stand_in(start, shared, channel):
    """Execute the command in each message."""
    if start.home != "/" and (Path(start.home) / "slow").exists():
        time.sleep(2.0)
    shared.set_state(start.slot, ProcessState.READY)
    register = InFlightGuard(shared, start.slot)
    (fd,) = start.sockets["jobs"]
    with socket.socket(fileno=fd) as jobs, jobs.makefile("rwb") as stream:
        stream.write(b"ready\n")
        stream.flush()
        while line := stream.readline():
            raw = stream.read(json.loads(line)["bytes"])
            word = raw[:4].decode()
            if word == "lost":
                os.kill(os.getpid(), signal.SIGKILL)
            register.mark(DIGEST)
            if word == "hang":
                time.sleep(600)
            if word == "spin":
                os.sched_setaffinity(0, {int(raw[4:].decode())})
                end = time.process_time() + 0.4
                while time.process_time() < end:
                    pass
            if word == "gate":
                Path(raw[4:].decode()).touch()
                while Path(raw[4:].decode()).exists():
                    time.sleep(0.01)
            if word == "nap ":
                time.sleep(float(raw[4:].decode()))
            if word == "die " or (word == "once" and first(raw[5:].decode())):
                os.kill(os.getpid(), signal.SIGSEGV)
            register.release()
            output = b"no JSON" if word == "babb" else json.dumps({"pid": os.getpid()}).encode()
            stream.write(output + b"\n")
            stream.flush()
    return 0


def broken(start, shared, channel):
    """End before it is ready."""
    return 3


def first(path):
    """Whether this is the first call for a path."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
