"""`spamnb status`: how the daemon is, what it counted, what was learnt, and what looks wrong."""

from __future__ import annotations

import json
from typing import Any

import click

from spamnb.cli.daemon_client import RunningDaemon, served
from spamnb.cli.help import taught
from spamnb.cli.history_journal import shown_time
from spamnb.cli.printing import safe, say, table
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import StoreError, UserError

EXAMPLES = """
spamnb status                     for people
spamnb status --json              for programs
spamnb status --prometheus        for a collector of text files
"""
_QUIET = "no daemon serves this home; what stands here is read from the model itself"


@taught("Tell how the daemon is.", EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.option("--prometheus", is_flag=True, help="As Prometheus reads it.")
@pass_session
@click.pass_context
def status(ctx: click.Context, session: CliSession, as_json: bool, prometheus: bool) -> None:
    """Tell how the daemon is: processes, numbers, what was learnt when, and what looks wrong.

    Without a daemon the exit code is 1, and the facts are those of the model alone.
    """
    if as_json and prometheus:
        raise UserError("--json and --prometheus exclude each other")
    daemon = served(session)
    if prometheus:
        if daemon is None:
            raise UserError("no daemon serves this home", hint="start it with `spamnb serve`")
        click.echo(_asked(daemon, "metrics")[1].decode(), nl=False)
        return
    facts = _asked(daemon, "status")[0]["status"] if daemon else _alone(session)
    facts["serving"] = daemon is not None
    if as_json:
        click.echo(json.dumps(facts))
    else:
        _show(facts)
    if daemon is None:
        ctx.exit(1)


def _asked(daemon: RunningDaemon, op: str) -> tuple[dict[str, Any], bytes]:
    from spamnb.endpoints.control.protocol import ControlClient

    with ControlClient(daemon.control) as caller:
        return caller.ask(op)


def _alone(session: CliSession) -> dict[str, Any]:
    """What the files tell."""
    from spamnb.service.feedback.review_queue import ReviewQueue
    from spamnb.service.telemetry.status import folder_size, model_facts, noted, warnings

    home = session.home
    facts: dict[str, Any] = {
        "home": str(home), "model": None, "fault": "", "bypass": False,
    }  # fmt: skip
    with noted(facts):
        facts["bypass"] = (home / "bypass").exists()
        facts["review"] = ReviewQueue(home / "review").count()
        facts["quarantine"] = folder_size(home / "quarantine")
    try:
        with session.open(readonly=True) as model:
            facts["model"] = model_facts(home, model)
    except StoreError as error:
        facts["fault"] = str(error)
    facts["warnings"] = warnings(facts)
    return facts


def _show(facts: dict[str, Any]) -> None:
    if not facts["serving"]:
        say(_QUIET)
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
        rows.append(("up", _span(facts["up_s"])))
    rows.append(("scanning", "off (bypass)" if facts["bypass"] else "on"))
    rows += _of_model(facts["model"]) if facts["model"] else [("model", _unusable(facts))]
    rows.append(("review", f"{facts.get('review', 0)} wait"))
    kept = facts.get("quarantine") or {"messages": 0, "bytes": 0}
    rows.append(("quarantine", f"{kept['messages']} messages, {kept['bytes']} bytes"))
    spool = facts.get("spool")
    if spool:
        rows.append(("spool", f"{spool['waiting']} wait, {spool['set_aside']} set aside"))
    return rows


def _unusable(facts: dict[str, Any]) -> str:
    return str(facts.get("fault") or "cannot be used")


def _of_model(model: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for label, count in model["messages"].items():
        last = model["learnt"][label]
        when = f"the last on {shown_time(last)}" if last else "none lately"
        rows.append((label, f"{count} messages, {when}"))
    size = f"{model['features']} features, {model['events']} events, {model['store_bytes']} bytes"
    size += f" of at most {model['store_limit_bytes']}" if model["store_limit_bytes"] else ""
    return [*rows, ("model", size)]


def _process(seat: dict[str, Any]) -> tuple[str, ...]:
    return (
        seat["role"], seat["state"], f"pid {seat['pid']}", f"started {seat['starts']} times",
        f"up {_span(seat['up_s'])}", f"seen {seat['beat_age_s']:.0f} s ago", f"{seat['open']} open",
    )  # fmt: skip


def _counted(counters: dict[str, Any]) -> list[tuple[str, ...]]:
    """What was counted at all, and how long things took."""
    from spamnb.service.telemetry.status import quantile

    rows: list[tuple[str, ...]] = []
    for name, found in counters.items():
        if isinstance(found, dict) and found["count"]:
            half, most = quantile(found, 0.5), quantile(found, 0.99)
            took = f"{found['count']}: half within {half} s, 99 % within {most} s"
            rows.append((name, "", took))
        elif isinstance(found, int) and found:
            rows.append((name.replace("_", " "), str(found), ""))
    return rows


def _span(seconds: float) -> str:
    """A span of time as people say it."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
