"""Score messages: from counts and corrections to one score per label, and the step of a label.

Three kinds, chosen when a model is made: the two classical event models (`bayes/`), and the
default, *corrected*: naive Bayes evidence averaged over each group of features and tempered, plus
default, *corrected*: naive Bayes evidence, averaged over each group of features and multiplied by a
temperature, plus corrections learnt from the model's own errors:
    z_k = b_k + sum_g tau_g E_gk + sum_g sum_{f in g} w[f,k] / sqrt|x_g|
    E_gk = sum_{f in g} r_f log p(f|k) / |x_g|^kappa,   r_f = n_f / (n_f + r),   P = softmax(z)

Pure arithmetic on arrays; must not know stores, messages or words. Invariants: no clipping on the
Pure arithmetic on arrays; must not know stores, messages or words. Invariants: nothing is clipped,
so scores never saturate; shares plus bias equal the log-odds; every stored change is an integer
that was rounded once (`Update`), so that it can be reversed exactly. Fails with BugError only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import exp
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.core.model.events import BIAS_ONE, STEP_ONE, Recipe, Records, Totals, Update
from spamnb.core.model.likelihood import bernoulli, multinomial
from spamnb.core.model.likelihood.batch import Batch, ClassPair
from spamnb.core.model.likelihood.smoothing import Assumptions
from spamnb.errors import RefusedError

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

DOUBT = 0.2
"""q K: below the probability q = 0.2 / K a stated label is doubted. It costs little on clean labels
and halves the harm of 5 % wrong ones (docs/decisions/0002)."""


class RowView(NamedTuple):
    """The rows of the records that belong to some messages, message by message and by group."""

    rows: Rows
    offsets: Rows
    sizes: Rows
    """[messages * groups] how many rows each group of each message has"""
    times: NDArray[np.uint32] | None = None


def group_temperatures(recipe: Recipe, totals: Totals) -> list[float]:
    """The temperature tau_g of each group, never below 0: evidence is never reversed."""
    start = 2.0 / recipe.groups
    return [max(start + moved / BIAS_ONE, 0.0) for moved in totals.temperatures.tolist()]


def evidence(recipe: Recipe, messages: NDArray[np.int64], n: NDArray[np.number[Any]]) -> Floats:
    """[K, F] r_f log p(f|k) of n [K, F]: the evidence of a feature, damped while it is rare.

    Labels come first here and below: sums over features then run along memory.
    """
    counts = np.asarray(n, np.float64, order="C")
    holders = np.add.reduce(counts)
    logs = np.log(counts + recipe.alpha)
    logs -= np.log(messages + 2 * recipe.alpha)[:, None]
    if 0 in messages.tolist():
        # A label without messages has no evidence: it takes the mean of the others.
        taught = np.flatnonzero(messages)
        logs[messages == 0] = logs[taught].mean(axis=0) if len(taught) else 0.0
    logs *= holders / (holders + recipe.r) if recipe.r else holders > 0
    return np.asarray(logs)


def _by_group(values: Floats, sizes: Sequence[int]) -> list[list[float]]:
    """[G][K] sums of values [K, m] over the features of each group; 0 for an empty group."""
    starts = itertools.accumulate(sizes, initial=0)
    filled = [start for start, size in zip(starts, sizes, strict=False) if size]
    sums = iter(np.add.reduceat(values, filled, axis=1).T.tolist() if filled else ())
    return [next(sums) if size else [0.0] * len(values) for size in sizes]


def scores(recipe: Recipe, totals: Totals, records: Records, view: RowView) -> Floats:
    """[M, K] z of every label for each message."""
    if recipe.kind != "corrected":
        model = _EVENT_MODELS[recipe.kind]
        return np.asarray(
            model.joint_log_likelihood(_batch(view), records.n, totals, _assumptions(recipe))
        )
    evidences = evidence(recipe, totals.messages, records.n.T)
    values = np.concatenate((evidences, records.w.T), dtype=np.float64).take(view.rows, axis=1)
    return np.array([z for z, _ in _score_messages(recipe, totals, values, view.sizes.tolist())])


def _score_messages(
    recipe: Recipe, totals: Totals, values: Floats, sizes: Sequence[int]
) -> Iterator[tuple[list[float], list[list[float]]]]:
    """For each message z [K] and E [G][K], from evidence and corrections [2K, m] of its features.

    Plain numbers: for two labels and two groups they take half the time of arrays, and among 64
    messages 2 us more for each.
    """
    K, groups = len(recipe.labels), recipe.groups
    start = [bias / BIAS_ONE for bias in totals.bias.tolist()]
    taus = group_temperatures(recipe, totals)
    lines = zip(sizes, itertools.cycle(taus), _by_group(values, sizes), strict=False)
    for _ in range(len(sizes) // groups):
        z, E = start[:], []
        for size, tau, sums in itertools.islice(lines, groups):
            scale = max(size, 1) ** recipe.kappa
            root = max(size, 1) ** 0.5 * STEP_ONE
            E.append([total / scale for total in sums[:K]])
            for k in range(K):
                z[k] += tau * E[-1][k] + sums[K + k] / root
        yield z, E


def shares(
    recipe: Recipe, totals: Totals, records: Records, view: RowView, for_against: tuple[int, int]
) -> tuple[Floats, float]:
    """For one message: each entry's share of z[s] - z[h], and the bias; they sum to it."""
    s, h = for_against
    if recipe.kind != "corrected":
        model = _EVENT_MODELS[recipe.kind]
        entries, bias = model.shares(
            _batch(view), records.n, totals, _assumptions(recipe), ClassPair(s, h)
        )
        return entries, float(bias[0])
    slot = np.arange(recipe.groups).repeat(view.sizes)
    size = np.maximum(view.sizes, 1.0)
    evidences = evidence(recipe, totals.messages, records.n[view.rows].T)
    tau = np.array(group_temperatures(recipe, totals))
    weighed = (tau / size**recipe.kappa)[slot] * (evidences[s] - evidences[h])
    w = records.w[view.rows].astype(np.float64)
    corrected = (w[:, s] - w[:, h]) / np.sqrt(size)[slot] / STEP_ONE
    return weighed + corrected, float(totals.bias[s] - totals.bias[h]) / BIAS_ONE


def probabilities(z: Floats) -> Floats:
    """Softmax over the last axis; the largest value is subtracted, so nothing overflows."""
    grown = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def one_against_rest(z: Floats) -> Floats:
    """[M, K] log-odds of each label against all others together; exact at any distance."""
    odds = np.empty_like(z)
    for k in range(z.shape[1]):
        others = np.delete(z, k, axis=1)
        top = others.max(axis=1)
        odds[:, k] = z[:, k] - top - np.log(np.exp(others - top[:, None]).sum(axis=1))
    return odds


class Prediction(NamedTuple):
    """The model's result for one message while it learns."""

    z: list[float]
    """[K]"""
    P: list[float]
    """[K]"""
    E: list[list[float]]
    """[G][K]"""


def predict(recipe: Recipe, totals: Totals, cells: Floats, sizes: tuple[int, ...]) -> Prediction:
    """Score one message with the corrected model, from its rows by group: n and w, [2K, m]."""
    K = len(recipe.labels)
    values = np.concatenate((evidence(recipe, totals.messages, cells[:K]), cells[K:]))
    z, E = next(_score_messages(recipe, totals, values, sizes))
    return Prediction(z, softmax(z), E)


def softmax(z: list[float]) -> list[float]:
    """`probabilities` of one message, in plain numbers."""
    most = max(z)
    grown = [exp(value - most) for value in z]
    whole = sum(grown)
    return [value / whole for value in grown]


def doubt(prediction: Prediction, label: int) -> float:
    """The part of a step, up to 1, that an untrusted label gets."""
    return min(1.0, prediction.P[label] * len(prediction.P) / DOUBT)


def step(
    recipe: Recipe, prediction: Prediction, sizes: tuple[int, ...], label: int, weight: float
) -> Update:
    """One step towards a label; every number is rounded here and nowhere else.

    RefusedError for a weight so large that a number leaves its range.
    """
    G = len(prediction.E)
    error = [weight * ((k == label) - P) for k, P in enumerate(prediction.P)]
    eta, rate = recipe.eta / 2 / G * STEP_ONE, recipe.rate_temper * BIAS_ONE
    steps = [[round(eta * e / max(size, 1) ** 0.5) for e in error] for size in sizes]
    temperatures = [round(rate * sum(map(mul, error, line))) for line in prediction.E]
    bias = [round(recipe.rate_bias / 2 * BIAS_ONE * e) for e in error]
    try:
        return Update(
            steps=np.array(steps, np.int64),
            bias=np.array(bias, np.int64),
            temperatures=np.array(temperatures, np.int64),
        )
    except OverflowError as overflow:
        raise RefusedError(f"a step of weight {weight:g} leaves its numbers' range") from overflow


_EVENT_MODELS = {"multinomial": multinomial, "bernoulli": bernoulli}


def _assumptions(recipe: Recipe) -> Assumptions:
    return Assumptions(alpha=recipe.alpha)


def _batch(view: RowView) -> Batch:
    return Batch(view.rows, view.offsets, view.times)
