"""Show what another state of the model would decide, in a process of its own.

`Wanted` says which model, `preview` makes it in a folder and says what it changes, and
`TimeMachine` has one preview at a time, which can be applied. Failure: RefusedError for what is not
possible now, RefError for another preview than the present one, and the errors of rebuilding.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import islice
from math import exp
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from spamnb.engine.event_filter import RelearnFilter, Takes, require_events_of
from spamnb.engine.filter import ONE_IN, Filter
from spamnb.engine.lookup import entry_example
from spamnb.engine.scoring import score_examples
from spamnb.errors import (
    BugError,
    RefError,
    RefusedError,
    SpamnbError,
    StoreDamagedError,
    StoreError,
    incident_id,
)
from spamnb.maintenance.rewind import CostsOf, cut_at, relearning, rewinding
from spamnb.model.costs import DECISIONS, Costs, Role, roles_of
from spamnb.model.verdict import Verdict, signature_text
from spamnb.operations.figures import said_of
from spamnb.operations.request import failed, failure
from spamnb.records.verdicts import History, HistoryEntry
from spamnb.settings.values import HistoryLimits
from spamnb.store.maintenance import (
    Copied,
    CopiedState,
    copy_folder,
    copy_kept,
    copy_model,
    kept_files,
    put_copy,
)
from spamnb.store.model_store import DATA_FILE, open_store
from spamnb.telemetry import Log, incident, iso, lower_priority, package_environment

_BATCH: Final = 200
_JUNK: Final = DECISIONS.index("junk")
_LISTED: Final = 100


class JudgedTwice(NamedTuple):
    """A message, the verdict of each model, and the role of the label that a person gave it."""

    entry: HistoryEntry
    old: Verdict
    new: Verdict
    said: Role | None

    @property
    def moved(self) -> int:
        """1 if it would go into the junk folder, -1 if out of it, else 0."""
        filed = [DECISIONS.index(one.decision) >= _JUNK for one in (self.old, self.new)]
        return filed[1] - filed[0]


def judged_twice(
    models: tuple[Filter, Filter], entries: Iterable[HistoryEntry], ignored: Takes
) -> Iterator[JudgedTwice]:
    """Yield the messages as the old and the new model judge them now.

    Both judge each message now, by the ids that the history has of it. Labels count as known if a
    person gave them and they are not of the training that the new model omits.
    """
    old, new = models
    roles = roles_of(old.labels)
    for batch in _batches(entries):
        examples = [entry_example(entry) for entry in batch]
        with old.store.read() as view:
            before = score_examples(
                old.recipe, old.costs, view, examples, threshold=old.threshold(view)
            )
            said = [said_of(view, roles, entry.digest, ignored)[0] for entry in batch]
        with new.store.read() as view:
            after = score_examples(
                new.recipe, new.costs, view, examples, threshold=new.threshold(view)
            )
        yield from map(JudgedTwice, batch, before, after, said)


def comparison_facts(judged: Sequence[JudgedTwice]) -> dict[str, Any]:
    """Return which verdicts change, and what becomes of the mail that people labelled."""
    pairs = Counter((one.old.decision, one.new.decision) for one in judged)
    moved = Counter((one.said, one.moved) for one in judged)
    changed = [one for one in judged if one.old.decision != one.new.decision]
    changed.sort(key=lambda one: not (one.said == "ham" and one.moved > 0))
    return {
        "messages": len(judged),
        "changed": len(changed),
        "counts": [
            {"old": old, "new": new, "messages": count}
            for (old, new), count in sorted(pairs.items())
        ],
        "known_ham": sum(one.said == "ham" for one in judged),
        "known_spam": sum(one.said == "spam" for one in judged),
        "ham_lost": moved["ham", 1],
        "ham_won": moved["ham", -1],
        "spam_lost": moved["spam", -1],
        "spam_won": moved["spam", 1],
        "verdicts": [_row(one) for one in changed[:_LISTED]],
    }


def _row(one: JudgedTwice) -> dict[str, Any]:
    return {
        "signature": signature_text(one.entry.signature),
        "time": iso(one.entry.time_us),
        "subject": one.entry.notes.get("subject", ""),
        "from": one.entry.notes.get("from", ""),
        "old": one.old.decision,
        "new": one.new.decision,
        "old_probability": _probability(one.old),
        "new_probability": _probability(one.new),
        "said": one.said,
    }


def _probability(verdict: Verdict) -> float:
    """Return the probability of spam."""
    return 1 / (1 + exp(-max(-700.0, min(700.0, verdict.spam_log_odds))))


def _batches(entries: Iterable[HistoryEntry]) -> Iterator[list[HistoryEntry]]:
    rest = iter(entries)
    while batch := list(islice(rest, _BATCH)):
        yield batch


Kind = Literal["rewind", "relearn", "kept"]


class Wanted(NamedTuple):
    """A model of an earlier time, one without some training, or one that was kept."""

    kind: Kind
    to_us: int = 0
    """rewind: later events are removed"""
    without: tuple[str, ...] = ()
    """relearn: without the events of these users"""
    without_channel: tuple[str, ...] = ()
    """relearn: without the events of these channels"""
    constants: tuple[tuple[str, float], ...] = ()
    """relearn: with other constants"""
    kept: str = ""
    """kept: name of the file"""


MOST_JUDGED: Final = 2000
"""newest verdicts that a preview compares"""

Facts = dict[str, Any]


class PreviewTask(NamedTuple):
    """What a preview needs."""

    home: Path
    folder: Path
    """for the new model"""
    wanted: Wanted
    costs: Costs
    history: HistoryLimits
    costs_of: CostsOf
    one_in: int = ONE_IN
    """the target of the site's threshold"""


def preview(task: PreviewTask) -> Facts:
    """Return the wanted model and what it changes; `state` is null if it is the present one.

    The present model is only read, and may be used meanwhile.
    """
    home, folder = task.home, task.folder
    copied = _MAKERS[task.wanted.kind](task)
    if copied is None:
        return {"state": None, "events_dropped": 0}
    sizes = {"bytes": (home / DATA_FILE).stat().st_size}
    sizes["new_bytes"] = (folder / DATA_FILE).stat().st_size
    facts = copied.result | {"state": list(copied.state), "expect": copied.state.last_seq}
    return facts | sizes | _compared(task)


def _rewound(task: PreviewTask) -> Copied[Facts] | None:
    home, time_us = task.home, task.wanted.to_us
    with closing(open_store(home, readonly=True)) as store, store.read() as view:
        if cut_at(view, time_us).events == 0:
            return None
    copied = copy_model(home, task.folder, rewinding(time_us))
    cut = copied.result
    facts = {
        "events_dropped": cut.events,
        "last_event": cut.stop - 1,
        "stays": iso(cut.stays_us) if cut.stays_us else None,
        "by": cut.by,
    }
    return Copied(facts, copied.state)


def _relearnt(task: PreviewTask) -> Copied[Facts]:
    wanted, home = task.wanted, task.home
    drops = _drops(wanted)
    with closing(open_store(home, readonly=True)) as store, store.read() as view:
        require_events_of(view, drops)
    change = relearning(drops, task.costs, dict(wanted.constants), task.costs_of)
    copied = copy_model(home, task.folder, change)
    return Copied(copied.result.as_dict(), copied.state)


def _drops(wanted: Wanted) -> RelearnFilter:
    return RelearnFilter(wanted.without, wanted.without_channel)


def _kept(task: PreviewTask) -> Copied[Facts]:
    state = copy_kept(task.home, task.folder, task.wanted.kept)
    with closing(open_store(task.folder, readonly=True)) as store, store.read() as view:
        return Copied({"last_event": view.totals().last_seq}, state)


_MAKERS: Final[Mapping[Kind, Callable[[PreviewTask], Copied[Facts] | None]]] = {
    "rewind": _rewound,
    "relearn": _relearnt,
    "kept": _kept,
}


def _compared(task: PreviewTask) -> Facts:
    folder = task.home / "history"
    with ExitStack() as stack:
        reading = partial(
            Filter.open, readonly=True, history=False, costs=task.costs, one_in=task.one_in
        )
        old, new = (stack.enter_context(reading(path)) for path in (task.home, task.folder))
        if not folder.is_dir():
            return comparison_facts([])
        history = stack.enter_context(closing(History.open(folder, task.history)))
        entries = islice(history.newest(), MOST_JUDGED)
        return comparison_facts(list(judged_twice((old, new), entries, _drops(task.wanted))))


KEEP_S: Final = 600.0
"""how long a preview can be applied"""
MOST_KEPT: Final = 3
"""old models that stay on the disk"""
_END_S: Final = 10.0
"""time for a killed child to end, and for the folder to be removed"""
_COMMAND: Final = ("-P", "-m", "spamnb.timemachine")
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
    """The preview of a home, and its application.

    A child process makes the preview, which can be applied for ten minutes. The copy lies in a
    temporary folder of the home, which is removed when the preview ends: applied, cancelled,
    replaced by another one, or too old.
    """

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


_NICE = 10
_MOST_BYTES = 1 << 30
"""of memory; a transaction of 2,048 events takes some 100 MB"""
_FIRST_TO_END = "1000"
"""if the machine has no memory left, the kernel ends this process before those of the daemon"""


def main() -> int:
    """Run one task.

    The task is a pickle on stdin, which the parent holds open as long as it lives; the result is
    one line of JSON on stdout.
    """
    lower_priority(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_END, encoding="ascii")
    _limit_memory()
    task = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout.write(json.dumps(_answer(task)) + "\n")
    sys.stdout.flush()
    return 0


def _limit_memory() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    most = _MOST_BYTES if most == resource.RLIM_INFINITY else min(most, _MOST_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _answer(task: PreviewTask) -> dict[str, Any]:
    try:
        return {"ok": True, "facts": preview(task)}
    except SpamnbError as error:
        return failure(error)
    except MemoryError:
        return failure(StoreError(f"the preview needs more than {_MOST_BYTES >> 20} MB of memory"))
    except Exception:  # noqa: BLE001 - the parent logs it
        return {"ok": False, "fault": traceback.format_exc()}


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
