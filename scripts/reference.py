"""The reference in Markdown, made from the code: settings, commands, headers, log, metrics, socket.

pages() -> {name of the page: text}
"""

import json
import re

import click
from headers import GROUPS
from log_events import FACTS, KEYS, events

from spamnb.cli.main import cli
from spamnb.operations.status import gauges
from spamnb.operations.table import OPERATIONS
from spamnb.settings import Settings
from spamnb.settings.render import value_of
from spamnb.settings.schema import MEMBERS
from spamnb.settings.table import FAMILIES, SETTINGS
from spamnb.settings.types import toml_of
from spamnb.telemetry import COUNTERS, HISTOGRAMS

EXIT_CODES = (
    ("0", "Success."),
    ("1", "The answer to a question is no: for example, a check found a problem."),
    ("2", "Wrong usage, or a wrong setting."),
    ("3", "The store, a file or the system failed."),
    ("4", "Another server failed."),
    ("70", "An internal error."),
    ("75", "`spamnb filter` and `spamnb score --exit-code`: any failure."),
    ("130", "Interrupted."),
)
GAUGES = {
    "up_seconds": "time since the start of the daemon",
    "bypass": "1 while all mail passes unscanned by order of the administrator",
    "unscanned_alarm": "1 while more than `serve.unscanned_percent` of the mail passes unscanned",
    "warnings": "warnings of `spamnb status`",
    "home_free_bytes": "bytes that are free where the home is",
    "junk_threshold_nats": "log-odds from which mail is junk, before they are stretched",
    "junk_threshold_ham": "messages of ham whose scores set that threshold",
    "review_waiting": "reports that wait for an administrator's decision",
    "quarantine_messages": "messages in the quarantine",
    "quarantine_bytes": "their size",
    "spool_waiting": "files in the spool that are not yet learnt",
    "model_usable": "1 if the model can be read",
    "model_features": "features that the model has counted",
    "model_events": "trainings in the journal",
    "model_store_bytes": "size of the model's file",
    "model_store_limit_bytes": "the size at which teaching stops",
    "model_persons_count": "persons with corrections of their own",
    "model_persons_bytes": "size of these corrections",
    "model_persons_largest": "size of the largest of them",
    "model_messages": "messages that the model has learnt, by label",
    "last_learnt_timestamp_seconds": "time of the last training, by label",
    "mailboxes_away": "mailboxes on IMAP servers that cannot be read",
    "webhook_waiting": "events that a webhook's receiver has not taken yet, by webhook",
    "webhook_dropped": "events that were given up, by webhook",
    "fleet_following": "1 if the host follows the log of its fleet",
    "fleet_lag_seconds": "seconds since this host last held the whole log",
    "fleet_copied": "0: no replica of the log's server has the last entry of this host",
    "fleet_folded_entries": "entries of the log that this host has folded",
    "fleet_waiting_corrections": "corrections that wait for the log",
    "fleet_waiting_bytes": "disk space of the corrections that wait",
    "fleet_waiting_seconds": "how long the oldest of them has waited",
}
"""name -> meaning; `spamnb/operations/status.py` has the values"""
_SAMPLE = {
    "free_bytes": 0,
    "model": {
        "messages": {"ham": 1},
        "learnt": {"ham": 1},
        "persons": {"count": 0, "bytes": 0, "largest": 0},
        "threshold": {"log_odds": 5.2, "ham": 0},
    },
    "webhooks": [{"webhook": "chat", "waiting": 0, "dropped": 0, "error": ""}],
    "fleet": {
        "fault": "",
        "lag_s": 0.0,
        "folded_entries": 0,
        "copied": True,
        "waiting": 0,
        "waiting_bytes": 0,
        "waiting_s": 0,
        "host": "mx1",
        "hosts": [],
    },
}


def plain(text):
    """Write a text so that Markdown shows it as it is; code in backquotes stays code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_<>\[\]])", r"\\\1", part) for part in parts
    )


def cell(text):
    """Write a text for the cell of a table."""
    return plain(text).replace("|", r"\|")


def table(heads, rows):
    """Write a table; each row has as many cells as there are heads."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def code(text, language=""):
    """Write a fenced block."""
    return f"```{language}\n{text.rstrip()}\n```\n\n"


def _setting(one, default):
    later = "\n\nA change needs a restart of the daemon." if one.restart else ""
    names = f"Environment: `{one.variable}`. " if ".*." not in one.name else ""
    return (
        f"### {one.name}\n\n{plain(one.reason)}{later}\n\n"
        f"Default: `{toml_of(default)}`. {names}Allowed: {plain(one.type.allowed)}.\n\n"
    )


def settings_page():
    """Return the page of all settings, by section."""
    defaults, sections = Settings(), {}
    for one in SETTINGS:
        text = _setting(one, value_of(defaults, one.name))
        sections[one.section] = sections.get(one.section, "") + text
    found = (
        "# Settings\n\nThe settings file is TOML: `store.limit_bytes` is the key `limit_bytes` "
        "in the section `[store]`. An environment variable overrides the file. An unknown key is "
        "an error. `spamnb config example` prints a file with all settings, `spamnb config "
        "check` checks one.\n\n"
    )
    for section, text in sections.items():
        found += f"## {f'[{section}]' if section else 'Without a section'}\n\n{text}"
    for family in FAMILIES.values():
        members = MEMBERS[family.name]()
        found += f"## [{family.name}.NAME]\n\n{plain(family.reason)}\n\n"
        found += "".join(_setting(one, getattr(members, one.key)) for one in family.settings)
    return found


def _option(option, ctx):
    names = ", ".join((*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" {option.make_metavar(ctx)}"
    return [f"`{names}{value}`".replace("|", r"\|"), cell(option.help or "")]


def _command(title, command, ctx, level):
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    found = f"{'#' * level} {title}\n\n{code(usage)}"
    found += "".join(f"{plain(part)}\n\n" for part in re.split(r"\n\s*\n", command.help or ""))
    shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if shown:
        found += table(["option", "meaning"], [_option(one, ctx) for one in shown])
    if getattr(command, "examples", ""):
        found += code(command.examples)
    for name in command.list_commands(ctx) if isinstance(command, click.Group) and level else ():
        one = command.get_command(ctx, name)
        found += _command(f"{title} {name}", one, click.Context(one, ctx, name), level + 1)
    return found


def commands_page():
    """Return the page of all commands with their options."""
    top = click.Context(cli, info_name="spamnb")
    options = [one for one in cli.params if isinstance(one, click.Option) and not one.hidden]
    found = "# Commands\n\n" + code("spamnb [OPTIONS] COMMAND [ARGS]...")
    found += "Options before the command:\n\n"
    found += table(["option", "meaning"], [_option(one, top) for one in options])
    found += "## Exit codes\n\n" + table(["code", "meaning"], [[n, cell(m)] for n, m in EXIT_CODES])
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        found += _command(f"spamnb {name}", command, click.Context(command, top, name), 2)
    return found


def headers_page():
    """Return the page of all header fields."""
    found = "# Header fields\n\nEvery header field that spamnb writes, reads or ignores.\n\n"
    for group in GROUPS:
        rows = [
            [", ".join(f"`{name}`" for name in one.names.split(", ")), cell(one.text)]
            for one in group.headers
        ]
        found += f"## {group.title}\n\n{plain(group.text)}\n\n" + table(["field", "meaning"], rows)
    return found


def log_page():
    """Return the page of the log's events and keys."""
    found = (
        "# Log\n\nThe daemon writes one line for each event, as text or as JSON (`log.format`). "
        "Each line has the time, `event`, and `level` (`info` if it is missing). A message that "
        "passes has one line `message`; the delivery agent writes one line `delivery`.\n\n## "
        "Keys\n\n"
    )
    rows = [[f"`{key}`", cell(text)] for key, text in sorted(KEYS.items())]
    found += table(["key", "meaning"], rows) + "## Events\n\n"
    rows = [
        [
            f"`{one.name}`",
            ", ".join(one.levels) or "info",
            ", ".join(f"`{key}`" for key in one.keys) or "no others",
        ]
        for one in events()
    ]
    return found + table(["event", "level", "keys"], rows)


def metrics_page():
    """Return the page of the metrics."""
    found = (
        "# Metrics\n\n`spamnb status --prometheus`, `GET /metrics` of a scanner listener and of "
        "the HTTP API give these, in the text format of Prometheus. Counters start at 0 when the "
        "daemon starts.\n\n"
    )
    counters = [[f"`spamnb_{name}_total`", cell(text)] for name, text in COUNTERS.items()]
    found += "## Counters\n\n" + table(["counter", "what it counts"], counters)
    times = [[f"`spamnb_{name}`", cell(text)] for name, text in HISTOGRAMS.items()]
    found += "## Histograms\n\n" + table(["histogram", "what it measures"], times)
    names = dict.fromkeys(name.partition("{")[0] for name in gauges(_SAMPLE))
    rows = [[f"`spamnb_{name}`", cell(GAUGES[name])] for name in names]
    return found + "## Gauges\n\n" + table(["gauge", "what it tells"], rows)


def _parameter(one):
    shown = "required" if one.required else ""
    if one.default is not None and one.default != "":
        shown = f"`{json.dumps(one.default)}`"
    return [f"`{one.name}`", cell(one.text), cell(one.type.allowed), shown]


def socket_page():
    """Return the page of the operations of the control socket."""
    found = (
        "# Control socket\n\nThe daemon answers requests at its socket (`serve.control`): a line "
        "of JSON with `op` and its parameters, and with `bytes` the number of bytes that follow. "
        "[Teaching](../docs/teaching.md) has an example. The commands of spamnb use it, too.\n\n"
    )
    for name, one in OPERATIONS.items():
        right = " For administrators." if one.right == "admins" else ""
        found += f"## {name}\n\n{plain(one.summary)}{right}\n\n"
        rows = [_parameter(parameter) for parameter in one.parameters]
        found += table(["parameter", "meaning", "allowed", "default"], rows) if rows else ""
    return found


def pages():
    """Return the pages of the reference by name."""
    assert {key for one in events() for key in one.keys} <= KEYS.keys(), FACTS
    return {
        "settings": settings_page(),
        "commands": commands_page(),
        "headers": headers_page(),
        "log": log_page(),
        "metrics": metrics_page(),
        "socket": socket_page(),
    }
