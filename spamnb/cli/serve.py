"""`spamnb serve`, `reload` and `bypass`: the daemon, its settings, and its main switch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spamnb.cli.help import taught
from spamnb.cli.printing import say, warn
from spamnb.cli.session import CliSession, pass_session
from spamnb.errors import UserError

if TYPE_CHECKING:
    from spamnb.settings import Settings

SERVE_EXAMPLES = """
spamnb serve --create                       a first try: send mail to 127.0.0.1:10025
spamnb serve --listen 127.0.0.1:10025 --upstream 127.0.0.1:10026
spamnb --config spamnb.toml serve           listeners, limits and rules from a file
spamnb reload                               read the settings again, as `kill -HUP` does
"""
RELOAD_EXAMPLES = """
spamnb config check && spamnb reload        the settings and the lists, read again
"""
BYPASS_EXAMPLES = """
spamnb bypass on                            all mail passes unscanned, at once
spamnb bypass off
spamnb bypass                               which is it?
"""


@taught("Serve mail: the filter as a daemon.", SERVE_EXAMPLES)
@click.option("--listen", multiple=True, metavar="ADDR",
              help="Where clients connect: host:port, [IPv6]:port or unix:/path; lmtp: in front "
              "speaks LMTP. Repeatable; instead of the listeners of the settings.")  # fmt: skip
@click.option("--upstream", metavar="ADDR", help="The next hop; without one, the built-in post "
              "office, with Maildirs in the home.")  # fmt: skip
@click.option("--create", is_flag=True, help="Make an empty model if there is none.")
@pass_session
def serve(session: CliSession, listen: tuple[str, ...], upstream: str | None, create: bool) -> None:
    """Serve mail until told to stop.

    Takes mail as a relay in front of the next hop, judges it, and marks it in its headers. Without
    any settings it listens on 127.0.0.1:10025, and its own post office writes Maildirs.
    """
    from spamnb.daemon.processes.bootstrap import ServeRequest
    from spamnb.daemon.processes.bootstrap import serve as run
    from spamnb.settings import home_of, load

    flags = {"home": session.home_flag} | _flags(listen, upstream)
    if session.verbose:
        flags["log.level"] = "debug"
    read = partial(load, session.config_flag, flags=flags)
    settings = read()
    home = home_of(settings).absolute()
    run(
        ServeRequest(settings, home, read, partial(_make_model, home, settings) if create else None)
    )


def _flags(listen: tuple[str, ...], upstream: str | None) -> dict[str, Any]:
    """The listeners that the options name, as settings."""
    if not listen and upstream is None:
        return {}
    flags: dict[str, Any] = {}
    for number, address in enumerate(listen or ("127.0.0.1:10025",), 1):
        flags[f"listener.option{number}.address"] = address
        flags[f"listener.option{number}.upstream"] = upstream or ""
    return flags


def _make_model(home: Path, settings: Settings) -> None:
    from spamnb.service.engine.filter import Filter, new_recipe

    recipe = new_recipe(settings.model.kind, settings.labels, vocabulary=settings.model.vocabulary)
    Filter.open(home, create=True, recipe=recipe, history=False).close()


@taught("Let all mail pass unscanned, or not.", BYPASS_EXAMPLES)
@click.argument("way", type=click.Choice(["on", "off"]), required=False)
@pass_session
def bypass(session: CliSession, way: str | None) -> None:
    """Let all mail pass unscanned, or scan again; without a word, say which it is.

    Works with and without a daemon, within a second, and holds over restarts: it is the file
    `bypass` in the home.
    """
    from spamnb.daemon.processes.bypass import bypass_is_on, turn_bypass

    home = session.home
    if way is not None:
        turn_bypass(home, on=way == "on")
    say("all mail passes unscanned" if bypass_is_on(home) else "mail is scanned")


@taught("Have the daemon read its settings again.", RELOAD_EXAMPLES)
@pass_session
def reload(session: CliSession) -> None:
    """Have the daemon read its settings and lists again, as SIGHUP does; no connection is dropped.

    The settings are checked first as this command finds them (--config). The daemon keeps its old
    settings if it finds a mistake in the new ones, and names the mistake in its log.
    """
    from spamnb.cli.daemon_client import served
    from spamnb.endpoints.control.protocol import ControlClient

    daemon = served(session)
    if daemon is None:
        raise UserError("no daemon serves this home", hint="start it with `spamnb serve`")
    with ControlClient(daemon.control) as caller:
        fault = caller.ask("reload").header.get("fault")
    say("the daemon reads its settings again; its log tells what changed")
    if fault:
        warn(f"the model cannot be used: {fault}")
