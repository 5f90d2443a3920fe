"""Costs that meet the ham loss target, as `spamnb evaluate --apply` found them.

They are stored in one file in the home:

    # ham_loss.toml
    one_in = 1000
    junk = [47.74, 0.05]
    reject = [1000.0, 0.0]

The file is ignored if any cost is set elsewhere, or if `ham_loss.one_in` differs from the value
that it was computed for. It cannot be computed while serving: users label mainly errors, and a
bound from such labels would be too optimistic.

Failure: SettingsError for a file that exists and is invalid.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamnb.core.model.costs import Costs
from spamnb.errors import SettingsError
from spamnb.store.files import durable_write

if TYPE_CHECKING:
    from spamnb.lab.statistics.loss_bound import HamLossBound

FILE = "ham_loss.toml"
_MODE = 0o600
_MOST_BYTES = 4096


def write_costs(home: Path, found: HamLossBound, costs: Costs) -> Path:
    """Write the file atomically; return its path."""
    lines = [
        "# Written by `spamnb evaluate --apply`. Delete it to use the costs of the settings.",
        f"# {found.ham_above} of {found.ham} good messages scored above the junk threshold:",
        f"# at most {found.at_worst_percent:.3f} % are lost (95 % confidence).",
        f"one_in = {found.one_in}",
        f"junk = {list(costs.junk)}",
        f"reject = {list(costs.reject)}",
        "",
    ]
    durable_write(home / FILE, "\n".join(lines).encode(), mode=_MODE)
    return home / FILE


def remove_costs(home: Path) -> None:
    """Delete the file, so that the costs of the settings apply."""
    (home / FILE).unlink(missing_ok=True)


def read_costs(home: Path, one_in: int) -> Costs | None:
    """Read the costs for this target; None if there are none for it or they are unreadable."""
    path = home / FILE
    try:
        text = _text(path)
        return None if text is None else _costs(tomllib.loads(text), one_in)
    except (SettingsError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(
            f"{path} is invalid: {error}",
            hint="remove it, or rewrite it with `spamnb evaluate --apply`",
        ) from error


def _costs(plain: dict[str, Any], one_in: int) -> Costs | None:
    if set(plain) != {"one_in", "junk", "reject"}:
        raise ValueError(f"its keys are {', '.join(sorted(plain)) or 'missing'}")
    if plain["one_in"] != one_in:
        return None
    junk, reject = ((float(ham), float(spam)) for ham, spam in (plain["junk"], plain["reject"]))
    return replace(Costs(), junk=junk, reject=reject)


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
