"""The models: from counts and corrections to one score per label, and the step a label takes.

Three kinds, chosen when a model is made: the two classical event models (`bayes/`), and the
default, *corrected*: naive Bayes evidence averaged over each group of features and tempered, plus
corrections learnt from its own mistakes:

    z_k = b_k + sum_g tau_g E_gk + sum_g sum_{f in g} w[f,k] / sqrt|x_g|
    E_gk = sum_{f in g} r_f log p(f|k) / |x_g|^kappa,   r_f = n_f / (n_f + r),   P = softmax(z)

Pure arithmetic on arrays; must not know stores, messages or words. Invariants: no clipping on the
way, so scores never saturate; shares plus bias equal the log-odds; every stored change is an
integer that was rounded once (`Push`), so that taking it back is exact. Fails with BugError only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.bayes import bernoulli, multinomial
from spamnb.core.bayes.batch import Batch, Sides
from spamnb.core.bayes.smoothing import Assumptions
from spamnb.core.event import BIAS_ONE, STEP_ONE, Push, Recipe, Records, Totals

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

DOUBT = 0.2
"""q K: below the probability q = 0.2 / K a stated label is doubted. It costs little on clean labels
and halves the harm of 5 % wrong ones (experiment 0002)."""


class View(NamedTuple):
    """Which rows of the records some messages hold, and the group of each row."""

    rows: Rows
    offsets: Rows
    group: NDArray[np.int8]
    times: NDArray[np.uint32] | None = None

    def slots(self, groups: int) -> tuple[Rows, int]:
        """For each entry the number of its (message, group), and how many of these there are."""
        messages = len(self.offsets) - 1
        owner = np.repeat(np.arange(messages), np.diff(self.offsets))
        if groups == 1:
            return owner, messages
        return owner * groups + self.group[self.rows], messages * groups


def temper(recipe: Recipe, totals: Totals) -> Floats:
    """tau_g, never below 0: evidence may be ignored, but not turned round."""
    start = 2.0 / recipe.groups
    return np.asarray(np.maximum(start + totals.tempers / BIAS_ONE, 0.0))


def evidence(
    recipe: Recipe, messages: NDArray[np.int64], n: NDArray[np.uint32] | Floats
) -> Floats:
    """[F, K] r_f log p(f|k): what the presence of each feature says, damped while it is rare."""
    held = n.sum(axis=1, dtype=np.float64)
    damped = held / (held + recipe.r) if recipe.r else (held > 0).astype(np.float64)
    logs = np.log(n + recipe.alpha) - np.log(messages + 2 * recipe.alpha)
    if not messages.all():
        # A label without messages has no opinion: it takes the mean of the others.
        taught = np.flatnonzero(messages)
        logs[:, messages == 0] = logs[:, taught].mean(axis=1, keepdims=True) if len(taught) else 0.0
    logs *= damped[:, None]
    return logs


def _summed(values: NDArray[np.float64], rows: Rows, slot: Rows, slots: int) -> Floats:
    columns = [np.bincount(slot, values[rows, k], slots) for k in range(values.shape[1])]
    return np.stack(columns, axis=1)


def _sizes(slot: Rows, slots: int) -> Floats:
    return np.asarray(np.maximum(np.bincount(slot, minlength=slots), 1.0)[:, None])


def scores(recipe: Recipe, totals: Totals, records: Records, view: View) -> Floats:
    """[M, K] z of every label for each message."""
    if recipe.kind != "corrected":
        model = _EVENT_MODELS[recipe.kind]
        return np.asarray(
            model.joint_log_likelihood(_batch(view), records.n, totals, _assumptions(recipe))
        )
    G, K = recipe.groups, len(recipe.labels)
    slot, slots = view.slots(G)
    size = _sizes(slot, slots)
    said = evidence(recipe, totals.messages, records.n)
    E = _summed(said, view.rows, slot, slots) / size**recipe.kappa
    w = _summed(records.w.astype(np.float64), view.rows, slot, slots) / np.sqrt(size) / STEP_ONE
    parts = E * np.tile(temper(recipe, totals), len(view.offsets) - 1)[:, None] + w
    return totals.bias / BIAS_ONE + parts.reshape(-1, G, K).sum(axis=1)


def shares(
    recipe: Recipe, totals: Totals, records: Records, view: View, for_against: tuple[int, int]
) -> tuple[Floats, float]:
    """For one message: each entry's share of z[s] - z[h], and the bias; they sum to it."""
    s, h = for_against
    if recipe.kind != "corrected":
        model = _EVENT_MODELS[recipe.kind]
        entries, bias = model.shares(
            _batch(view), records.n, totals, _assumptions(recipe), Sides(s, h)
        )
        return entries, float(bias[0])
    slot, slots = view.slots(recipe.groups)
    size = _sizes(slot, slots)[:, 0]
    said = evidence(recipe, totals.messages, records.n[view.rows])
    weighed = (temper(recipe, totals) / size**recipe.kappa)[slot] * (said[:, s] - said[:, h])
    w = records.w[view.rows].astype(np.float64)
    corrected = (w[:, s] - w[:, h]) / np.sqrt(size)[slot] / STEP_ONE
    return weighed + corrected, float(totals.bias[s] - totals.bias[h]) / BIAS_ONE


def probabilities(z: Floats) -> Floats:
    """Softmax over the last axis, by the largest: no overflow, no clipping."""
    grown = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


class Opinion(NamedTuple):
    """What the model thinks of one message while it learns."""

    z: Floats
    """[K]"""
    P: Floats
    """[K]"""
    E: Floats
    """[G, K]"""


def opinion(recipe: Recipe, totals: Totals, cells: Floats, sizes: tuple[int, ...]) -> Opinion:
    """The corrected model on one message, from its rows, group after group: n and w, [m, 2K]."""
    K = len(recipe.labels)
    said = evidence(recipe, totals.messages, cells[:, :K])
    said_sum, w_sum = _by_group(said, sizes), _by_group(cells[:, K:], sizes)
    size = np.maximum(sizes, 1.0)[:, None]
    E = said_sum / size**recipe.kappa
    z = totals.bias / BIAS_ONE + temper(recipe, totals) @ E
    z += (w_sum / np.sqrt(size)).sum(axis=0) / STEP_ONE
    return Opinion(z, probabilities(z), E)


def _by_group(values: Floats, sizes: tuple[int, ...]) -> Floats:
    start, sums = 0, []
    for size in sizes:
        sums.append(values[start : start + size].sum(axis=0))
        start += size
    return np.array(sums)


def step(
    recipe: Recipe, seen: Opinion, sizes: tuple[int, ...], label: int, *, weight: float, doubt: bool
) -> Push:
    """One step towards a label; every number is rounded here and nowhere else."""
    G, K = seen.E.shape
    error = -seen.P
    error[label] += 1.0
    error *= weight
    if doubt:
        error *= min(1.0, float(seen.P[label]) / (DOUBT / K))
    rooted = np.sqrt(np.maximum(sizes, 1.0))[:, None]
    return Push(
        steps=np.rint(recipe.eta / 2 / G * STEP_ONE * error / rooted).astype(np.int64),
        bias=np.rint(recipe.rate_bias / 2 * BIAS_ONE * error).astype(np.int64),
        tempers=np.rint(recipe.rate_temper * BIAS_ONE * (seen.E @ error)).astype(np.int64),
    )


_EVENT_MODELS = {"multinomial": multinomial, "bernoulli": bernoulli}
KINDS = ("corrected", *_EVENT_MODELS)


def _assumptions(recipe: Recipe) -> Assumptions:
    return Assumptions(alpha=recipe.alpha)


def _batch(view: View) -> Batch:
    return Batch(view.rows, view.offsets, view.times)
