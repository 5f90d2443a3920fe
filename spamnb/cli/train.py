"""`spamnb train`: train the model with folders of sorted mail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from math import exp
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spamnb.cli.labels import labelled_sources
from spamnb.cli.main import command
from spamnb.cli.options import command_words
from spamnb.cli.printing import progress_bar, safe, say, say_json, warn
from spamnb.cli.session import CliSession, RunningDaemon, as_root, pass_session, served
from spamnb.errors import CorpusError, StoreMissingError, UserError

if TYPE_CHECKING:
    from spamnb.engine.bulk import Progress, Summary, TrainingOptions
    from spamnb.engine.mailboxes import MailSource
    from spamnb.engine.values import Source
    from spamnb.imap.client import ImapClient, StopSignal
    from spamnb.imap.old_mail import Kind
    from spamnb.lab.decisions import Expectation
    from spamnb.mail.headers import Fields
    from spamnb.model.events import Recipe
    from spamnb.settings.values import ImapParams

SHOWN_UNREADABLE = 10

EXAMPLES = """
spamnb train ham/ spam/                            folders of any depth, Maildirs, mboxes, files
spamnb train ~/Maildir/cur ~/Maildir/.Junk/cur     folders of your mail program
spamnb train --label ham=inbox.mbox                one label only
spamnb train --label work=w/ --label private=p/    other labels
spamnb train --plain --classes news/ --thresholds  plain text files, one folder per label
spamnb train --labels folders ~/Maildir            Junk is spam, own folders are ham
spamnb train --labels sa:backup.txt ~/Maildir      what sa-learn --backup lists as trained
spamnb train --kind multinomial ham/ spam/         create a classical model
spamnb train --sent ~/Maildir/.Sent --person ann   remember whom a person writes to
spamnb train --mailbox alice --mailbox bob         mail that users have sorted, from Dovecot
"""


@command("Train with folders of sorted mail.", EXAMPLES)
@click.argument("folders", nargs=-1, metavar="[HAM SPAM]")
@click.option("--label", "labelled", multiple=True, metavar="NAME=PATH",
              help="Messages of a label; repeatable.")  # fmt: skip
@click.option("--kind", type=click.Choice(["corrected", "multinomial", "bernoulli"]),
              help="Kind of a new model.")  # fmt: skip
@click.option("--no-vocabulary", is_flag=True, help="Create a model without words: it is smaller, "
              "but a verdict can only be explained with the message.")  # fmt: skip
@click.option("--no-prior", is_flag=True, help="Create an empty model, without the weights of "
              "common words that ship with spamnb.")  # fmt: skip
@click.option("--plain", is_flag=True, help="The input is plain text, not mail; a new model is "
              "created for plain text.")  # fmt: skip
@click.option("--labels", "labels_by", metavar="sa:FILE|folders|flags", help="Find the "
              "labels of mixed mail by a backup of sa-learn, by the names of folders and the "
              "answered flag, or by the keywords $Junk and $NotJunk.")  # fmt: skip
@click.option("--yes", is_flag=True, help="With --labels: do not ask before training.")
@click.option("--classes", metavar="DIR", help="Same as --label NAME=DIR/NAME for every folder in "
              "DIR.")  # fmt: skip
@click.option(
    "--thresholds",
    is_flag=True,
    help="Choose for each label the score above which it is assigned, by cross-validation on this "
    "mail. Useful for labels other than ham and spam, especially rare ones.",
)
@click.option("--expect", "says_what_to_expect", is_flag=True, help="Score this mail by "
              "cross-validation: sets the threshold of junk until there are verdicts, and says "
              "how much would have been filed. Always done with --labels.")  # fmt: skip
@click.option("--sent", multiple=True, metavar="PATH", help="Mail that a person sent: remember, as "
              "keyed hashes, whom the person writes to. Teaches no label; repeatable.")  # fmt: skip
@click.option("--mailbox", "mailboxes", multiple=True, metavar="USER", help="Mailbox of a user of "
              "Dovecot on this machine: junk is spam; answered mail, and read mail in own folders, "
              "is ham; sent mail says whom the user writes to. One year; repeatable.")  # fmt: skip
@click.option("--mailbox-program", metavar="COMMAND", default="doveadm exec imap -u {user}",
              type=command_words, show_default=True,
              help="Program that opens a mailbox by IMAP without a password.")  # fmt: skip
@click.option("--imap", "accounts", multiple=True, metavar="NAME", help="The same for the "
              "mailbox of the section [imap.NAME] of the settings; repeatable.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(0), default=0, metavar="N",
              help="Number of processes; 0 is one per core.")  # fmt: skip
@click.option("--person", default="", metavar="NAME", help="Train for this person: an address or a "
              "login. Needs persons.enabled.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@pass_session
def train(
    session: CliSession,
    folders: tuple[str, ...],
    labelled: tuple[str, ...],
    kind: str | None,
    no_vocabulary: bool,
    no_prior: bool,
    plain: bool,
    classes: str | None,
    labels_by: str | None,
    yes: bool,
    thresholds: bool,
    says_what_to_expect: bool,
    sent: tuple[str, ...],
    mailboxes: tuple[str, ...],
    mailbox_program: list[str],
    accounts: tuple[str, ...],
    jobs: int,
    person: str,
    as_json: bool,
) -> None:
    """Train the model with sorted mail: first the folder of ham, then the folder of spam.

    Creates the model if it does not exist. Messages that were already trained change nothing, so an
    interrupted run can be repeated. Unreadable messages are counted and skipped.
    """
    named = (*labelled, *_folders_in(classes))
    if sent:
        if folders or named or labels_by:
            raise UserError("--sent teaches no label", hint="train ham and spam by another command")
        found = _learn_sent(session, sent, person)
        if as_json:
            say_json(found)
        else:
            say(_sent_text(found))
        return
    prior = session.settings.model.prior and not no_prior
    with ExitStack() as resources:
        copies = []
        if mailboxes or accounts:
            if folders or named or labels_by:
                raise UserError("mailboxes and folders exclude each other", hint="use two commands")
            users = [*_programs(mailboxes, mailbox_program), *_accounts(session, accounts)]
            copies = resources.enter_context(_copied(users, is_shown=not as_json))
            named = tuple(f"{label}={path}" for copy in copies for label, path in copy.sorted_mail)
        sources = _sources(folders, named, labels_by, thresholds=thresholds, yes=yes)
        recipe = _recipe(session, sources, kind, no_vocabulary=no_vocabulary, plain=plain)
        how = _options(session, jobs, person, prior=prior)
        summary = _learn(session, sources, recipe, how, person)
        nothing = summary.unreadable == summary.messages
        chosen = _chosen(session, sources, jobs) if thresholds and not nothing else {}
        judged = (labels_by or says_what_to_expect or copies) and not (nothing or person)
        expected = _expected(session, sources, jobs, prior=prior) if judged else None
        letters = [one for one in (_remember(session, copy) for copy in copies) if one]
        _report(summary, session.home, chosen, expected, letters, as_json=as_json)
    if nothing:
        raise CorpusError(
            f"none of the {summary.messages} files could be read as mail",
            hint="name folders, mboxes or files with mail; with --plain, any text files",
        )


def _learn(
    session: CliSession,
    sources: list[tuple[str, MailSource]],
    recipe: Recipe | None,
    how: TrainingOptions,
    person: str,
) -> Summary:
    """Train, through the daemon if one serves the home."""
    from spamnb.engine.bulk import train as learn

    with progress_bar("learning") as bar:

        def show(now: Progress) -> None:
            if bar:
                bar(now.done, now.total, f"{now.duplicates} known, {now.unreadable} unreadable")

        daemon = served(session)
        if daemon is not None:
            return _through(session, (daemon, person), sources, (recipe, how.prior), show)
        return learn(session.home, sources, recipe=recipe, training_options=how, progress=show)


class _Copy(NamedTuple):
    """The mail of one mailbox, as files."""

    user: str
    folder: Path
    counts: dict[Kind, int]

    @property
    def sorted_mail(self) -> list[tuple[Kind, Path]]:
        """The folders that have mail with a label."""
        kinds: tuple[Kind, ...] = ("ham", "spam")
        return [(kind, self.folder / kind) for kind in kinds if self.counts[kind]]


_Opened = Callable[["StopSignal"], "ImapClient"]
"""opens a mailbox"""


def _programs(users: tuple[str, ...], program: list[str]) -> Iterator[tuple[str, _Opened]]:
    """Mailboxes that a program opens."""
    from spamnb.imap.client import ImapClient
    from spamnb.settings.values import ImapTimes

    if users and which(program[0]) is None:
        raise UserError(
            f"the program {program[0]} is not here, so no mailbox can be opened",
            hint="name the program with --mailbox-program; without Dovecot, `spamnb train "
            "--labels folders MAILDIR` reads a Maildir",
        )
    for user in users:
        command = [word.replace("{user}", user) for word in program]

        def opened(stop: StopSignal, command: list[str] = command) -> ImapClient:
            with as_root():
                return ImapClient.of_program(command, ImapTimes(), stop)

        yield user, opened


def _accounts(session: CliSession, names: tuple[str, ...]) -> Iterator[tuple[str, _Opened]]:
    """Mailboxes of the settings."""
    from spamnb.imap.client import ImapClient
    from spamnb.settings.values import ImapTimes

    known = session.settings.imap
    for name in names:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise UserError(f"there is no section [imap.{name}]", hint=f"there are: {listed}")
        params = known[name]

        def opened(stop: StopSignal, params: ImapParams = params) -> ImapClient:
            return ImapClient.open(params, ImapTimes(), stop)

        yield params.user, opened


@contextmanager
def _private_folder() -> Iterator[str]:
    """A folder for this command, deleted by root: the command may act as another user then."""
    folder = TemporaryDirectory(prefix="spamnb-")
    try:
        yield folder.name
    finally:
        with as_root():
            folder.cleanup()


@contextmanager
def _copied(users: list[tuple[str, _Opened]], *, is_shown: bool) -> Iterator[list[_Copy]]:
    """Copy the mail of mailboxes into a folder that is deleted afterwards."""
    from spamnb.imap.client import StopSignal
    from spamnb.imap.old_mail import KINDS, OldMail, copy_mail

    copies = []
    with _private_folder() as work, closing(StopSignal()) as stop:
        for number, (user, opened) in enumerate(users):
            folder = Path(work, str(number))
            for kind in KINDS:
                (folder / kind).mkdir(parents=True)
            client = opened(stop)
            with closing(client), progress_bar(f"reading {safe(user)}") as bar:

                def show(done: int, bar: Any = bar) -> None:
                    if bar:
                        bar(done, done, "")

                counts = copy_mail(client, OldMail(), folder, str(number), show)
            copies.append(_Copy(user, folder, counts))
            if is_shown:
                say(f"{safe(user)}: {', '.join(f'{n} {kind}' for kind, n in counts.items())}")
        if not any(copy.sorted_mail for copy in copies):
            raise CorpusError(
                "no message has a label",
                hint="junk is spam; answered mail, and read mail in own folders, is ham",
            )
        yield copies


def _remember(session: CliSession, copy: _Copy) -> dict[str, int] | None:
    """Remember whom the owner of a mailbox writes to; None without sent mail."""
    if not (copy.counts["sent"] and session.settings.auth.correspondents):
        return None
    person = copy.user if session.persons is not None else ""
    return _learn_sent(session, (str(copy.folder / "sent"),), person)


def _learn_sent(session: CliSession, sent: tuple[str, ...], person: str) -> dict[str, int]:
    """Remember whom a person writes to, by sent mail; without persons, whom the site writes to."""
    from spamnb.engine.mailboxes import Unreadable, read_unit, spans
    from spamnb.mail.envelope import LocalHosts, address_of
    from spamnb.mail.message import parted
    from spamnb.policy.actions import named_person
    from spamnb.policy.letters import letter_in, person_name
    from spamnb.policy.senders import addresses_in
    from spamnb.records.correspondents import Correspondents
    from spamnb.telemetry import now_us

    if not session.settings.auth.correspondents:
        raise UserError("correspondents are not remembered", hint="set auth.correspondents = true")
    if session.persons is not None and not person:
        raise UserError("each person has correspondents of their own", hint="add --person NAME")
    owner = named_person(session.persons, person) if person else ""
    with session.open(readonly=True) as model:
        secret = model.recipe.key
    units, letters, now, skipped = [one for path in sent for one in spans(path)], [], now_us(), 0
    names: dict[str, str] = {}
    with progress_bar("reading") as bar:
        for number, unit in enumerate(units, 1):
            found = read_unit(unit)
            raw = b"" if isinstance(found, Unreadable) else found.raw
            fields = parted(raw, LocalHosts(), set())[0].fields
            if (letter := letter_in(fields)) is None:
                skipped += 1
            else:
                letters.append((letter.addresses, letter.message_id, _sent_us(fields, now)))
                author = addresses_in(value for name, value in fields if name == b"from")
                if (name := person_name(fields)) and len(author) == 1:
                    names[name] = address_of(author[0], "")
            if bar:
                bar(number, len(units), "")
    with closing(Correspondents(session.home, secret)) as known:
        known.note_all(owner, letters)
        for name, address in names.items():
            known.note_name(owner, name, address, now)
    people = len({one for addresses, _, _ in letters for one in addresses})
    return {"messages": len(units), "correspondents": people, "skipped": skipped}


def _sent_text(found: dict[str, int]) -> str:
    return (
        f"{found['messages']} messages: {found['correspondents']} correspondents, "
        f"{found['skipped']} messages are no letters"
    )


def _sent_us(fields: Fields, now_us: int) -> int:
    """When a message was sent, by its Date; now if it has none that can be."""
    from email.utils import parsedate_to_datetime

    dates = (value.decode("latin-1") for name, value in fields if name == b"date")
    try:
        sent = parsedate_to_datetime(next(dates, "")).timestamp()
    except (ValueError, OverflowError, TypeError):
        return now_us
    return min(max(0, int(sent * 1e6)), now_us)


def _options(session: CliSession, jobs: int, person: str, *, prior: bool) -> TrainingOptions:
    from spamnb.engine.bulk import TrainingOptions

    settings, source = session.settings, _source(session, person)
    limit = settings.store.limit_bytes
    return TrainingOptions(jobs, source, settings.site, settings.costs, limit, prior)


def _source(session: CliSession, person: str) -> Source:
    """Return who trains: this user, or the person that the mail is for."""
    if not person:
        return session.source()
    from spamnb.policy.actions import named_person

    name = named_person(session.persons, person)
    with session.open(readonly=True) as model:
        id_ = model.person(name)
    costs = session.costs_of_label(person)
    return session.source()._replace(user=name, immediate=True, person=id_, costs=costs)


def _through(
    session: CliSession,
    reached: tuple[RunningDaemon, str],
    sources: list[tuple[str, MailSource]],
    new: tuple[Recipe | None, bool],
    show: Callable[[Progress], None],
) -> Summary:
    """Train through the daemon; a missing model is created here, and the daemon reloads it."""
    from spamnb.engine.filter import Filter
    from spamnb.operations.protocol import ControlClient
    from spamnb.operations.training_client import send

    (daemon, person), (recipe, prior) = reached, new
    if daemon.role != "admin":
        raise UserError(
            "only administrators may use `train`", hint="all users may use `spamnb correct`"
        )
    there = recipe or _recipe_there(session.home)
    assert there is not None, "it was there a moment ago"
    if recipe is not None:
        Filter.open(session.home, create=True, recipe=recipe, history=False, prior=prior).close()
        with ControlClient(daemon.control) as caller:
            caller.ask("reload", settings=False)
    user = session.source().user
    fields = {"channel": "cli", "for": user, "trust": "admin", "person": person}
    return send(daemon.control, sources, fields, documents=there.documents, progress=show)


def _sources(
    folders: tuple[str, ...],
    labelled: tuple[str, ...],
    labels_by: str | None,
    *,
    thresholds: bool,
    yes: bool,
) -> list[tuple[str, MailSource]]:
    if labels_by is not None:
        if labelled or not folders or thresholds:
            raise UserError(
                "--labels takes folders of mail, without --label, --classes and --thresholds"
            )
        return [*labelled_sources(labels_by, folders, ask=not yes)]
    if len(folders) not in (0, 2) or not (folders or labelled):
        raise UserError(
            f"{len(folders)} folders are given instead of two",
            hint="give first the ham, then the spam; or name labels: --label NAME=PATH",
        )
    return [*zip(("ham", "spam"), folders, strict=False), *named_sources(labelled)]


def named_sources(labelled: tuple[str, ...]) -> list[tuple[str, str]]:
    """Split `--label NAME=PATH`."""
    sources = []
    for given in labelled:
        name, sign, path = given.partition("=")
        if not (name and sign and path):
            raise UserError(
                f"--label {given} has no name or no path", hint="write --label NAME=PATH"
            )
        sources.append((name, path))
    return sources


def _recipe(
    session: CliSession,
    sources: list[tuple[str, MailSource]],
    kind: str | None,
    *,
    no_vocabulary: bool,
    plain: bool,
) -> Recipe | None:
    """Return the recipe of a new model; None if there is a model and it fits the options."""
    there = _recipe_there(session.home)
    if there is None:
        from spamnb.engine.filter import new_recipe

        model = session.settings.model
        labels = _labels(session.settings.labels, [label for label, _ in sources])
        if not plain:
            refuse_odd(labels)
        keep = model.vocabulary and not no_vocabulary
        return new_recipe(kind or model.kind, labels, vocabulary=keep, documents=plain)
    if kind and kind != there.kind:
        raise UserError(
            f"the model in {session.home} is {there.kind}, not {kind}",
            hint="the kind of a model cannot be changed; name another --home for a new one",
        )
    if plain and not there.documents:
        raise UserError(
            f"the model in {session.home} is for mail",
            hint="leave out --plain, or name another --home for a new model",
        )
    if no_vocabulary and there.vocabulary:
        raise UserError(
            f"the model in {session.home} has a vocabulary",
            hint="leave out --no-vocabulary, or name another --home for a new model",
        )
    return None


def _folders_in(classes: str | None) -> tuple[str, ...]:
    """List every folder in a folder as NAME=PATH."""
    if classes is None:
        return ()
    try:
        found = sorted(path for path in Path(classes).iterdir() if path.is_dir())
    except OSError as error:
        raise UserError(f"{classes} cannot be listed: {error.strerror}") from error
    return tuple(f"{path.name}={path}" for path in found)


def _chosen(
    session: CliSession, sources: list[tuple[str, MailSource]], jobs: int
) -> dict[str, float]:
    """Choose the thresholds on the trained messages, and store them beside the model."""
    from spamnb.engine.bulk import cores
    from spamnb.lab import label_thresholds
    from spamnb.lab.labels import choose_thresholds

    recipe = _recipe_there(session.home)
    assert recipe is not None, "it was trained a moment ago"
    local, jobs = session.settings.site, jobs or cores()
    paths = [(label, source) for label, source in sources if isinstance(source, str)]
    with progress_bar("choosing thresholds") as bar:
        progress = (lambda done, total: bar(done, total, "")) if bar else None
        chosen = choose_thresholds(paths, recipe, local, jobs, progress)
    label_thresholds.save(session.home, chosen)
    return chosen


def _expected(
    session: CliSession, sources: list[tuple[str, MailSource]], jobs: int, *, prior: bool
) -> Expectation | None:
    """Return what to expect of mail like this, and store the scores that say so."""
    from spamnb.cli.session import asking, source_fields
    from spamnb.engine.bulk import cores
    from spamnb.engine.mailboxes import spans
    from spamnb.engine.prior import shipped_prior
    from spamnb.engine.site_scores import has_threshold
    from spamnb.lab.decisions import FEWEST, MOST, expect
    from spamnb.lab.runs import Options, read_each, shuffled

    recipe, settings = _recipe_there(session.home), session.settings
    assert recipe is not None, "it was trained a moment ago"
    if not has_threshold(recipe):
        return None
    options = Options(
        local=settings.site,
        costs=settings.costs,
        constants={name: getattr(recipe, name) for name in ("alpha", "kappa", "r", "eta")},
        prior=shipped_prior()[0] if prior else None,
        jobs=jobs or cores(),
    )
    named = [(span.name, (span, label)) for label, source in sources for span in spans(source)]
    drawn = shuffled(named, 1)[:MOST]
    with progress_bar("judging by cross-validation") as bar:
        if bar:
            options = replace(options, progress=lambda done, total: bar(done, total, ""))
        found = expect(read_each(drawn, lambda _: None), options, settings.ham_loss.aimed_at)
    if found is None:
        warn(f"fewer than {FEWEST} messages of a label: not enough to say what to expect")
        return None
    ham, spam = list(found.counts.ham), list(found.counts.spam)
    with asking(session, long=True) as client:
        client.ask("scores", ham=ham, spam=spam, **source_fields())
    return found


def _recipe_there(home: Path) -> Recipe | None:
    from spamnb.store.model_store import open_store

    try:
        store = open_store(home, readonly=True)
    except StoreMissingError:
        return None
    try:
        return store.recipe
    finally:
        store.close()


def _labels(configured: tuple[str, ...], given: list[str]) -> tuple[str, ...]:
    """Return the labels of a new model: those of the settings, unless others are given."""
    from spamnb.settings import Settings

    names = tuple(dict.fromkeys(given))
    if set(names) <= set(configured):
        return configured
    if configured != Settings().labels:
        raise UserError(
            f"the labels in the settings are {', '.join(configured)}, not {', '.join(names)}",
            hint="use these labels, or change `labels` in the settings",
        )
    return names


def refuse_odd(labels: tuple[str, ...]) -> None:
    """Refuse labels that cannot be part of headers, addresses and file names."""
    from spamnb.settings.types import LABELS

    try:
        LABELS.take(labels)
    except ValueError as error:
        raise UserError(
            f"the labels are {', '.join(labels)}; a model needs {LABELS.allowed}",
            hint="rename the folders, or write --label NAME=PATH",
        ) from error


def _report(
    summary: Summary,
    home: Path,
    chosen: dict[str, float],
    expected: Expectation | None,
    letters: list[dict[str, int]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        found: dict[str, object] = {"thresholds": chosen} if chosen else {}
        found |= {"expected": expected.as_dict()} if expected else {}
        found |= {"sent": letters} if letters else {}
        say_json(summary.as_dict() | {"home": str(home)} | found)
        return
    for line in summary.unreadable_paths[:SHOWN_UNREADABLE]:
        warn(f"skipped {line}")
    if summary.unreadable > SHOWN_UNREADABLE:
        warn(f"skipped {summary.unreadable - SHOWN_UNREADABLE} more")
    given = ", ".join(f"{count} {label}" for label, count in summary.labels.items())
    parts = [
        f"{count} {what}"
        for count, what in (
            (summary.learnt, "learnt"), (summary.moved, "moved to another label"),
            (summary.duplicates, "already known"), (summary.refused, "refused"),
            (summary.unreadable, "unreadable"),
            (summary.waiting, "waiting for the log of the fleet"),
        )
        if count or what == "learnt"
    ]  # fmt: skip
    say(f"{summary.messages} messages ({given}) in {summary.seconds:.1f} s: {', '.join(parts)}")
    for label, at in chosen.items():
        say(f"threshold of {safe(label)}: {1 / (1 + exp(-at)):.4f}")
    if expected:
        say(str(expected))
    for one in letters:
        say(_sent_text(one))
    say(f"the model is in {safe(str(home))}")
