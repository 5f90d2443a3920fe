"""Exact inference in small discrete belief networks.

A network is a list of nodes, each with its values, its parents and a table of p(value | parents).
Two methods give the same result: `enumerate` sums over every assignment, by definition and in
exponential time; `eliminate` multiplies tables and sums variables out one by one, smallest first.
The tests use networks to check the classifiers. Invariant: probabilities are kept in log space or
scaled, so a thousand observations do not underflow. Failure: UserError for a network that is no
distribution, and for impossible evidence.
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


class _Potential(NamedTuple):
    """A table over some variables, scaled so that its largest entry is 1."""

    names: tuple[str, ...]
    table: Floats
    log_scale: float


class BeliefNetwork:
    """A discrete distribution given by nodes; parents come before their children.

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
        """Return P(value | evidence) for each value of a variable."""
        given = self._value_indices({} if evidence is None else evidence)
        if name not in self.nodes:
            raise UserError(f"there is no variable {name}")
        logs = _METHODS[method](self, name, given)
        if np.isneginf(logs).all():
            raise UserError("the evidence is impossible: it has probability 0")
        return dict(zip(self.nodes[name].values, softmax(logs).tolist(), strict=True))

    def log_probability(self, evidence: Mapping[str, Value], method: Method = "eliminate") -> float:
        """Return log P(evidence)."""
        name = next(iter(self.nodes))
        return float(log_sum_exp(_METHODS[method](self, name, self._value_indices(evidence))))

    def _add(self, node: Node) -> None:
        absent = [parent for parent in node.parents if parent not in self.nodes]
        if absent or node.name in self.nodes:
            raise UserError(
                f"{node.name}: defined twice, or before a parent",
                hint="give each variable once, parents before their children",
            )
        table = np.asarray(node.table, np.float64)
        sizes = [len(self.nodes[parent].values) for parent in node.parents]
        if table.shape != (*sizes, len(node.values)):
            raise UserError(
                f"{node.name}: a table of shape {table.shape}, expected "
                f"{(*sizes, len(node.values))} for parents {node.parents}"
            )
        if not ((table >= 0).all() and np.allclose(table.sum(axis=-1), 1, atol=1e-9)):
            raise UserError(f"{node.name}: probabilities must be at least 0 and sum to 1")
        self.nodes[node.name], self._tables[node.name] = node, table

    def _value_indices(self, evidence: Mapping[str, Value]) -> dict[str, int]:
        """Index of the observed value of each variable of the evidence."""
        try:
            return {name: self.nodes[name].values.index(seen) for name, seen in evidence.items()}
        except (KeyError, ValueError) as error:
            raise UserError(f"no such variable or value: {error}") from error

    def _by_enumerating(self, name: str, given: dict[str, int]) -> Floats:
        """[values] log P(value, evidence), by summing over all assignments."""
        names = list(self.nodes)
        choices = [
            [given[of]] if of in given else range(len(node.values))
            for of, node in self.nodes.items()
        ]
        found: list[list[float]] = [[-np.inf] for _ in self.nodes[name].values]
        for assignment in product(*choices):
            whole = dict(zip(names, assignment, strict=True))
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
        factors = [_restricted(self._factor(of), given) for of in self.nodes]
        left = {of for of in self.nodes if of != name and of not in given}
        while left:
            assignment = min(sorted(left), key=lambda of: _cost(factors, of))
            touched = [factor for factor in factors if assignment in factor.names]
            kept = [factor for factor in factors if assignment not in factor.names]
            factors = [*kept, _product(touched, without=assignment)]
            left.remove(assignment)
        last = _product(factors, without=None)
        with np.errstate(divide="ignore"):
            logs = np.log(last.table) + last.log_scale
        if name in last.names:
            return logs
        # The variable itself is observed: its value has the probability of the evidence.
        found = np.full(len(self.nodes[name].values), -np.inf)
        found[given[name]] = float(logs)
        return found

    def _factor(self, name: str) -> _Potential:
        return _Potential((*self.nodes[name].parents, name), self._tables[name], 0.0)


_METHODS = {
    "enumerate": BeliefNetwork._by_enumerating,  # noqa: SLF001
    "eliminate": BeliefNetwork._by_eliminating,  # noqa: SLF001
}


def _restricted(factor: _Potential, given: dict[str, int]) -> _Potential:
    """The part of a table that agrees with the evidence."""
    at = tuple(given.get(name, slice(None)) for name in factor.names)
    names = tuple(name for name in factor.names if name not in given)
    return _rescaled(names, np.asarray(factor.table[at]), factor.log_scale)


def _rescaled(names: tuple[str, ...], table: Floats, log_scale: float) -> _Potential:
    largest = float(table.max(initial=0.0))
    if largest == 0:
        return _Potential(names, table, log_scale)
    return _Potential(names, table / largest, log_scale + float(np.log(largest)))


def _cost(factors: list[_Potential], name: str) -> int:
    """Size of the product of all tables that contain a variable."""
    sizes: dict[str, int] = {}
    for factor in factors:
        if name in factor.names:
            sizes |= dict(zip(factor.names, factor.table.shape, strict=True))
    return int(np.prod([float(size) for size in sizes.values()]))


def _product(factors: list[_Potential], without: str | None) -> _Potential:
    """The product of tables, with one variable summed out of the result."""
    whole = _Potential((), np.ones(()), 0.0)
    for factor in factors:
        names = tuple(dict.fromkeys(whole.names + factor.names))
        table = _broadcast(whole, names) * _broadcast(factor, names)
        whole = _rescaled(names, table, whole.log_scale + factor.log_scale)
    if without is None:
        return whole
    axis = whole.names.index(without)
    names = tuple(name for name in whole.names if name != without)
    return _rescaled(names, np.asarray(whole.table.sum(axis=axis)), whole.log_scale)


def _broadcast(factor: _Potential, names: tuple[str, ...]) -> Floats:
    """The table with one axis per name, of length 1 for variables that it does not have."""
    order = sorted(range(len(factor.names)), key=lambda i: names.index(factor.names[i]))
    sizes = dict(zip(factor.names, factor.table.shape, strict=True))
    table = factor.table.transpose(order)
    return table.reshape([sizes.get(name, 1) for name in names])
