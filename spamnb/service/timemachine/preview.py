"""Make the model that an administrator wants, in a folder, and say what it changes.

The present model is only read, and may be used meanwhile. Failure: the errors of rebuilding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from spamnb.core.model.costs import Costs
from spamnb.service.engine.clock import iso
from spamnb.service.engine.filter import ONE_IN, Filter
from spamnb.service.maintenance.event_filter import RelearnFilter, require_events_of
from spamnb.service.maintenance.rewind import CostsOf, cut_at, relearning, rewinding
from spamnb.service.timemachine.comparison import comparison_facts, judged_twice
from spamnb.service.timemachine.wanted import Kind, Wanted
from spamnb.store.history.limits import HistoryLimits
from spamnb.store.history.verdict_history import History
from spamnb.store.lmdb.sharing import DATA_FILE
from spamnb.store.lmdb.store import open_store
from spamnb.store.rebuild import Copied, copy_kept, copy_model

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
    """Return the wanted model and what it changes; `state` is null if it is the present one."""
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
