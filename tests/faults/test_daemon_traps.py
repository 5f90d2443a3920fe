"""A spam trap in the mail path: its mail is learnt as spam, and other mail flows."""

from support.cli import forked as spamnb
from support.daemon import delivered, send, serve, settings_in
from support.waiting import until

TRAPS = '[feedback]\ntraps = ["trap@example.org"]\n'


def journal(folder, config):
    """The events that came by the way of traps."""
    return spamnb(
        folder / "home", "--config", config, "journal", "--channel", "trap", "--json"
    ).json


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
