"""Status of model and daemon: contents of the model, recent trainings, and warnings.

Returns plain values, the same with and without a daemon. The warnings report problems that are
otherwise noticed months later: training that stopped, training of one label only, moves of messages
that are not learnt. Reads only.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamnb.engine.site_scores import JUMP_NATS, threshold_facts
from spamnb.errors import StoreAccessError, StoreError
from spamnb.feedback.spool import FAILED
from spamnb.operations.unscanned import sentence
from spamnb.store.model_store import DATA_FILE
from spamnb.telemetry import now_us

if TYPE_CHECKING:  # a command that asks the daemon need not load numpy: half of its time
    from spamnb.engine.filter import Filter
    from spamnb.store.table_views import ReadView

QUIET_DAYS = 30
"""days without training of a label before a warning"""
RECENT_EVENTS = 200
"""number of newest events; their labels are compared with those of the whole model"""
_LOOKED_BACK = 2000
_DRIFT = 0.35
"""how far the recent share of a label may exceed its share in the model: from 50 % to 85 %"""
_NEARLY = 0.8
"""share of the model's size limit from which a warning is given"""
_SEEN = 20
_JUMP_DAYS = 3
"""how long a jump of the junk threshold is a warning"""
_DAY_US = 86_400_000_000

_PATH = re.compile(r"(?<!\S)(?!(?<=the )home/)\S*/[^\s:]*")
"""a word with a slash; a path with blanks has several, and words between them remain"""

_PRIVATE = ("home", "unreadable", "spool_problems", "mailboxes_away", "webhooks", "fleet")
"""facts with paths of this machine, or with names of users and servers"""

Facts = dict[str, Any]


def model_facts(home: Path, model: Filter) -> Facts:
    """Return the contents of the model, and when each label was last learnt."""
    with model.store.read() as view:
        totals = view.totals()
        events = view.last_events(_LOOKED_BACK)
        learnt = _last_learnt(view, model.labels, events)
        sizes = view.person_sizes().values()
        threshold = threshold_facts(view, model.recipe, model.one_in, model.costs)
    lately = Counter(model.labels[label] for _, label in events[:RECENT_EVENTS])
    try:
        size = (home / DATA_FILE).stat().st_size
    except OSError:
        size = 0
    return {
        "kind": model.recipe.kind,
        "messages": dict(zip(model.labels, totals.messages.tolist(), strict=True)),
        "features": totals.known,
        "events": totals.last_seq,
        "store_bytes": size,
        "store_limit_bytes": model.store.limit_bytes,
        "learnt": learnt,
        "lately": {label: lately[label] for label in model.labels},
        "threshold": threshold,
        "persons": {"count": len(sizes), "bytes": sum(sizes), "largest": max(sizes, default=0)},
    }


_FEW_FILED = 20
"""would-be filed messages from which on observing has shown enough"""


def observation_text(found: Mapping[str, Any]) -> str:
    """Return what `listings.observation` found as a sentence, and what to do next."""
    text = (
        f"{found['messages']:,} messages: {found['filed']:,} would be filed, of which users called "
        f"{found['agreed']:,} spam and wanted {found['kept']:,}; {found['missed']:,} others they "
        "called spam"
    )
    return f"{text}; to file junk: spamnb live on" if has_shown_enough(found) else text


def has_shown_enough(found: Mapping[str, Any]) -> bool:
    """Whether what a listener only observed is right, so that it can mark and file mail."""
    return found["filed"] >= _FEW_FILED and not found["kept"]


def notices(facts: Mapping[str, Any]) -> list[str]:
    """Return what the administrator should learn by mail: warnings, and that observing may end."""
    found = list(facts.get("warnings", ()))
    observed = facts.get("observing")
    if observed and has_shown_enough(observed):
        found.append(f"The newest observed mail: {observation_text(observed)}")
    return found


def _last_learnt(
    view: ReadView, labels: Sequence[str], events: Sequence[tuple[int, int]]
) -> dict[str, int | None]:
    """Return the time of each label's newest event; None if it is too old to be searched."""
    newest: dict[int, int] = {}
    for seq, index in events:
        newest.setdefault(index, seq)
    by_label = {index: view.event(seq) for index, seq in newest.items()}
    found = {index: event.time_us for index, event in by_label.items() if event}
    return {label: found.get(index) for index, label in enumerate(labels)}


def warnings(facts: Mapping[str, Any], quiet_days: int = QUIET_DAYS) -> list[str]:
    """Return the warnings for the administrator, one sentence each."""
    found: list[str] = []
    if facts.get("fault"):
        found.append(f"the model cannot be used: {facts['fault']}")
    elif facts.get("unreadable"):
        found.append(facts["unreadable"])
    if facts.get("bypass"):
        found.append("bypass is on: all mail passes unscanned")
    if facts.get("clock"):
        found.append(facts["clock"])
    if facts.get("fleet", {}).get("fault"):
        found.append(f"this host does not follow its fleet: {facts['fleet']['fault']}")
    if not facts.get("fleet", {}).get("copied", True):
        found.append(
            "no replica of the server of the fleet's log has confirmed this host's last entry"
        )
    if facts.get("fleet", {}).get("waiting"):
        found.append(f"{facts['fleet']['waiting']} corrections wait for the log of the fleet")
    model = facts.get("model")
    if model:
        found += _model_warnings(model, quiet_days)
        found += _influence_warnings(model)
    if facts.get("lately", {}).get("alarm"):
        found.append(sentence(facts["lately"]))
    counters = facts.get("counters")
    if counters:
        found += _counter_warnings(counters)
    if facts.get("review"):
        found.append(f"{facts['review']} reports wait for review: see `spamnb review list`")
    away = len(facts.get("mailboxes_away", ()))
    if away:
        found.append(f"{away} mailboxes on IMAP servers cannot be read: see the log")
    silent = sum(bool(one["error"]) for one in facts.get("webhooks", ()))
    if silent:
        found.append(f"{silent} webhooks cannot be sent: see the log")
    return found + _spool_warnings(facts)


def is_open(home: Path) -> bool:
    """Return whether all users of the machine can enter the home."""
    try:
        return bool(home.stat().st_mode & 0o001)
    except OSError:
        return False


@contextmanager
def noted(facts: Facts) -> Iterator[None]:
    """Run a block that reads files; a file that cannot be read becomes a warning."""
    try:
        yield
    except (StoreError, OSError) as error:
        facts["unreadable"] = str(error)


def check_home(home: Path) -> None:
    """Raise StoreAccessError if the home cannot be read."""
    try:
        os.scandir(home).close()
        (home / DATA_FILE).stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreAccessError(
            f"the home {home} cannot be read: {error.strerror}",
            hint="its owner must be the user that the daemon runs as",
        ) from error


def public(facts: Facts) -> Facts:
    """Return the facts that unprivileged users may know."""
    home = facts["home"]

    def plain(text: str) -> str:
        text = text.replace(f"the home {home}", "the home").replace(home, "the home")
        return _PATH.sub("[path]", text)

    named = _influence_warnings(facts.get("model") or {})
    texts = {"warnings": [plain(text) for text in facts["warnings"] if text not in named]}
    shown = {name: value for name, value in facts.items() if name not in _PRIVATE}
    if shown.get("model"):
        model = shown["model"]
        shown["model"] = {name: model[name] for name in model if name != "influential"}
    return shown | texts | {"fault": plain(facts["fault"])}


def _model_warnings(model: Mapping[str, Any], quiet_days: int) -> list[str]:
    found = []
    size, limit = model["store_bytes"], model["store_limit_bytes"]
    if limit and size > _NEARLY * limit:
        found.append(
            f"the model uses {size} of {limit} bytes: run `spamnb expire` or raise"
            " store.limit_bytes"
        )
    now, messages = now_us(), model["messages"]
    total, lately = sum(messages.values()), sum(model["lately"].values())
    for label, count in messages.items():
        last = model["learnt"][label]
        days = None if last is None else (now - last) // _DAY_US
        if not count:
            found.append(f"no {label} was ever learnt")
        elif days is None or days >= quiet_days:
            ago = "long ago" if days is None else f"{days} days ago"
            found.append(f"the last {label} was learnt {ago}")
        share = model["lately"][label] / lately if lately else 0.0
        if lately >= RECENT_EVENTS // 2 and total and share - count / total > _DRIFT:
            found.append(
                f"{share:.0%} of the last {lately} trainings were {label}, of all trainings "
                f"{count / total:.0%}: check that the other labels are still learnt"
            )
    return found + _threshold_warnings(model["threshold"]["past"], now)


def _threshold_warnings(past: Sequence[Mapping[str, Any]], now: int) -> list[str]:
    """Warn of a jump of the junk threshold, as long as it is new."""
    for after, before in pairwise(past):
        old, new = before["log_odds"], after["log_odds"]
        if abs(new - old) >= JUMP_NATS and now - after["time_us"] < _JUMP_DAYS * _DAY_US:
            jump = f"the junk threshold went from {old:.2f} to {new:.2f} nats"
            return [f"{jump} by event {after['event']}: check the newest labels of ham"]
    return []


def _influence_warnings(model: Mapping[str, Any]) -> list[str]:
    """Return the warning about users whose labels changed the verdicts on the mail of others."""
    found = model.get("influential")
    if not found:
        return []
    changed = "; ".join(
        f"{one['changed']} of {one['compared']} messages by {one['labels']} labels" for one in found
    )
    users = dict.fromkeys(user for one in found for user in one["users"])
    options = " ".join(f"--user {shlex.quote(user)}" for user in users)
    text = f"labels of users changed verdicts on mail of others ({changed})"
    return [f"{text}: `spamnb undo {options} --since 30d` takes them back"]


def _spool_warnings(facts: Mapping[str, Any]) -> list[str]:
    found = list(facts.get("spool_problems", ()))
    aside, failed = facts.get("spool", {}).get("set_aside"), facts.get("moves_failed")
    if aside:
        found.append(f"{aside} files of the spool were not valid feedback and were set aside")
    if failed:
        found.append(
            f"{failed} moves of messages could not be written to the spool: see the log of the"
            f" mail server, then remove the {FAILED}* files of the spool"
        )
    return found


def _counter_warnings(counters: Mapping[str, Any]) -> list[str]:
    found = []
    learnt = sum(counters[f"learned_{label}"] for label in ("ham", "spam", "other"))
    idle = sum(counters[f"feedback_{state}"] for state in ("unchanged", "review", "refused"))
    if idle >= _SEEN and not learnt:
        found.append(f"{idle} labels from users were received, and none was learnt: see the log")
    if counters["unscanned"] > counters["scanned"]:
        found.append(f"{counters['unscanned']} messages passed unscanned: see the log")
    if failures := counters["upstream_failures"]:
        found.append(
            f"{failures} times since its start the daemon could not pass mail to the next hop: see "
            "`spamnb doctor` and the log"
        )
    if together := counters["mailboxes_together"]:
        found.append(
            f"{together} messages came to the mailboxes for several recipients at once, which get"
            " one verdict: set lmtp_destination_recipient_limit = 1 (docs/persons.md)"
        )
    return found


def quantile(histogram: Mapping[str, Any], share: float) -> float | None:
    """Return the bucket bound below which this share of a histogram lies; None if it is empty."""
    wanted, running = histogram["count"] * share, 0
    if not histogram["count"]:
        return None
    for bound, number in zip(histogram["bounds"], histogram["buckets"], strict=False):
        running += number
        if running >= wanted:
            return float(bound)
    return float("inf")


def gauges(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the gauges for Prometheus."""
    found: dict[str, float] = {"up_seconds": facts.get("up_s", 0.0)}
    found["bypass"] = float(bool(facts.get("bypass")))
    found["unscanned_alarm"] = float(bool(facts.get("lately", {}).get("alarm")))
    found["warnings"] = len(facts.get("warnings", ()))
    if "free_bytes" in facts:
        found["home_free_bytes"] = facts["free_bytes"]
    found["review_waiting"] = facts.get("review", 0)
    found["quarantine_messages"] = facts.get("quarantine", {}).get("messages", 0)
    found["quarantine_bytes"] = facts.get("quarantine", {}).get("bytes", 0)
    found["spool_waiting"] = facts.get("spool", {}).get("waiting", 0)
    fleet = facts.get("fleet")
    if fleet:
        found["fleet_following"] = float(not fleet["fault"])
        found["fleet_copied"] = float(fleet["copied"])
        found["fleet_lag_seconds"] = fleet["lag_s"]
        found["fleet_folded_entries"] = fleet["folded_entries"]
        found["fleet_waiting_corrections"] = fleet["waiting"]
        found["fleet_waiting_bytes"] = fleet["waiting_bytes"]
        found["fleet_waiting_seconds"] = fleet["waiting_s"]
    model = facts.get("model") or {}
    found["model_usable"] = float(bool(model))
    for name, value in model.get("persons", {}).items():
        found[f"model_persons_{name}"] = value
    if "threshold" in model:
        found["junk_threshold_nats"] = model["threshold"]["log_odds"]
        found["junk_threshold_ham"] = model["threshold"]["ham"]
    for name in ("features", "events", "store_bytes", "store_limit_bytes"):
        found[f"model_{name}"] = model.get(name, 0)
    for label, count in model.get("messages", {}).items():
        found[f"model_messages{_labelled('label', label)}"] = count
    for label, last in model.get("learnt", {}).items():
        if last is not None:
            found[f"last_learnt_timestamp_seconds{_labelled('label', label)}"] = last / 1e6
    away = facts.get("mailboxes_away", ())
    found["mailboxes_away"] = len(away)
    for one in away:
        name = _labelled("account", one["account"])
        found[f"mailbox_away_since_timestamp_seconds{name}"] = one["since_us"] / 1e6
    for one in facts.get("webhooks", ()):
        name = _labelled("webhook", one["webhook"])
        found[f"webhook_waiting{name}"] = one["waiting"]
        found[f"webhook_dropped{name}"] = one["dropped"]
    return found


def _labelled(name: str, value: str) -> str:
    """Return a label in the syntax of Prometheus."""
    plain = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{name}="{plain}"}}'


def quarantine_size(folder: Path) -> dict[str, int]:
    """Count the messages that wait in quarantine, and the bytes of all of its files."""
    messages = size = 0
    exists = folder.is_dir()
    if exists:
        os.scandir(folder).close()  # raises if the folder cannot be read; `glob` does not
    for path in folder.glob("**/*") if exists else ():
        if not path.name.startswith(".") and path.is_file():
            messages += path.suffix == ".json"
            size += path.stat().st_size
    return {"messages": messages, "bytes": size}
