"""Find the structure of a small belief network: the parents of each variable, from cases.

The search is exact (Silander and Myllymäki, 2006): every score is a sum over the variables, so the
best network of some variables is a best last variable with its best parents among the others, and
the best network of those others. Invariant: no structure has a higher score. Failure: UserError for
missing values and for too many variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import fsum, lgamma, log, prod
from typing import Any, Literal, NamedTuple

import numpy as np

from spamnb.bayes.sums import is_missing
from spamnb.bayes.tables import TableLike, read_table
from spamnb.core.model.events import Ints
from spamnb.core.model.likelihood.smoothing import Floats
from spamnb.errors import UserError

Score = Literal["bic", "k2", "bdeu"]
MOST_VARIABLES = 12
"""The search looks at 2^12 sets of variables; each further variable doubles its time."""
TIE = 1e-9
"""Scores that differ by less, relative to their size, are equal: the difference is rounding."""


class _Data(NamedTuple):
    """The distinct cases as numbers of values, and how often each occurs."""

    cases: Ints
    n: Ints
    sizes: list[int]


def search_structure(
    X: TableLike, score: Score = "bic", max_parents: int = 3, names: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the structure of the highest score, parents before their children.

    `bic` is the log likelihood less log(cases) / 2 for each free probability (Schwarz, 1978); `k2`
    and `bdeu` are the log probability of the cases under a Dirichlet prior, of 1 for each value
    (Cooper and Herskovits, 1992), or of 1 in all, shared equally (Heckerman, 1995). Arrows that
    the cases cannot direct, because both directions have the same score, go from earlier to later
    columns.

    >>> X = [[a, b, a ^ b] for a in (0, 1) for b in (0, 1)] * 10
    >>> search_structure(X, names=["first", "second", "xor"])
    {'first': (), 'second': (), 'xor': ('first', 'second')}

    By hand: given both parents xor is certain. The arrows gain 40 log 2 = 27.7 nats of likelihood,
    and cost log(40) / 2 for each of 3 more probabilities, 5.5 in all.
    """
    if score not in _SCORES:
        raise UserError(f"unknown score {score!r}", hint=f"use one of {', '.join(_SCORES)}")
    data, columns = _read(X)
    variables = list(names or columns)
    if len(variables) != len(data.sizes):
        raise UserError(f"{len(variables)} names for {len(data.sizes)} columns")
    best = [_best_parents(data, j, score, max_parents) for j in range(len(variables))]
    return {
        variables[j]: tuple(variables[parent] for parent in parents)
        for j, parents in _best_network(best)
    }


def structure_score(
    X: TableLike, structure: Mapping[str, Sequence[str]], score: Score = "bic"
) -> float:
    """Return the score of one structure; columns without names are x0, x1 and so on.

    >>> X = [[0, 0], [0, 0], [1, 1], [1, 1]]
    >>> round(structure_score(X, {"x0": (), "x1": ("x0",)}), 4)
    -4.852
    >>> round(structure_score(X, {"x0": (), "x1": ()}), 4)
    -6.9315

    By hand: 4 log(1/2) - log(4) / 2 = -3.4657 for each variable alone; with an arrow the second is
    certain, and has two probabilities: - 2 log(4) / 2 = -1.3863.
    """
    data, columns = _read(X)
    if sorted(structure) != sorted(columns):
        raise UserError(f"the structure has {', '.join(structure)}, the cases {', '.join(columns)}")
    at = {name: j for j, name in enumerate(columns)}
    return fsum(
        _SCORES[score](*_family(data, at[name], tuple(at[parent] for parent in parents)))
        for name, parents in structure.items()
    )


def _read(X: TableLike) -> tuple[_Data, list[str]]:
    table = read_table(X)
    width = len(table.columns)
    if not 0 < width <= MOST_VARIABLES:
        raise UserError(f"{width} variables: the search is for 1 to {MOST_VARIABLES}")
    coded, sizes = np.empty(table.shape, np.int64), []
    for j, column in enumerate(table.columns):
        values = column.tolist()
        if any(map(is_missing, values)):
            raise UserError(
                f"column {j} has a missing value", hint="leave out the cases with missing values"
            )
        codes: dict[Any, int] = {}
        try:
            coded[:, j] = [codes.setdefault(value, len(codes)) for value in values]
        except TypeError as error:
            raise UserError(f"column {j} has a value that is no key: {error}") from error
        sizes.append(len(codes))
    cases, n = np.unique(coded, axis=0, return_counts=True)
    names = [str(name) for name in table.names] if table.names else [f"x{j}" for j in range(width)]
    return _Data(cases, n, sizes), names


def _family(data: _Data, j: int, parents: tuple[int, ...]) -> tuple[Floats, int]:
    """Counts [seen configurations of the parents, values], and the number of configurations."""
    _, at = np.unique(data.cases[:, parents], axis=0, return_inverse=True)
    size = data.sizes[j]
    n = np.bincount(at.ravel() * size + data.cases[:, j], data.n)
    full = np.zeros((int(at.max(initial=0)) + 1) * size)
    full[: len(n)] = n
    return full.reshape(-1, size), prod(data.sizes[parent] for parent in parents)


def _bic(n: Floats, configurations: int) -> float:
    """Log likelihood of the counts, less log(N) / 2 for each free probability."""
    seen = n > 0
    shares = (n / n.sum(axis=1, keepdims=True))[seen]
    likelihood = float((n[seen] * np.log(shares)).sum())
    free: int = configurations * (n.shape[1] - 1)
    return likelihood - log(float(n.sum())) / 2 * free


def _dirichlet(n: Floats, alpha: float) -> float:
    """Log probability of the counts if the prior of each value is `alpha` pseudo-cases."""
    log_gamma = np.vectorize(lgamma, otypes=[np.float64])
    whole = alpha * n.shape[1]
    of_parents = n.sum(axis=1)
    values = float((log_gamma(n + alpha) - lgamma(alpha)).sum())
    return values - float((log_gamma(of_parents + whole) - lgamma(whole)).sum())


_SCORES: dict[Score, Callable[[Floats, int], float]] = {
    "bic": _bic,
    "k2": lambda n, _configurations: _dirichlet(n, 1.0),
    "bdeu": lambda n, configurations: _dirichlet(n, 1 / (configurations * n.shape[1])),
}


def _higher(new: float, old: float) -> bool:
    return new > old + TIE * (1 + abs(old))


Parents = tuple[int, ...]


def _best_parents(
    data: _Data, j: int, score: Score, max_parents: int
) -> dict[int, tuple[float, Parents]]:
    """The highest score of a variable with parents among each set of the others.

    A set is a number: bit i is on if variable i is in it. Of equal scores, fewer parents are taken.
    """
    others = [i for i in range(len(data.sizes)) if i != j]
    best: dict[int, tuple[float, Parents]] = {}
    for many in range(len(others) + 1):
        for members in combinations(others, many):
            found = [best[_set_of(members) ^ (1 << i)] for i in reversed(members)]
            if many <= max_parents:
                found.append((_SCORES[score](*_family(data, j, members)), members))
            top = found[0]
            for option in found[1:]:
                if _higher(option[0], top[0]):
                    top = option
            best[_set_of(members)] = top
    return best


def _best_network(best: Sequence[dict[int, tuple[float, Parents]]]) -> list[tuple[int, Parents]]:
    """Each variable with its parents, parents first, in the network of the highest score."""
    scores, lasts = {0: 0.0}, dict[int, int]()
    for some in range(1, 1 << len(best)):
        for j in reversed(range(len(best))):
            if some >> j & 1:
                rest = some ^ (1 << j)
                total = scores[rest] + best[j][rest][0]
                if some not in scores or _higher(total, scores[some]):
                    scores[some], lasts[some] = total, j
    order: list[tuple[int, Parents]] = []
    some = (1 << len(best)) - 1
    while some:
        j = lasts[some]
        some ^= 1 << j
        order.append((j, best[j][some][1]))
    return order[::-1]


def _set_of(members: Sequence[int]) -> int:
    return sum(1 << i for i in members)
