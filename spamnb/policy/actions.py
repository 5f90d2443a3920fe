"""From a decision to the action on a message: the mapping, recipients, what is possible. Pure.

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

All addresses and logins of one person get one name (`PersonNames`); `RecipientCosts` has the costs
of single persons, and of the domains of addresses.

Failure: SettingsError for a mapping in which a harsher decision has a milder action, and for a line
of an alias file without a target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from spamnb.errors import SettingsError, UserError
from spamnb.mail.envelope import address_of, domain_of
from spamnb.model.costs import DECISIONS, Costs, Decision, OwnCosts

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


_MOST_STEPS = 10
"""aliases of aliases; a longer chain is taken for a loop"""


@dataclass(frozen=True, slots=True)
class PersonNames:
    """The rules by which addresses and logins become names.

        alias and domain -> login      an address of a login domain is named by its local part
        any other served address       is a person under its own name
        an address of another domain   is no person

    The name is the same for a recipient in the envelope and for the user that teaches; otherwise a
    label would never meet the mail of its person. Case, quotes and the part behind the delimiter do
    not count (`mail.envelope`), except where an alias names the whole address: as in Postfix,
    the entry of `john+smith@` comes before that of `john@`.
    """

    delimiter: str = "+"
    logins: frozenset[str] = frozenset()
    """domains with addresses that are logins: `login@domain` is `login`"""
    served: frozenset[str] = frozenset()
    """domains with mailboxes here; empty: not known, so that each address is a person"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """address or `@domain` -> address, login or `@domain`; an empty target is no person"""

    def of(self, text: str) -> str:
        """The name of the person with this address or login; empty if it is no person."""
        if self.aliases:
            name = self._resolved(address_of(text, ""))
        else:
            name = address_of(text, self.delimiter)
        local, at, domain = name.rpartition("@")
        if not at:
            return name
        if not local or (self.served and domain not in self.served | self.logins):
            return ""
        return local if domain in self.logins else name

    def _resolved(self, name: str) -> str:
        """The address or login behind all aliases; empty for a list, and for a loop."""
        for _ in range(_MOST_STEPS):
            target = self._target(name)
            if target is None:
                return address_of(name, self.delimiter)
            if target == name:
                # Only an alias of the name itself keeps the delimiter, not one of its mailbox or
                # its domain.
                return name if name in self.aliases else address_of(name, self.delimiter)
            name = target
        return ""

    @property
    def exact(self) -> frozenset[str]:
        """Addresses with a delimiter that belong to another person than the mailbox before it."""
        mark = self.delimiter
        return frozenset(
            one
            for one in self.aliases
            if mark and mark in one.rpartition("@")[0]
            if self.of(one) != self.of(address_of(one, mark))
        )

    def _target(self, name: str) -> str | None:
        for key in (name, address_of(name, self.delimiter)):
            if key in self.aliases:
                return self.aliases[key]
        local, at, domain = name.rpartition("@")
        target = self.aliases.get(f"@{domain}") if at else None
        return local + target if target and target.startswith("@") else target


def named_person(names: PersonNames | None, text: str) -> str:
    """The name of the person that an admin names; UserError if there is none."""
    if names is None:
        raise UserError("persons are not enabled", hint="set persons.enabled in the settings")
    if not (name := names.of(text)):
        raise UserError(
            f"{text!r} is not the address of a person here", hint="give a login or a local address"
        )
    return name


def aliases_of(text: str, source: str) -> dict[str, str]:
    """Read lines `ALIAS TARGET`, as in Postfix's virtual(5), from the text of a file.

    `#` begins a comment line; a line that starts with a blank continues the one before. A target of
    several addresses names no person.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        alias, *targets = line.replace(",", " ").split()
        if not targets:
            raise SettingsError(
                f"{source}:{number}: the alias {alias} has no target",
                hint="write `alias@example.org login`",
            )
        target = targets[0] if len(targets) == 1 else ""
        found[address_of(alias, "")] = address_of(target, "")
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0].isspace() and lines:
            lines[-1] = lines[-1][0], f"{lines[-1][1]} {line}"
        else:
            lines.append((number, line))
    return lines


def pairing_fault(names: PersonNames, login: str, addresses: Sequence[str] = ()) -> str:
    """Why labels of a login change no verdict on its mail; empty if they do.

    Without `addresses`, any address here may be the login's.
    """
    person = names.of(login)
    if not person:
        return f"{login} is not a person, but a list or an address of another domain"
    for address in addresses:
        if (recipient := names.of(address)) != person:
            return (
                f"{login} labels for {person}, mail to {address} is for {recipient or 'no person'}"
            )
    domains = names.served | names.logins
    known = (*addresses, *(f"{person}@{domain}" for domain in domains), *names.aliases)
    if "@" in person or person in map(names.of, known):
        return ""
    return f"{login} labels for {person}, but no address here belongs to this person"


@dataclass(frozen=True, slots=True)
class RecipientCosts:
    """The costs of all recipients that have their own.

    A person's costs come before those of the domain.
    """

    persons: Mapping[str, OwnCosts] = field(default_factory=dict)
    """by the name of the person, as `PersonNames.of` returns it"""
    domains: Mapping[str, OwnCosts] = field(default_factory=dict)
    """by the domain of the address, as `domain_of` returns it"""
    login_domain: str = ""
    """the domain of a recipient that is a login; empty if there is no single one"""

    def __bool__(self) -> bool:
        return bool(self.persons or self.domains)

    def of(self, recipient: str, name: str) -> OwnCosts | None:
        """The costs for an address or login and the person's name, which is empty for none."""
        found = self.persons.get(name) if name else None
        if found or not self.domains:
            return found
        return self.domains.get(domain_of(recipient) or self.login_domain)

    def of_label(self, user: str, names: PersonNames | None) -> Costs | None:
        """The costs that apply to a user's label on their own mail; None for those of all users."""
        own = self.of(user, names.of(user)) if names else None
        return own.costs if own else None
