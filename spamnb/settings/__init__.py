"""Read the settings from a TOML file, the environment and flags into frozen values.

`table` describes every setting, `schema` holds the values and defaults. Later sources override
earlier ones: defaults, costs in the home (`maintenance/home_files.py`), the file, the
environment (`SPAMNB_STORE_LIMIT_BYTES` is `store.limit_bytes`), flags.
Must not import commands, stores or mail.

Failure: SettingsError, one line with the key, its position, its value and what is allowed. An
unknown key is an error that suggests the nearest known one.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from spamnb.errors import SettingsError
from spamnb.maintenance.home_files import FILE as COSTS_FILE
from spamnb.maintenance.home_files import read_costs, read_stored
from spamnb.model.costs import Costs, junk_from
from spamnb.settings.schema import MEMBERS, SECTIONS, VERSION, Settings
from spamnb.settings.table import BY_NAME, BY_VARIABLE, FAMILIES, SETTINGS, setting_of
from spamnb.settings.types import MASKED, PREFIX, CostSettings, Setting, toml_of

__all__ = [
    "DEFAULT_FILE",
    "Settings",
    "control_of",
    "essential",
    "home_of",
    "load",
    "other_homes",
    "restored",
]

DEFAULT_FILE = Path("/etc/spamnb/spamnb.toml")
SYSTEM_HOME = Path("/var/lib/spamnb")
"""the home of the daemon that `scripts/install` and the packages set up"""
_ESSENTIAL = ("home", "serve.control")


class FoundValue(NamedTuple):
    """A value and its position (file and line, variable or flag), for error messages."""

    value: Any
    position: str


def load(
    file: str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the file (by default the system's, if it exists), the environment and the flags."""
    environment = os.environ if environment is None else environment
    found, source = _from_file(file, environment, flags or {})
    found |= _from_environment(environment)
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    # Flags for sections of a family replace all sections of that family in the file.
    named = {name.partition(".")[0] for name in given} & FAMILIES.keys()
    found = {name: one for name, one in found.items() if name.partition(".")[0] not in named}
    found |= {name: FoundValue(value, "a flag") for name, value in given.items()}
    settings = _build({name: _checked(name, one) for name, one in found.items()}, found, source)
    if settings.ham_loss.junk_from:
        return _with_fixed_threshold(settings, found)
    if any(name.startswith("costs.") for name in found):
        return settings
    home = home_of(settings, environment)
    costs = read_costs(home, settings.ham_loss.one_in)
    if costs is None:
        return settings
    stored = read_stored(home)
    if stored is not None and stored.one_in is not None:
        # They were found for scores as they are, and are a threshold of the site's mail already.
        settings = replace(settings, ham_loss=settings.ham_loss._replace(site_threshold=False))
    found_at = dict.fromkeys(("costs.junk", "costs.reject"), str(home / COSTS_FILE))
    return replace(settings, costs=costs, positions={**settings.positions, **found_at})


def _with_fixed_threshold(settings: Settings, found: Mapping[str, FoundValue]) -> Settings:
    """Return the settings with the costs that make `ham_loss.junk_from` the threshold of junk."""
    where = found["ham_loss.junk_from"].position
    return replace(
        settings,
        costs=junk_from(settings.costs or Costs(), settings.ham_loss.junk_from),
        ham_loss=settings.ham_loss._replace(site_threshold=False),
        positions={**settings.positions, "costs.junk": where, "costs.reject": where},
    )


def _from_file(
    file: str | Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> tuple[dict[str, FoundValue], str]:
    path = DEFAULT_FILE if file is None else Path(file)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        if file is None:
            return {}, ""
        raise SettingsError(
            f"{path} does not exist", hint="`spamnb config example` prints one"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        if file is None and isinstance(error, PermissionError) and _home_given(environment, flags):
            return {}, ""  # the settings of another user's daemon; not needed with a home
        raise SettingsError(f"{path} cannot be read: {error}") from error
    return parse(text, str(path)), str(path)


def _home_given(environment: Mapping[str, str], flags: Mapping[str, Any]) -> bool:
    return bool(flags.get("home") or environment.get(PREFIX + "HOME"))


def parse(text: str, source: str) -> dict[str, FoundValue]:
    """Return the values of a settings file by name; unknown keys are errors."""
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{source} is not valid TOML: {error}") from error
    _refuse_version(tree.get("settings_version", VERSION), source)
    lines = _lines_of(text)
    found: dict[str, FoundValue] = {}
    for name, value in _leaves(tree):
        line = lines.get(name, lines.get(name.rpartition(".")[0], 0))
        where = f"{source}, line {line}" if line else source
        if setting_of(name) is None and not (value == {} and _is_named_section(name)):
            raise SettingsError(f"{where}: there is no setting {name}", hint=_nearest(name))
        found[name] = FoundValue(value, where)
    return found


def _refuse_version(version: Any, source: str) -> None:
    """Refuse another version before other lines are checked: keys may be unknown because of it."""
    if isinstance(version, int) and version != VERSION:
        raise SettingsError(
            f"{source} has version {version} of the settings; this program reads {VERSION}",
            hint="rewrite the file for this version, or install the version that it is for: see "
            "docs/upgrade.md",
        )


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and name not in BY_NAME and (name in SECTIONS or value):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_ENTRY = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")


def _lines_of(text: str) -> dict[str, int]:
    """Find the line of each key by pattern; tomllib does not report lines."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        table = _TABLE.fullmatch(line)
        entry = _ENTRY.match(line)
        if table:
            section = _plain(table[1]) + "."
            lines.setdefault(section[:-1], number)
        elif entry:
            lines.setdefault(section + _plain(entry[1]), number)
    return lines


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _is_named_section(name: str) -> bool:
    """Return True for the name of a section of a family."""
    family, _, rest = name.partition(".")
    return family in FAMILIES and bool(rest)


def _nearest(name: str) -> str:
    known: Iterable[str] = BY_NAME
    family, _, rest = name.partition(".")
    meant = difflib.get_close_matches(family, FAMILIES, 1, 0.7)
    if meant and meant[0] != family and rest and family not in SECTIONS:
        return f"did you mean {meant[0]}.{rest}?"
    if family in FAMILIES and rest:
        chosen = rest.rpartition(".")[0] or FAMILIES[family].sample
        known = [f"{family}.{chosen}.{setting.key}" for setting in FAMILIES[family].settings]
    near = difflib.get_close_matches(name, known, 1, 0.5)
    if not near:
        key = name.rpartition(".")[2]
        near = [full for full in known if full.rpartition(".")[2] == key][:1]
    return f"did you mean {near[0]}?" if near else "`spamnb config example` lists all settings"


def _from_environment(environment: Mapping[str, str]) -> dict[str, FoundValue]:
    """Return the settings of environment variables.

    Unknown variables with the prefix are ignored (containers set some), unless they resemble one.
    """
    found = {}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        setting, text = BY_VARIABLE.get(variable), environment[variable]
        if setting is None:
            near = difflib.get_close_matches(variable, BY_VARIABLE, 1, 0.85)
            if near:
                raise SettingsError(
                    f"the variable {variable} is not a setting", hint=f"did you mean {near[0]}?"
                )
            continue
        try:
            value = setting.type.parse(text)
        except (ValueError, KeyError) as error:
            raise _invalid(setting, FoundValue(text, f"${variable}"), setting.name) from error
        found[setting.name] = FoundValue(value, f"${variable}")
    return found


def _checked(name: str, found: FoundValue) -> Any:
    setting = setting_of(name)
    if setting is None:
        return found.value
    try:
        return setting.type.take(found.value)
    except (ValueError, TypeError) as error:
        raise _invalid(setting, found, name) from error


def _invalid(setting: Setting, found: FoundValue, name: str) -> SettingsError:
    shown = MASKED if setting.secret else toml_of(found.value)
    return SettingsError(
        f"{name} ({found.position}) is {shown}", hint=f"it must be {setting.type.allowed}"
    )


def _build(values: Mapping[str, Any], found: Mapping[str, FoundValue], source: str) -> Settings:
    top = {name: value for name, value in values.items() if "." not in name}
    for section, make in SECTIONS.items():
        keys = [setting.key for setting in SETTINGS if setting.section == section]
        top[section] = _make_section(section, make, keys, values, found)
    for family, member in MEMBERS.items():
        make = partial(_with_costs, member, top["costs"]) if family in _OWN_COSTS else member
        keys = [setting.key for setting in FAMILIES[family].settings]
        top[family] = {
            chosen: _make_section(f"{family}.{chosen}", make, keys, values, found)
            for chosen in _chosen(family, found)
        }
    positions = {name: one.position for name, one in found.items()}
    return Settings(**top, file=source, positions=positions)


_OWN_COSTS = ("domain", "person")


def _with_costs(make: Callable[..., CostSettings], costs: Costs, **within: Any) -> CostSettings:
    """Make a section whose missing costs are these."""
    return make(**within).completed(costs)


def _chosen(family: str, found: Mapping[str, FoundValue]) -> list[str]:
    """List the names of a family's sections, in the order of the file."""
    rests = [name.partition(".")[2] for name in found if name.startswith(f"{family}.")]
    chosen = [rest.rpartition(".")[0] if setting_of(f"{family}.{rest}") else rest for rest in rests]
    return list(dict.fromkeys(chosen))


def _make_section(
    section: str,
    make: Callable[..., Any],
    keys: list[str],
    values: Mapping[str, Any],
    found: Mapping[str, FoundValue],
) -> Any:
    within = {key: values[f"{section}.{key}"] for key in keys if f"{section}.{key}" in values}
    try:
        return make(**within)
    except SettingsError as error:
        where = found[f"{section}.{next(iter(within))}"].position if within else "the defaults"
        raise SettingsError(f"[{section}] ({where}): {error}", hint=error.hint) from error


def restored(
    values: Mapping[str, Any], positions: Mapping[str, str] = MappingProxyType({})
) -> Settings:
    """Rebuild the settings from the output of `render.plain`, as passed between processes."""
    found = {name: FoundValue(value, "handed over") for name, value in values.items()}
    settings = _build({name: _checked(name, one) for name, one in found.items()}, found, "")
    return replace(settings, positions=positions)


def control_of(
    settings: Settings, home: Path, environment: Mapping[str, str] | None = None
) -> Path:
    """Return the path of the control socket: as set, else in $RUNTIME_DIRECTORY or the home."""
    environment = os.environ if environment is None else environment
    if settings.serve.control:
        return Path(settings.serve.control)
    runtime = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
    return (Path(runtime) if runtime else home) / "control.sock"


def home_of(settings: Settings, environment: Mapping[str, str] | None = None) -> Path:
    """Return the model's folder, by one rule for the daemon and all commands.

    As set; else $STATE_DIRECTORY, which systemd sets for the daemon; else `SYSTEM_HOME`, if it
    exists and this user may write it (root and the daemon's user); else in the XDG data folder.
    """
    environment = os.environ if environment is None else environment
    if settings.home:
        return Path(settings.home).expanduser()
    return next(_default_homes(environment))


def other_homes(settings: Settings, environment: Mapping[str, str] | None = None) -> list[Path]:
    """Return default homes that have a model, and are not the one in use.

    None if the user names the home for this run, by a flag or a variable.
    """
    environment = os.environ if environment is None else environment
    position = settings.positions.get("home", "")
    if position and not (settings.file and position.startswith(settings.file)):
        return []
    used = os.path.realpath(home_of(settings, environment))
    found = (home for home in _default_homes(environment) if os.path.realpath(home) != used)
    return [home for home in found if os.access(home / "data.mdb", os.F_OK)]


def _default_homes(environment: Mapping[str, str]) -> Iterator[Path]:
    state = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if state:
        yield Path(state)
    data = environment.get("XDG_DATA_HOME", "")
    if data.startswith("/"):  # relative paths must be ignored (XDG Base Directory, 0.8)
        yield Path(data) / "spamnb"
    if os.access(SYSTEM_HOME, os.R_OK | os.W_OK | os.X_OK):
        yield SYSTEM_HOME
    yield Path("~/.local/share/spamnb").expanduser()


def essential(
    file: str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Return only the home and the control socket, of settings that have a mistake.

    With these, commands reach the daemon. Other lines are not read; never fails.
    """
    environment = os.environ if environment is None else environment
    path = DEFAULT_FILE if file is None else Path(file)
    found = _lines_with(path, _ESSENTIAL)
    for name in _ESSENTIAL:
        if value := (flags or {}).get(name) or environment.get(BY_NAME[name].variable):
            found[name] = value
    return _build(found, {name: FoundValue(found[name], str(path)) for name in found}, str(path))


def _lines_with(path: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return these texts of a settings file that may not be valid TOML as a whole."""
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    lines = _lines_of(text)
    found: dict[str, Any] = {}
    for name in (name for name in names if name in lines):
        with suppress(tomllib.TOMLDecodeError):
            _, value = next(iter(_leaves(tomllib.loads(text.splitlines()[lines[name] - 1]))))
            found |= {name: value} if isinstance(value, str) else {}
    return found
