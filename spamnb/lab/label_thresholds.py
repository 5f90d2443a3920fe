"""From which score on a label is given: a threshold for each label, kept beside the model.

For labels of one's own: with a label that 1 % of the documents have, the most probable one is
nearly always another. `train --thresholds` chooses them by folds over what it teaches
(`evaluation_labels.thresholds_of`); without the file nothing changes. They are advice beside the
model, no part of it: a model that learns on may outgrow them, and then they are chosen again.

Failure: UserError for a file that cannot be read; a home without one has no thresholds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from spamnb.core.model.scoring import one_against_rest
from spamnb.core.model.verdict import Verdict
from spamnb.errors import UserError
from spamnb.store.files import durable_write
from spamnb.store.lmdb.sharing import refused

FILE = "thresholds.json"
_MODE = 0o600


def save(home: Path, thresholds: Mapping[str, float]) -> None:
    """Keep them, replacing what was there, whole or not at all."""
    text = json.dumps({"log_odds_against_the_rest": dict(thresholds)}, indent=2)
    try:
        durable_write(home / FILE, text.encode(), mode=_MODE)
    except OSError as error:
        raise refused(error, home / FILE) from error


def load(home: Path) -> dict[str, float]:
    """What was kept; nothing if there is no file."""
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
    """The labels whose threshold a message reaches, the surest first; there may be none."""
    odds = one_against_rest(np.array([verdict.z]))[0]
    beyond = {
        label: float(at) - thresholds[label]
        for label, at in zip(verdict.labels, odds, strict=True)
        if label in thresholds and at >= thresholds[label]
    }
    return sorted(beyond, key=lambda label: -beyond[label])
