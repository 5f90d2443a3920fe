"""`spamnb stats`, `check`, `backup`, `restore`, `export`, `expire` and `compact`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from spamnb.cli.main import command
from spamnb.cli.printing import safe, say, say_json, table, warn
from spamnb.cli.session import CliSession, asking, pass_session, refuse_while_served, source_fields
from spamnb.errors import RefusedError, UserError

if TYPE_CHECKING:
    from spamnb.maintenance.export import ModelStats

JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@command("Show statistics of the model.", "spamnb stats\nspamnb stats --json")
@JSON
@pass_session
def stats(session: CliSession, as_json: bool) -> None:
    """Show statistics of the model: messages, features, words, size, thresholds."""
    from spamnb.maintenance import export as upkeep

    with session.open(readonly=True, history=True) as model:
        found = upkeep.stats(session.home, model.store, model.history, model.costs)
    if as_json:
        say_json(found.as_dict())
    else:
        _show(found)


def _show(found: ModelStats) -> None:
    known = f", {found.bytes_per_feature} per feature" if found.features else ""
    rows = [
        ("home", found.home),
        ("kind", found.kind),
        *((f"messages {label}", str(count)) for label, count in found.messages.items()),
        ("features", str(found.features)),
        *([("  of a prior", str(found.prior))] if found.prior else []),
        ("words", str(found.words)),
        ("journal", f"{found.events} events, {found.folded} in the checkpoint"),
        ("store", f"{found.store_bytes} bytes{known}"),
        ("limit", f"{found.store_limit_bytes} bytes"),
        ("history", f"{found.history} verdicts over {found.history_days} days"),
        ("key", f"{found.fingerprint} (fingerprint)"),
        ("constants", ", ".join(f"{name} {value}" for name, value in found.constants.items())),
        *((f"{decision} from", f"{p:.6f}") for decision, p in found.thresholds.items()),
    ]
    table(rows)


@command("Verify the model against its journal.", "spamnb check")
@JSON
@pass_session
@click.pass_context
def check(ctx: click.Context, session: CliSession, as_json: bool) -> None:
    """Verify every count, sum and index of the model against its journal.

    Exit code 0 if the model is consistent; otherwise 1, and one line per contradiction. May run
    while other processes score and train.
    """
    from spamnb.maintenance import export as upkeep

    with session.open(readonly=True) as model:
        faults = upkeep.check(model.store)
    if as_json:
        say_json({"sound": not faults, "faults": faults})
    else:
        for fault in faults:
            say(safe(fault))
        sound = "sound: the model agrees with its journal"
        say(f"{len(faults)} contradictions" if faults else sound)
    if faults:
        ctx.exit(1)


@command("Copy the model to a file.", "spamnb backup /backup/model.spamnb")
@click.argument("file", type=click.Path(dir_okay=False))
@JSON
@pass_session
def backup(session: CliSession, file: str, as_json: bool) -> None:
    """Copy the model to one consistent, compact file, while it stays in use.

    The file contains the secret key and words of messages; only its owner can read it.
    """
    from spamnb.store import maintenance

    size = maintenance.backup(session.home, file)
    if as_json:
        say_json({"file": file, "bytes": size})
    else:
        say(f"{size} bytes written to {safe(file)}")


RESTORE_EXAMPLES = """
spamnb restore /backup/model.spamnb
spamnb restore --force /backup/model.spamnb      replace the existing model
"""


@command("Restore a backup.", RESTORE_EXAMPLES)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace an existing model.")
@pass_session
def restore(session: CliSession, file: str, force: bool) -> None:
    """Restore a backup. The file is checked before anything is changed."""
    from spamnb.store import maintenance
    from spamnb.store.model_store import DATA_FILE

    if (session.home / DATA_FILE).exists() and not force:
        raise RefusedError(
            f"there is already a model in {session.home}",
            hint="--force replaces it; back it up first",
        )
    refuse_while_served(session, "restore")
    maintenance.restore(file, session.home, overwrite=force)
    say(f"restored {safe(file)} to {safe(str(session.home))}")


EXPORT_EXAMPLES = """
spamnb export counts.jsonl                  a header, then one line per feature
spamnb export - | head                      print the first lines
spamnb export --with-key counts.jsonl       to create a new model with `import --as-new`
spamnb export --prior prior.jsonl           to give other models a start, see `import`
"""


@command("Export the model as text.", EXPORT_EXAMPLES)
@click.argument("file", default="-")
@click.option("--with-key", is_flag=True, help="Include the secret key, for `import --as-new`. "
              "A sender with the key can construct words that this filter confuses "
              "with others.")  # fmt: skip
@click.option("--prior", is_flag=True, help="Export a prior instead: common words and shapes of "
              "mail without addresses, hosts and links, for models with other keys.")  # fmt: skip
@click.option("--persons", is_flag=True, help="Include the names and corrections of persons, for "
              "a model with the same key.")  # fmt: skip
@pass_session
def export(session: CliSession, file: str, with_key: bool, prior: bool, persons: bool) -> None:
    """Export the model as JSON lines.

    The first line is the header: format, version, kind, labels, fingerprint of the key, recipe,
    messages and tokens of each label, bias, temperatures, number of features. Then one line per
    feature: id (16 hex digits), n (messages of each label), w (corrections in 2^-20 nats), day
    (last trained, days since 2000-01-01), location and token.

    A prior has 5 % of the counts, and at most those of 300 messages, so it has only words that many
    messages contain. Words in the names and addresses of senders and recipients are left out. The
    prior may still contain other names: read it before you give it to others.

    With --persons, a line per person follows: person (16 hex digits), name, places and values. An
    import adds the persons that have no corrections in the model yet, each in one event.
    """
    from spamnb.engine.prior import make_prior
    from spamnb.maintenance.export import export as lines

    if prior and (with_key or persons):
        raise UserError("a prior has no key or persons", hint="leave out --prior")
    if with_key:
        warn("the export contains the secret key: protect it like the model")
    with session.open(readonly=True) as model, _written(file) as out:
        whole = partial(lines, with_key=with_key, persons=persons)
        out.writelines((make_prior if prior else whole)(model.store))


@contextmanager
def _written(file: str) -> Iterator[TextIO]:
    """Open a new private file, or an existing device or pipe; a failed file is removed."""
    if file == "-":
        yield sys.stdout
        return
    from spamnb.store.files import as_caller, open_named, replacing

    with as_caller():
        special = Path(file).exists() and not Path(file).is_file()
    try:
        if special:
            with os.fdopen(open_named(file, os.O_WRONLY), "w", encoding="ascii") as out:
                yield out
            return
        with (
            replacing(file) as handle,
            os.fdopen(handle, "w", encoding="ascii", closefd=False) as out,
        ):
            yield out
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from error


@command("Delete old data.", "spamnb expire        once a day, from cron or a timer")
@click.option("--trust-clock", is_flag=True, help="Accept the clock as correct after it jumped.")
@JSON
@pass_session
def expire(session: CliSession, trust_clock: bool, as_json: bool) -> None:
    """Delete data older than the configured limits. Scoring and training continue meanwhile.

    Events older than journal.keep_days are merged into the checkpoint and can no longer be undone.
    Features not trained for expire.after_days, in at most expire.max_messages messages, are
    deleted. Verdicts older than history.keep_days are deleted. Files do not shrink: use `compact`.

    After the system clock has jumped ahead, data expires by uptime instead, here and in the
    quarantine, until 30 days of uptime have passed at the new time, or until the administrator
    confirms the clock with --trust-clock.
    """
    with asking(session, long=True) as client:
        reply = client.ask("expire", trust_clock=trust_clock, **source_fields()).header
    _show_expired(reply["expired"], reply["warning"], as_json=as_json)


def _show_expired(counts: dict[str, int], warning: str, *, as_json: bool) -> None:
    if warning:
        warn(warning)
    if as_json:
        say_json(counts)
    else:
        say(f"{counts['events_folded']} events merged into the checkpoint, "
            f"{counts['features_dropped']} features deleted, "
            f"{counts['verdicts_forgotten']} verdicts deleted")  # fmt: skip


@command("Shrink the model file.", "spamnb compact")
@JSON
@pass_session
def compact(session: CliSession, as_json: bool) -> None:
    """Rewrite the model file without unused pages. Stop the daemon first."""
    from spamnb.store import maintenance

    refuse_while_served(session, "compact")
    before, after = maintenance.compact(session.home)
    if as_json:
        say_json({"bytes_before": before, "bytes_after": after})
    else:
        say(f"{before} bytes -> {after} bytes")
