"""Verdicts on messages with a label that is not learnt yet: they are as that label says.

In a fleet a correction may have to wait for the log. Until it is learnt, that very message has a
pin: its label and decision are those that the user expects; only similar messages have to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from spamnb.engine.planner import PendingJournal
from spamnb.model.correction import decision_margins, matches_label, missing_nats
from spamnb.model.costs import Costs, roles_of
from spamnb.model.events import label_key
from spamnb.model.scoring import softmax, spam_log_odds
from spamnb.model.verdict import Verdict, decide, sides
from spamnb.store.contract import Store


class Pins(Protocol):
    """The labels that wait, by label key."""

    def pinned(self, keys: Sequence[bytes]) -> Mapping[bytes, int]:
        """Return the label of each of these label keys that has a pin."""

    def owners(self, digests: Sequence[bytes]) -> Mapping[bytes, Mapping[int, int]]:
        """Return the labels of each of these messages that has pins, by owner."""

    def close(self) -> None:
        """Close the files."""


def with_pins(
    verdicts: list[Verdict], pins: Pins | None, costs: Costs, store: Store
) -> list[Verdict]:
    """Return these verdicts; that on a message with a pin in force is as the pin says."""
    given = pins.owners([verdict.digest for verdict in verdicts]) if pins is not None else {}
    if not given:
        return verdicts
    with store.read() as view:
        pending = PendingJournal(view, [], view.totals().last_seq)
        said = {
            digest: label
            for digest, labels in given.items()
            if (label := pending.in_force(digest, labels).label) in labels.values()
        }
    return [
        _as_said(verdict, said[verdict.digest], costs) if verdict.digest in said else verdict
        for verdict in verdicts
    ]


def pinned_verdicts(
    shared: Verdict,
    personal: Mapping[int, Verdict],
    persons: Sequence[int],
    pins: Pins | None,
    costs: Costs,
) -> dict[int, Verdict]:
    """Return the verdict for each of these persons that has a pin of their own on the message."""
    if pins is None:
        return {}
    keys = {label_key(shared.digest, person): person for person in persons}
    return {
        keys[key]: _as_said(personal.get(keys[key], shared), label, costs)
        for key, label in pins.pinned(list(keys)).items()
    }


def _as_said(verdict: Verdict, label: int, costs: Costs) -> Verdict:
    """Return the verdict that the user who gave this label expects."""
    labels, z, roles = verdict.labels, list(verdict.z), roles_of(verdict.labels)
    if not matches_label(z, label, costs, roles):
        z[label] += max(missing_nats(z, label, decision_margins(costs)[roles[label]]), 0.0)
    P, (s, h) = softmax(z), sides(labels, z)
    return replace(
        verdict,
        label=labels[label],
        probability=P[labels.index("spam") if "spam" in labels else label],
        log_odds=z[s] - z[h],
        decision=decide(spam_log_odds(z, roles), costs),
        z=tuple(z),
        reason="",
    )
