"""`spamnb config` and `spamnb completion`: the settings, and the shell."""

from __future__ import annotations

import click

from spamnb.cli.printing import say, say_json, warn
from spamnb.cli.session import Session, pass_session
from spamnb.cli.teaching_help import Command, Group, taught

CONFIG_EXAMPLES = """
spamnb config example > spamnb.toml         every setting, its default, and the reason for it
spamnb --config spamnb.toml config check    is it right?
spamnb config show                          what is in force, from file and environment
"""
COMPLETION_EXAMPLES = """
spamnb completion bash >> ~/.bashrc
spamnb completion zsh >> ~/.zshrc
spamnb completion fish > ~/.config/fish/completions/spamnb.fish
"""


@click.group(cls=Group, examples=CONFIG_EXAMPLES)
def config() -> None:
    """Show or check the settings. Without a settings file the defaults hold."""


@config.command(cls=Command, short_help="Print all settings with their reasons.")
def example() -> None:
    """Print a settings file with every setting, its default, and the reason for it."""
    from spamnb.settings.showing import example as written

    say(written().rstrip("\n"))


@config.command(cls=Command, short_help="Print the settings in force.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@pass_session
def show(session: Session, as_json: bool) -> None:
    """Print the settings in force, secrets masked."""
    from spamnb.settings import home_of
    from spamnb.settings.showing import as_dict, shown

    settings = session.settings
    if as_json:
        say_json(as_dict(settings) | {"home": str(home_of(settings)), "file": settings.file})
        return
    say(f"# from {settings.file or 'the defaults'}; the home is {home_of(settings)}")
    say(shown(settings).rstrip("\n"))


@config.command(cls=Command, short_help="Read the settings and find mistakes.")
@pass_session
def check(session: Session) -> None:
    """Read the settings and say whether they are right: exit 0, or 2 and the first mistake."""
    from spamnb.service.rules import RuleFiles, Rules

    settings = session.settings
    lists = Rules.load(RuleFiles(settings.rules.allow, settings.rules.block))
    if warning := lists.warning(settings.house):
        warn(warning)
    say(f"{settings.file or 'no settings file; the defaults'}: all right")


@taught("Print what makes a shell complete.", COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands and options."""
    from click.shell_completion import get_completion_class

    from spamnb.cli.main import cli

    made = get_completion_class(shell)
    assert made is not None, "click knows these three"
    say(made(cli, {}, "spamnb", "_SPAMNB_COMPLETE").source().strip())
