"""`spamnb import`: add an export, a prior, or the counts of another filter to the model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.main import command
from spamnb.cli.messages import kept_file
from spamnb.cli.printing import safe, say, say_json, table, warn
from spamnb.cli.session import CliSession, asking, pass_session, source_fields
from spamnb.errors import StoreMissingError, UserError

if TYPE_CHECKING:
    from typing import TypeAlias

    from spamnb.lab.statistics import EvaluationMetrics, HamLossBound
    from spamnb.maintenance.imports import DumpOptions
    from spamnb.model.events import Recipe

    Checked: TypeAlias = tuple[EvaluationMetrics, HamLossBound]

FORMATS = ("bogofilter", "spambayes", "popfile", "spamassassin", "rspamd", "dspam", "crm114")
"""The keys of `READERS` and `REFUSED` in `maintenance/imports.py`, which is slow to import."""

EXAMPLES = """
spamnb import counts.jsonl                  add the counts of another copy of this model
spamnb undo 1042                            undo the import, by its event number
spamnb --home new/ import --as-new counts.jsonl
spamnb import --as-new prior.jsonl          make a model with a prior, and a key of its own
spamnb import prior.jsonl                   add a prior to a model
bogoutil -d ~/.bogofilter/wordlist.db | spamnb import --from bogofilter -
spamnb import --from spambayes --dry-run words.csv     made by sb_dbexpimp -e -f words.csv
spamnb import --from popfile popfile.db
"""


@command("Add an export, or the counts of another filter.", EXAMPLES, name="import")
@click.argument("file", default="-")
@click.option("--as-new", is_flag=True, help="Create a new model; needs an export --with-key, or a "
              "prior.")  # fmt: skip
@click.option("--from", "format_", type=click.Choice(FORMATS), help="FILE is the dump of this "
              "filter. A missing model is created.")  # fmt: skip
@click.option("--most", type=click.IntRange(1, 1_000_000), default=3000, show_default=True,
              metavar="N", help="The dump counts as at most N messages.")  # fmt: skip
@click.option("--label-ham", default="ham", show_default=True, metavar="NAME",
              help="The model's label for ham of the dump.")  # fmt: skip
@click.option("--label-spam", default="spam", show_default=True, metavar="NAME",
              help="The model's label for spam of the dump.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show how much of the dump this model can use, and "
              "change nothing.")  # fmt: skip
@click.option("--again", is_flag=True, help="Import the dump although it was imported before.")
@click.option("--check", nargs=2, metavar="HAM SPAM", help="Afterwards score the newest 500 "
              "messages of these folders, and show how good the model is.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_session
def import_(session: CliSession, /, **given: Any) -> None:
    """Add an export to the model, as one event that `undo` can remove.

    The export must come from a copy of this model, because feature ids depend on the secret key:
    fingerprint, kind and labels must match. Importing a file twice counts it twice.

    A prior (`export --prior`) may come from any model of mail with the same labels. It counts as no
    message, so the model's own training soon outweighs it. The journal lists it under the channel
    prior. Import a prior only from a server that you trust and that gets similar mail.

    With --from, the counts of another filter are mapped to this model's features. If the mail that
    it was trained with still exists, `train` gives better results. Imported counts alone never mark
    mail as junk: the model must also learn 3 messages of each label.
    """
    options = _options(given)
    try:
        path = kept_file(given["file"])
        if given["dry_run"]:
            found = _mapped(session, path, options)
        else:
            if given["as_new"]:
                _create(session, path)
            elif options is None and not session.home.is_dir():
                raise StoreMissingError(
                    f"there is no model in {session.home}", hint="add --as-new to create one"
                )
            found = _sent(session, path, given, options)
    except OSError as error:
        name = error.filename or given["file"]
        act = "read" if name == given["file"] else "written"
        raise UserError(f"{safe(str(name))} cannot be {act}: {error.strerror}") from error
    checked = _checked(session, given["check"]) if given["check"] else None
    if given["as_json"]:
        say_json(found | ({"check": checked[0].as_dict()} if checked else {}))
        return
    _show(found, given)
    if checked:
        _show_check(session, *checked)
    elif given["format_"] is not None and not given["dry_run"]:
        say("nothing was checked: --check HAM SPAM shows how good the model is on your mail")


_ADDITIONS = ("dry_run", "again", "check")


def _options(given: dict[str, Any]) -> DumpOptions | None:
    """Return how a dump is imported; None for an export or a prior."""
    if given["format_"] is None:
        for name in _ADDITIONS:
            if given[name]:
                raise UserError(f"--{name.replace('_', '-')} needs --from")
        return None
    if given["check"] and given["dry_run"]:
        raise UserError("--check needs the imported counts", hint="leave out --dry-run")
    if given["as_new"]:
        raise UserError("--from creates a missing model itself", hint="leave out --as-new")
    from spamnb.maintenance.imports import DumpOptions

    labels = given["label_ham"], given["label_spam"]
    return DumpOptions(given["format_"], labels, given["most"])


def _mapped(session: CliSession, path: str, options: DumpOptions | None) -> dict[str, Any]:
    """Map a dump for the model of the home, or for a new one, without changing it."""
    from spamnb.maintenance.imports import read_dump
    from spamnb.store.files import open_named

    assert options is not None, "--dry-run needs --from"
    with os.fdopen(open_named(path), "rb") as file:
        return read_dump(_recipe(session), file, options).as_dict()


def _recipe(session: CliSession) -> Recipe:
    """Return the recipe of the home's model, or a new one by the settings."""
    from spamnb.store.model_store import open_store

    try:
        store = open_store(session.home, readonly=True)
    except StoreMissingError:
        return session.model_config().recipe()
    try:
        return store.recipe
    finally:
        store.close()


def _sent(
    session: CliSession, path: str, given: dict[str, Any], options: DumpOptions | None
) -> dict[str, Any]:
    """Have the file added, by the daemon or in this process."""
    from spamnb.store.files import open_named

    fields = source_fields()
    if options is not None:
        ham, spam = options.labels
        fields |= {"format": options.format, "label_ham": ham, "label_spam": spam}
        fields |= {"most": options.most, "again": given["again"]}
    with asking(session, long=True) as client, os.fdopen(open_named(path), "rb") as lines:
        if given["as_new"]:
            client.ask("reload", settings=False)
        size = os.fstat(lines.fileno()).st_size
        reply = client.ask_with_file("import", lines, size, **fields)
    figures = {name: value for name, value in reply.items() if name not in ("ok", "receipt")}
    return {**reply["receipt"], **figures}


def _create(session: CliSession, path: str) -> None:
    """Create the model that an export describes, or one with a new key for a prior."""
    from spamnb.cli.train import refuse_odd
    from spamnb.engine.filter import new_recipe
    from spamnb.engine.prior import is_prior, read_prior
    from spamnb.maintenance.export import create, lines_of, read_export, recipe_of
    from spamnb.store.files import open_named

    try:
        with os.fdopen(open_named(path), encoding="utf-8") as lines:
            if is_prior(lines):
                recipe = new_recipe(labels=read_prior(lines).labels)
            else:
                recipe = recipe_of(read_export(lines_of(lines)))
        refuse_odd(recipe.labels)
        create(session.home, recipe)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _show(found: dict[str, Any], given: dict[str, Any]) -> None:
    if given["format_"] is not None:
        _show_dump(found)
    if given["dry_run"]:
        say(f"{found['features']} features found; nothing was changed")
        return
    say(f"{found['features']} features added, event {found['event']}")
    if given["format_"] is not None:
        say(f"if you still have the mail, training with it gives better results: "
            f"spamnb undo {found['event']} && spamnb train HAM SPAM")  # fmt: skip


def _checked(session: CliSession, sources: tuple[str, str]) -> Checked:
    from spamnb.lab.evaluate import check_model

    with session.open(readonly=True) as model:
        return check_model(model, sources, session.settings.ham_loss.one_in, warn)


def _show_check(session: CliSession, metrics: EvaluationMetrics, bound: HamLossBound) -> None:
    from spamnb.lab.report import loss_bound_text, percent

    corpus = metrics.corpus
    rows = [
        ("checked", f"{corpus.ham} ham and {corpus.spam} spam"),
        ("1-AUC", percent(metrics.auc_complement_percent, 4)),
        ("ham lost", percent(metrics.ham_lost_percent, 2)),
        ("spam missed", percent(metrics.spam_missed_percent, 2)),
        ("calibration error", f"{metrics.calibration_error:.4f}"),
    ]
    table(rows)
    say(loss_bound_text(bound, session.settings.costs))


def _show_dump(found: dict[str, Any]) -> None:
    ham, spam = found["trained"]
    counted = "counts as {} ham and {} spam".format(*found["messages"])
    rows = [
        ("trained with", f"{ham} ham and {spam} spam; {counted}"),
        ("words", f"{found['taken']} taken, {found['left_out']} have no place in this model"),
    ]
    if found["weight"] != 1:
        rows.append(("weight", f"{found['weight']:g}, because it counts words, not messages"))
    if found["skipped"]:
        rows.append(("skipped", f"{found['skipped']} lines that are not a word with its counts"))
    if found["cleaned"]:
        removed = "contain control or invisible characters, which are removed, as in mail"
        rows.append(("cleaned", f"{found['cleaned']} words {removed}"))
    table([(name, safe(text)) for name, text in rows])
