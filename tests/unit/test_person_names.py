"""Which addresses and logins are one person."""

import pytest

from spamnb.core.persons.names import PersonNames, aliases_of
from spamnb.errors import SettingsError
from spamnb.settings import load
from spamnb.settings.persons import person_names

ALIASES = """
# virtual(5)
sales@example.org   Ann+shop@example.org
all@example.org     ann@example.org, bob@example.org
old@example.org
    bob
@example.net        @example.org
loop@example.org    loop2@example.org
loop2@example.org   loop@example.org
"""
NAMES = PersonNames(
    "+",
    frozenset({"example.org"}),
    frozenset({"example.org", "example.com"}),
    aliases_of(ALIASES, "virtual"),
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ann@example.org", "ann"),
        ("<ANN+lists@Example.ORG.>", "ann"),
        ('"ann"@example.org', "ann"),
        ("ann", "ann"),
        ("ann@example.com", "ann@example.com"),
        ("ann@elsewhere.example", ""),
        ("sales@example.org", "ann"),
        ("sales+x@example.org", "ann"),
        ("all@example.org", ""),
        ("old@example.org", "bob"),
        ("carl@example.net", "carl"),
        ("loop@example.org", ""),
        ("", ""),
        ("@example.org", ""),
    ],
)
def test_one_name_for_recipient_and_login(text, name):
    """An address, its aliases and the login have one name; lists and others have none."""
    assert NAMES.of(text) == name


def test_an_alias_without_target_is_an_error():
    """The error names the file and the line."""
    with pytest.raises(SettingsError, match=r"virtual:2: the alias b@example.org has no target"):
        aliases_of("a@example.org ann\nb@example.org\n", "virtual")


def test_addresses_of_one_domain_are_logins(tmp_path):
    """One served domain has logins; of several, only those of feedback.domains have."""

    def names(text):
        file = tmp_path / "spamnb.toml"
        file.write_text("[persons]\nenabled = true\n" + text)
        return person_names(load(file, environment={}))

    one = '[local]\ndomains = ["example.org"]\n'
    assert names(one).of("ann@example.org") == "ann"
    two = '[local]\ndomains = ["example.org", "example.com"]\n'
    assert names(two).of("ann@example.org") == "ann@example.org"
    named = two + '[feedback]\ndomains = ["example.com"]\n'
    assert names(named).of("ann@example.com") == "ann"
    assert names(named).of("ann@example.org") == "ann@example.org"
    with pytest.raises(SettingsError, match="cannot be read"):
        names('aliases = "/nowhere"\n')
    assert person_names(load(environment={})) is None


ENABLED = "[persons]\nenabled = true\n[local]\ndomains = ['example.org']\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[person.ann]\n", "persons are not enabled"),
        (f"{ENABLED}[person.'x@elsewhere.example']\n", "address of no person"),
        (f"{ENABLED}[person.ann]\n[person.'Ann@example.org']\n", "are one person"),
    ],
)
def test_a_section_of_a_person_names_one(tmp_path, text, error):
    """A section of no person, or a second one of the same person, is an error."""
    file = tmp_path / "spamnb.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=error):
        person_names(load(file, environment={}))
