"""Small discrete belief networks: exact inference, and tables learnt from cases.

A network is a list of nodes, each with its values, its parents and a table of p(value | parents).
Two methods give the same result: `enumerate` sums over every assignment, by definition and in
exponential time; `eliminate` multiplies tables and sums variables out one by one, smallest first.
The tests use networks to check the classifiers. A learnt network keeps its distinct cases with
their counts, and computes its tables from them. Invariants: probabilities are kept in log space or
scaled, so a thousand observations do not underflow; the tables depend on the cases alone, not on
the order of learning, so forgetting restores them exactly. Failure: UserError for a network that is
no distribution, for impossible evidence and for cases that do not fit; RefusedError for forgetting
cases that were not learnt.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import product
from math import prod
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from spamnb.bayes.categorical import ordered
from spamnb.bayes.classifier import case_weights
from spamnb.bayes.sums import COUNT_ONE, NamedCounts, is_missing
from spamnb.bayes.tables import TableLike, read_table
from spamnb.core.model.events import Ints
from spamnb.core.model.likelihood.smoothing import Assumptions, Floats, log_sum_exp, softmax
from spamnb.errors import UserError

Method = Literal["enumerate", "eliminate"]
Value = Hashable
Structure = Mapping[str, Sequence[str]]
"""the parents of each variable"""
COMPLETIONS = 1 << 20
"""Ways to fill in the missing values of all distinct cases; more would take minutes."""
EM_STEPS = 10_000
EM_TOLERANCE = 1e-9
"""The EM algorithm ends when no share of a case changes by more."""


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
        self._nodes: dict[str, Node] = {}
        self._tables: dict[str, Floats] = {}
        for node in nodes:
            self._add(node)

    @staticmethod
    def fit(
        structure: Structure,
        X: TableLike,
        *,
        sample_weight: ArrayLike | None = None,
        alpha: float = 1.0,
        values: Mapping[str, Sequence[Value]] | None = None,
    ) -> LearntNetwork:
        """Return a network with tables learnt from cases; see `LearntNetwork`."""
        network = LearntNetwork(structure, alpha=alpha, values=values)
        return network.partial_fit(X, sample_weight)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name, parents before their children."""
        return self._nodes

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
        absent = [parent for parent in node.parents if parent not in self._nodes]
        if absent or node.name in self._nodes:
            raise UserError(
                f"{node.name}: defined twice, or before a parent",
                hint="give each variable once, parents before their children",
            )
        table = np.asarray(node.table, np.float64)
        sizes = [len(self._nodes[parent].values) for parent in node.parents]
        if table.shape != (*sizes, len(node.values)):
            raise UserError(
                f"{node.name}: a table of shape {table.shape}, expected "
                f"{(*sizes, len(node.values))} for parents {node.parents}"
            )
        if not ((table >= 0).all() and np.allclose(table.sum(axis=-1), 1, atol=1e-9)):
            raise UserError(f"{node.name}: probabilities must be at least 0 and sum to 1")
        self._nodes[node.name], self._tables[node.name] = node, table

    def _value_indices(self, evidence: Mapping[str, Value]) -> dict[str, int]:
        """Index of the observed value of each variable of the evidence."""
        nodes = self.nodes
        try:
            return {name: nodes[name].values.index(seen) for name, seen in evidence.items()}
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


class LearntNetwork(BeliefNetwork):
    """A belief network with tables that are learnt from cases, and can be forgotten.

        p(value | parents) = (n[value, parents] + alpha) / (n[parents] + alpha * values)

    This is the mean of a Dirichlet prior with `alpha` pseudo-cases for each value after the cases;
    without cases and with alpha = 0 it is uniform. `structure` gives the parents of each variable.
    A case is a mapping from variables to values, or a list in the order of `structure`. What a case
    does not name is missing: then the expected counts take the place of n, and the EM algorithm
    repeats both steps until they agree. `values` declares the values of a variable, which is needed
    for a hidden one. EM starts from counts that `seed` draws, and finds a local maximum.

    >>> rows = [[True, True], [True, True], [True, False], [False, False]]
    >>> network = BeliefNetwork.fit({"rain": (), "wet": ("rain",)}, rows)
    >>> network.nodes["wet"].values, network.nodes["wet"].table
    ((False, True), array([[0.66666667, 0.33333333],
           [0.4       , 0.6       ]]))
    >>> round(network.learn({"rain": False, "wet": True}).query("wet", {"rain": False})[True], 4)
    0.5
    >>> round(network.forget({"rain": False, "wet": True}).query("wet", {"rain": False})[True], 4)
    0.3333

    By hand: without rain 0 of 1 days are wet, so (0 + 1) / (1 + 2); with rain (2 + 1) / (3 + 2).
    """

    def __init__(
        self,
        structure: Structure,
        *,
        alpha: float = 1.0,
        values: Mapping[str, Sequence[Value]] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__([])
        Assumptions(alpha=alpha)
        if not structure:
            raise UserError("the structure has no variable")
        if any(isinstance(parents, str) for parents in structure.values()):
            raise UserError("the parents of a variable must be a list of names, not one text")
        self.structure = {name: tuple(parents) for name, parents in structure.items()}
        self.alpha, self.seed = alpha, seed
        self.values = {name: tuple(known) for name, known in (values or {}).items()}
        self._order = _parents_first(self.structure)
        self._cases = NamedCounts()
        self._estimate: _Expected | None = None

    def learn(self, case: Any, weight: float = 1.0) -> Self:
        """Learn one case."""
        return self.partial_fit([case], [weight])

    def forget(self, case: Any, weight: float = 1.0) -> Self:
        """Forget one case that was learnt with this weight."""
        return self.partial_forget([case], [weight])

    def partial_fit(self, X: TableLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn more cases."""
        return self._add_cases(self._counted(X, sample_weight))

    def partial_forget(self, X: TableLike, sample_weight: ArrayLike | None = None) -> Self:
        """Forget cases that were learnt with these weights."""
        return self._add_cases(self._counted(X, sample_weight).negated())

    def merge(self, other: LearntNetwork) -> Self:
        """Learn all cases of another network of the same structure and parameters."""
        if self._parameters() != other._parameters():
            raise UserError("networks of different structures or parameters cannot be merged")
        return self._add_cases(other._cases)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name, parents before their children, with the tables learnt."""
        self._estimated()
        return self._nodes

    @property
    def counts_(self) -> dict[str, Floats]:
        """The cases behind each table, with its axes; expected counts if values are missing."""
        return self._estimated().counts

    @property
    def n_iter_(self) -> int:
        """Steps of the EM algorithm until the tables were stable; 1 if no value is missing."""
        return self._estimated().steps

    def _estimated(self) -> _Expected:
        if self._estimate is None:
            domain = self._domain()
            self._estimate = _expectation_maximization(self, domain, *self._coded(domain))
            self._nodes, self._tables = {}, {}
            for name in self._order:
                table = _shares(self._estimate.counts[name], self.alpha)
                self._add(Node(name, domain[name], table, self.structure[name]))
        return self._estimate

    def _parameters(self) -> tuple[Any, ...]:
        return self.structure, self.alpha, self.values, self.seed

    def _add_cases(self, added: NamedCounts) -> Self:
        self._cases, self._estimate = self._cases.plus(added), None
        return self

    def _counted(self, X: TableLike, sample_weight: ArrayLike | None) -> NamedCounts:
        """Return the distinct cases, each a tuple of values in the order of the structure."""
        table = read_table(X)
        names = list(self.structure)
        given = names if table.names is None else list(table.names)
        unknown = [name for name in given if name not in self.structure]
        if unknown or (table.names is None and table.shape[1] != len(names)):
            raise UserError(
                f"a case has {', '.join(map(str, unknown)) or table.shape[1]}, but the variables "
                f"are {', '.join(names)}"
            )
        columns = dict(zip(given, (column.tolist() for column in table.columns), strict=True))
        rows = zip(*(columns.get(name, [None] * table.length) for name in names), strict=True)
        cases = [tuple(None if is_missing(value) else value for value in row) for row in rows]
        for name, values in zip(names, zip(*cases, strict=True), strict=True):
            try:
                strange = set(values) - {None, *self.values.get(name, values)}
            except TypeError as error:
                raise UserError(f"{name} has a value that is no key: {error}") from error
            if strange:
                raise UserError(f"{name} has the value {strange.pop()!r}, which is not declared")
        return NamedCounts.of(([case] for case in cases), case_weights(sample_weight, len(cases)))

    def _domain(self) -> dict[str, tuple[Value, ...]]:
        """Return the values of each variable: as declared, or as seen."""
        if self._cases.empty:
            raise UserError("nothing has been learnt yet", hint="call partial_fit or learn first")
        domain = {}
        for j, name in enumerate(self.structure):
            seen = {case[j] for case in self._cases.counts} - {None}
            domain[name] = self.values.get(name) or tuple(ordered(seen))
            if not domain[name]:
                raise UserError(f"no case has a value of {name}", hint="declare its `values`")
        return domain

    def _coded(self, domain: Mapping[str, tuple[Value, ...]]) -> tuple[Ints, Floats]:
        """Return the distinct cases as numbers of values, -1 if missing, and their counts."""
        codes = [{value: i for i, value in enumerate(domain[name])} for name in self.structure]
        coded = sorted(
            (tuple(code.get(value, -1) for code, value in zip(codes, case, strict=True)), count)
            for case, count in self._cases.counts.items()
        )
        cases = np.array([case for case, _ in coded], np.int64)
        return cases, np.array([count for _, count in coded]) / COUNT_ONE


class _Expected(NamedTuple):
    """The result of the EM algorithm."""

    counts: dict[str, Floats]
    steps: int


def _expectation_maximization(
    network: LearntNetwork, domain: Mapping[str, tuple[Value, ...]], cases: Ints, n: Floats
) -> _Expected:
    """Return the expected counts of each table: all completions of a case share its count.

    A case without gaps has one completion, so the first step is the last if there are no gaps.
    """
    names = list(network.structure)
    whole, owner = _completed(cases, [len(domain[name]) for name in names])
    starts = np.searchsorted(owner, np.arange(len(cases)))
    shapes, at = {}, {}
    for name, parents in network.structure.items():
        shapes[name] = tuple(len(domain[of]) for of in (*parents, name))
        places = tuple(whole[:, names.index(of)] for of in (*parents, name))
        at[name] = np.ravel_multi_index(places, shapes[name])
    share = np.random.default_rng(network.seed).random(len(whole)) + 0.5
    share /= np.add.reduceat(share, starts)[owner]
    for step in range(1, EM_STEPS + 1):
        counts: dict[str, Floats] = {}
        logs = np.zeros(len(whole))
        for name, shape in shapes.items():
            expected = np.bincount(at[name], share * n[owner], prod(shape))
            counts[name] = expected.astype(np.float64).reshape(shape)
            with np.errstate(divide="ignore"):
                logs += np.log(_shares(counts[name], network.alpha)).ravel()[at[name]]
        likely = np.exp(logs - np.maximum.reduceat(logs, starts)[owner])
        previous, share = share, likely / np.add.reduceat(likely, starts)[owner]
        if np.abs(share - previous).max() < EM_TOLERANCE:
            return _Expected(counts, step)
    raise UserError(f"the tables are not stable after {EM_STEPS} steps", hint="use a larger alpha")


def _completed(cases: Ints, sizes: Sequence[int]) -> tuple[Ints, Ints]:
    """Return every way to fill the gaps of the cases [T, variables], and the case of each [T]."""
    choices = [
        [range(size) if value < 0 else (value,) for value, size in zip(case, sizes, strict=True)]
        for case in cases.tolist()
    ]
    ways = [prod(map(len, choice)) for choice in choices]
    if sum(ways) > COMPLETIONS:
        raise UserError(
            f"the missing values can be filled in {sum(ways)} ways, at most {COMPLETIONS} are tried"
        )
    whole = [way for choice in choices for way in product(*choice)]
    return np.array(whole, np.int64), np.repeat(np.arange(len(cases)), ways)


def _shares(n: Floats, alpha: float) -> Floats:
    """Smoothed shares along the last axis; uniform where there is no count at all."""
    n = n + alpha
    totals = n.sum(axis=-1, keepdims=True)
    return np.where(totals > 0, n / np.where(totals > 0, totals, 1), 1 / n.shape[-1])


def _parents_first(structure: Mapping[str, tuple[str, ...]]) -> list[str]:
    for name, parents in structure.items():
        unknown = [parent for parent in parents if parent not in structure]
        if unknown:
            raise UserError(f"{name} has the parent {unknown[0]}, which is no variable")
    try:
        return list(TopologicalSorter(structure).static_order())
    except CycleError as error:
        raise UserError(f"the structure has a cycle: {' -> '.join(error.args[1])}") from error


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
