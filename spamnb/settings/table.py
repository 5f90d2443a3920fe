"""The one table of settings: names, defaults, what is allowed, and the reasons.

The settings file that `config example` prints comes from here, and so does every check of a file or
variable. A setting that does nothing has no place here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from spamnb.core.decision import Costs
from spamnb.core.model import KINDS
from spamnb.settings.sorts import FLAG, LABELS, PAIR, TEXT, TEXTS, Sort, choice, whole

PREFIX = "SPAMNB_"
MASKED = "********"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the settings file."""

    name: str
    default: Any
    sort: Sort
    reason: str
    """what it does and why it is as it is, in a sentence or two"""
    secret: bool = False

    @property
    def section(self) -> str:
        """The table it stands in; empty at the top."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Its name within the section."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.replace(".", "_").upper()


_COSTS = Costs()
_DAYS = whole(1, 36_500)

SETTINGS: tuple[Setting, ...] = (
    Setting("home", "", TEXT,
        "The folder that holds the model. Empty: $STATE_DIRECTORY if systemd gives one, else "
        "spamnb in the XDG data folder (~/.local/share)."),
    Setting("labels", ("ham", "spam"), LABELS,
        "What people call messages. Fixed when a model is made."),
    Setting("model.kind", "corrected", choice(*KINDS),
        "corrected learns from its mistakes and is the most accurate; multinomial and bernoulli "
        "are the classical models, exact and simple. Fixed when a model is made."),
    Setting("model.vocabulary", True, FLAG,
        "Keep the words behind the features, so that verdicts can be explained without the "
        "message, at the price of disk. Fixed when a model is made."),
    Setting("house.hosts", (), TEXTS,
        "Our own mail servers, as they stand after `by` in Received. What they add is not part of "
        "a message, so it is the same before and after delivery."),
    Setting("house.authserv_ids", (), TEXTS,
        "Our own names in Authentication-Results; results by others may be forged and are not "
        "believed."),
    Setting("costs.deliver", _COSTS.deliver, PAIR,
        "What each decision costs: [if the message is ham, if it is spam]. The unit is one spam "
        "read in the inbox; the decision that is expected to cost least is taken."),
    Setting("costs.unsure", _COSTS.unsure, PAIR, "Delivered and marked: a glance either way."),
    Setting("costs.junk", _COSTS.junk, PAIR, "Filed as junk: a ham there is seen late or never."),
    Setting("costs.reject", _COSTS.reject, PAIR, "Refused: nobody can fetch a ham back."),
    Setting("store.limit_bytes", 0, whole(0),
        "Most that the model's file may take; 0 is no limit. At the limit teaching is refused, "
        "scoring goes on."),
    Setting("journal.keep_days", 400, _DAYS,
        "How long a training can be undone; `spamnb expire` folds older ones into the checkpoint. "
        "A year and a month, so that what comes once a year was seen before."),
    Setting("history.keep_days", 30, _DAYS,
        "How long a verdict can be corrected by its id or signature alone."),
    Setting("history.limit_bytes", 1 << 30, whole(1 << 20),
        "Most that the history may take; the oldest verdicts go first."),
    Setting("expire.after_days", 400, _DAYS,
        "`spamnb expire` lets go of features that nobody taught for so long and that few messages "
        "held: most words are seen once and never again."),
    Setting("expire.most_holders", 1, whole(0, 1 << 31), "... held by at most so many messages."),
    Setting("log.level", "warning", choice("debug", "info", "warning", "error"),
        "How much is told on stderr."),
)  # fmt: skip

BY_NAME = {setting.name: setting for setting in SETTINGS}
BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}


def toml_of(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_of(one) for one in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 1_000_000:
        return f"{value:_}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
