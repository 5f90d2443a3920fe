"""What a running daemon takes of new settings."""

import pytest

from spamnb.errors import SettingsError
from spamnb.settings import Settings, load
from spamnb.settings.reload import merge_reloadable

ONE = """
[listener.mx]
address = "127.0.0.1:25"
upstream = "127.0.0.1:26"
"""


def loaded(folder, text):
    path = folder / "spamnb.toml"
    path.write_text(text)
    return load(path, environment={})


def test_what_does_not_rest_on_sockets_is_taken(tmp_path):
    """Settings that need no restart change, and none is reported to wait."""
    after = loaded(tmp_path, ONE.replace(":26", ":27") + 'observe = true\n[log]\nlevel = "debug"')
    found, later = merge_reloadable(loaded(tmp_path, ONE), after)
    assert (found, later) == (after, [])


def test_listeners_are_those_of_the_start(tmp_path):
    """One that was renamed stays as it was; a new one, or another address, waits for a restart."""
    before = loaded(tmp_path, ONE)
    found, later = merge_reloadable(before, loaded(tmp_path, ONE.replace(".mx", ".other")))
    assert found.listener == before.listener
    assert later == [
        f"listener.{name}.{key}" for name in ("mx", "other") for key in ("protocol", "address")
    ]
    found, later = merge_reloadable(before, loaded(tmp_path, ONE.replace(":25", ":24")))
    assert found.listener == before.listener
    assert later == ["listener.mx.address"]
    assert merge_reloadable(Settings(), before)[0].listener == {}


def test_a_delivery_agent_that_was_not_started_is_no_next_hop(tmp_path):
    """A next hop taken out of the settings stays, unless the delivery agent runs."""
    before = loaded(tmp_path, ONE)
    after = loaded(tmp_path, ONE.replace('upstream = "127.0.0.1:26"', ""))
    found, later = merge_reloadable(before, after)
    assert found.listener["mx"].upstream == "127.0.0.1:26"
    assert later == ["listener.mx.upstream"]
    with_post = '[delivery]\naddress = "127.0.0.1:27"'
    found, later = merge_reloadable(
        loaded(tmp_path, ONE + with_post),
        loaded(tmp_path, ONE.replace('upstream = "127.0.0.1:26"', "") + with_post),
    )
    assert (found.listener["mx"].upstream, later) == ("", [])


def test_new_values_that_need_what_must_wait_are_refused(tmp_path):
    """An open address stays until the restart, so it cannot lose what guards it before."""
    guarded = ONE.replace("127.0.0.1:25", "0.0.0.0:25") + 'recipient_domains = ["example.org"]'
    with pytest.raises(SettingsError, match=r"listener\.mx"):
        merge_reloadable(loaded(tmp_path, guarded), loaded(tmp_path, ONE))
