"""Settings: one table, sources that win in order, and errors that say where and what."""

import tomllib
from pathlib import Path

import pytest

from spamnb.errors import SettingsError
from spamnb.model.costs import Costs, thresholds
from spamnb.settings import Settings, home_of, load
from spamnb.settings.render import as_dict, example, listed, shown, value_of
from spamnb.settings.table import BY_NAME, SETTINGS
from spamnb.settings.types import toml_of

pytestmark = pytest.mark.usefixtures("no_system_file")


def written(tmp_path, text):
    path = tmp_path / "spamnb.toml"
    path.write_text(text)
    return path


def complaint(tmp_path, text):
    with pytest.raises(SettingsError) as caught:
        load(written(tmp_path, text), environment={})
    return f"{caught.value} - {caught.value.hint}"


def test_the_example_shows_every_setting_with_what_holds_without_a_file():
    """As TOML reads it: a list is what the tree holds as a tuple."""
    shown = {name: toml_of(value_of(Settings(), name)) for name in BY_NAME}
    tree = tomllib.loads(example())
    found = {k: toml_of(v) for k, v in tree.items() if not isinstance(v, dict)}
    for section, keys in tree.items():
        if isinstance(keys, dict):
            found |= {f"{section}.{key}": toml_of(value) for key, value in keys.items()}
    assert found == shown


def test_the_example_is_a_file_that_changes_nothing(tmp_path):
    """`config example` is valid, and its values are the defaults."""
    path = written(tmp_path, example())
    assert load(path, environment={}) == Settings(file=str(path))


def test_every_setting_has_its_reason_in_the_example():
    """The example explains each default."""
    words = " ".join(example().replace("#", " ").split())
    for setting in SETTINGS:
        assert " ".join(setting.reason.split()) in words


def test_what_is_in_force_is_shown_as_a_file_that_means_the_same(tmp_path):
    """`config show` can be kept as a settings file."""
    text = 'labels = ["ham", "spam", "work"]\n[costs]\njunk = [50, 0.04]\n[log]\nlevel = "debug"\n'
    first = load(written(tmp_path, text), environment={})
    again = load(written(tmp_path, shown(first)), environment={})
    assert again == first


def test_a_fixed_threshold_of_junk_replaces_costs_and_mail(tmp_path):
    """It is the threshold, whatever [costs] says; the settings that are shown mean the same."""
    for costs in ("", "[costs]\njunk = [50, 0.1]\n"):
        settings = load(written(tmp_path, f"{costs}[ham_loss]\njunk_from = 3.4"), environment={})
        junk = next(one for one in thresholds(settings.costs) if one.decision == "junk")
        assert junk.log_odds == pytest.approx(3.4)
        assert settings.ham_loss.aimed_at == 0
        again = load(written(tmp_path, shown(settings)), environment={})
        assert again.costs.junk == pytest.approx(settings.costs.junk)
        assert again.costs.reject == pytest.approx(settings.costs.reject)


def test_what_is_in_force_is_shown_with_its_position(tmp_path):
    """The line of the file, the variable or the flag; nothing for a default."""
    text = '# first\n[log]\nlevel = "debug"\n[domain."a.example"]\njunk_costs = [90, 0.05]\n'
    path = written(tmp_path, text)
    environment = {"SPAMNB_HISTORY_KEEP_DAYS": "20"}
    settings = load(path, environment=environment, flags={"home": str(tmp_path)})
    lines = shown(settings).splitlines()
    assert f'level = "debug"  # {path}, line 3' in lines
    assert "keep_days = 20  # $SPAMNB_HISTORY_KEEP_DAYS" in lines
    assert f'home = "{tmp_path}"  # a flag' in lines
    assert 'format = "text"' in lines
    found = {one["name"]: one["position"] for one in listed(settings)}
    assert found['domain."a.example".junk_costs'] == f"{path}, line 5"
    assert found["log.format"] == ""


def test_later_sources_win(tmp_path):
    """Flags win over the environment, that over the file, that over the defaults."""
    days = "[journal]\nkeep_days = 10\n[history]\nkeep_days = 9\n"
    path = written(tmp_path, 'home = "/file"\n' + days)
    environment = {"SPAMNB_HOME": "/env", "SPAMNB_JOURNAL_KEEP_DAYS": "20"}
    settings = load(path, environment=environment, flags={"home": "/flag"})
    assert settings.home == "/flag"
    assert settings.journal.keep_days == 20
    assert settings.history.keep_days == 9
    assert load(path, environment=environment).home == "/env"
    assert load(path, environment={}, flags={"home": None}).home == "/file"


def test_variables_carry_every_sort_of_value():
    """Lists, pairs, flags and numbers can be set by the environment."""
    settings = load(
        environment={
            "SPAMNB_LABELS": "ham, spam,work",
            "SPAMNB_COSTS_JUNK": "50,0.04",
            "SPAMNB_MODEL_VOCABULARY": "false",
            "SPAMNB_STORE_LIMIT_BYTES": "1000000",
        }
    )
    assert settings.labels == ("ham", "spam", "work")
    assert settings.costs == Costs(junk=(50.0, 0.04))
    assert settings.model.vocabulary is False
    assert settings.store.limit_bytes == 1_000_000


def test_foreign_variables_are_left_alone_but_near_misses_are_not():
    """Unknown variables with the prefix are ignored (containers set some); typos are errors."""
    assert load(environment={"SPAMNB_PORT": "tcp://10.0.0.1"}) == Settings()
    with pytest.raises(SettingsError, match="SPAMNB_STORE_LIMIT_BYTE ") as caught:
        load(environment={"SPAMNB_STORE_LIMIT_BYTE": "1"})
    assert "SPAMNB_STORE_LIMIT_BYTES" in caught.value.hint


def test_a_file_of_another_version_is_refused_whole(tmp_path):
    """Its version is the error, not the first key that this program does not know."""
    file = tmp_path / "later.toml"
    file.write_text("later = 1\nsettings_version = 2\n")
    with pytest.raises(SettingsError, match="version 2 of the settings; this program reads 1"):
        load(file)


def test_an_unknown_key_names_its_line_and_the_nearest_known(tmp_path):
    """Nothing is guessed: a misspelt key stops the program and is easy to mend."""
    text = "# mine\n[journal]\nkeep_day = 30\n"
    assert "line 3: there is no setting journal.keep_day" in complaint(tmp_path, text)
    assert "did you mean journal.keep_days?" in complaint(tmp_path, text)
    assert "did you mean history.limit_bytes" in complaint(tmp_path, "[histori]\nlimit_bytes = 1\n")
    assert "line 1" in complaint(tmp_path, "[costs.dliver]\n")


def test_a_wrong_value_names_key_file_line_found_and_allowed(tmp_path):
    """One line is enough to mend any wrong value."""
    error = complaint(tmp_path, '\n[store]\n\nlimit_bytes = "much"\n')
    expected = f'store.limit_bytes ({tmp_path}/spamnb.toml, line 4) is "much" - it must be a whole'
    assert error.startswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        "[store]\nlimit_bytes = -1",
        "[store]\nlimit_bytes = true",
        "[journal]\nkeep_days = 0",
        "[journal]\nkeep_days = 1.5",
        '[model]\nkind = "magic"',
        "[model]\nvocabulary = 1",
        "[costs]\njunk = [1]",
        '[costs]\njunk = [1, "x"]',
        "[costs]\njunk = [-1, 0]",
        "[costs]\njunk = [nan, 0]",
        'labels = ["ham"]',
        'labels = ["ham", "ham"]',
        'labels = ["ham", "a b"]',
        '[local]\nhosts = "mx"',
        "[local]\nhosts = [1]",
        "home = 5",
        '[log]\nlevel = "loud"',
        "store = 5",
    ],
)
def test_what_is_not_allowed_is_refused(tmp_path, text):
    """A value of the wrong sort or range never reaches the program."""
    assert complaint(tmp_path, text + "\n")


def test_costs_that_contradict_each_other_name_their_place(tmp_path):
    """Rules over several keys name the section and a line too."""
    error = complaint(tmp_path, "[costs]\njunk = [0.0, 0.5]\n")
    assert "[costs]" in error
    assert "line 2" in error


def test_a_broken_file_is_reported_with_its_line(tmp_path):
    """TOML's own mistakes are the user's, and come with their line."""
    assert "line 2" in complaint(tmp_path, "[store]\nlimit_bytes ==\n")


def test_a_file_that_was_named_must_be_there(tmp_path):
    """Only the default file may be absent."""
    with pytest.raises(SettingsError, match="does not exist"):
        load(tmp_path / "none.toml", environment={})


def test_the_address_of_a_webhook_is_not_shown(tmp_path):
    """The address of many receivers is their password."""
    path = tmp_path / "spamnb.toml"
    path.write_text('[webhook.chat]\nurl = "https://hooks.example/T/B/xyz"\n')
    settings = load(path, environment={})
    found = {one["name"]: one for one in listed(settings)}["webhook.chat.url"]
    assert (found["value"], found["changed"]) == ('"********"', True)
    assert "hooks.example" not in shown(settings) + str(as_dict(settings)) + str(listed(settings))


def test_a_secret_is_never_shown(monkeypatch):
    """Secrets are masked in `config show` and in errors."""
    import spamnb.settings as module

    secret = tuple(s._replace(secret=s.name == "local.hosts") for s in SETTINGS)
    monkeypatch.setattr("spamnb.settings.render.SETTINGS", secret)
    monkeypatch.setitem(module.BY_NAME, "local.hosts", next(s for s in secret if s.secret))
    settings = load(environment={"SPAMNB_LOCAL_HOSTS": "mx.secret"})
    assert "mx.secret" not in shown(settings)
    assert "mx.secret" not in str(as_dict(settings))
    with pytest.raises(SettingsError) as caught:
        module._checked("local.hosts", module.FoundValue(5, "x"))
    assert "5" not in str(caught.value)


def test_the_home_is_looked_for_in_the_promised_order():
    """The home is that of the settings, else $STATE_DIRECTORY, else the XDG data folder."""
    environment = {"STATE_DIRECTORY": "/var/lib/spamnb:/x", "XDG_DATA_HOME": "/data", "HOME": "/h"}
    assert home_of(Settings(home="/set"), environment) == Path("/set")
    assert home_of(Settings(), environment) == Path("/var/lib/spamnb")
    del environment["STATE_DIRECTORY"]
    assert home_of(Settings(), environment) == Path("/data/spamnb")
    assert home_of(Settings(), {"XDG_DATA_HOME": "relative"}) == home_of(Settings(), {})
    assert home_of(Settings(), {}) == Path("~/.local/share/spamnb").expanduser()


def test_an_unreadable_default_file_matters_only_without_a_home(monkeypatch, tmp_path):
    """With a home in the environment, an unreadable default file is no error."""
    path = written(tmp_path, "")
    monkeypatch.setattr("spamnb.settings.DEFAULT_FILE", path)

    def refuse(*_args, **_more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert load(environment={"SPAMNB_HOME": "/mine"}).home == "/mine"
    with pytest.raises(SettingsError, match="cannot be read"):
        load(environment={})
