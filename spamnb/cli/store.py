"""Commands that look after a model: what it holds, copies of it, letting go of what is old."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from spamnb.cli.daemon_client import RunningDaemon, refuse_while_served, served
from spamnb.cli.help import taught
from spamnb.cli.printing import safe, say, say_json, table, warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import RefusedError, UserError

if TYPE_CHECKING:
    from spamnb.service.maintenance.stats import ModelStats

JSON = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")


@taught("Tell what the model holds.", "spamnb stats\nspamnb stats --json")
@JSON
@pass_session
def stats(session: CliSession, as_json: bool) -> None:
    """Tell what the model holds: messages, features, words, size, thresholds."""
    from spamnb.service.maintenance import stats as upkeep

    kept = session.open_history() if (session.home / "history").is_dir() else None
    try:
        with session.open(readonly=True) as model:
            found = upkeep.stats(session.home, model.store, kept, model.costs)
    finally:
        if kept:
            kept.close()
    if as_json:
        say_json(found.as_dict())
    else:
        _show(found)


def _show(found: ModelStats) -> None:
    known = f", {found.bytes_per_feature} a feature" if found.features else ""
    rows = [
        ("home", found.home),
        ("kind", found.kind),
        *((f"messages {label}", str(count)) for label, count in found.messages.items()),
        ("features", str(found.features)),
        ("words", str(found.words)),
        ("journal", f"{found.events} events, {found.folded} folded"),
        ("store", f"{found.store_bytes} bytes{known}"),
        ("limit", f"{found.store_limit_bytes} bytes"),
        ("history", f"{found.history} verdicts over {found.history_days} days"),
        ("key", f"{found.fingerprint} (its fingerprint)"),
        ("constants", ", ".join(f"{name} {value}" for name, value in found.constants.items())),
        *((f"{decision} from", f"{p:.6f}") for decision, p in found.thresholds.items()),
    ]
    table(rows)


@taught("Compare the model with its journal.", "spamnb check")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@pass_session
@click.pass_context
def check(ctx: click.Context, session: CliSession, as_json: bool) -> None:
    """Compare the model with its own journal: every count, sum and index.

    Exit 0 if nothing contradicts itself, 1 if something does, each contradiction on a line. May run
    while others score and learn.
    """
    from spamnb.service.maintenance import stats as upkeep

    with session.open(readonly=True) as model:
        faults = upkeep.check(model.store)
    if as_json:
        say_json({"sound": not faults, "faults": faults})
    else:
        for fault in faults:
            say(safe(fault))
        sound = "sound: the model is what its journal says"
        say(f"{len(faults)} contradictions" if faults else sound)
    if faults:
        ctx.exit(1)


@taught("Copy the model to one file.", "spamnb backup /backup/model.spamnb")
@click.argument("file", type=click.Path(dir_okay=False))
@JSON
@pass_session
def backup(session: CliSession, file: str, as_json: bool) -> None:
    """Copy the model to one file, consistent and dense, while others go on using it.

    The file holds the secret key and words of people's mail: it is readable by its owner only.
    """
    from spamnb.store import maintenance

    size = maintenance.backup(session.home, file)
    if as_json:
        say_json({"file": file, "bytes": size})
    else:
        say(f"{size} bytes in {safe(file)}")


RESTORE_EXAMPLES = """
spamnb restore /backup/model.spamnb
spamnb restore --force /backup/model.spamnb      over the model that is there
"""


@taught("Bring a backup back.", RESTORE_EXAMPLES)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace the model that is there.")
@pass_session
def restore(session: CliSession, file: str, force: bool) -> None:
    """Bring a backup back. The copy is checked before anything is touched."""
    from spamnb.store import maintenance
    from spamnb.store.lmdb.sharing import DATA_FILE

    if (session.home / DATA_FILE).exists() and not force:
        raise RefusedError(
            f"there is a model in {session.home} already",
            hint="--force replaces it; back it up first",
        )
    refuse_while_served(session, "restore")
    maintenance.restore(file, session.home, overwrite=force)
    say(f"restored {safe(file)} to {safe(str(session.home))}")


EXPORT_EXAMPLES = """
spamnb export counts.jsonl                  text: a header, then one line a feature
spamnb export - | head                      to look at
spamnb export --with-key counts.jsonl       to make a new model of it elsewhere
"""


@taught("Write the model as text.", EXPORT_EXAMPLES)
@click.argument("file", default="-")
@click.option("--with-key", is_flag=True, help="Write the secret key as well, for --as-new. "
              "Whoever has it can make words that this filter takes for others.")  # fmt: skip
@pass_session
def export(session: CliSession, file: str, with_key: bool) -> None:
    """Write the model as text, JSON lines.

    The first line is the header: format, version, kind, labels, fingerprint of the key, recipe,
    messages and tokens of each label, bias, temperatures, number of features; then a line each:
    id (16 hex digits), n (messages of each label), w (corrections in 2^-20 nats), day (last learnt,
    days since 2000-01-01), place and token.
    """
    from spamnb.service.maintenance.export_import import export as lines

    if with_key:
        warn("the export holds the secret key: keep it as you keep the model")
    with session.open(readonly=True) as model, _written(file) as out:
        out.writelines(lines(model.store, with_key=with_key))


@contextmanager
def _written(file: str) -> Iterator[TextIO]:
    """Open a private new file, or what is no plain file; one that failed half way is not left."""
    if file == "-":
        yield sys.stdout
        return
    from spamnb.store.named_files import as_caller, open_named, replacing

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


IMPORT_EXAMPLES = """
spamnb import counts.jsonl                  add the counts of another copy of this model
spamnb undo 1042                            take it back, with the number that import told
spamnb --home new/ import --as-new counts.jsonl
"""


@taught("Add an export, as one event.", IMPORT_EXAMPLES, name="import")
@click.argument("file", default="-")
@click.option("--as-new", is_flag=True, help="Make a new model; needs an export --with-key.")
@JSON
@pass_session
def import_(session: CliSession, file: str, as_new: bool, as_json: bool) -> None:
    """Add an export to the model, as one event that `undo` takes back.

    Features mean the same under the same key only, so the export must come from a copy of this
    model: its fingerprint, kind and labels are compared. Importing twice counts twice.
    """
    from spamnb.service.maintenance.export_import import merge, read_export, recipe_of
    from spamnb.store.lmdb.sharing import DATA_FILE
    from spamnb.store.lmdb.store import open_store

    daemon = served(session)
    if daemon is not None and not as_new:
        _import_through(session, daemon, file, as_json=as_json)
        return
    try:
        with _lines(file) as lines:
            exported = read_export(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if as_new:
        if (session.home / DATA_FILE).exists():
            raise RefusedError(
                f"there is a model in {session.home} already", hint="name another --home"
            )
        open_store(session.home, create=recipe_of(exported)).close()
    with session.open() as model:
        receipt = merge(model, exported, source=session.source())
    _show_import(receipt.as_dict() | {"features": len(exported.bulk.ids)}, as_json=as_json)


@contextmanager
def _lines(file: str) -> Iterator[TextIO]:
    from spamnb.store.named_files import open_named

    if file == "-":
        yield sys.stdin
        return
    with os.fdopen(open_named(file), encoding="utf-8") as lines:
        yield lines


def _import_through(
    session: CliSession, daemon: RunningDaemon, file: str, *, as_json: bool
) -> None:
    """Have the daemon add it; it reads the file through the socket, by our rights."""
    from spamnb.cli.messages import kept_file
    from spamnb.endpoints.control.training_client import sent_file

    who = session.source().who
    try:
        told = sent_file(
            daemon.control, "import", kept_file(file), channel="cli", trust="admin", **{"for": who}
        )
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    receipt: dict[str, Any] = told["receipt"]
    _show_import(receipt | {"features": told["features"]}, as_json=as_json)


def _show_import(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say_json(told)
    else:
        say(f"{told['features']} features added, event {told['event']}")


@taught("Let go of what is too old.", "spamnb expire        once a week, from cron or a timer")
@click.option("--trust-clock", is_flag=True, help="The clock is right, though it has jumped.")
@JSON
@pass_session
def expire(session: CliSession, trust_clock: bool, as_json: bool) -> None:
    """Let go of what is too old, by the settings; others go on scoring and learning meanwhile.

    Trainings older than journal.keep_days can then not be undone any more; features that nobody
    taught for expire.after_days and that at most expire.max_messages messages held are dropped; the
    history forgets verdicts older than history.keep_days. Files do not shrink: `compact` does that.

    Nothing expires by a clock that has jumped ahead, here or in quarantine, until 30 days of uptime
    have passed at the new time, or an administrator says that the clock is right. Until then things
    expire by the uptime.
    """
    from spamnb.service.maintenance.expiry import ExpiryRules, newest_us
    from spamnb.service.maintenance.expiry import expire as let_go
    from spamnb.service.maintenance.expiry_clock import expiry_mark, warning

    daemon = served(session)
    if daemon is not None:
        from spamnb.endpoints.control.protocol import LONG_S, ControlClient

        who = session.source().who
        with ControlClient(daemon.control, LONG_S) as caller:
            said = {"channel": "cli", "trust": "admin", "for": who, "trust_clock": trust_clock}
            told = caller.ask("expire", b"", **said).header
        _show_expired(told["expired"], told["warning"], as_json=as_json)
        return
    settings = session.settings
    rules = ExpiryRules(
        settings.journal.keep_days, settings.expire.after_days, settings.expire.max_messages
    )
    with session.open() as model:
        kept = session.open_history()
        try:
            mark = expiry_mark(session.home, newest_us(model.store), trust=trust_clock)
            now = mark.expires_us
            gone = let_go(model.store, kept, rules, now_us=now, source=session.source())
        finally:
            kept.close()
    _show_expired(gone.as_dict(), warning(mark), as_json=as_json)


def _show_expired(gone: dict[str, int], warning: str, *, as_json: bool) -> None:
    if warning:
        warn(warning)
    if as_json:
        say_json(gone)
    else:
        say(f"{gone['events_folded']} events folded, {gone['features_dropped']} features dropped, "
            f"{gone['verdicts_forgotten']} verdicts forgotten")  # fmt: skip


@taught("Rewrite the file densely.", "spamnb compact")
@JSON
@pass_session
def compact(session: CliSession, as_json: bool) -> None:
    """Rewrite the model's file densely. Nobody else may have it open: stop the daemon first."""
    from spamnb.store import maintenance

    refuse_while_served(session, "compact")
    before, after = maintenance.compact(session.home)
    if as_json:
        say_json({"bytes_before": before, "bytes_after": after})
    else:
        say(f"{before} bytes -> {after} bytes")
