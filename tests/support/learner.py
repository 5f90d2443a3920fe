"""The learner as a process, and clients of its control socket."""

import contextlib
import multiprocessing
import os
import socket
from dataclasses import replace
from pathlib import Path

from spamnb.daemon.learner import LearnerConfig, LearnerSockets, run
from spamnb.daemon.logs import DaemonLog
from spamnb.daemon.shared import SharedState
from spamnb.engine.filter import Filter, new_recipe
from spamnb.model.verdict import signature_text
from spamnb.operations.protocol import ControlClient
from spamnb.settings.schema import LogSettings
from spamnb.store import maintenance as audit
from support.waiting import LIMIT_S


def mail(number, text="quarterly figures", *, head=""):
    top = f"From: ann@a.example\nSubject: s{number}\nMessage-ID: <{number}@a.example>\n"
    return f"{head}{top}\n{text} {number}\n".encode()


class Learner:
    """A learner in a fork of this process: a start takes a fifth of the CPU time of a program."""

    def __init__(self, home, where, *, listener=None, prepare=None, **options):
        self.home = Path(home)
        self.path = Path(where) / "c.sock"
        self.listener = listener or listening(self.path)
        self.log = Path(where) / "learner.log"
        self.prepare = prepare
        """called in the process before the learner"""
        self.process = multiprocessing.get_context("fork").Process(target=self._run, kwargs=options)
        self.process.start()

    def _run(self, **options):
        with self.log.open("ab", buffering=0) as log:
            os.dup2(log.fileno(), 2)
        if self.prepare is not None:
            self.prepare()
        config = LearnerConfig(home=self.home, log=DaemonLog(LogSettings()), **options)
        sockets = LearnerSockets(self.listener, SharedState.create(["learner"]), 0)
        os._exit(run(config, sockets))

    def caller(self, wait_s=LIMIT_S):
        return ControlClient(self.path, wait_s)

    def ask(self, op, body=b"", **fields):
        with self.caller() as caller:
            return caller.ask(op, body, **fields)

    def kill(self):
        self.process.kill()
        self.process.join()

    def end(self):
        """Stop it as a supervisor does; its exit code."""
        self.process.terminate()
        self.process.join(LIMIT_S)
        return self.process.exitcode


def listening(path):
    """Bind a socket as the supervisor does: every user with access to its folder may connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(128)
    return listener


@contextlib.contextmanager
def learner(home, where, *, model=True, **options):
    """Run the learner on a small model."""
    if model and not (Path(home) / "data.mdb").exists():
        with Filter.open(home, create=True, recipe=new_recipe()) as made:
            made.learn(mail("h1", "the minutes of our meeting on tuesday"), "ham")
            made.learn(mail("s1", "cheap pills and a casino bonus"), "spam")
    running = Learner(home, where, **options)
    try:
        running.ask("ping")
        yield running
        assert running.end() == 0, running.log.read_text()
    finally:
        running.kill()
        running.listener.close()


def score(home, raw, *, to):
    """Score as a worker does, with the recipient in the history; return the signature."""
    with Filter.open(home) as model:
        verdict = model.score(raw)
        entry = model.history.find(digest=verdict.digest)[0]
        signature = os.urandom(16)
        model.history.add([replace(entry, signature=signature, notes={"to": to})])
    return signature_text(signature)


def events(home):
    """Open the model and return the newest event of each digest."""
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        assert audit.check(view) == []
        return {event.digest.hex(): event for event in view.events()}


def as_user(uid, run):
    """Run a function in a child process of another user; return its result as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            text = str(run())
        except BaseException as error:  # noqa: BLE001 - shown to the test
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text
