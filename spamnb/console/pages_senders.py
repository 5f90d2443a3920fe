"""The lists of senders: on the page of a message, and as a page with search, import and export."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from spamnb.console.page import Act, Notice, PageRequest, PageView, Visitor, ask, owned
from spamnb.console.site import ApiCaller, ApiReply, ConsoleSite
from spamnb.console.texts import of, text, word
from spamnb.errors import SpamnbError, UserError
from spamnb.mail.envelope import domain_of
from spamnb.operations.parameters import TEXT, Parameter, ParameterType, choice
from spamnb.policy.rulings import WORDS
from spamnb.policy.senders import entries_of, sender_of

_NONE: Final = "none"
"""instead of a word: the sender is on no list"""
_MOST_BEFORE: Final = 50
"""messages of the author's domain that are counted"""
_MOST_RECIPIENTS: Final = 5
"""recipients with lists that the page offers to an administrator"""


class SenderChoice(NamedTuple):
    """A list that the visitor may change."""

    value: str
    """KIND:NAME, as the form sends it; empty for the own list"""
    kind: str
    name: str


class EarlierMail(NamedTuple):
    """The newest mail of the author's domain that the visitor may see, with this message."""

    domain: str
    messages: int
    is_part: bool
    """whether there is more of it"""
    filed: int
    corrected: int
    first: str
    """when the oldest of these messages came"""


class SenderView(NamedTuple):
    """The sender of a message, what came from it before, and the lists that name it."""

    names: tuple[str, ...]
    """the addresses and their domains, as far as they can be listed"""
    before: EarlierMail | None
    entries: list[Mapping[str, Any]]
    choices: list[SenderChoice]


def sender_view(
    site: ConsoleSite, request: PageRequest, caller: ApiCaller, notes: Mapping[str, str]
) -> SenderView | None:
    """Return what the page shows of the sender; None if no name of it can be listed."""
    names = names_of(notes)
    choices = _choices(site, request, notes)
    if not names or not choices:
        return None
    try:
        every = ask(site, caller, "senders")["senders"]
    except UserError:  # the user is not a person and has no list
        return None
    matching = dict.fromkeys(entry for one in _addresses(notes) for entry in entries_of(one))
    entries = [one for name in matching for one in every if one["sender"] == name]
    return SenderView(names, _before(site, caller, notes), entries, choices)


def _before(site: ConsoleSite, caller: ApiCaller, notes: Mapping[str, str]) -> EarlierMail | None:
    domain = next(filter(None, map(domain_of, _addresses(notes))), "")
    if not domain:
        return None
    found = ask(site, caller, "verdicts", **{"from": domain, "limit": _MOST_BEFORE})
    rows = found["verdicts"]
    if not rows:
        return None
    return EarlierMail(
        domain=domain,
        messages=len(rows),
        is_part=found["next"] is not None,
        filed=sum(row["decision"] in ("junk", "reject") for row in rows),
        corrected=sum(row["trained"] not in (None, row["label"]) for row in rows),
        first=rows[-1]["time"],
    )


def names_of(notes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the author of a message and the sender of its envelope, each with its domain."""
    found: dict[str, None] = {}
    for address in _addresses(notes):
        for name in (address, domain_of(address)):
            with suppress(UserError):
                found[sender_of(name)] = None
    return tuple(found)


def _addresses(notes: Mapping[str, str]) -> list[str]:
    return [one for name in ("author", "from") if (one := notes.get(name))]


def _choices(
    site: ConsoleSite, request: PageRequest, notes: Mapping[str, str]
) -> list[SenderChoice]:
    has_persons = site.config.persons is not None
    if request.visitor.role == "user":
        return [SenderChoice("", "own", "")] if has_persons else []
    to = notes.get("to", "").split()[:_MOST_RECIPIENTS]
    domains = dict.fromkeys(filter(None, map(domain_of, to)))
    named = [("person", one) for one in to if has_persons]
    named += [("domain", one) for one in domains]
    found = [SenderChoice(f"{kind}:{name}", kind, name) for kind, name in named]
    return [*found, SenderChoice("site:", "site", "")]


def _list(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Change a list; the answer has a form that undoes the change."""
    values = request.values
    caller, _ = owned(site, request.visitor, values["signature"])
    kind, _, name = values["of"].partition(":")
    target = {kind: name} if kind in ("person", "domain") else {}
    answer = ask(
        site, caller, "list_sender", word=values["word"], sender=values["sender"], **target
    )
    facts = answer["facts"]
    if answer["state"] == "unchanged":
        return [Notice("done", text("receipt.unchanged"), answer["reason"])]
    more = facts.get("warning") or ""
    back = {"do": "list", "word": facts["before"] or _NONE, "sender": facts["sender"]}
    back |= {"of": values["of"]} if values["of"] else {}
    return [Notice("done", _said(facts), more, back=tuple(back.items()))]


def _said(facts: Mapping[str, Any]) -> str:
    """What a change of a list has done."""
    return text(
        "receipt.listed", sender=facts["sender"], word=word("listed", facts["word"] or _NONE)
    )


LIST: Final = Act(
    _list,
    (
        Parameter("signature", TEXT, "The signature.", required=True),
        Parameter("word", choice(*WORDS, _NONE), "What the sender is.", required=True),
        Parameter("sender", TEXT, "The sender.", required=True),
        Parameter("of", TEXT, "The list, as KIND:NAME.", ""),
    ),
)


# --- the page of the lists -----------------------------------------------------------------------

ASKED: Final = (Parameter("q", TEXT, "A part of the sender.", ""),)
_SEEN_DAYS: Final = 30
_SEEN_ROWS: Final = 50
_MOST_LINES: Final = 500
_MOST_CHARS: Final = 40_000


def _lines(value: Any) -> list[tuple[str, str]]:
    """Return the words and the senders of some lines; a line may have a sender alone."""
    if not isinstance(value, str) or len(value) > _MOST_CHARS:
        raise ValueError
    found = [parts for line in value.splitlines() if (parts := line.partition("#")[0].split())]
    if not found or len(found) > _MOST_LINES or any(len(parts) > 2 for parts in found):
        raise ValueError
    return [(parts[0] if len(parts) == 2 else "", parts[-1]) for parts in found]


_LINES: Final = ParameterType(
    {"type": "string", "maxLength": _MOST_CHARS}, _lines,
    f"1 to {_MOST_LINES} lines, each with a sender, or with wanted or unwanted and a sender",
)  # fmt: skip


def show_senders(site: ConsoleSite, request: PageRequest) -> PageView:
    """Show the lists: of a user the own ones, of an administrator all."""
    wanted = request.values["q"].casefold().strip()
    rows = [one for one in _entries(site, request.visitor) if wanted in one["sender"]]
    facts = {
        "rows": rows[:_MOST_LINES],
        "more": len(rows[_MOST_LINES:]),
        "q": request.values["q"],
        "own": list(_persons(site, request.visitor)),
        "sees_all": request.visitor.role != "user",
        "seen": _seen(site, request.visitor),
    }
    return PageView("senders", facts)


def _seen(site: ConsoleSite, visitor: Visitor) -> list[dict[str, Any]]:
    """The domains with most mail of the last thirty days, for administrators and auditors."""
    if visitor.role == "user":
        return []
    (caller,) = visitor.callers()
    compute = partial(ask, site, caller, "senders_seen", days=_SEEN_DAYS, limit=_SEEN_ROWS)
    found: list[dict[str, Any]] = site.seen.value(compute)["senders"]
    return found


def senders_file(site: ConsoleSite, request: PageRequest) -> PageView:
    """Return the lists as a file that the page reads again; a comment names each list."""
    lines, list_ = [], ""
    for one in _entries(site, request.visitor):
        if list_ != (list_ := f"# {one['list']} {one['owner']}".rstrip()):
            lines.append(list_)
        lines.append(f"{one['word']} {one['sender']}")
    data = "".join(f"{line}\n" for line in lines).encode()
    headers = {"Content-Disposition": 'attachment; filename="senders.txt"'}
    reply = ApiReply(data=data, media_type="text/plain; charset=utf-8", headers=headers)
    return PageView(reply=reply)


def _entries(site: ConsoleSite, visitor: Visitor) -> list[dict[str, Any]]:
    """The entries of all lists of a visitor, by list and sender."""
    found = {}
    for caller in visitor.callers():
        with suppress(UserError):  # an address that is no person has no list
            for one in ask(site, caller, "senders")["senders"]:
                found[one["list"], one["owner"], one["sender"]] = one
    return [found[key] for key in sorted(found)]


def _persons(site: ConsoleSite, visitor: Visitor) -> dict[str, ApiCaller]:
    """The persons that a user is, each with the caller that acts for it."""
    names = site.config.persons
    if names is None or visitor.role != "user":
        return {}
    callers = {names.of(caller.user): caller for caller in visitor.callers()}
    return {name: caller for name, caller in callers.items() if name}


def _change(site: ConsoleSite, request: PageRequest) -> list[Notice]:
    """Change several senders of one list; the answer has a form that undoes all of it."""
    values, visitor = request.values, request.visitor
    kind, name = values["kind"], values["name"].strip()
    if visitor.role == "user":
        persons = _persons(site, visitor)
        if not persons or (name and name not in persons):
            raise UserError(text("senders.none"))
        caller, target = persons[name or next(iter(persons))], {}
    else:
        (caller,) = visitor.callers()
        target = {kind: name} if kind != "site" else {}
        if target and not name:
            raise UserError("Name the domain or the person.")
    done, before, failed, more = [], [], [], ""
    for said, sender in values["lines"]:
        new = said or values["word"]
        try:
            answer = ask(site, caller, "list_sender", word=new, sender=sender, **target)
        except SpamnbError as error:
            failed.append(Notice("error", f"{sender}: {error}", error.hint))
            continue
        if answer["state"] != "unchanged":
            facts = answer["facts"]
            done.append(_said(facts))
            before.append(f"{facts['before'] or _NONE} {facts['sender']}")
            more = facts.get("warning") or more
    if not done:
        return failed or [Notice("done", text("receipt.unchanged"))]
    one = done[0] if len(done) == 1 else f"{of(len(done), 'sender is', 'senders are')} changed."
    back = {"do": "change", "lines": "\n".join(before), "kind": kind, "name": name}
    return [Notice("done", one, more, back=tuple(back.items())), *failed]


CHANGE: Final = Act(
    _change,
    (
        Parameter("lines", _LINES, "Senders, one a line.", required=True),
        Parameter("word", choice(*WORDS, _NONE), "What they are.", WORDS[0]),
        Parameter("kind", choice("person", "domain", "site"), "The kind of list.", "person"),
        Parameter("name", TEXT, "Whose list.", ""),
    ),
)
