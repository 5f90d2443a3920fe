"""The costs that keep the promise of lost ham, as evaluation found them: one file in the home.

    # ham_loss.toml
    one_in = 1000
    junk = [47.74, 0.05]
    reject = [1000.0, 0.0]

`spamnb evaluate --apply` writes it. It stands below every other source of settings: whoever sets
costs themselves means them, and whoever asks for another promise than the one it was found for has
to evaluate anew; in both cases it is left out. It cannot be found while serving: the labels that
people give then are those of mistakes, and a bound from them would promise too much.

Failure: SettingsError for a file that is there and says nothing that can be meant.
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


def keep(home: Path, found: HamLossBound, costs: Costs) -> Path:
    """Write the costs that keep a promise, whole or not at all; where they are."""
    lines = [
        "# Written by `spamnb evaluate --apply`; without this file the costs are as they are set.",
        f"# {found.ham_above} of {found.ham} good messages lay above where junk begins:",
        f"# at most {found.at_worst_percent:.3f} % are lost (95 % sure).",
        f"one_in = {found.one_in}",
        f"junk = {list(costs.junk)}",
        f"reject = {list(costs.reject)}",
        "",
    ]
    durable_write(home / FILE, "\n".join(lines).encode(), mode=_MODE)
    return home / FILE


def drop(home: Path) -> None:
    """From now on the costs are as they are set."""
    (home / FILE).unlink(missing_ok=True)


def kept(home: Path, one_in: int) -> Costs | None:
    """The costs for this promise; None if none were found for it, or they are not ours to read."""
    path = home / FILE
    try:
        text = _text(path)
        return None if text is None else _costs(tomllib.loads(text), one_in)
    except (SettingsError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(
            f"{path} cannot be meant: {error}",
            hint="remove it, or write it anew with `spamnb evaluate --apply`",
        ) from error


def _costs(plain: dict[str, Any], one_in: int) -> Costs | None:
    if set(plain) != {"one_in", "junk", "reject"}:
        raise ValueError(f"it has {', '.join(sorted(plain)) or 'nothing'}")
    if plain["one_in"] != one_in:
        return None
    junk, reject = ((float(ham), float(spam)) for ham, spam in (plain["junk"], plain["reject"]))
    return replace(Costs(), junk=junk, reject=reject)


def _text(path: Path) -> str | None:
    """What stands in the file; whoever reads it may be root, and the home somebody else's."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return file.read(_MOST_BYTES).decode("utf-8")
