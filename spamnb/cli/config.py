"""`spamnb config` and `spamnb completion`."""

from __future__ import annotations

import os

import click

from spamnb.cli.main import Command, CommandGroup, command
from spamnb.cli.printing import say, say_json, warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

CONFIG_EXAMPLES = """
spamnb config example > spamnb.toml         all settings with defaults and explanations
spamnb --config spamnb.toml config check    check whether `serve` could run with it
spamnb config show                          settings in force, from file and environment
"""
COMPLETION_EXAMPLES = """
spamnb completion bash >> ~/.bashrc
spamnb completion zsh >> ~/.zshrc
spamnb completion fish > ~/.config/fish/completions/spamnb.fish
"""


@click.group(cls=CommandGroup, examples=CONFIG_EXAMPLES)
def config() -> None:
    """Show or check the settings. Without a settings file the defaults apply."""


@config.command(cls=Command, short_help="Print a settings file with all defaults.")
def example() -> None:
    """Print a settings file with every setting, its default and its explanation."""
    from spamnb.settings.render import example as written

    say(written().rstrip("\n"))


@config.command(cls=Command, short_help="Print the settings in force.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_session
def show(session: CliSession, as_json: bool) -> None:
    """Print the settings in force, secrets masked."""
    from spamnb.settings import home_of
    from spamnb.settings.render import as_dict, shown

    settings = session.settings
    if as_json:
        say_json(as_dict(settings) | {"home": str(home_of(settings)), "file": settings.file})
        return
    say(f"# source: {settings.file or 'defaults'}; home: {home_of(settings)}")
    say(shown(settings).rstrip("\n"))


@config.command(cls=Command, short_help="Find problems that would stop `serve`.")
@pass_session
@click.pass_context
def check(ctx: click.Context, session: CliSession) -> None:
    """Check whether `serve` could run with these settings.

    Exit code 0 if it could; otherwise 2, and one line per problem. The check reads the files that
    the settings name, as the daemon's user, and tries the addresses. It changes nothing.
    An upstream that does not answer is a warning. With
    local.authserv_ids it also says of each listener what becomes of a forged result of
    authentication there.
    """
    from spamnb.daemon.config_checks import Checked, next_hop_faults, outcomes, problems
    from spamnb.scan.access_lists import AccessLists, RuleFiles
    from spamnb.settings import home_of

    settings = session.settings
    session.warn_of_other_homes()
    found = problems(Checked(settings, home_of(settings).absolute(), os.environ))
    for problem in found:
        warn(f"{problem} - {problem.hint}" if problem.hint else str(problem))
    if found:
        ctx.exit(UserError.exit_code)
    lists = AccessLists.load(RuleFiles(settings.rules.allow, settings.rules.block))
    if warning := lists.warning(settings.site):
        warn(warning)
    for fault in next_hop_faults(settings):
        warn(f"{fault.text} - {fault.remedy}")
    for one in outcomes(settings):
        if one.remedy:
            warn(f"{one.text} - {one.remedy}")
        else:
            say(one.text)
    say(f"{settings.file or 'no settings file, defaults'}: no problems found")


@command("Print a shell completion script.", COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that makes a shell complete commands and options."""
    from click.shell_completion import get_completion_class

    from spamnb.cli.main import cli

    made = get_completion_class(shell)
    assert made is not None, "click knows these three"
    say(made(cli, {}, "spamnb", "_SPAMNB_COMPLETE").source().strip())
