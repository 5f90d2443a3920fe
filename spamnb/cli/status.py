"""`spamnb status`: state of the daemon and the model, counters and warnings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from spamnb.cli.daemon_client import asking
from spamnb.cli.help import command
from spamnb.cli.printing import safe, say, shown_time, table
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError
from spamnb.service.engine.clock import duration

EXAMPLES = """
spamnb status                     as text
spamnb status --json              for programs
spamnb status --prometheus        for Prometheus' textfile collector
"""
_SYSTEM_SPOOL = Path("/var/spool/spamnb")
_CLOSED = (
    "this user cannot enter the home, in which the socket of the daemon may be: a daemon may run; "
    "ask an administrator, or set serve.control to a path that users can reach"
)
_NO_DAEMON = "no daemon serves this home; these facts are read from its files"


@command("Show the state of the daemon.", EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--prometheus", is_flag=True, help="Print metrics in Prometheus' text format.")
@pass_session
@click.pass_context
def status(ctx: click.Context, session: CliSession, as_json: bool, prometheus: bool) -> None:
    """Show the daemon's processes and counters, the state of the model, and warnings.

    Without a running daemon the exit code is 1, and only the state of the home is shown. Works
    while the settings have a mistake, too.
    """
    if as_json and prometheus:
        raise UserError("--json and --prometheus exclude each other")
    session.tolerate_mistakes()
    with asking(session) as client:
        if prometheus:
            click.echo(client.ask("metrics").body.decode(), nl=False)
            return
        facts = client.ask("status").header["status"]
    facts["serving"] = "processes" in facts
    if as_json:
        click.echo(json.dumps(facts))
    else:
        _show(facts, _CLOSED if _is_closed(session.home) else _NO_DAEMON)
        if not facts["serving"] and (waiting := _waiting_moves(session)):
            say(f"! {waiting} moves of messages wait in the spool: a started daemon learns them")
    if not facts["serving"]:
        ctx.exit(1)


def _waiting_moves(session: CliSession) -> int:
    """Return the number of files in the spools, which only a daemon empties."""
    named = session.settings.feedback.spool
    folders = [Path(named)] if named else [session.home / "spool", _SYSTEM_SPOOL]
    return sum(
        not path.name.startswith(".")
        for folder in folders
        if os.access(folder, os.R_OK)
        for path in folder.iterdir()
    )


def _is_closed(home: Path) -> bool:
    """Return whether this user cannot enter the home, so that a socket in it cannot be seen."""
    return os.path.lexists(home) and not os.access(home, os.X_OK)


def _show(facts: dict[str, Any], without: str) -> None:
    if not facts["serving"]:
        say(without)
    table(_rows(facts))
    if facts.get("processes"):
        say()
        table(map(_process, facts["processes"]), right=(2, 3, 5, 6))
    if facts.get("counters"):
        say()
        table(_counted(facts["counters"]), right=(1,))
    for warning in facts.get("warnings", ()):
        say(f"! {safe(warning)}")


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    if "home" in facts:
        rows.append(("home", str(facts["home"])))
    if "up_s" in facts:
        rows.append(("up", duration(facts["up_s"])))
    rows.append(("scanning", "off (bypass)" if facts["bypass"] else "on"))
    rows += _of_model(facts["model"]) if facts["model"] else [("model", _unusable(facts))]
    rows.append(("review", f"{facts.get('review', 0)} queued"))
    kept = facts.get("quarantine") or {"messages": 0, "bytes": 0}
    rows.append(("quarantine", f"{kept['messages']} messages, {kept['bytes']} bytes"))
    for one in facts.get("mailboxes_away", ()):
        since = shown_time(one["since_us"])
        what = f"cannot be read since {since}: {one['reason']}"
        rows.append((f"mailbox {one['account']}", what))
    spool = facts.get("spool")
    if spool:
        rows.append(("spool", f"{spool['waiting']} waiting, {spool['set_aside']} set aside"))
    fleet = facts.get("fleet")
    if fleet:
        folded = f"{fleet['folded_entries']} entries folded"
        rows.append(("fleet", f"{folded}, last at the log's end {duration(fleet['lag_s'])} ago"))
        if fleet["waiting"]:
            oldest = duration(fleet["waiting_s"])
            rows.append(("waiting", f"{fleet['waiting']} corrections, the oldest for {oldest}"))
    return rows


def _unusable(facts: dict[str, Any]) -> str:
    return str(facts.get("fault") or "cannot be used")


def _of_model(model: dict[str, Any]) -> list[tuple[str, str]]:
    from spamnb.service.engine.site_scores import threshold_text

    rows = []
    for label, count in model["messages"].items():
        last = model["learnt"][label]
        when = f"last trained {shown_time(last)}" if last else "none trained lately"
        rows.append((label, f"{count} messages, {when}"))
    size = f"{model['features']} features, {model['events']} events, {model['store_bytes']} bytes"
    size += f" of at most {model['store_limit_bytes']}" if model["store_limit_bytes"] else ""
    rows.append(("model", size))
    rows.append(("threshold", threshold_text(model["threshold"])))
    past = ", ".join(
        f"{one['log_odds']:.2f} on {shown_time(one['time_us'])}"
        for one in model["threshold"]["past"][:3]
    )
    if past:
        rows.append(("lately", past))
    persons = model["persons"]
    if persons["count"]:
        largest = f"{persons['bytes']} bytes, the largest {persons['largest']}"
        rows.append(("persons", f"{persons['count']} with corrections, {largest}"))
    return rows


def _process(process: dict[str, Any]) -> tuple[str, ...]:
    return (
        process["role"], process["state"], f"pid {process['pid']}",
        f"started {process['starts']} times", f"up {duration(process['up_s'])}",
        f"seen {process['beat_age_s']:.0f} s ago", f"{process['open']} open",
    )  # fmt: skip


def _counted(counters: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return rows for the counters above 0 and the durations."""
    from spamnb.service.telemetry.status import quantile

    rows: list[tuple[str, ...]] = []
    for name, found in counters.items():
        if isinstance(found, dict) and found["count"]:
            half, most = quantile(found, 0.5), quantile(found, 0.99)
            rows.append((name, "", f"{found['count']}: 50 % within {half} s, 99 % within {most} s"))
        elif isinstance(found, int) and found:
            rows.append((name.replace("_", " "), str(found), ""))
    return rows
