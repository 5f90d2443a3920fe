"""Costs in a file of the home, which apply where the settings have none.

    # ham_loss.toml
    junk = [47.74, 0.05]
    reject = [1000.0, 0.0]
    one_in = 1000                   if `spamnb evaluate --apply` found them for this ham loss target
    by = "ann"                      if an administrator chose them in the console
    at = "2026-05-31T07:15:00Z"
    [[before]]                      what was in the file before, the newest first: the same keys

The file is ignored if any cost is set elsewhere. What was found for a target is ignored if
`ham_loss.one_in` is another target. Only an evaluation finds costs for a target: users label mainly
errors, and a bound from the labels of a running filter would be too optimistic.

Failure: SettingsError for a file that exists and is invalid; StoreAccessError if it cannot be
written.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isclose
from pathlib import Path
from typing import Any, Final, NamedTuple

from spamnb.core.mail.printable import visible
from spamnb.core.model.costs import Costs, junk_from, log_odds_of, thresholds
from spamnb.errors import RefError, RefusedError, SettingsError
from spamnb.store.files import durable_write, refused

FILE: Final = "ham_loss.toml"
MOST_BEFORE: Final = 10
"""earlier costs that are kept"""
_MODE: Final = 0o600
_MOST_BYTES: Final = 8192
_MOST_NAME: Final = 128
_KEYS: Final = frozenset(("junk", "reject", "one_in", "by", "at"))


@dataclass(frozen=True, slots=True)
class CostRules:
    """What the settings say about costs."""

    set_at: str = ""
    """where they set a cost, so that the file is ignored; empty if they do not"""
    one_in: int = 1000
    """the ham loss target"""


@dataclass(frozen=True, slots=True)
class StoredCosts:
    """Costs of the file."""

    costs: Costs
    one_in: int | None = None
    """the target that they were found for; None if an administrator chose them"""
    by: str = ""
    at: str = ""
    before: tuple[StoredCosts, ...] = field(default=())
    """the newest first"""

    @property
    def earlier(self) -> StoredCosts | None:
        """What was in the file before, with all before it; None if there was no file."""
        if not self.before:
            return None
        return replace(self.before[0], before=self.before[1:])


class CostChange(NamedTuple):
    """What an administrator changed."""

    before: Costs
    after: Costs

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return the probabilities from which each decision is taken."""
        return {"before": thresholds_of(self.before), "after": thresholds_of(self.after)}


def thresholds_of(costs: Costs) -> dict[str, float]:
    """Return the probability above which each decision is taken."""
    return {one.decision: one.probability for one in thresholds(costs)}


def stored_facts(home: Path, rules: CostRules) -> dict[str, Any] | None:
    """Return the costs in the file, and the earlier ones; None without a file."""
    if (stored := read_stored(home)) is None:
        return None
    earlier = stored.earlier
    return {
        "by": stored.by,
        "at": stored.at,
        "one_in": stored.one_in,
        "thresholds": thresholds_of(stored.costs),
        "before": thresholds_of(_in_force(earlier, rules.one_in) or Costs()),
    }


class CostChoice(NamedTuple):
    """A threshold of junk that an administrator chooses."""

    junk: float
    expect: float
    """the threshold that it is to replace"""
    by: str
    at: str


def choose(home: Path, rules: CostRules, choice: CostChoice) -> CostChange:
    """Store the costs with a threshold of junk.

    Failure: RefusedError if the settings set costs, or if another threshold is to be replaced.
    """
    _require_free(rules)
    before = read_costs(home, rules.one_in) or Costs()
    if not isclose(thresholds_of(before)["junk"], choice.expect, rel_tol=1e-12):
        raise RefusedError("the costs have changed since then", hint="look at them again")
    after, stored = junk_from(before, log_odds_of(choice.junk)), read_stored(home)
    earlier = (stored, *stored.before) if stored else ()
    comments = (
        "Written by the console, page What if. Delete it to use the costs of the settings.",
    )
    write_stored(home, StoredCosts(after, by=choice.by, at=choice.at, before=earlier), comments)
    return CostChange(before, after)


def take_back(home: Path, rules: CostRules, at: str) -> CostChange:
    """Bring back what was there before the costs that an administrator chose at this time.

    Failure: RefError if these are not stored any more; RefusedError if the settings set costs.
    """
    _require_free(rules)
    stored = read_stored(home)
    if stored is None or not stored.by or stored.at != at:
        raise RefError(f"no costs of {at} are stored", hint="look at them again")
    if (earlier := stored.earlier) is None:
        remove_costs(home)
    else:
        write_stored(home, earlier, ("Brought back by the console, page What if.",))
    return CostChange(stored.costs, read_costs(home, rules.one_in) or Costs())


def _require_free(rules: CostRules) -> None:
    if rules.set_at:
        raise RefusedError(
            f"costs are set at {rules.set_at}", hint="change them there, or remove them there"
        )


def write_stored(home: Path, stored: StoredCosts, comments: tuple[str, ...] = ()) -> Path:
    """Write the file atomically; return its path."""
    lines = [f"# {one}" for one in comments]
    lines += _lines(stored)
    for one in stored.before[:MOST_BEFORE]:
        lines += ["", "[[before]]", *_lines(one)]
    try:
        durable_write(home / FILE, "\n".join([*lines, ""]).encode(), mode=_MODE)
    except OSError as error:
        raise refused(error, home / FILE) from error
    return home / FILE


def _lines(stored: StoredCosts) -> Iterator[str]:
    costs = stored.costs
    yield f"junk = {list(costs.junk)}"
    yield f"reject = {list(costs.reject)}"
    if stored.one_in is not None:
        yield f"one_in = {stored.one_in}"
    if stored.by:
        name = visible(stored.by[:_MOST_NAME])
        yield f"by = {json.dumps(name, ensure_ascii=False)}"
        yield f"at = {json.dumps(stored.at)}"


def remove_costs(home: Path) -> None:
    """Delete the file, so that the costs of the settings apply."""
    try:
        (home / FILE).unlink(missing_ok=True)
    except OSError as error:
        raise refused(error, home / FILE) from error


def read_costs(home: Path, one_in: int) -> Costs | None:
    """Read the costs that apply for this target; None if there are none or they are unreadable."""
    return _in_force(read_stored(home), one_in)


def _in_force(stored: StoredCosts | None, one_in: int) -> Costs | None:
    return stored.costs if stored and stored.one_in in (None, one_in) else None


def read_stored(home: Path) -> StoredCosts | None:
    """Read the file; None if there is none or it is unreadable."""
    path = home / FILE
    try:
        text = _text(path)
        return None if text is None else _stored(tomllib.loads(text))
    except (SettingsError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(
            f"{path} is invalid: {error}",
            hint="remove it, or rewrite it with `spamnb evaluate --apply`",
        ) from error


def _stored(plain: Mapping[str, Any]) -> StoredCosts:
    before = tuple(map(_costs, plain.get("before", ())))
    return replace(_costs({name: plain[name] for name in plain if name != "before"}), before=before)


def _costs(plain: Mapping[str, Any]) -> StoredCosts:
    if not ({"junk", "reject"} < plain.keys() <= _KEYS and ("one_in" in plain) != ("by" in plain)):
        raise ValueError(f"its keys are {', '.join(sorted(plain)) or 'missing'}")
    junk, reject = ((float(ham), float(spam)) for ham, spam in (plain["junk"], plain["reject"]))
    costs = replace(Costs(), junk=junk, reject=reject)
    return StoredCosts(
        costs, plain.get("one_in"), str(plain.get("by", "")), str(plain.get("at", ""))
    )


def _text(path: Path) -> str | None:
    """Read the file without following links: root may read it in another user's home."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return file.read(_MOST_BYTES).decode("utf-8")
