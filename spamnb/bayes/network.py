"""Exact inference in small discrete belief networks: what the classifiers are tested against.

A network is a list of nodes, each with its values, its parents and a table of p(value | parents).
Two ways to ask it, which must agree: `enumerate` sums over every assignment, which is the
definition and takes exponential time; `eliminate` multiplies tables and sums variables out one by
one, smallest first. Must not know about learning. Invariants: tables are kept in log space or
scaled, so a thousand facts do not underflow. Fails with UserError for a network that is no
distribution, and for evidence that cannot be.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spamnb.core.model.likelihood.smoothing import Floats, log_sum_exp, softmax
from spamnb.errors import UserError

Method = Literal["enumerate", "eliminate"]
Value = Hashable


@dataclass(frozen=True, slots=True)
class Node:
    """One variable: `table` is p(value | parents), with one axis per parent and values last."""

    name: str
    values: tuple[Value, ...]
    table: ArrayLike
    parents: tuple[str, ...] = ()


class _Factor(NamedTuple):
    """A table over some variables, scaled so that its largest entry is 1."""

    names: tuple[str, ...]
    table: Floats
    log_scale: float


class BeliefNetwork:
    """Nodes that make one distribution, parents before their children.

    >>> network = BeliefNetwork([
    ...     Node("rain", (True, False), [0.2, 0.8]),
    ...     Node("sprinkler", (True, False), [[0.01, 0.99], [0.4, 0.6]], ("rain",)),
    ...     Node("wet", (True, False), [[[0.99, 0.01], [0.8, 0.2]], [[0.9, 0.1], [0, 1]]],
    ...          ("rain", "sprinkler")),
    ... ])
    >>> round(network.query("rain", {"wet": True})[True], 4)
    0.3577

    By hand: with rain the grass is wet by 0.2 * (0.01 * 0.99 + 0.99 * 0.8) = 0.16038, without rain
    by 0.8 * (0.4 * 0.9 + 0) = 0.288; 0.16038 / 0.44838 = 0.3577.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: dict[str, Node] = {}
        self._tables: dict[str, Floats] = {}
        for node in nodes:
            self._add(node)

    def query(
        self,
        name: str,
        evidence: Mapping[str, Value] | None = None,
        method: Method = "eliminate",
    ) -> dict[Value, float]:
        """P(each value of a variable | evidence)."""
        given = self._places({} if evidence is None else evidence)
        if name not in self.nodes:
            raise UserError(f"there is no variable {name}")
        logs = _METHODS[method](self, name, given)
        if np.isneginf(logs).all():
            raise UserError("the evidence cannot be: it has probability 0")
        return dict(zip(self.nodes[name].values, softmax(logs).tolist(), strict=True))

    def log_probability(self, evidence: Mapping[str, Value], method: Method = "eliminate") -> float:
        """Log P(evidence)."""
        name = next(iter(self.nodes))
        return float(log_sum_exp(_METHODS[method](self, name, self._places(evidence))))

    def _add(self, node: Node) -> None:
        absent = [parent for parent in node.parents if parent not in self.nodes]
        if absent or node.name in self.nodes:
            raise UserError(f"{node.name}: parents come first, each variable once")
        table = np.asarray(node.table, np.float64)
        sizes = [len(self.nodes[parent].values) for parent in node.parents]
        if table.shape != (*sizes, len(node.values)):
            raise UserError(f"{node.name}: a table of shape {table.shape} for {node.parents}")
        if not ((table >= 0).all() and np.allclose(table.sum(axis=-1), 1, atol=1e-9)):
            raise UserError(f"{node.name}: probabilities are not negative and sum to 1")
        self.nodes[node.name], self._tables[node.name] = node, table

    def _places(self, evidence: Mapping[str, Value]) -> dict[str, int]:
        """Which value of each observed variable was seen, by its place."""
        try:
            return {name: self.nodes[name].values.index(seen) for name, seen in evidence.items()}
        except (KeyError, ValueError) as error:
            raise UserError(f"no such variable or value: {error}") from error

    def _by_enumerating(self, name: str, given: dict[str, int]) -> Floats:
        """[values] log P(value, evidence), by the definition."""
        names = list(self.nodes)
        choices = [
            [given[of]] if of in given else range(len(node.values))
            for of, node in self.nodes.items()
        ]
        found: list[list[float]] = [[-np.inf] for _ in self.nodes[name].values]
        for chosen in product(*choices):
            whole = dict(zip(names, chosen, strict=True))
            found[whole[name]].append(self._log_joint(whole))
        return np.array([float(log_sum_exp(np.array(logs))) for logs in found])

    def _log_joint(self, whole: dict[str, int]) -> float:
        """Log probability of one assignment of all variables."""
        factors = [
            self._tables[name][*(whole[parent] for parent in node.parents), whole[name]]
            for name, node in self.nodes.items()
        ]
        with np.errstate(divide="ignore"):
            return float(np.log(factors).sum())

    def _by_eliminating(self, name: str, given: dict[str, int]) -> Floats:
        """[values] log P(value, evidence), summing variables out, the smallest product first."""
        factors = [_seen(self._factor(of), given) for of in self.nodes]
        left = {of for of in self.nodes if of != name and of not in given}
        while left:
            chosen = min(sorted(left), key=lambda of: _cost(factors, of))
            touched = [factor for factor in factors if chosen in factor.names]
            kept = [factor for factor in factors if chosen not in factor.names]
            factors = [*kept, _product(touched, without=chosen)]
            left.remove(chosen)
        last = _product(factors, without=None)
        with np.errstate(divide="ignore"):
            logs = np.log(last.table) + last.log_scale
        if name in last.names:
            return logs
        # An observed variable is asked for: all that its value leaves is the evidence's weight.
        found = np.full(len(self.nodes[name].values), -np.inf)
        found[given[name]] = float(logs)
        return found

    def _factor(self, name: str) -> _Factor:
        return _Factor((*self.nodes[name].parents, name), self._tables[name], 0.0)


_METHODS = {
    "enumerate": BeliefNetwork._by_enumerating,  # noqa: SLF001
    "eliminate": BeliefNetwork._by_eliminating,  # noqa: SLF001
}


def _seen(factor: _Factor, given: dict[str, int]) -> _Factor:
    """The part of a table that the evidence leaves."""
    at = tuple(given.get(name, slice(None)) for name in factor.names)
    names = tuple(name for name in factor.names if name not in given)
    return _scaled(names, np.asarray(factor.table[at]), factor.log_scale)


def _scaled(names: tuple[str, ...], table: Floats, log_scale: float) -> _Factor:
    largest = float(table.max(initial=0.0))
    if largest == 0:
        return _Factor(names, table, log_scale)
    return _Factor(names, table / largest, log_scale + float(np.log(largest)))


def _cost(factors: list[_Factor], name: str) -> int:
    """How large the table is that summing a variable out makes."""
    sizes: dict[str, int] = {}
    for factor in factors:
        if name in factor.names:
            sizes |= dict(zip(factor.names, factor.table.shape, strict=True))
    return int(np.prod([float(size) for size in sizes.values()]))


def _product(factors: list[_Factor], without: str | None) -> _Factor:
    """The product of tables, two at a time, one variable summed out in the end."""
    whole = _Factor((), np.ones(()), 0.0)
    for factor in factors:
        names = tuple(dict.fromkeys(whole.names + factor.names))
        table = _on(whole, names) * _on(factor, names)
        whole = _scaled(names, table, whole.log_scale + factor.log_scale)
    if without is None:
        return whole
    axis = whole.names.index(without)
    names = tuple(name for name in whole.names if name != without)
    return _scaled(names, np.asarray(whole.table.sum(axis=axis)), whole.log_scale)


def _on(factor: _Factor, names: tuple[str, ...]) -> Floats:
    """The table with an axis for each of these variables, of length 1 where it has none."""
    order = sorted(range(len(factor.names)), key=lambda i: names.index(factor.names[i]))
    sizes = dict(zip(factor.names, factor.table.shape, strict=True))
    table = factor.table.transpose(order)
    return table.reshape([sizes.get(name, 1) for name in names])
