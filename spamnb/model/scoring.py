"""Score messages: from counts and corrections to one score per label, and the step of a label.

Three kinds, chosen when a model is made: the two classical event models (`multinomial`,
`bernoulli`), and the default, *corrected*. Each group g of features is an expert: naive Bayes
evidence, averaged over the group and multiplied by a temperature, plus corrections learnt from the
expert's own errors:
    z_gk = b_gk + tau_g E_gk + sum_{f in g} c_f w[f,k] / sqrt(s_g),   j_k = SHARE sum_g z_gk
    E_gk = sum_{f in g} r_f log p(f|k) / s_g^kappa,   r_f = n_f / (n_f + r)
    c_f = 1 / (1 + COMMON min_k n[f,k] / N_k)
    s_g = min(|x_g|, KNOWN * the known features of x_g), at least 1
Experts learn from j, the joint score. The score z of the verdict is j calibrated, and
P = softmax(z).

Calibration makes the probability right. The experts learn from mistakes, so the lead of the best
label over the next one stays as small as it can be without a mistake. Where only mistakes and
doubtful messages are taught, a large lead is half of what its frequency of errors justifies
(docs/decisions/0034). It becomes
    LOW lead + t more,   more = GAIN (lead - SURE), within 0 and MORE,   t = min(1, min_k N_k / FEW)
and all scores are multiplied by the same factor. The order of the labels does not change, and with
two labels that of the messages does not either. This is a fixed function of the score and of N,
continuous and rising with the lead: nothing is learnt or stored for it.

Passages: evidence is averaged over a message, so good text below a spam makes it a doubtful one.
The visible text is cut into blocks of equal size (`features`), and each feature belongs to the
block in which it occurs first. So the sums of neighbouring blocks are those of a passage, and no
feature is counted twice. Each run of neighbouring blocks is scored as if it were the whole text,
with everything of the message that is no visible text: header, subject and shapes of links. The
lead of spam in the strongest passage raises j of the spam-like labels before the calibration
(`raised`); the experts learn from j without it.

Pure arithmetic on arrays; must not know stores, messages or words. Invariants: every sum runs over
one message alone, in a fixed order, so a message gets the same score in every batch; nothing is
clipped, so scores never saturate; shares plus bias equal the log-odds; every stored change is an
integer that was rounded once (`Update`), so that it can be reversed exactly. Fails with BugError
only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, inf, lgamma, log, log1p
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.errors import BugError, RefusedError
from spamnb.model import bernoulli, multinomial
from spamnb.model.costs import BINARY, Role, roles_of
from spamnb.model.events import (
    BIAS_ONE,
    STEP_ONE,
    Blocks,
    Recipe,
    Records,
    Totals,
    Update,
)
from spamnb.model.smoothing import Assumptions, Batch, ClassPair, Floats

LENGTHS = (1, 2, 4)
"""Blocks in a passage: 40, 80 and 160 words. Each is twice the one before."""
_BY_LENGTH = np.array(LENGTHS)[:, None]
CHANCE = 0.05
"""Nats for each e-fold of passages, of which one leads by chance. With 0, passages make the rank of
ordinary mail worse (docs/decisions/0079)."""


class Passage(NamedTuple):
    """The strongest passage of a message."""

    lead: float = -inf
    """of the spam-like labels in its joint score; -inf for a message without passages"""
    first: int = 0
    """the number of its first block, from 1"""
    blocks: int = 0


class Passages(NamedTuple):
    """The passages of some messages: of each length one from each block on, if it exists.

    The places [P] are the blocks of all messages. Before those of each message is one for what is
    outside of its text, where no passage begins.
    """

    exists: NDArray[np.bool_]
    """[lengths, P]; a passage ends with its message, and is never the whole of its text"""
    owner: NDArray[np.int64]
    """[P] the number of the message"""
    ends: list[int]
    """of each message: the place after its last one"""
    sums: Floats
    """[V, lengths, P] of the values of the features"""
    sizes: Floats
    """[lengths, P] how many features are in it"""

    def strongest(self, leads: Floats) -> list[Passage]:
        """Return the strongest passage of each message, given the lead of each passage."""
        leads = np.where(self.exists, leads, -inf)
        counts = np.add.reduce(self.exists, dtype=np.int64).cumsum().take(np.array(self.ends) - 1)
        found, begin, before = [], 0, 0
        for end, count in zip(self.ends, counts.tolist(), strict=True):
            mine = leads[:, begin:end]
            length, first = divmod(int(mine.argmax()), end - begin)
            lead = float(mine[length, first]) - CHANCE * log(max(count - before, 1))
            found.append(Passage(lead, first, LENGTHS[length]))
            begin, before = end, count
        return found


def passages(
    values: Floats, blocks: NDArray[np.uint8], sizes: NDArray[np.int64], groups: int
) -> Passages:
    """Return the passages of messages, given values [V, F] of their features.

    `blocks` has the block of each feature, 0 for one that is outside of the visible text. `sizes`
    has the number of features of each group of each message; the first group has the text.
    """
    stops = sizes.cumsum()
    texts = zip((stops - sizes)[::groups].tolist(), stops[::groups].tolist(), strict=True)
    most = np.array([blocks[start:stop].max(initial=0) for start, stop in texts], np.int64)
    ends = (most + 1).cumsum()
    begins, total = ends - most - 1, int(ends[-1])
    # The other groups are in no passage: they go to a place behind all others.
    base = np.full(len(sizes), total)
    base[::groups] = begins
    place = base.repeat(sizes) + blocks
    width = total + 1
    lines = np.arange(0, len(values) * width, width)
    flat = np.bincount((lines[:, None] + place).ravel(), values.ravel(), len(values) * width)
    counts = np.bincount(place, minlength=width)
    every: Floats = np.concatenate((flat, counts), dtype=np.float64)
    every = every.reshape(-1, width)[:, :total]
    sums = np.empty((len(every), len(LENGTHS), total))
    sums[:, 0] = every
    for number, length in enumerate(LENGTHS[:-1]):
        sums[:, number + 1] = sums[:, number]
        sums[:, number + 1, :-length] += sums[:, number, length:]
    owner = np.arange(len(most)).repeat(most + 1)
    sums += every.take(begins.take(owner), axis=1)[:, None]
    left = ends.take(owner) - np.arange(total)
    left[begins] = 0
    exists = np.minimum(left, most.take(owner) - 1) >= _BY_LENGTH
    return Passages(exists, owner, ends.tolist(), sums[:-1], sums[-1])


CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Messages with about the same probability: mean probability and share of spam."""

    said: float
    seen: float
    low: float
    """Wilson's 95 % interval of `seen`"""
    high: float
    messages: int


@lru_cache(maxsize=1024)
def most_lost(lost: int, ham: int, confidence: float = CONFIDENCE) -> float:
    """Clopper and Pearson's upper bound of the share lost, given `lost` of `ham`."""
    if lost >= ham:
        return 1.0
    low, high = lost / ham, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _at_most(lost, ham, middle) > 1 - confidence else (low, middle)
        )
    return high


def _at_most(lost: int, ham: int, share: float) -> float:
    """Probability of at most `lost` of `ham` if each is lost with probability `share`."""
    if share >= 1:
        return 0.0
    a, b = log(share) if share else -inf, log1p(-share)
    total = 0.0
    for k in range(lost + 1):
        log_ways = lgamma(ham + 1) - lgamma(k + 1) - lgamma(ham - k + 1)
        total += exp(log_ways + (k * a if k else 0.0) + (ham - k) * b)
    return total


def ham_needed(one_in: int, confidence: float = CONFIDENCE) -> int:
    """Number of ham, none of them lost, that guarantee one in N: about 3 N."""
    return ceil(log(1 - confidence) / log1p(-1 / one_in))


def reliability(
    truth: NDArray[np.bool_], probability: Floats, bins: int = 10
) -> tuple[ReliabilityBin, ...]:
    """Return the share of spam in each bin of the probabilities; empty bins are left out."""
    at = np.minimum((probability * bins).astype(int), bins - 1)
    found = []
    for number in np.unique(at):
        inside = at == number
        count, right = int(inside.sum()), int(truth[inside].sum())
        low, high = wilson(right, count)
        found.append(
            ReliabilityBin(float(probability[inside].mean()), right / count, low, high, count)
        )
    return tuple(found)


def wilson(right: int, of: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927), clipped to contain the share and lie in [0, 1].

    For 0 of n and n of n one end is the share itself; without clipping, rounding misses it for
    half of all counts.
    """
    z = 1.959963984540054
    share, spread = right / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * (share * (1 - share) / of + spread / (4 * of)) ** 0.5 / (1 + spread)
    return max(min(middle - half, share), 0.0), min(max(middle + half, share), 1.0)


Rows = NDArray[np.int64]

DOUBT = 0.2
"""q K: a stated label of a probability below q = 0.2 / K is doubted. Doubt costs little on clean
labels and halves the harm of 5 % wrong ones (docs/decisions/0002)."""
TEMPERATURE = 2.0
"""The temperature of each expert's evidence before it learns."""
SHARE = 0.7
"""The weight of each expert's score in the message's score. With 0.5, the log loss is 10 % higher,
and where only mistakes are taught a third less spam is above 99 % (docs/decisions/0032)."""
OWN = 0.7
"""The weight of an expert's own score in its error; the message's score has the rest. With 0.5,
1-AUC is 9 % higher with 5 % wrong labels, and 7 % higher on all ham followed by all spam."""
KNOWN = 4
"""Evidence and corrections are averaged over at most so many times the known features of a group,
so that unknown words in a spam do not reduce the weight of the others (docs/decisions/0032). The
features of a prior are known by their corrections: if only counts made them known, a model without
own training had leads of 40 nats (docs/decisions/0058)."""
COMMON = 2.0
"""The correction of a feature that all messages of each label contain counts 1 / (1 + COMMON): it
distinguishes nothing, but every step moves it. With 0, 1-AUC is 4 to 14 % higher on shuffled mail,
16 % on mistakes alone, and more than twice as high on all ham followed by all spam
(docs/decisions/0039).
"""
LOW = 0.92
"""The factor of a lead. With 1, fewer messages are doubtful and taught: 1-AUC where only those are
taught is a tenth higher."""
SURE = 2.4
"""The lead above which each nat counts more; multiplied by LOW, it is odds of 9 to 1."""
GAIN, MORE = 1.5, 1.9
"""How much is added for each nat above SURE, and at most in all: enough to file the spam that the
model is sure of. Without a limit, a ham of the SpamAssassin corpus would be rejected."""
FEW = 100
"""GAIN and MORE count in full when each label has so many messages. A young model would file ham
with them."""


class RowView(NamedTuple):
    """The rows of the records that belong to some messages, message by message and by group."""

    rows: Rows
    offsets: Rows
    sizes: Rows
    """[messages * groups] how many rows each group of each message has"""
    times: NDArray[np.uint32] | None = None
    blocks: Blocks | None = None
    """of each row: the block of the text that has the feature first"""


def group_temperatures(totals: Totals) -> list[float]:
    """The temperature tau_g of each group, never below 0: evidence is never reversed."""
    return [max(TEMPERATURE + moved / BIAS_ONE, 0.0) for moved in totals.temperatures.tolist()]


def _evidence(
    recipe: Recipe, messages: NDArray[np.int64], counts: Floats, holders: Floats
) -> Floats:
    """[K, F] r_f log p(f|k) of counts [K, F]: the evidence of a feature, damped while it is rare.

    Labels come first here and below: sums over features then run along memory.
    """
    logs = np.log(counts + recipe.alpha)
    logs -= np.log(messages + 2 * recipe.alpha)[:, None]
    if 0 in messages.tolist():
        # A label without messages has no evidence: it takes the mean of the others.
        taught = np.flatnonzero(messages)
        logs[messages == 0] = logs[taught].mean(axis=0) if len(taught) else 0.0
    logs *= holders / (holders + recipe.r) if recipe.r else holders > 0
    return np.asarray(logs)


def correction_weights(messages: NDArray[np.int64], counts: Floats) -> Floats:
    """[F] c_f, the weights of the corrections of features, from their counts [K, F]."""
    shares = counts / np.maximum(messages, 1)[:, None]
    return np.asarray(1 / (1 + COMMON * np.minimum.reduce(shares)))


def sums_by_group(values: Floats, sizes: Sequence[int]) -> list[list[float]]:
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
    values = _values(recipe, totals, records.n.T, records.w.T).take(view.rows, axis=1)
    every = list(_score_messages(recipe, totals, values, view.sizes.tolist()))
    strongest = _strongest(recipe, totals, values, view, every)
    roles, mature = roles_of(recipe.labels), maturity(totals)
    return np.array([
        calibrated(raised(one.joint, passage.lead, roles), mature)
        for one, passage in zip(every, strongest, strict=True)
    ])  # fmt: skip


FULL = 3.0
"""Up from this lead, a message has the lead of its passage at the least (docs/decisions/0079)."""
SLOPE = 3.0
"""Nats that each one below FULL takes away: below 2, a passage makes no message spam. With 2, more
ham is marked, and no more spam is filed (docs/decisions/0079)."""


def raised(joint: Sequence[float], lead: float, roles: tuple[Role, ...]) -> Sequence[float]:
    """Return the joint scores [K] of a message with the lead of its strongest passage.

    A passage can only make a message more like spam: good text never excuses another one.
    """
    more = min(lead, FULL - SLOPE * (FULL - lead)) - spam_log_odds(joint, roles)
    if not more > 0:
        return joint
    return [z + more if role == "spam" else z for z, role in zip(joint, roles, strict=True)]


def _strongest(
    recipe: Recipe, totals: Totals, values: Floats, view: RowView, every: Sequence[_Scored]
) -> list[Passage]:
    """Return the strongest passage of each message, from `_values` by row."""
    roles = roles_of(recipe.labels)
    if view.blocks is None or len(set(roles)) < 2 or view.blocks.max(initial=0) < 2:
        return [Passage()] * len(every)
    K = len(recipe.labels)
    some = passages(values, view.blocks, view.sizes, recipe.groups)
    span = np.maximum(np.minimum(some.sizes, KNOWN * some.sums[-1]), 1)
    joint = some.sums[:K] * (group_temperatures(totals)[0] / span**recipe.kappa)
    joint += some.sums[K:-1] / (np.sqrt(span) * STEP_ONE)
    joint += (totals.bias[0] / BIAS_ONE)[:, None, None]
    # Of the groups without text, a passage has the same as its message.
    others = [[sum(z) for z in zip(*one.experts[1:], strict=True)] or [0.0] * K for one in every]
    joint += np.array(others).T.take(some.owner, axis=1)[:, None]
    return some.strongest(_leads(SHARE * joint, roles))


def _leads(joint: Floats, roles: tuple[Role, ...]) -> Floats:
    """`spam_log_odds` along the first axis of joint scores [K, ...]."""
    if roles == BINARY:
        return np.asarray(joint[1] - joint[0])
    is_spam = np.array([role == "spam" for role in roles])
    spam, ham = (np.logaddexp.reduce(joint[of], axis=0) for of in (is_spam, ~is_spam))
    return np.asarray(spam - ham)


def _values(
    recipe: Recipe,
    totals: Totals,
    n: NDArray[np.number[Any]],
    w: NDArray[np.number[Any]],
) -> Floats:
    """[2K + 1, F] evidence, c w, and whether the feature is known, from n and w [K, F]."""
    counts = np.asarray(n, np.float64, order="C")
    holders = np.add.reduce(counts)
    logs = _evidence(recipe, totals.messages, counts, holders)
    corrections = w * correction_weights(totals.messages, counts)
    known = (holders > 0) | np.logical_or.reduce(w)
    return np.concatenate((logs, corrections, known[None]), dtype=np.float64)


class _Scored(NamedTuple):
    joint: list[float]
    """[K]"""
    experts: list[list[float]]
    """[G][K] z"""
    E: list[list[float]]
    """[G][K]"""
    spans: list[float]
    """[G]"""


def _span(size: int, known: float) -> float:
    """Over how many features a group of this size is averaged."""
    return max(min(size, KNOWN * known), 1)


def _score_messages(
    recipe: Recipe, totals: Totals, values: Floats, sizes: Sequence[int]
) -> Iterator[_Scored]:
    """The scores of each message, from `_values`.

    Plain numbers: for two labels and two groups they take half the time of arrays; in a batch of 64
    messages, 2 us more for each.
    """
    K, groups = len(recipe.labels), recipe.groups
    biases = (totals.bias / BIAS_ONE).tolist()
    every = itertools.cycle(zip(group_temperatures(totals), biases, strict=True))
    lines = zip(sizes, every, sums_by_group(values, sizes), strict=False)
    for _ in range(len(sizes) // groups):
        experts, E, spans = [], [], []
        for size, (tau, bias), sums in itertools.islice(lines, groups):
            span = _span(size, sums[-1])
            spans.append(span)
            scale, root = span**recipe.kappa, span**0.5 * STEP_ONE
            E.append([total / scale for total in sums[:K]])
            experts.append([
                b + tau * e + w / root for b, e, w in zip(bias, E[-1], sums[K:], strict=False)
            ])  # fmt: skip
        joint = [SHARE * sum(line) for line in zip(*experts, strict=True)]
        yield _Scored(joint, experts, E, spans)


class Shares(NamedTuple):
    """What makes up z[s] - z[h] of one message: the sum of everything here."""

    entries: Floats
    """of each feature"""
    bias: float
    raise_: float
    """what the strongest passage adds"""
    passage: Passage = Passage()


def shares(
    recipe: Recipe, totals: Totals, records: Records, view: RowView, for_against: tuple[int, int]
) -> Shares:
    """Split z[s] - z[h] of one message; its calibration multiplies every share."""
    s, h = for_against
    if recipe.kind != "corrected":
        model = _EVENT_MODELS[recipe.kind]
        entries, bias = model.shares(
            _batch(view), records.n, totals, _assumptions(recipe), ClassPair(s, h)
        )
        return Shares(entries, float(bias[0]), 0.0)
    cells = np.concatenate((records.n[view.rows].T, records.w[view.rows].T), dtype=np.float64)
    sizes = tuple(view.sizes.tolist())
    seen = predict(recipe, totals, cells, sizes, view.blocks)
    return cell_shares(recipe, totals, (cells, sizes), seen, for_against)[0]


def cell_shares(
    recipe: Recipe,
    totals: Totals,
    message: tuple[Floats, Sequence[int]],
    seen: Prediction,
    for_against: tuple[int, int],
) -> tuple[Shares, Floats]:
    """The same as `shares` for the corrected model, from n and w [2K, m] by group, and sizes.

    Also returns what one unit of a correction adds, for each entry.
    """
    (cells, sizes), (s, h), K = message, for_against, len(recipe.labels)
    slot = np.arange(recipe.groups).repeat(sizes)
    values = _values(recipe, totals, cells[:K], cells[K:])
    times = factor(seen.judged, maturity(totals))
    span = np.array(seen.spans)
    tau = np.array(group_temperatures(totals))
    weighed = (tau / span**recipe.kappa)[slot] * (values[s] - values[h])
    unit = SHARE * times / np.sqrt(span)[slot] / STEP_ONE
    bias = totals.bias[:, s] - totals.bias[:, h]
    entries = SHARE * times * weighed + unit * (values[K + s] - values[K + h])
    more = [after - before for after, before in zip(seen.judged, seen.joint, strict=True)]
    found = Shares(
        entries,
        SHARE * times * float(bias.sum()) / BIAS_ONE,
        times * (more[s] - more[h]),
        seen.passage,
    )
    return found, unit


def maturity(totals: Totals) -> float:
    """From 0 to 1: how far the label with the fewest messages has come to FEW."""
    least: int = min(totals.messages.tolist())
    return min(1.0, least / FEW)


def factor(joint: Sequence[float], mature: float) -> float:
    """The factor by which the joint scores [K] of a message are multiplied."""
    second, first = sorted(joint)[-2:]
    lead = first - second
    if lead <= SURE:
        return LOW
    return LOW + mature * min(GAIN * (lead - SURE), MORE) / lead


def calibrated(joint: Sequence[float], mature: float) -> list[float]:
    """The scores [K] of the verdict."""
    times = factor(joint, mature)
    return [times * score for score in joint]


def joint_lead(lead: float, mature: float) -> float:
    """The lead of the joint score that becomes this lead of the verdict."""
    rising = (lead + mature * GAIN * SURE) / (LOW + mature * GAIN)
    return min(lead / LOW, max(rising, (lead - mature * MORE) / LOW))


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
    """[K] of the verdict"""
    joint: list[float]
    """[K] what the experts learn from"""
    experts: list[list[float]]
    """[G][K] z of each group"""
    E: list[list[float]]
    """[G][K]"""
    spans: list[float]
    """[G] over how many features each group is averaged"""
    judged: Sequence[float]
    """[K] the joint score with the strongest passage, which z is made of"""
    passage: Passage = Passage()
    roles: tuple[Role, ...] = BINARY


def predict(
    recipe: Recipe,
    totals: Totals,
    cells: Floats,
    sizes: tuple[int, ...],
    blocks: Blocks | None = None,
) -> Prediction:
    """Score one message with the corrected model, from its rows by group: n and w, [2K, m].

    Without the blocks of its features, the message has no passage.
    """
    K = len(recipe.labels)
    values = _values(recipe, totals, cells[:K], cells[K:])
    one = next(_score_messages(recipe, totals, values, sizes))
    m = cells.shape[1]
    view = RowView(np.arange(m), np.array([0, m]), np.array(sizes), blocks=blocks)
    (passage,) = _strongest(recipe, totals, values, view, [one])
    roles = roles_of(recipe.labels)
    judged = raised(one.joint, passage.lead, roles)
    return Prediction(calibrated(judged, maturity(totals)), *one, judged, passage, roles)


AHEAD = 3.0
"""A message is spam around good text if its strongest passage leads by so many nats more. With 2,
1 % more of the ordinary spam is delivered; with 4, taught filler harms (docs/decisions/0079)."""
GOOD = 0.2
"""Text with a smaller lead of its own is good text. With 0, half of the harm is left."""


def good_blocks(
    recipe: Recipe,
    totals: Totals,
    message: tuple[Floats, Sequence[int]],
    seen: Prediction,
    blocks: Blocks,
) -> bytes:
    """Return the blocks of good text around a spam, which its label must not count as spam.

    Otherwise filler that is taught as spam would make ham doubtful. Without a passage that gives
    the spam away there are none.
    """
    if seen.passage.lead - spam_log_odds(seen.joint, seen.roles) < AHEAD:
        return b""
    (cells, sizes), K = message, len(recipe.labels)
    size, span = sizes[0], seen.spans[0]
    values = _values(recipe, totals, cells[:K, :size], cells[K:, :size])
    joint = values[:K] * (group_temperatures(totals)[0] / span**recipe.kappa)
    joint += values[K:-1] / (span**0.5 * STEP_ONE)
    by_block: Floats = SHARE * np.array([np.bincount(blocks[:size], line) for line in joint])
    is_good = _leads(by_block, seen.roles) < GOOD
    first = seen.passage.first
    is_good[0] = is_good[first : first + seen.passage.blocks] = False
    return bytes(is_good.nonzero()[0].tolist())


def softmax(z: list[float]) -> list[float]:
    """`probabilities` of one message, in plain numbers."""
    most = max(z)
    grown = [exp(value - most) for value in z]
    whole = sum(grown)
    return [value / whole for value in grown]


def spam_log_odds(z: Sequence[float], roles: tuple[Role, ...] = BINARY) -> float:
    """Return the log-odds of all spam-like labels against all others; infinite without either."""
    if len(z) != len(roles):
        raise BugError(f"{len(z)} scores for {len(roles)} labels")
    if roles == BINARY:
        return z[1] - z[0]
    spam, ham = (_together([v for v, of in zip(z, roles, strict=True) if of == role])
                 for role in ("spam", "ham"))  # fmt: skip
    return spam - ham


def _together(scores: list[float]) -> float:
    """Return the score of several labels as one; -inf if none of them has a message."""
    most = max(scores, default=-inf)
    if len(scores) < 2 or most == -inf:
        return most
    return most + log(sum(exp(score - most) for score in scores))


def doubt(prediction: Prediction, label: int) -> float:
    """The part of a step, up to 1, that an untrusted label gets."""
    P = softmax(prediction.joint)
    return min(1.0, P[label] * len(P) / DOUBT)


def step(
    recipe: Recipe, prediction: Prediction, sizes: tuple[int, ...], label: int, weight: float
) -> Update:
    """One step of each expert towards a label; every number is rounded here and nowhere else.

    An expert's error is that of the softmax of OWN z_gk + (1 - OWN) j_k. The step is for the
    message as it is once learnt, when all of its features are known.
    RefusedError for a weight so large that a number leaves its range.
    """
    errors = [_errors(prediction.joint, expert, label, weight) for expert in prediction.experts]
    eta, rate = recipe.eta / 2 * STEP_ONE, recipe.rate_temper * BIAS_ONE
    steps = [
        [round(eta * e / max(size, 1) ** 0.5) for e in error]
        for error, size in zip(errors, sizes, strict=True)
    ]
    temperatures = [
        round(rate * sum(map(mul, *pair))) for pair in zip(errors, prediction.E, strict=True)
    ]
    bias = [[round(recipe.rate_bias / 2 * BIAS_ONE * e) for e in error] for error in errors]
    try:
        return Update(
            steps=np.array(steps, np.int64),
            bias=np.array(bias, np.int64),
            temperatures=np.array(temperatures, np.int64),
        )
    except OverflowError as overflow:
        raise RefusedError(
            f"a step of weight {weight:g} does not fit in the stored numbers",
            hint="use a smaller weight",
        ) from overflow


def _errors(joint: list[float], expert: list[float], label: int, weight: float) -> list[float]:
    P = softmax([OWN * z + (1 - OWN) * j for z, j in zip(expert, joint, strict=True)])
    return [weight * ((k == label) - p) for k, p in enumerate(P)]


_EVENT_MODELS = {"multinomial": multinomial, "bernoulli": bernoulli}


def _assumptions(recipe: Recipe) -> Assumptions:
    return Assumptions(alpha=recipe.alpha)


def _batch(view: RowView) -> Batch:
    return Batch(view.rows, view.offsets, view.times)
