"""Score thresholds for assigning labels: one per label, in a file beside the model.

They serve models with other labels than ham and spam: a label of only 1 % of the documents is
rarely the most probable one. `train --thresholds` chooses them by cross-validation over its input
(`labels.thresholds_of`). They are no part of the model and are not updated by later learning;
run `train --thresholds` again to renew them.

Failure: UserError for a file that cannot be parsed; a home without the file has no thresholds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from spamnb.errors import UserError
from spamnb.model.scoring import one_against_rest
from spamnb.model.verdict import Verdict
from spamnb.store.files import durable_write, refused

FILE = "thresholds.json"
_MODE = 0o600


def save(home: Path, thresholds: Mapping[str, float]) -> None:
    """Write the thresholds file of a home atomically."""
    text = json.dumps({"log_odds_against_the_rest": dict(thresholds)}, indent=2)
    try:
        durable_write(home / FILE, text.encode(), mode=_MODE)
    except OSError as error:
        raise refused(error, home / FILE) from error


def load(home: Path) -> dict[str, float]:
    """Return the thresholds of a home by label; an empty dict if there is no file."""
    try:
        plain = json.loads((home / FILE).read_text("utf-8"))
        return {name: float(at) for name, at in plain["log_odds_against_the_rest"].items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise refused(error, home / FILE) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{home / FILE} cannot be read: {error}",
            hint="choose the thresholds again with `spamnb train --thresholds`, or remove the file",
        ) from error


def assigned(verdict: Verdict, thresholds: Mapping[str, float]) -> list[str]:
    """Return the labels with a score at or above their threshold, the highest margin first."""
    odds = one_against_rest(np.array([verdict.z]))[0]
    beyond = {
        label: float(at) - thresholds[label]
        for label, at in zip(verdict.labels, odds, strict=True)
        if label in thresholds and at >= thresholds[label]
    }
    return sorted(beyond, key=lambda label: -beyond[label])
