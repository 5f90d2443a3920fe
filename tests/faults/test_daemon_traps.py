"""A spam trap in the mail path: its mail is learnt as spam, and other mail flows."""

import json
import subprocess
import sys

from support.daemon import delivered, environment, send, serve, settings_in, until

TRAPS = '[feedback]\ntraps = ["trap@example.org"]\n'


def journal(folder, config):
    """The events that came by the way of traps."""
    arguments = ["--home", folder / "home", "--config", config, "journal", "--channel", "trap"]
    done = subprocess.run(
        [sys.executable, "-m", "spamnb", *arguments, "--json"],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_comes_to_a_trap_is_learnt_as_spam(home):
    """The learner learns it under the trap's name; the message is delivered as usual."""
    config = settings_in(home, more=TRAPS)
    with serve(home, config=config) as running:
        running.ready()
        ident = send(running.port(), "words that are new", to="trap@example.org")
        send(running.port(), "others", to="bob@example.org")
        (event,) = until(lambda: journal(home, config), "an event")
        assert (event["user"], event["after"]) == ("trap@example.org", "spam")
        assert event["message_id"] == ident.strip("<>")
        assert delivered(home, ident, "trap")
        assert running.stop() == 0
