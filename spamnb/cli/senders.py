"""`spamnb senders`: lists of the senders that recipients always or never want."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.main import CommandGroup, command
from spamnb.cli.options import Count
from spamnb.cli.printing import safe, say, say_json, shown_time, table, warn
from spamnb.cli.session import CliSession, asking, pass_session, source_fields

if TYPE_CHECKING:
    from spamnb.operations.request import AdminClient

EXAMPLES = """
spamnb senders add --person ann wanted news@example.org   ann always wants this sender
spamnb senders add --person ann unwanted example.net      ann never wants this domain
spamnb senders add --domain a.example unwanted b.example  no recipient at a.example wants it
spamnb senders add wanted partner.example                 all recipients want this domain
spamnb senders list --person ann                          one list; without options all lists
spamnb senders remove --person ann news@example.org       the verdict decides again
spamnb senders seen --days 7                              who writes to the site, and is it filed
"""
_PLACES = {
    "list": "spamnb.cli.senders:list_",
    "add": "spamnb.cli.senders:add",
    "remove": "spamnb.cli.senders:remove",
    "seen": "spamnb.cli.senders:seen",
}
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per sender.")


def _of(run: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a list."""
    person = click.option("--person", default="", metavar="NAME",
                          help="The list of this person: an address or a login.")  # fmt: skip
    domain = click.option("--domain", default="", metavar="DOMAIN",
                          help="The list for all recipients of this domain.")  # fmt: skip
    return person(domain(run))


@click.group(
    cls=CommandGroup,
    places=_PLACES,
    examples=EXAMPLES,
    short_help="List wanted and unwanted senders.",
)
def senders() -> None:
    """Lists of the senders that a person, a domain or all recipients want or do not want.

    Mail of a wanted sender is delivered, whatever the verdict is, if a trusted server says that
    DKIM or SPF passed for the sender's domain (local.authserv_ids); so a forged sender gains
    nothing. Mail of an unwanted sender is junk.

    The list of a person comes before the list of the recipient's domain, and the list of the domain
    before the list for all recipients. The files rules.allow and rules.block come before all lists.

    An administrator may change all lists; another user may change only the own list.
    """


@command("List the senders on the lists.", EXAMPLES, name="list")
@_of
@JSON
@pass_session
def list_(session: CliSession, person: str, domain: str, as_json: bool) -> None:
    """List senders: whose list, wanted or unwanted, sender, time.

    Without options an administrator sees all lists, and another user only the own list.
    """
    with asking(session) as client:
        answer = client.ask("senders", **_target(client, person, domain))
    found = [json.loads(line) for line in answer.body.splitlines()]
    if as_json:
        for one in found:
            say_json(one)
    else:
        table((_whose(one), one["word"], one["sender"], one["time"]) for one in found)
    _warn(answer.header)


@command("Add wanted or unwanted senders.", EXAMPLES)
@click.argument("word", type=click.Choice(["wanted", "unwanted"]), metavar="wanted|unwanted")
@click.argument("senders", nargs=-1, required=True, metavar="SENDER...")
@_of
@JSON
@pass_session
def add(
    session: CliSession,
    word: str,
    senders: tuple[str, ...],
    person: str,
    domain: str,
    as_json: bool,
) -> None:
    """Add senders to a list, as wanted or unwanted; the newest entry for a sender counts.

    SENDER is an address, such as news@example.org, or a domain, such as example.org, which stands
    for its subdomains too. The entry applies from the next message on.
    """
    _change(session, senders, {"word": word}, (person, domain), as_json=as_json)


@command("Remove senders from a list.", EXAMPLES)
@click.argument("senders", nargs=-1, required=True, metavar="SENDER...")
@_of
@JSON
@pass_session
def remove(
    session: CliSession, senders: tuple[str, ...], person: str, domain: str, as_json: bool
) -> None:
    """Remove senders from a list, so that the next list, or the verdict, decides."""
    _change(session, senders, {}, (person, domain), as_json=as_json)


@command("List the domains that write to the site.", EXAMPLES)
@click.option("--days", type=click.IntRange(1, 400), default=30, metavar="N",
              help="How far back; as far as the history goes.")  # fmt: skip
@click.option("--limit", type=Count(), default=50, metavar="N",
              help="Maximum number of domains; 0 shows all.")  # fmt: skip
@JSON
@pass_session
def seen(session: CliSession, days: int, limit: int, as_json: bool) -> None:
    """List the domains of authors in the newest 20,000 verdicts, those with most messages first.

    Columns: domain, messages, of these filed as junk, authenticated (SPF or DKIM passed for the
    domain) of those that were checked, first and last message. Mail of the site's own users is not
    counted. Needs history.keep_subject.
    """
    from spamnb.operations.listings import seen_senders
    from spamnb.telemetry import now_us

    since_us = now_us() - days * 86_400 * 1_000_000
    with session.open(readonly=True, history=True) as model:
        found = seen_senders(model.history, since_us, limit or 1 << 31) if model.history else []
    if as_json:
        for one in found:
            say_json(one)
        return
    heads = ("domain", "messages", "filed", "authentic", "first", "last")
    rows = (
        (one["domain"], str(one["messages"]), f"{one['filed'] / one['messages']:.0%}",
         f"{one['authentic'] / one['checked']:.0%}" if one["checked"] else "-",
         shown_time(one["first"]), shown_time(one["last"]))
        for one in found
    )  # fmt: skip
    table([heads, *rows], right=(1, 2, 3))


def _change(
    session: CliSession,
    senders: tuple[str, ...],
    fields: dict[str, str],
    of: tuple[str, str],
    *,
    as_json: bool,
) -> None:
    warned: dict[str, Any] = {}
    with asking(session) as client:
        target = _target(client, *of)
        for sender in senders:
            answer = client.ask("sender", **{"sender": sender} | fields | target).header
            warned = answer["facts"]
            _show(answer, as_json=as_json)
    _warn(warned)


def _target(client: AdminClient, person: str, domain: str) -> dict[str, Any]:
    """Return the fields of the list that is meant; an administrator acts under the own name."""
    me = source_fields() if client.ask("ping").header["role"] == "admin" else {"channel": "cli"}
    given = {"person": person, "domain": domain}
    return me | {name: text for name, text in given.items() if text}


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    facts = answer["facts"]
    if as_json:
        say_json(facts | {"state": answer["state"]})
        return
    changed = answer["state"] == "listed"
    before = f", was {facts['before'] or 'not listed'}" if changed else ", as before"
    say(safe(f"{_whose(facts)}: {answer['reason']}{before}"))


def _whose(facts: dict[str, Any]) -> str:
    return safe(f"{facts['list']} {facts['owner']}") if facts["owner"] else "all recipients"


def _warn(facts: dict[str, Any]) -> None:
    if facts.get("warning"):
        warn(facts["warning"])
