"""The settings of spamnb that setup adds, to an empty file and beside those that are there."""

import tomllib

import pytest

from spamnb.errors import SettingsError
from spamnb.settings.render import example
from spamnb.setup import own_settings
from spamnb.setup.edits import without_blocks

WANTED = {
    "listener.milter": {"protocol": "milter", "address": "127.0.0.1:10025", "observe": True},
    "local": {"hosts": ["mx.example.org"], "domains": ["example.org"]},
    "persons": {"enabled": True},
}


@pytest.mark.parametrize("text", [None, "", "# nothing\n", example(), "[local]", '[local] # "x"\n'])
def test_each_key_is_set_once(tmp_path, text):
    """The tables are complete, and without the blocks the file is what it was."""
    path = tmp_path / "spamnb.toml"
    if text is not None:
        path.write_text(text)
    made = own_settings.wanted(path, WANTED)
    assert made.notes == ()
    found = tomllib.loads(made.edit.after)
    assert found["listener"]["milter"] == WANTED["listener.milter"]
    assert found["local"].items() >= WANTED["local"].items()
    assert found["persons"]["enabled"] is True
    assert without_blocks(made.edit.after) == (text or "")
    path.write_text(made.edit.after)
    assert own_settings.wanted(path, WANTED).edit is None


def test_what_the_administrator_has_set_stays(tmp_path):
    """Another value is named in a note; a missing key of the same table is added."""
    path = tmp_path / "spamnb.toml"
    path.write_text('[local]\nhosts = ["mail"]\n[persons]\nenabled = true\n')
    made = own_settings.wanted(path, WANTED)
    assert tomllib.loads(made.edit.after)["local"] == {
        "hosts": ["mail"],
        "domains": ["example.org"],
    }
    (note,) = made.notes
    assert "local.hosts stays ['mail']" in note


def test_a_table_without_a_header_is_left(tmp_path):
    """Keys of an inline table cannot be added by a block; a note has the lines."""
    path = tmp_path / "spamnb.toml"
    path.write_text("local = { trust = [] }\npersons.enabled = true\n")
    made = own_settings.wanted(path, {"local": WANTED["local"], "persons": WANTED["persons"]})
    assert made.edit is None
    assert 'hosts = ["mx.example.org"]' in made.notes[0]


def test_a_broken_file_is_not_edited(tmp_path):
    """The error names the file and the place."""
    path = tmp_path / "spamnb.toml"
    path.write_text("[local\n")
    with pytest.raises(SettingsError, match=r"spamnb\.toml"):
        own_settings.wanted(path, WANTED)
