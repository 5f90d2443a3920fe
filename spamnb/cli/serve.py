"""`spamnb serve`, `reload`, `bypass` and `live`: run and control the daemon."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.main import command
from spamnb.cli.printing import say, warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.operations.request import Switch
    from spamnb.settings import Settings

SERVE_EXAMPLES = """
spamnb serve --create                       try it: send mail to 127.0.0.1:10025
spamnb serve --listen 127.0.0.1:10025 --upstream 127.0.0.1:10026
spamnb --config spamnb.toml serve           listeners, limits and rules from a file
spamnb reload                               reread the settings, like `kill -HUP`
"""
RELOAD_EXAMPLES = """
spamnb config check && spamnb reload        check the settings, then reload them
"""
LIVE_EXAMPLES = """
spamnb live on                              mark and file mail at listeners that observe
spamnb live off                             only observe again
spamnb live                                 show the current state
"""
BYPASS_EXAMPLES = """
spamnb bypass on                            deliver all mail unscanned
spamnb bypass off                           scan again
spamnb bypass                               show the current state
"""


@command("Run the daemon.", SERVE_EXAMPLES)
@click.option("--listen", multiple=True, metavar="ADDR",
              help="Address for clients: host:port, [IPv6]:port or unix:/path; the prefix lmtp: "
              "selects LMTP. Repeatable; replaces the listeners of the settings.")  # fmt: skip
@click.option("--upstream", metavar="ADDR", help="Address of the next hop. Default: the built-in "
              "delivery agent, with Maildirs in the home.")  # fmt: skip
@click.option("--create", is_flag=True, help="Create an empty model if there is none.")
@pass_session
def serve(session: CliSession, listen: tuple[str, ...], upstream: str | None, create: bool) -> None:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C.

    The daemon relays mail to the next hop, scans each message and adds the verdict as headers.
    Without settings it listens on 127.0.0.1:10025, and the built-in delivery agent writes Maildirs.
    """
    from spamnb.daemon.start import ServeRequest
    from spamnb.daemon.start import serve as run
    from spamnb.settings import home_of, load

    flags = {"home": session.home_flag} | _flags(listen, upstream)
    if session.verbose:
        flags["log.level"] = "debug"
    read = partial(load, session.config_flag, flags=flags)
    settings = read()
    session.warn_of_other_homes()
    home = home_of(settings).absolute()
    run(
        ServeRequest(settings, home, read, partial(_make_model, home, settings) if create else None)
    )


def _flags(listen: tuple[str, ...], upstream: str | None) -> dict[str, Any]:
    """Return the listeners of the options as settings."""
    if not listen and upstream is None:
        return {}
    flags: dict[str, Any] = {}
    for number, address in enumerate(listen or ("127.0.0.1:10025",), 1):
        flags[f"listener.option{number}.address"] = address
        flags[f"listener.option{number}.upstream"] = upstream or ""
    return flags


def _make_model(home: Path, settings: Settings) -> None:
    from spamnb.engine.filter import Filter, new_recipe

    model = settings.model
    recipe = new_recipe(model.kind, settings.labels, vocabulary=model.vocabulary)
    Filter.open(home, create=True, recipe=recipe, history=False, prior=model.prior).close()


@command("Deliver all mail unscanned, or scan again.", BYPASS_EXAMPLES)
@click.argument("way", type=click.Choice(["on", "off"]), required=False)
@pass_session
def bypass(session: CliSession, way: str | None) -> None:
    """Deliver all mail unscanned (on) or scan it (off); without an argument, show the state.

    Takes effect within a second and persists over restarts: the state is the file `bypass` in the
    home. Works with and without a running daemon, and while the settings have a mistake.
    """
    is_on = _switched(session, "bypass", way)
    say("all mail passes unscanned" if is_on else "mail is scanned")


@command("Let listeners that only observe mark and file mail.", LIVE_EXAMPLES)
@click.argument("way", type=click.Choice(["on", "off"]), required=False)
@pass_session
def live(session: CliSession, way: str | None) -> None:
    """Let listeners with observe = true mark and file mail (on), or only observe again (off).

    Without an argument, show the state. `spamnb status` says what they would have filed so far. A
    listener behind another filter (`other`) only observes in any case. Takes effect within a second
    and persists over restarts: the state is the file `live` in the home.
    """
    if _switched(session, "live", way):
        say("listeners with observe = true mark and file mail")
    else:
        say("listeners with observe = true only observe")


def _switched(session: CliSession, switch: Switch, way: str | None) -> bool:
    """Turn a switch, if asked to; return whether it is on."""
    from spamnb.operations.request import is_on, turn

    session.tolerate_mistakes()
    home = session.home
    if way is not None:
        turn(home, switch, on=way == "on")
    return is_on(home, switch)


@command("Make the daemon reread its settings.", RELOAD_EXAMPLES)
@pass_session
@click.pass_context
def reload(ctx: click.Context, session: CliSession) -> None:
    """Make the daemon reread its settings and lists, like SIGHUP; no connection is dropped.

    A listener that is new or has another address starts to listen; one that was removed ends after
    its open connections. If the new settings have a mistake, the daemon keeps the old ones and logs
    the mistake; this command names it (--config), with exit code 2.
    """
    from spamnb.cli.session import served
    from spamnb.operations.protocol import ControlClient

    mistake = session.tolerate_mistakes()
    daemon = served(session)
    if daemon is None:
        raise UserError("no daemon serves this home", hint="start it with `spamnb serve`")
    with ControlClient(daemon.control) as caller:
        fault = caller.ask("reload").header.get("fault")
    if fault:
        warn(f"the model cannot be used: {fault}")
    if mistake:
        say("the daemon keeps its old settings until the mistake is corrected")
        ctx.exit(UserError.exit_code)
    say("the daemon rereads its settings; its log shows what changed")
