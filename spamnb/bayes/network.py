"""Belief networks: inference, tables and structure; and classifiers with dependent columns.

A network is a list of nodes, each with its values, its parents and a table of p(value | parents).
Two methods give the same result: `enumerate` sums over every assignment, by definition and in
exponential time; `eliminate` multiplies tables and sums variables out one by one, smallest first.
`LearntNetwork` keeps its distinct cases with their counts, and computes its tables from them alone,
so forgetting restores them exactly. Probabilities are in log space or scaled, so a thousand
observations do not underflow. `search_structure` is exact (Silander and Myllymäki, 2006): every
score is a sum over the variables, so the best network of some variables is a best last variable
with its best parents among the others, and the best network of those others.

TAN gives each column the parent with the most information about it; AODE takes the mean over models
with each column as the parent of all others. Both count pairs of values, equal exact inference in
the corresponding network, and ignore missing and unseen values.

Failure: UserError for a network that is no distribution, for impossible evidence, and for cases
that do not fit; RefusedError for forgetting cases that were not learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, product
from math import fsum, lgamma, log, prod
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from spamnb.bayes.categorical import Values, counted, ordered, values_of
from spamnb.bayes.classifier import (
    Cases,
    Classifier,
    Columns,
    Joint,
    ProductClassifier,
    case_weights,
    prior_of,
)
from spamnb.bayes.sums import COUNT_ONE, NamedCounts, is_missing
from spamnb.bayes.tables import TableLike, read_table, read_values
from spamnb.errors import UserError
from spamnb.model.events import Ints
from spamnb.model.smoothing import Assumptions, Floats, log_m_estimate, log_sum_exp, softmax


class _PairCounts(NamedTuple):
    """Counts and log probabilities of values and pairs of values; row and column V are 0."""

    values: Values
    n: Floats
    """[K, V]"""
    both: Floats
    """[K, V, V] cases with both values; 0 where they are of one column"""
    alone: Floats
    """[K, V + 1] log p(value | class)"""
    given: Floats
    """[K, V + 1, V + 1] log p(second | class, first); 0 where they are of one column"""


@dataclass(eq=False, kw_only=True)
class _PairCounting(Classifier[NamedCounts]):
    """A classifier that keeps the counts of values and of pairs of values."""

    alpha: float = 1.0
    fit_prior: bool = True
    class_prior: ArrayLike | None = None
    min_categories: ArrayLike | None = None

    def __post_init__(self) -> None:
        Assumptions(alpha=self.alpha)

    @property
    def _prior_assumptions(self) -> Assumptions:
        return prior_of(self.class_prior, fit_prior=self.fit_prior)

    def _read(self, X: TableLike) -> Cases:
        return read_values(X)

    def _of(self, cases: Cases, weights: Floats) -> NamedCounts:
        return NamedCounts.of(map(_values_and_pairs, cases.tolist()), weights)

    def _pairs(self, sums: Sequence[NamedCounts]) -> _PairCounts:
        seen = (key for class_sums in sums for key in class_sums.counts if len(key) == 2)
        values = values_of(seen, self._layout.width if self._layout else 0, self.min_categories)
        n, both = counted(sums, values), _pair_counts(sums, values)
        m, p = self.alpha * values.outcomes[values.column], 1 / values.outcomes[values.column]
        of = values.column
        alone = log_m_estimate(n, values.column_sums(n)[:, of], m, p)
        given = log_m_estimate(both, values.column_sums(both)[:, :, of], m, p)
        given[:, of[:, None] == of] = 0.0
        return _PairCounts(
            values,
            n,
            both,
            np.pad(alone, ((0, 0), (0, 1))),
            np.pad(given, ((0, 0), (0, 1), (0, 1))),
        )


@dataclass(eq=False, kw_only=True)
class AveragedOneDependence(_PairCounting):
    """AODE: the mean over models in which all columns depend on one column.

        P(x, k) = mean over columns i of p(x_i, k) * product over j of p(x_j | k, x_i)

    Only values of at least `min_count` cases serve as parents; a case without any such value is
    scored by naive Bayes.

    >>> days = [["sunny", "hot"], ["sunny", "hot"], ["rain", "cool"], ["rain", "hot"]]
    >>> model = AveragedOneDependence().fit(days, ["no", "no", "no", "yes"])
    >>> np.exp(model.predict_joint_log_proba([["sunny", "hot"]])).round(4)
    array([[0.3375, 0.0486]])

    By hand: no has 3/4 of the days. Through sunny it is 3/4 * (2 + 1)/(3 + 2) * (2 + 1)/(2 + 2),
    through hot the same, so 0.3375. Yes has 1/4: through sunny it is 1/4 * 1/3 * 1/2 = 1/24,
    through hot 1/4 * 2/3 * 1/3 = 1/18, and the mean of both is 0.0486.
    """

    min_count: float = 1.0

    def _prepare(self, sums: Sequence[NamedCounts], prior: Floats) -> Joint:
        pairs = self._pairs(sums)
        frequent = np.append(pairs.n.sum(axis=0) >= self.min_count, False)

        def joint(cases: Cases) -> Floats:
            at = pairs.values.at(cases)
            # [K, M, d] the log probability with each column as the parent.
            by_column = np.stack(
                [pairs.alone[:, of] + pairs.given[:, of[:, None], at].sum(axis=2) for of in at.T],
                axis=2,
            )
            allowed = frequent[at]
            mean = log_sum_exp(np.where(allowed, by_column, -np.inf)) - np.log(
                np.maximum(allowed.sum(axis=1), 1)
            )
            naive = pairs.alone[:, at].sum(axis=2)
            return np.asarray(prior + np.where(allowed.any(axis=1), mean, naive).T)

        return joint


@dataclass(eq=False, kw_only=True)
class TreeAugmentedNB(_PairCounting, ProductClassifier[NamedCounts]):
    """TAN: each column depends on the class and on its parent in a tree of columns.

        P(x, k) = p(k) * product over columns j of p(x_j | k, x_parent(j))

    The parents form the tree of greatest mutual information given the class (Chow and Liu, 1968;
    Friedman, Geiger and Goldszmidt, 1997); the first column is its root.

    >>> days = [["sunny", "hot"], ["sunny", "hot"], ["rain", "cool"], ["rain", "hot"]]
    >>> model = TreeAugmentedNB().fit(days, ["no", "no", "no", "yes"])
    >>> model.parents_
    (None, 0)
    >>> np.exp(model.predict_joint_log_proba([["sunny", "hot"]])).round(4)
    array([[0.3375, 0.0417]])

    By hand: 3/4 * (2 + 1)/(3 + 2) * (2 + 1)/(2 + 2) = 0.3375, and 1/4 * 1/3 * 1/2 = 0.0417.
    """

    @property
    def parents_(self) -> tuple[int | None, ...]:
        """The column that each column depends on; None for the root."""
        return _tree(_information(self._pairs(self._all_sums())))

    def _columns(self, sums: Sequence[NamedCounts]) -> Columns:
        pairs = self._pairs(sums)
        parents = _tree(_information(pairs))
        V = len(pairs.values.column)

        def columns(cases: Cases) -> Iterator[Floats]:
            at = pairs.values.at(cases)
            for j, parent in enumerate(parents):
                parent_values = np.full(len(cases), V) if parent is None else at[:, parent]
                # Without the parent's value, the column depends on the class alone.
                yield np.where(
                    parent_values == V,
                    pairs.alone[:, at[:, j]],
                    pairs.given[:, parent_values, at[:, j]],
                ).T

        return columns

    def _described(
        self, sums: Sequence[NamedCounts], case: Cases, names: Sequence[str]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        pairs = self._pairs(sums)
        known = (pairs.values.at(case)[0] < len(pairs.values.column)).tolist()
        texts = [f"{name} = {value}" for name, value in zip(names, case[0], strict=True)]
        for j, parent in enumerate(_tree(_information(pairs))):
            given = "class" if parent is None or not known[parent] else f"{texts[parent]}, class"
            yield f"P({texts[j]} | {given})" if known[j] else f"{texts[j]}: ignored", ()


def _values_and_pairs(case: Sequence[Hashable]) -> list[Hashable]:
    """Keys of the counts of a case: its values, and its pairs of values."""
    single = [(j, value) for j, value in enumerate(case) if not is_missing(value)]
    return [*single, *((*a, *b) for a, b in combinations(single, 2))]


def _pair_counts(sums: Sequence[NamedCounts], values: Values) -> Floats:
    """[K, V, V] number of cases of each class with both values."""
    V = len(values.column)
    both = np.zeros((len(sums), V, V))
    for k, class_sums in enumerate(sums):
        for key, count in class_sums.counts.items():
            if len(key) == 4:
                i, a, j, b = key
                both[k, values.slots[i][a], values.slots[j][b]] = count
    return (both + both.transpose(0, 2, 1)) / COUNT_ONE


def _information(pairs: _PairCounts) -> Floats:
    """[d, d] mutual information of two columns given the class, in cases times nats, unsmoothed.

    Shares are of the cases where both columns are known. `fsum` makes the sums exact: otherwise a
    rounding error, which depends on the order of learning, would choose between equal columns.
    """
    of, both = pairs.values.column, pairs.both
    by_first = pairs.values.column_sums(both)
    first = by_first[:, :, of]
    cases = pairs.values.column_sums(by_first.transpose(0, 2, 1))[:, of][:, :, of]
    with np.errstate(divide="ignore", invalid="ignore"):
        lift = np.log(both * cases / (first * first.transpose(0, 2, 1)))
    nats = both * np.where(both > 0, lift, 0.0)
    columns = [(of == j).nonzero()[0] for j in range(len(pairs.values.slots))]
    found = [[fsum(nats[:, a[:, None], b].flat) for b in columns] for a in columns]
    return np.array(found).reshape(len(columns), len(columns))


def _tree(information: Floats) -> tuple[int | None, ...]:
    """Maximum spanning tree (Prim) as parents, rooted at the first column; ties take the first."""
    d = len(information)
    parents: list[int | None] = [None] * d
    inside = [0] if d else []
    while len(inside) < d:
        outside = [j for j in range(d) if j not in inside]
        best = max(outside, key=lambda j: (max(information[i, j] for i in inside), -j))
        parents[best] = max(inside, key=lambda i: (information[i, best], -i))
        inside.append(best)
    return tuple(parents)


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

    @property
    def converged_(self) -> bool:
        """Whether the tables were stable within `EM_STEPS`; else they are those of the last step.

        A hidden variable that the cases hardly determine moves by less and less for ever.
        """
        return self._estimated().converged

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
    converged: bool


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
            return _Expected(counts, step, converged=True)
    return _Expected(counts, EM_STEPS, converged=False)


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
