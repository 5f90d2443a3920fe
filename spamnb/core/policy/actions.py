"""From a decision to what becomes of the message: the mapping, who is exempt, what is possible.

    headers < tag < redirect < quarantine < reject

Holds the mapping (`ActionMap`: shipped for everybody, or of a recipient's domain), and the rules
that soften it. Must not know mail, models or sockets.

Invariants. With several recipients the mildest of theirs holds, so no one's mail is handled more
harshly than they agreed to. Exempt recipients get headers alone: postmaster@ and abuse@ always
(RFC 2142: people write there about just such mistakes), and those who opted out. A message is
refused only where the sender still waits for our answer, before the queue; after it a refusal would
become a bounce to a forged sender, so `reject` there means the harshest of the milder handlings
that the same mapping names: nobody gets a quarantine that they never asked for. What was not seen
whole cannot be kept, so quarantine is softened in the same way.

Failure: SettingsError for a mapping in which a harsher decision is handled more mildly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from spamnb.core.mail.envelope import domain_of
from spamnb.core.model.costs import DECISIONS, Decision
from spamnb.errors import SettingsError

Handling = Literal["headers", "tag", "redirect", "quarantine", "reject"]

HANDLINGS: tuple[Handling, ...] = get_args(Handling)
"""From the mildest to the harshest."""
ALWAYS_EXEMPT = frozenset(("postmaster", "abuse"))
LEAST_MESSAGES = 20
"""of each label, before a decision may be stronger than unsure: with fewer the model knows the
few messages rather than the mail"""


@dataclass(frozen=True, slots=True)
class ActionMap:
    """What becomes of a message on each decision; as shipped, nothing but headers."""

    deliver: Handling = "headers"
    unsure: Handling = "headers"
    junk: Handling = "headers"
    reject: Handling = "headers"

    def __post_init__(self) -> None:
        chosen = self._chosen()
        for decision, handling in zip(DECISIONS, chosen, strict=True):
            if handling not in HANDLINGS:
                raise SettingsError(
                    f"the handling of {decision} is {handling!r}",
                    hint=f"one of {', '.join(HANDLINGS)}",
                )
        ranks = [HANDLINGS.index(handling) for handling in chosen]
        if ranks != sorted(ranks):
            raise SettingsError(
                "the handlings do not fit the order deliver, unsure, junk, reject",
                hint=f"a harsher decision needs the same or a later one of {', '.join(HANDLINGS)}",
            )

    def _chosen(self) -> tuple[Handling, ...]:
        return self.deliver, self.unsure, self.junk, self.reject  # `astuple` takes 8 us

    def on(self, decision: Decision, possible: Collection[Handling] = HANDLINGS) -> Handling:
        """The handling of a decision, or the harshest milder one that is named and possible."""
        upto = self._chosen()[DECISIONS.index(decision) :: -1]
        return next((handling for handling in upto if handling in possible), "headers")


@dataclass(frozen=True, slots=True)
class ActionPolicy:
    """Everybody's handlings."""

    shipped: ActionMap = field(default_factory=ActionMap)
    """for recipients of all domains that are not named"""
    domains: Mapping[str, ActionMap] = field(default_factory=dict)
    """by the recipient's domain"""
    exempt: tuple[str, ...] = ()
    """recipients who opted out: user@example.org, @example.org or user@"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "exempt", tuple(name.lower() for name in self.exempt))
        domains = {name.lower(): action_maps for name, action_maps in self.domains.items()}
        object.__setattr__(self, "domains", domains)

    def of(
        self,
        decision: Decision,
        recipients: Collection[str],
        *,
        refusable: bool = False,
        whole: bool = True,
    ) -> Handling:
        """What becomes of a message to these recipients.

        `refusable`: the sender waits for our answer; `whole`: we have all of it.
        """
        if not self.domains and self.shipped == _MILD:
            return "headers"
        possible = _POSSIBLE[refusable, whole]
        # Nearly all mail goes to a few domains with one mapping, so a set asks each once.
        found = {self._of(recipient) for recipient in recipients} or {self.shipped}
        return min((one.on(decision, possible) for one in found), key=HANDLINGS.index)

    def _of(self, recipient: str) -> ActionMap:
        if self.is_exempt(recipient):
            return _MILD
        return self.domains.get(domain_of(recipient), self.shipped)

    def is_exempt(self, recipient: str) -> bool:
        """Whether a recipient never gets more than headers."""
        local, _, domain = recipient.lower().rpartition("@")
        local = local or domain  # `RCPT TO:<postmaster>` has no domain (RFC 5321 4.5.1)
        if local.partition("+")[0] in ALWAYS_EXEMPT:
            return True
        names = (f"{local}@{domain}", f"@{domain}", f"{local}@")
        return any(name in self.exempt for name in names)


_MILD = ActionMap()
_POSSIBLE = {
    (refusable, whole): tuple(
        handling
        for handling in HANDLINGS
        if (refusable or handling != "reject") and (whole or handling != "quarantine")
    )
    for refusable in (True, False)
    for whole in (True, False)
}


def limit_while_untrained(
    decision: Decision, least_messages: int, least: int = LEAST_MESSAGES
) -> Decision:
    """A decision as strong as the training allows; `least_messages` is of the rarest label."""
    strong = DECISIONS.index(decision) > DECISIONS.index("unsure")
    return "unsure" if strong and least_messages < least else decision
