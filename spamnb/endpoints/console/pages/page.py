"""What a page is: its path, its roles, what it shows, and what its forms do.

`ask` runs an operation of the API for the visitor, so that pages and API give the same numbers and
have the same rights. Must not know HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from spamnb.endpoints.console.callers import ApiCaller
from spamnb.endpoints.console.pages.logins.visitors import Role, Visitor
from spamnb.endpoints.console.parameters import Parameter, ParameterType, read_parameters
from spamnb.endpoints.console.places import Place
from spamnb.endpoints.console.site import ApiReply, ApiRequest, ConsoleSite
from spamnb.endpoints.console.table import OPERATIONS
from spamnb.errors import RefError

MOST_CHOSEN: Final = 200
"""messages that one form may name"""
_BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}


class PageRequest(NamedTuple):
    """A request of a visitor whose role and parameters are checked."""

    visitor: Visitor
    values: dict[str, Any]
    path: str


class PageView(NamedTuple):
    """What a page shows."""

    template: str = ""
    facts: Mapping[str, Any] = {}
    status: int = 200
    stream: AsyncIterator[bytes] | None = None
    """server-sent events instead of a template"""
    reply: ApiReply | None = None
    """the reply of an operation instead of a template"""


class Notice(NamedTuple):
    """A sentence above the page: what an act has done, or why it failed."""

    kind: str
    """done, waits or error"""
    text: str
    more: str = ""
    undo: int = 0
    """the event that a button undoes; 0 for no button"""
    exact: str = ""
    """a text to copy"""
    back: tuple[tuple[str, str], ...] = ()
    """the fields of a form that undoes the change, if the change is no event"""


Show = Callable[[ConsoleSite, PageRequest], PageView]
DoAct = Callable[[ConsoleSite, PageRequest], list[Notice]]


@dataclass(frozen=True, slots=True)
class Act:
    """What a form of a page does, under the name in its field `do`."""

    run: DoAct
    parameters: tuple[Parameter, ...] = ()
    place: Place = "learner"


@dataclass(frozen=True, slots=True)
class Page:
    """One row of the table. The text `NAME.title` is its title and its entry in the menu."""

    name: str
    path: str
    roles: tuple[Role, ...]
    show: Show
    parameters: tuple[Parameter, ...] = ()
    acts: Mapping[str, Act] = field(default_factory=dict)
    place: Place = "heavy"
    in_menu: bool = False
    in_frame: bool = False
    """whether the page and its errors are shown in a frame of another page"""
    of_fleet: bool = False
    """whether the page is only in the menu of hosts of a fleet"""
    noted: str = ""
    """a parameter: each view of the page is logged with the user and this value"""


def page_values(
    parameters: Iterable[Parameter], given: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """Return the checked values of a form or a query, without empty fields."""
    known = tuple(parameters)
    several = {one.name for one in known if one.type.schema["type"] == "array"}
    lists: dict[str, list[str]] = {}
    single = []
    for name, value in given:
        if name in several:
            lists.setdefault(name, []).append(value)
        elif value.strip():
            single.append((name, value))
    return read_parameters(known, [*single, *lists.items()])


def ask(site: ConsoleSite, caller: ApiCaller, name: str, /, **values: Any) -> Any:
    """Run an operation of the API; return its value."""
    return ask_reply(site, caller, name, **values).value


def ask_reply(site: ConsoleSite, caller: ApiCaller, name: str, /, **values: Any) -> ApiReply:
    """Run an operation of the API."""
    operation = _BY_NAME[name]
    caller.require(operation.scope)
    checked = read_parameters(operation.parameters, values.items())
    return operation.run(site, ApiRequest(caller, checked))


def owned(
    site: ConsoleSite, visitor: Visitor, signature: str
) -> tuple[ApiCaller, dict[str, Any]]:  # fmt: skip
    """Return a message, and the caller that may see it: for a user, its recipient."""
    return _first_of(visitor, lambda caller: ask(site, caller, "verdict", signature=signature))


def undone(site: ConsoleSite, visitor: Visitor, event: int) -> dict[str, Any]:
    """Undo an event of the visitor; return the answer."""
    return _first_of(visitor, lambda caller: ask(site, caller, "undo", event=event))[1]


def _first_of(
    visitor: Visitor, run: Callable[[ApiCaller], dict[str, Any]]
) -> tuple[ApiCaller, dict[str, Any]]:
    """Run an operation as each address of the visitor, until one finds its object."""
    *others, last = visitor.callers()
    for caller in others:
        try:
            return caller, run(caller)
        except RefError:
            continue
    return last, run(last)


def _day_us(value: Any) -> int:
    at = datetime.strptime(str(value), "%Y-%m-%d").replace(tzinfo=UTC)
    if at.year < 1970:
        raise ValueError
    return int(at.timestamp() * 1_000_000)


def _chosen(value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and 0 < len(value) <= MOST_CHOSEN):
        raise ValueError
    return tuple(map(str, value))


DAY = ParameterType({"type": "string", "format": "date"}, _day_us, "a day, such as 2026-05-31")
CHOSEN = ParameterType(
    {"type": "array"}, _chosen, f"at least one message, and at most {MOST_CHOSEN}"
)
