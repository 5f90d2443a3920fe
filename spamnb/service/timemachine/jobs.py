"""One preview at a time: a child process makes it, and for ten minutes it can be applied.

The copy lies in a temporary folder of the home, which is removed when the preview ends: applied,
cancelled, replaced by another one, or too old. Failure: RefusedError for what is not possible now,
RefError for another preview than the present one, and the errors of the child.
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

from spamnb.errors import (
    BugError,
    RefError,
    RefusedError,
    SpamnbError,
    StoreDamagedError,
    incident_id,
)
from spamnb.service.admin.client import failed, failure
from spamnb.service.engine.clock import iso
from spamnb.service.interpreter import package_environment
from spamnb.service.telemetry.log import Log, incident
from spamnb.service.timemachine.preview import Facts, PreviewTask
from spamnb.store.rebuild import CopiedState, copy_folder, kept_files, put_copy

KEEP_S: Final = 600.0
"""how long a preview can be applied"""
MOST_KEPT: Final = 3
"""old models that stay on the disk"""
_END_S: Final = 10.0
"""time for a killed child to end, and for the folder to be removed"""
_COMMAND: Final = ("-P", "-m", "spamnb.service.timemachine")
_FATAL: Final = (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV)

State = Literal["running", "ready", "applied", "failed", "ended"]
Replace = Callable[[Callable[[], Path]], Path]
"""runs a function while no thread of this process has the model open"""


class Preview:
    """One preview, in the thread that waits for its child."""

    def __init__(self, task: PreviewTask, log: Log) -> None:
        self.name = incident_id()
        self.task = task
        self.state: State = "running"
        self.facts: Facts = {}
        self.kept = ""
        self.lock = threading.Lock()
        """held while it is applied, and while it ends"""
        self.made = threading.Event()
        self._log = log
        self._error: SpamnbError | None = None
        self._began = time.time()
        self._ends = 0.0
        self._over = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="preview", daemon=True)
        self._thread.start()

    def as_dict(self) -> Facts:
        """Return the preview as a value of JSON."""
        return {
            "job": self.name,
            "state": self.state,
            "wanted": self.task.wanted._asdict(),
            "began": _iso(self._began),
            "ends": _iso(self._ends) if self.state == "ready" else None,
            "kept": self.kept or None,
            "facts": self.facts or None,
            "error": failure(self._error) if self._error else None,
        }

    def end(self) -> None:
        """End it, and remove its folder."""
        self._over.set()
        with suppress(ProcessLookupError):
            if self._child is not None:
                self._child.kill()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            with copy_folder(self.task.home) as folder:
                self.task = self.task._replace(folder=folder)
                self.facts = self._ask_child()
                self._ends = time.time() + KEEP_S
                self.state = "ready"
                self.made.set()
                self._over.wait(KEEP_S)
                with self.lock:
                    self.state = "applied" if self.kept else "ended"
        except SpamnbError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a bug must not end the thread unseen
            name = incident(self._log, "preview", error)
            self._failed(BugError(f"internal error, incident {name}", hint="see the log"))
        finally:
            self.made.set()

    def _failed(self, error: SpamnbError) -> None:
        self._error, self.state = error, "failed"

    def _ask_child(self) -> Facts:
        with subprocess.Popen(  # noqa: S603 - this interpreter and this package
            [sys.executable, *_COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=package_environment(),
            cwd="/",
        ) as child:
            self._child = child
            if self._over.is_set():
                child.kill()
            assert child.stdin is not None, "it is a pipe"
            assert child.stdout is not None, "it is a pipe"
            with suppress(BrokenPipeError):
                child.stdin.write(pickle.dumps(self.task))
                child.stdin.flush()
            line = child.stdout.readline()
        return self._facts_in(line, child.returncode)

    def _facts_in(self, line: bytes, code: int) -> Facts:
        if self._over.is_set():
            raise RefusedError("the preview was cancelled")
        if not line:
            if -code in _FATAL:
                raise StoreDamagedError("LMDB ended the preview", hint="restore a backup")
            raise BugError(f"the preview ended with status {code}", hint="try again")
        answer: Facts = json.loads(line)
        if "fault" in answer:
            raise RuntimeError(answer["fault"])
        if not answer["ok"]:
            raise failed(answer)
        facts: Facts = answer["facts"]
        return facts


def _iso(seconds: float) -> str:
    return iso(int(seconds * 1_000_000))


class TimeMachine:
    """The preview of a home, and its application."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._preview: Preview | None = None

    def start(self, task: PreviewTask, log: Log) -> Preview:
        """Begin a preview; it takes the place of one that is not running."""
        with self._lock:
            old = self._preview
            if old is not None and old.state == "running":
                raise RefusedError("another preview is being made", hint="wait, or cancel it")
            if old is not None:
                old.end()
            self._preview = Preview(task, log)
            return self._preview

    def find(self, name: str) -> Preview:
        """Return the preview of this name; the newest one for an empty name."""
        found = self._preview
        if found is None or name not in ("", found.name):
            raise RefError(f"there is no preview {name!r}", hint="make a new one")
        return found

    def apply(self, name: str, expect: int, replace: Replace) -> Preview:
        """Put the model of a preview in the place of the present one."""
        found = self.find(name)
        with found.lock:
            if found.state != "ready" or not found.facts["state"]:
                why = "changes nothing" if found.state == "ready" else f"is {found.state}"
                raise RefusedError(f"the preview {why}", hint="make a new one")
            state = CopiedState(*found.facts["state"])
            if expect != state.last_seq:
                raise RefusedError(
                    f"the preview is of the model at event {state.last_seq}, not {expect}",
                    hint="look at it again",
                )
            task = found.task
            found.kept = replace(partial(put_copy, task.folder, task.home, state)).name
            for old in kept_files(task.home)[MOST_KEPT:]:
                old.unlink(missing_ok=True)
        found.end()
        return found

    def close(self) -> None:
        """End the preview."""
        with self._lock:
            if self._preview is not None:
                self._preview.end()
