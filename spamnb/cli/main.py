"""The entry point of the command line: the tree of commands, `--help` with examples, and errors.

A command that fails prints one line. Exit codes: 0 success, 1 negative result (such as a failed
check), 2 user error, 3 store or system error, 4 remote server error, 70 bug, 130 interrupted.
`score --exit-code` and `filter` return 75 for every failure, so that a mail system cannot mistake a
failure for a verdict, and keeps the message.

A group has the import paths of its commands, so that `--version` and `--help` import nothing heavy.
"""

from __future__ import annotations

import difflib
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click

from spamnb.cli.child_process import command_of
from spamnb.cli.printing import print_anything, safe
from spamnb.cli.session import CliSession, one_thread
from spamnb.errors import SpamnbError, StoreError

_LIKE = 0.6
"""ratio of `difflib` from which a name is suggested"""


class Command(click.Command):
    """A command with examples."""

    def __init__(self, *args: Any, examples: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.examples = inspect.cleandoc(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(formatter, self.examples)


def command(
    short: str, examples: str = "", *, name: str | None = None
) -> Callable[[Callable[..., Any]], Command]:
    """Decorate a function as a command with a short help line and examples."""
    return click.command(name, cls=Command, short_help=short, examples=examples)


class CommandGroup(click.Group):
    """A group with examples; its commands are imported when they are needed."""

    def __init__(
        self,
        *args: Any,
        examples: str = "",
        places: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.examples = inspect.cleandoc(examples)
        self.places = dict(places or {})
        """command name -> "module:attribute" """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order of their table, most used first."""
        return list(self.places) or super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.places[cmd_name].partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error for an unknown command suggests the most similar one.

        If several are equally near, it is the first in the table: `trian` means train, not trial.
        """
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            near = max(known, key=lambda name: _likeness(name, args[0]))
            meant = f"; did you mean {near}?" if _likeness(near, args[0]) >= _LIKE else ""
            ctx.fail(f"there is no command {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(formatter, self.examples)


def _likeness(name: str, given: str) -> float:
    return difflib.SequenceMatcher(None, name, given).ratio()


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    """Write the examples without wrapping."""
    if examples:
        formatter.write("\nExamples:\n")
        formatter.write("".join(f"  {line}".rstrip() + "\n" for line in examples.splitlines()))


BUG = 70
INTERRUPTED = 130
TEMPORARY = 75
"""EX_TEMPFAIL of sysexits.h: mail systems keep the message and try again."""
_STDERR = 2
_COMPLETE = "_SPAMNB_COMPLETE"
_INTERRUPTED = "interrupted; all completed training is saved"

COMMANDS = {
    "train": "spamnb.cli.train:train",
    "score": "spamnb.cli.score:score",
    "explain": "spamnb.cli.score:explain",
    "filter": "spamnb.cli.filter:filter_",
    "correct": "spamnb.cli.correct:correct",
    "forget": "spamnb.cli.correct:forget",
    "undo": "spamnb.cli.correct:undo",
    "watch": "spamnb.cli.status:watch",
    "imap": "spamnb.cli.imap:imap",
    "review": "spamnb.cli.review:review",
    "senders": "spamnb.cli.senders:senders",
    "persons": "spamnb.cli.persons:persons",
    "quarantine": "spamnb.cli.quarantine:quarantine",
    "status": "spamnb.cli.status:status",
    "setup": "spamnb.cli.setup:setup",
    "doctor": "spamnb.cli.doctor:doctor",
    "history": "spamnb.cli.history_journal:history",
    "journal": "spamnb.cli.history_journal:journal",
    "bisect": "spamnb.cli.rewind:bisect",
    "doubt": "spamnb.cli.doubt:doubt",
    "rewind": "spamnb.cli.rewind:rewind",
    "relearn": "spamnb.cli.rewind:relearn",
    "stats": "spamnb.cli.store:stats",
    "check": "spamnb.cli.store:check",
    "evaluate": "spamnb.cli.evaluate:evaluate",
    "tune": "spamnb.cli.tune:tune",
    "trial": "spamnb.cli.trial:trial",
    "serve": "spamnb.cli.serve:serve",
    "opensmtpd": "spamnb.cli.opensmtpd:opensmtpd",
    "reload": "spamnb.cli.serve:reload",
    "fleet": "spamnb.cli.fleet:fleet",
    "bypass": "spamnb.cli.serve:bypass",
    "live": "spamnb.cli.serve:live",
    "passwd": "spamnb.cli.access:passwd",
    "token": "spamnb.cli.access:token",
    "console": "spamnb.cli.console:console",
    "backup": "spamnb.cli.store:backup",
    "restore": "spamnb.cli.store:restore",
    "export": "spamnb.cli.store:export",
    "import": "spamnb.cli.importing:import_",
    "expire": "spamnb.cli.store:expire",
    "compact": "spamnb.cli.store:compact",
    "config": "spamnb.cli.config:config",
    "completion": "spamnb.cli.config:completion",
}

EXAMPLES = """
spamnb train ham/ spam/                 train with sorted folders
spamnb score new.eml                    show the verdict on a message
spamnb explain new.eml                  show which words led to it
spamnb correct ham new.eml              correct a wrong verdict
spamnb score --json Maildir/new         one JSON object per message, for programs
"""


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"spamnb {sys.modules['spamnb'].__version__}")
        ctx.exit()


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=CommandGroup, places=COMMANDS, examples=EXAMPLES, context_settings=_CONTEXT)
@click.option("--home", metavar="DIR", help="Folder of the model. Default: $SPAMNB_HOME, `home` in "
              "the settings, $STATE_DIRECTORY, /var/lib/spamnb if this user may write it, else "
              "~/.local/share/spamnb.")  # fmt: skip
@click.option("--config", metavar="FILE", help="Settings file. Default: /etc/spamnb/spamnb.toml, "
              "if it exists.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Log more, and show a traceback for an error.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
              help="Show the version.")  # fmt: skip
@click.pass_context
def cli(ctx: click.Context, home: str | None, config: str | None, verbose: bool) -> None:
    """A self-learning spam filter.

    Train it with folders of wanted mail (ham) and spam. It then computes for any message the
    probability of spam, and shows the words that led to it. Corrections take effect immediately and
    can be undone.
    """
    one_thread()
    ctx.obj = CliSession(home, config, verbose)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
    try:
        code = _guarded(words)
        _ignore_interrupts()  # the command has ended
    except KeyboardInterrupt as error:
        _ignore_interrupts()
        code = _fail(_INTERRUPTED, error, verbose=_verbose(words), code=INTERRUPTED)
    name = command_of(words)
    strict = name == "filter" or (name == "score" and "--exit-code" in words)
    sys.exit(TEMPORARY if strict and not isinstance(code, ExitCode) else int(code))


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on.

    It is blocked first: Python prints an error for a signal that arrives while the handler changes.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _open_streams() -> None:
    """Open the null device for closed standard streams, so that no file takes their numbers."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(handle)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - until exit
            setattr(sys, name, stream)


class ExitCode(int):
    """An exit code that is a command's result, not a failure."""


def _guarded(words: list[str]) -> int:
    """Run the command; map each failure except an interrupt to one line and an exit code."""
    verbose = _verbose(words)
    try:
        return _run(words)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _fail(_usage(error), error, verbose=verbose, code=2)
    except click.Abort as error:
        return _fail(_INTERRUPTED, error, verbose=verbose, code=INTERRUPTED)
    except BrokenPipeError:
        return _hang_up()
    except SpamnbError as error:
        hint = f" - {error.hint}" if error.hint else ""
        return _fail(f"{error}{hint}", error, verbose=verbose, code=error.exit_code)
    except OSError as error:
        what = f"{error.filename or 'input or output'}: {error.strerror or error}"
        return _fail(what, error, verbose=verbose, code=StoreError.exit_code)
    except Exception as error:  # noqa: BLE001 - the boundary: every other exception is a bug
        if _was_interrupted(error):
            return _fail(_INTERRUPTED, error, verbose=verbose, code=INTERRUPTED)
        what = f"{type(error).__name__}: {error}"
        hint = "this is a bug" if verbose else "this is a bug; run it again with -v and report it"
        return _fail(f"{what} - {hint}", error, verbose=verbose, code=BUG)


def _verbose(words: list[str]) -> bool:
    return "-v" in words or "--verbose" in words


def _was_interrupted(error: BaseException | None) -> bool:
    """Return True if an interrupt is the first cause: clean-up may raise other exceptions."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _run(words: list[str]) -> int:
    if _COMPLETE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "spamnb", _COMPLETE, os.environ[_COMPLETE])
    print_anything()
    try:
        with cli.make_context("spamnb", words) as ctx:
            cli.invoke(ctx)
        code = 0
    except click.exceptions.Exit as ended:
        code = ExitCode(ended.exit_code)
    sys.stdout.flush()
    return code


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    where = getattr(error, "ctx", None)
    path = where.command_path if where else "spamnb"
    return f"{message[:1].lower()}{message[1:]} - see `{path} --help`"


def _fail(message: str, error: BaseException, *, verbose: bool, code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _hang_up()
    except OSError:
        _silence(sys.stdout)
    try:
        if verbose:
            lines = "".join(traceback.format_exception(error)).split("\n")
            sys.stderr.write("\n".join(map(safe, lines)))
        sys.stderr.write(f"spamnb: {safe(' '.join(message.split()))}\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)
    return code


def _hang_up() -> int:
    """Exit silently after the reader closed the pipe."""
    _silence(sys.stdout)
    return 1


def _silence(stream: TextIO) -> None:
    """Redirect the stream to the null device, also for the interpreter's final flush."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
