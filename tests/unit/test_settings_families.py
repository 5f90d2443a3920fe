"""Families of settings: sections with a name of the user's choice, all with the same keys."""

import re
from dataclasses import fields, replace

import pytest

from spamnb.errors import SettingsError
from spamnb.model.costs import Costs
from spamnb.settings import Settings, control_of, load, restored
from spamnb.settings.render import as_dict, example, need_restart, plain, shown
from spamnb.settings.schema import MEMBERS
from spamnb.settings.table import FAMILIES

pytestmark = pytest.mark.usefixtures("no_system_file")

TWO = """
[listener.mx]
address = "127.0.0.1:25"
upstream = "lmtp:unix:/run/dovecot/lmtp"
queue = "after"

[listener."inner.example.org"]
peers = ["192.0.2.0/24"]
"""


def loaded(tmp_path, text):
    path = tmp_path / "spamnb.toml"
    path.write_text(text)
    return load(path, environment={})


def complaint(tmp_path, text):
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, text)
    return f"{caught.value} - {caught.value.hint}"


def test_each_section_of_a_family_is_one_of_its_members(tmp_path):
    """The administrator chooses the names, also with dots; a missing value has its default."""
    settings = loaded(tmp_path, TWO)
    assert list(settings.listener) == ["mx", "inner.example.org"]
    mx, inner = settings.listener.values()
    assert mx.upstream == "lmtp:unix:/run/dovecot/lmtp"
    assert mx.queue == "after"
    assert inner.address == "127.0.0.1:10025"
    assert inner.peers == ("192.0.2.0/24",)


def test_a_section_without_keys_is_a_member_with_defaults(tmp_path):
    """`[listener.mx]` alone is a listener."""
    (one,) = loaded(tmp_path, "[listener.mx]\n").listener.values()
    assert one == MEMBERS["listener"]()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_keys_of_a_family_are_all_that_its_members_hold(family):
    """Every key of a section can be set."""
    held = {field.name for field in fields(MEMBERS[family]())}
    assert {setting.key for setting in FAMILIES[family].settings} == held


@pytest.mark.parametrize("family", FAMILIES)
def test_the_commented_example_is_right_without_its_comments(tmp_path, family):
    """An uncommented family of the example has the values that it shows."""
    text = example()
    start = text.index(f"\n# [{family}.") + 1
    lines = text[start:].split("\n\n\n")[0].splitlines()
    entries = [line[2:] for line in lines if re.match(r"# (\[|[a-z_]+ = )", line)]
    settings = loaded(tmp_path, "\n".join(entries) + "\n")
    assert list(getattr(settings, family).values()) == [MEMBERS[family]()]


def test_an_unknown_key_of_a_family_names_the_nearest(tmp_path):
    """File, line, and what was meant, with the name that the user chose."""
    error = complaint(tmp_path, '[listener.mx]\nadress = "127.0.0.1:1"\n')
    assert "line 2: there is no setting listener.mx.adress" in error
    assert "did you mean listener.mx.address?" in error
    assert "listener" in complaint(tmp_path, "[listner.mx]\naddress = 5\n")
    assert complaint(tmp_path, "listener = 5\n")


@pytest.mark.parametrize(
    "line",
    [
        'address = "nowhere"',
        'address = "127.0.0.1:99999"',
        'address = "unix:relative"',
        'upstream = "mx.example.org"',
        'queue = "never"',
        'peers = ["192.0.2.0/33"]',
        'peers = "192.0.2.0/24"',
        'recipient_domains = ["a@b"]',
        "scan_limit_bytes = 5",
    ],
)
def test_a_wrong_value_names_its_key_and_line(tmp_path, line):
    """A member's values are checked as all others are."""
    error = complaint(tmp_path, f"\n[listener.mx]\n{line}\n")
    assert f"listener.mx.{line.split()[0]} ({tmp_path}/spamnb.toml, line 3)" in error
    assert "it must be" in error


@pytest.mark.parametrize("address", ["0.0.0.0:25", "[::]:25", "192.0.2.1:25", "mx.example.org:25"])
def test_a_public_delivery_address_needs_domains(tmp_path, address):
    """No listener beyond loopback without peers or recipient domains: it would relay for all."""
    text = f'[listener.mx]\naddress = "{address}"\n'
    assert "[listener.mx]" in complaint(tmp_path, text)
    assert "line 2" in complaint(tmp_path, text)
    assert loaded(tmp_path, text + 'peers = ["192.0.2.0/24"]\n')
    assert loaded(tmp_path, text + 'recipient_domains = ["Example.ORG."]\n').listener[
        "mx"
    ].recipient_domains == ("example.org",)


def test_a_listener_with_itself_as_next_hop_is_refused(tmp_path):
    """A listener that is its own upstream is refused: mail would loop."""
    text = '[listener.mx]\naddress = "127.0.0.1:25"\nupstream = "127.0.0.1:25"\n'
    assert "would loop" in complaint(tmp_path, text)


def test_what_is_shown_means_the_same(tmp_path):
    """`config show` can be kept as a settings file, families included."""
    first = loaded(tmp_path, TWO)
    assert loaded(tmp_path, shown(first)) == first
    assert as_dict(first)["listener.mx.queue"] == "after"


def test_a_process_hands_the_settings_to_another(tmp_path):
    """A child process gets all settings, through JSON and back."""
    import json

    first = loaded(tmp_path, TWO + '[costs]\njunk = [50, 0.04]\n[log]\nlevel = "debug"\n')
    again = restored(json.loads(json.dumps(plain(first))))
    assert again == replace(first, file="")


def test_what_needs_a_restart_is_named(tmp_path):
    """Of what changed, the keys that only a start takes; listeners come and go without."""
    first = loaded(tmp_path, TWO)
    assert need_restart(first, first) == []
    text = TWO.replace(":25", ":26").replace("after", "before") + "[serve]\nworkers = 3\n"
    assert need_restart(first, loaded(tmp_path, text)) == ["serve.workers"]
    assert need_restart(first, Settings()) == []


def test_the_control_socket_is_looked_for_in_the_promised_order(tmp_path):
    """The control socket is that of the settings, else in $RUNTIME_DIRECTORY, else in the home."""
    runtime = {"RUNTIME_DIRECTORY": "/run/spamnb:/x"}
    settings = load(environment={"SPAMNB_SERVE_CONTROL": "/set"})
    assert str(control_of(settings, tmp_path, runtime)) == "/set"
    assert str(control_of(Settings(), tmp_path, runtime)) == "/run/spamnb/control.sock"
    assert control_of(Settings(), tmp_path, {}) == tmp_path / "control.sock"


def test_costs_of_a_section_are_completed_by_the_site(tmp_path):
    """A section with some costs has the others of [costs]; the whole is handed over."""
    import json

    text = '[costs]\nunsure = [0.3, 0.7]\n[domain."example.org"]\njunk_costs = [20, 0.05]\n'
    settings = loaded(tmp_path, text + "[person.ann]\n")
    assert settings.domain["example.org"].costs == Costs(unsure=(0.3, 0.7), junk=(20.0, 0.05))
    assert settings.person["ann"].costs is None
    assert restored(json.loads(json.dumps(plain(settings)))) == replace(settings, file="")
    assert loaded(tmp_path, shown(settings)) == settings


def test_inconsistent_costs_of_a_section_name_it(tmp_path):
    """Ham in junk cannot cost more than a rejected ham, for one domain neither."""
    error = complaint(tmp_path, '[domain."example.org"]\njunk_costs = [2000, 0.05]\n')
    assert "[domain.example.org]" in error
    assert "line 2" in error
    assert "do not fit the order" in error
