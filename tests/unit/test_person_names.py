"""Which addresses and logins are one person."""

from dataclasses import replace

import pytest

from spamnb.daemon.configure import load_names
from spamnb.errors import SettingsError
from spamnb.feedback.rights import own_addresses
from spamnb.operations.home import ModelConfig
from spamnb.policy.actions import PersonNames, aliases_of, pairing_fault
from spamnb.settings import load
from spamnb.settings.persons import person_names

ALIASES = """
# virtual(5)
sales@example.org   Ann+shop@example.org
all@example.org     ann@example.org, bob@example.org
old@example.org
    bob
@example.net        @example.org
sales+eu@example.org bob
john+smith@example.org john+smith@example.org
js@example.org      john+smith@example.org
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
        ("sales+eu@example.org", "bob"),
        ("John+Smith@example.org", "john+smith"),
        ('"john+smith"@example.org.', "john+smith"),
        ("john+smith", "john+smith"),
        ("js@example.org", "john+smith"),
        ("john+lists@example.org", "john"),
        ("john+smith@example.net", "john+smith"),
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


def test_a_name_with_the_delimiter_is_another_users(tmp_path):
    """Mail to john+smith@ is john's, unless an alias names the whole address; then it never is."""
    to = ["john+smith@example.org", "john+lists@example.org"]
    for names, johns, smiths in ((replace(NAMES, aliases={}), {0, 1}, set()), (NAMES, {1}, {0})):
        rules = ModelConfig(tmp_path, persons=names).teaching
        assert own_addresses(to, "john", rules) == johns
        assert own_addresses(to, "john+smith", rules) == smiths
        assert own_addresses(to, "john+smith@example.org", rules) == (smiths or johns)
        assert bool(pairing_fault(names, "john+smith")) is not bool(smiths)


def test_an_alias_without_target_is_an_error():
    """The error names the file and the line."""
    with pytest.raises(SettingsError, match=r"virtual:2: the alias b@example.org has no target"):
        aliases_of("a@example.org ann\nb@example.org\n", "virtual")


def test_an_alias_for_a_subaddress_of_its_owner_changes_nothing():
    """A line for a folder, or for a catch-all, makes no second person."""
    lines = """
    ann+shop@example.org ann@example.org
    john@example.org john+inbox@example.org
    """
    names = replace(NAMES, aliases=aliases_of(lines.replace("    ", ""), "virtual"))
    assert names.of("ann+shop@example.org") == names.of("ann@example.org") == "ann"
    assert names.of("john@example.org") == names.of("john") == "john"
    assert names.exact == frozenset()


def test_a_lost_alias_file_leaves_the_names_from_before(tmp_path):
    """A process that restarts without the file goes on, without persons, and logs the reason."""
    aliases, file, records = tmp_path / "virtual", tmp_path / "spamnb.toml", []
    aliases.write_text("sales@example.org ann\n")
    file.write_text(f'[persons]\nenabled = true\naliases = "{aliases}"\n')
    read = load(file, environment={})
    names = load_names(read, records.append)
    assert (names.of("sales@example.org"), records) == ("ann", [])
    aliases.unlink()
    assert load_names(read, records.append, names) is names
    assert load_names(read, records.append) is None
    assert [(one["event"], one["level"]) for one in records] == [
        ("aliases of persons not loaded", "error")
    ] * 2
    assert "cannot be read" in records[0]["error"]


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
        (f"{ENABLED}[person.'x@elsewhere.example']\n", "not the address of a person"),
        (f"{ENABLED}[person.ann]\n[person.'Ann@example.org']\n", "are one person"),
    ],
)
def test_a_section_of_a_person_names_one(tmp_path, text, error):
    """A section of no person, or a second one of the same person, is an error."""
    file = tmp_path / "spamnb.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=error):
        person_names(load(file, environment={}))


@pytest.mark.parametrize(
    ("login", "addresses", "fault"),
    [
        ("ann", (), ""),
        ("ann@example.org", (), ""),
        ("ann@example.com", (), ""),
        ("bob", ("old@example.org", "bob@example.org"), ""),
        ("ann", ("sales@example.org", "ann@example.com"),
         "ann labels for ann, mail to ann@example.com is for ann@example.com"),
        ("ann", ("all@example.org",),
         "ann labels for ann, mail to all@example.org is for no person"),
        ("ann@elsewhere.example", (),
         "ann@elsewhere.example is not a person, but a list or an address of another domain"),
    ],
)  # fmt: skip
def test_logins_and_addresses_are_paired(login, addresses, fault):
    """A login labels for the person that its addresses are of, or the fault names both."""
    assert pairing_fault(NAMES, login, addresses) == fault


def test_a_login_without_any_address_is_found():
    """Among several domains without login domains, a bare login is no address's person."""
    domains = frozenset({"example.org", "example.com"})
    fault = "ann labels for ann, but no address here belongs to this person"
    assert pairing_fault(PersonNames("+", frozenset(), domains), "ann") == fault
    virtual = PersonNames("+", frozenset(), domains, {"sales@example.org": "ann"})
    assert pairing_fault(virtual, "ann") == ""
