"""From a decision to the action on a message: the mapping, exempt recipients, what is possible.

    headers < tag < redirect < quarantine < reject

Holds the mapping (`ActionMap`: the default one, or that of a recipient's domain), the rules that
soften it, and what happens to a message without a decision (`Fallbacks`). Must not know mail,
models or sockets.

Invariants. With several recipients the mildest of their actions applies, so no recipient's mail is
treated more harshly than configured. Exempt recipients get headers only: postmaster@ and abuse@
always (RFC 2142: people report such mistakes there), and those that opted out. A message is
rejected only while the client waits for the reply, before the queue; a later rejection would be a
bounce to a forged sender, so `reject` then means the harshest milder action in the same mapping:
the administrator never gets a quarantine without configuring one. A message that was not received
whole cannot be stored, so quarantine is softened in the same way.

Failure: SettingsError for a mapping in which a harsher decision has a milder action.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from spamnb.errors import SettingsError
from spamnb.mail.envelope import domain_of
from spamnb.model.costs import DECISIONS, Decision

MailAction = Literal["headers", "tag", "redirect", "quarantine", "reject"]
Fallback = Literal["head", "deliver", "defer"]
"""head: scan the first part; if that is not possible either, deliver"""

MAIL_ACTIONS: tuple[MailAction, ...] = get_args(MailAction)
"""From the mildest to the harshest."""
ALWAYS_EXEMPT = frozenset(("postmaster", "abuse"))
LEAST_MESSAGES = 3
"""Messages of each label that the model must have learnt itself before a decision may be stronger
than unsure: a model of imported counts fits only the mail of another filter. A young model is
limited by the threshold of the site. Users who correct mistakes only teach twenty ham in months:
with 20, nearly nothing was filed (docs/decisions/0071)."""


@dataclass(frozen=True, slots=True)
class ActionMap:
    """The action for each decision; by default, headers only."""

    deliver: MailAction = "headers"
    unsure: MailAction = "headers"
    junk: MailAction = "headers"
    reject: MailAction = "headers"

    def __post_init__(self) -> None:
        chosen = self.chosen()
        for decision, action in zip(DECISIONS, chosen, strict=True):
            if action not in MAIL_ACTIONS:
                raise SettingsError(
                    f"the action of {decision} is {action!r}",
                    hint=f"one of {', '.join(MAIL_ACTIONS)}",
                )
        ranks = [MAIL_ACTIONS.index(action) for action in chosen]
        if ranks != sorted(ranks):
            raise SettingsError(
                "the actions do not fit the order deliver, unsure, junk, reject",
                hint="a harsher decision needs the same or a harsher action",
            )

    def chosen(self) -> tuple[MailAction, ...]:
        """The actions in the order of the decisions."""
        return self.deliver, self.unsure, self.junk, self.reject  # `astuple` takes 8 us

    def on(self, decision: Decision, possible: Collection[MailAction] = MAIL_ACTIONS) -> MailAction:
        """The action for a decision, or the harshest milder one in the map that is possible."""
        upto = self.chosen()[DECISIONS.index(decision) :: -1]
        return next((action for action in upto if action in possible), "headers")


@dataclass(frozen=True, slots=True)
class ActionPolicy:
    """The actions for all recipients."""

    default: ActionMap = field(default_factory=ActionMap)
    """for recipients of all domains without a mapping of their own"""
    domains: Mapping[str, ActionMap] = field(default_factory=dict)
    """by the recipient's domain"""
    exempt: tuple[str, ...] = ()
    """recipients that opted out: user@example.org, @example.org or user@"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "exempt", tuple(name.lower() for name in self.exempt))
        domains = {domain_of(f"@{name}"): action_maps for name, action_maps in self.domains.items()}
        object.__setattr__(self, "domains", domains)

    def of(
        self,
        decision: Decision,
        recipients: Collection[str],
        *,
        refusable: bool = False,
        whole: bool = True,
    ) -> MailAction:
        """The action on a message to these recipients.

        `refusable`: the client still waits for the reply; `whole`: the message was received whole.
        """
        if not self.domains and self.default == _MILD:
            return "headers"
        possible = _POSSIBLE[refusable, whole]
        # Nearly all mail goes to a few domains with one mapping, so a set looks up each once.
        found = {self._of(recipient) for recipient in recipients} or {self.default}
        return min((one.on(decision, possible) for one in found), key=MAIL_ACTIONS.index)

    def _of(self, recipient: str) -> ActionMap:
        if self.is_exempt(recipient):
            return _MILD
        return self.domains.get(domain_of(recipient), self.default)

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
        action
        for action in MAIL_ACTIONS
        if (refusable or action != "reject") and (whole or action != "quarantine")
    )
    for refusable in (True, False)
    for whole in (True, False)
}


@dataclass(frozen=True, kw_only=True)
class Fallbacks:
    """The policy for messages that cannot be scanned as a whole, by the reason.

    Where a sender can cause the reason, the message is deferred, or scanned in part. Where the
    reason lasts until the administrator acts, or affects the same message at each attempt, deferral
    would lose legitimate mail, so the message is delivered.
    """

    oversize: Literal["unscanned", "head"] = "head"
    on_fault: Literal["deliver", "defer"] = "deliver"
    busy: Literal["deliver", "defer"] = "defer"
    overrun: Literal["deliver", "defer"] = "defer"
    known_crasher: Fallback = "head"

    def fallback_for(self, reason: str, *, observed: bool = False) -> Fallback:
        """The policy for one of `headers.REASONS`.

        An observed message is never deferred: its verdict would have had no effect.
        """
        by_reason: dict[str, Fallback] = {
            "bypass": "deliver",
            "large": "head" if self.oversize == "head" else "deliver",
            "busy": self.busy,
            "overrun": self.overrun,
            "known_crasher": self.known_crasher,
        }
        found = by_reason.get(reason, self.on_fault)
        return "deliver" if observed and found == "defer" else found


def limit_while_untrained(
    decision: Decision, least_messages: int, least: int = LEAST_MESSAGES
) -> Decision:
    """A decision as strong as the training allows; `least_messages` is of the rarest label."""
    strong = DECISIONS.index(decision) > DECISIONS.index("unsure")
    return "unsure" if strong and least_messages < least else decision
