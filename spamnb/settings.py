"""Settings: one tree of frozen values, read once, from a TOML file, the environment and flags.

`SETTINGS` is the one table: the names, defaults and reasons that `config example` prints, what is
allowed, and where each value lands in the tree. Later sources win: defaults, the file, the
environment (`SPAMNB_STORE_LIMIT_BYTES` is `store.limit_bytes`), flags. Must not know commands,
stores or mail.

Failure: SettingsError, one line that names the key, where it stands, what was found and what is
allowed. Nothing is guessed: an unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spamnb.core.decision import Costs
from spamnb.core.headers import House
from spamnb.core.model import KINDS
from spamnb.errors import SettingsError

DEFAULT_FILE = Path("/etc/spamnb/spamnb.toml")
PREFIX = "SPAMNB_"
MASKED = "********"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model is made; one that is there keeps what it was made with."""

    kind: str = "corrected"
    vocabulary: bool = True


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The model's file."""

    limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """The events that can be undone."""

    keep_days: int = 400


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """The verdicts that can be corrected without the message."""

    keep_days: int = 30
    limit_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class ExpireSettings:
    """Which features are let go."""

    after_days: int = 400
    most_holders: int = 1


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is told on the way."""

    level: str = "warning"


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole tree."""

    home: str = ""
    labels: tuple[str, ...] = ("ham", "spam")
    model: ModelSettings = field(default_factory=ModelSettings)
    house: House = field(default_factory=House)
    costs: Costs = field(default_factory=Costs)
    store: StoreSettings = field(default_factory=StoreSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    expire: ExpireSettings = field(default_factory=ExpireSettings)
    log: LogSettings = field(default_factory=LogSettings)
    file: str = ""
    """where they were read from; empty if from nowhere"""


_SECTIONS: dict[str, Callable[..., Any]] = {
    "model": ModelSettings,
    "house": House,
    "costs": Costs,
    "store": StoreSettings,
    "journal": JournalSettings,
    "history": HistorySettings,
    "expire": ExpireSettings,
    "log": LogSettings,
}


# --- what a value may be --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sort:
    """A sort of values: what is allowed in words, how to check one, how to read one from text."""

    allowed: str
    take: Callable[[Any], Any]
    """the value as the tree holds it; ValueError if it is none"""
    parse: Callable[[str], Any]
    """from an environment variable"""


def _is(good: bool, value: Any) -> Any:  # noqa: FBT001 - read as a sentence: is good, value
    if not good:
        raise ValueError
    return value


def _words(value: Any) -> tuple[str, ...]:
    return tuple(_is(isinstance(value, list | tuple), value) and (_text(one) for one in value))


def _text(value: Any) -> str:
    return str(_is(isinstance(value, str), value))


def _whole(value: Any, least: int, most: int) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return int(_is(good, value))


def _pair(value: Any) -> tuple[float, float]:
    numbers = _is(isinstance(value, list | tuple) and len(value) == 2, value)
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise ValueError
    return float(numbers[0]), float(numbers[1])


def _flag(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.strip().lower()]


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _labels(value: Any) -> tuple[str, ...]:
    names = _words(value)
    good = len(names) > 1 and len(set(names)) == len(names)
    return tuple(_is(good and all(_LABEL.fullmatch(name) for name in names), names))


_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

TEXT = Sort("a text in quotes", _text, str)
TEXTS = Sort('a list of texts, such as ["a", "b"]', _words, _listed)
LABELS = Sort("two names or more, all different, of letters, digits and -._", _labels, _listed)
FLAG = Sort("true or false", lambda value: _is(isinstance(value, bool), value), _flag)
PAIR = Sort(
    "two numbers that are not negative, [if it is ham, if it is spam]",
    _pair,
    lambda text: [float(part) for part in text.split(",")],
)


def whole(least: int, most: int = (1 << 63) - 1) -> Sort:
    """Whole numbers in a range."""
    upto = f"from {least} to {most}" if most < (1 << 63) - 1 else f"from {least} on"
    return Sort(f"a whole number {upto}", lambda value: _whole(value, least, most), int)


def choice(*names: str) -> Sort:
    """One of these."""
    return Sort(f"one of {', '.join(names)}", lambda value: _is(value in names, value), str)


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the settings file."""

    name: str
    default: Any
    sort: Sort
    reason: str
    """what it does and why it is as it is, in a sentence or two"""
    secret: bool = False

    @property
    def section(self) -> str:
        """The table it stands in; empty at the top."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Its name within the section."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.replace(".", "_").upper()


_COSTS = Costs()
_DAYS = whole(1, 36_500)

SETTINGS: tuple[Setting, ...] = (
    Setting("home", "", TEXT,
        "The folder that holds the model. Empty: $STATE_DIRECTORY if systemd gives one, else "
        "spamnb in the XDG data folder (~/.local/share)."),
    Setting("labels", ("ham", "spam"), LABELS,
        "What people call messages. Fixed when a model is made."),
    Setting("model.kind", "corrected", choice(*KINDS),
        "corrected learns from its mistakes and is the most accurate; multinomial and bernoulli "
        "are the classical models, exact and simple. Fixed when a model is made."),
    Setting("model.vocabulary", True, FLAG,
        "Keep the words behind the features, so that verdicts can be explained without the "
        "message, at the price of disk. Fixed when a model is made."),
    Setting("house.hosts", (), TEXTS,
        "Our own mail servers, as they stand after `by` in Received. What they add is not part of "
        "a message, so it is the same before and after delivery."),
    Setting("house.authserv_ids", (), TEXTS,
        "Our own names in Authentication-Results; results by others may be forged and are not "
        "believed."),
    Setting("costs.deliver", _COSTS.deliver, PAIR,
        "What each decision costs: [if the message is ham, if it is spam]. The unit is one spam "
        "read in the inbox; the decision that is expected to cost least is taken."),
    Setting("costs.unsure", _COSTS.unsure, PAIR, "Delivered and marked: a glance either way."),
    Setting("costs.junk", _COSTS.junk, PAIR, "Filed as junk: a ham there is seen late or never."),
    Setting("costs.reject", _COSTS.reject, PAIR, "Refused: nobody can fetch a ham back."),
    Setting("store.limit_bytes", 0, whole(0),
        "Most that the model's file may take; 0 is no limit. At the limit teaching is refused, "
        "scoring goes on."),
    Setting("journal.keep_days", 400, _DAYS,
        "How long a training can be undone; `spamnb expire` folds older ones into the checkpoint. "
        "A year and a month, so that what comes once a year was seen before."),
    Setting("history.keep_days", 30, _DAYS,
        "How long a verdict can be corrected by its id or signature alone."),
    Setting("history.limit_bytes", 1 << 30, whole(1 << 20),
        "Most that the history may take; the oldest verdicts go first."),
    Setting("expire.after_days", 400, _DAYS,
        "`spamnb expire` lets go of features that nobody taught for so long and that few messages "
        "held: most words are seen once and never again."),
    Setting("expire.most_holders", 1, whole(0, 1 << 31), "... held by at most so many messages."),
    Setting("log.level", "warning", choice("debug", "info", "warning", "error"),
        "How much is told on stderr."),
)  # fmt: skip

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A value and where it stands."""

    value: Any
    where: str


def load(
    file: str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the file (else the default one, if it is there), the environment and the flags."""
    environment = os.environ if environment is None else environment
    found, source = _from_file(file, environment, flags or {})
    found |= _from_environment(environment)
    given = flags or {}
    found |= {name: Found(value, "a flag") for name, value in given.items() if value is not None}
    return _build({name: _taken(name, one) for name, one in found.items()}, found, source)


def _from_file(
    file: str | Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> tuple[dict[str, Found], str]:
    path = DEFAULT_FILE if file is None else Path(file)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        if file is None:
            return {}, ""
        raise SettingsError(f"{path} is not there", hint="see `spamnb config example`") from error
    except (OSError, UnicodeDecodeError) as error:
        if file is None and isinstance(error, PermissionError) and _home_given(environment, flags):
            return {}, ""  # somebody else's daemon; who names a home does not need its settings
        raise SettingsError(f"{path} cannot be read: {error}") from error
    return parse(text, str(path)), str(path)


def _home_given(environment: Mapping[str, str], flags: Mapping[str, Any]) -> bool:
    return bool(flags.get("home") or environment.get(PREFIX + "HOME"))


def parse(text: str, source: str) -> dict[str, Found]:
    """Find the values in a settings file; unknown keys are errors."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{source} is no TOML: {error}") from error
    lines = _lines_of(text)
    found: dict[str, Found] = {}
    for name, value in _leaves(tree):
        line = lines.get(name, lines.get(name.rpartition(".")[0], 0))
        where = f"{source}, line {line}" if line else source
        if name not in _BY_NAME:
            raise SettingsError(f"{where}: there is no setting {name}", hint=_nearest(name))
        found[name] = Found(value, where)
    return found


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and name not in _BY_NAME and (name in _SECTIONS or value):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_ENTRY = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")


def _lines_of(text: str) -> dict[str, int]:
    """Find the line of each key, as far as lines can tell; tomllib does not say."""
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


def _nearest(name: str, known: Iterable[str] = _BY_NAME) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    if not near:
        key = name.rpartition(".")[2]
        near = [full for full in known if full.rpartition(".")[2] == key][:1]
    return f"did you mean {near[0]}?" if near else "`spamnb config example` shows all"


def _from_environment(environment: Mapping[str, str]) -> dict[str, Found]:
    """Find settings by variable.

    Others with our prefix are nobody's mistake (containers set some), unless nearly a setting.
    """
    found = {}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        setting, text = _BY_VARIABLE.get(variable), environment[variable]
        if setting is None:
            near = difflib.get_close_matches(variable, _BY_VARIABLE, 1, 0.85)
            if near:
                raise SettingsError(
                    f"the variable {variable} sets nothing", hint=f"did you mean {near[0]}?"
                )
            continue
        try:
            value = setting.sort.parse(text)
        except (ValueError, KeyError) as error:
            raise _wrong(setting, Found(text, f"${variable}")) from error
        found[setting.name] = Found(value, f"${variable}")
    return found


def _taken(name: str, found: Found) -> Any:
    setting = _BY_NAME[name]
    try:
        return setting.sort.take(found.value)
    except (ValueError, TypeError) as error:
        raise _wrong(setting, found) from error


def _wrong(setting: Setting, found: Found) -> SettingsError:
    shown = MASKED if setting.secret else _toml(found.value)
    return SettingsError(
        f"{setting.name} ({found.where}) is {shown}", hint=f"it must be {setting.sort.allowed}"
    )


def _build(values: Mapping[str, Any], found: Mapping[str, Found], source: str) -> Settings:
    top = {name: value for name, value in values.items() if "." not in name}
    for section, make in _SECTIONS.items():
        within = {
            setting.key: values[setting.name]
            for setting in SETTINGS
            if setting.section == section and setting.name in values
        }
        try:
            top[section] = make(**within)
        except SettingsError as error:
            places = [found[f"{section}.{key}"].where for key in within]
            raise SettingsError(f"[{section}] ({places[0]}): {error}", hint=error.hint) from error
    return Settings(**top, file=source)


# --- showing --------------------------------------------------------------------------------------


def value_of(settings: Settings, name: str) -> Any:
    """One value of the tree, by its name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def example() -> str:
    """Write a settings file with every setting at its default, and the reasons."""
    head = [
        "# Settings of spamnb, all at their defaults. Delete what you do not change.",
        "# A variable in the environment wins over this file: SPAMNB_STORE_LIMIT_BYTES.",
    ]
    return "\n".join([*head, *_written({s.name: s.default for s in SETTINGS}, reasons=True)]) + "\n"


def shown(settings: Settings) -> str:
    """Write the settings in force as a file, secrets masked."""
    return "\n".join(_written(as_dict(settings), reasons=False)) + "\n"


def as_dict(settings: Settings) -> dict[str, Any]:
    """Name the settings in force, secrets masked."""
    return {
        s.name: MASKED if s.secret and value_of(settings, s.name) else value_of(settings, s.name)
        for s in SETTINGS
    }


def _written(values: Mapping[str, Any], *, reasons: bool) -> list[str]:
    lines: list[str] = []
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"]
        if reasons:
            lines += [
                "",
                *textwrap.wrap(setting.reason, 90, initial_indent="# ", subsequent_indent="# "),
            ]
        lines.append(f"{setting.key} = {_toml(values[setting.name])}")
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 1_000_000:
        return f"{value:_}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


# --- the home -------------------------------------------------------------------------------------


def home_of(settings: Settings, environment: Mapping[str, str] | None = None) -> Path:
    """Find the model's folder: as set, else $STATE_DIRECTORY, else the XDG data folder."""
    environment = os.environ if environment is None else environment
    if settings.home:
        return Path(settings.home).expanduser()
    state = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if state:
        return Path(state)
    data = environment.get("XDG_DATA_HOME", "")
    if not data.startswith("/"):
        # Relative ones are to be ignored (XDG Base Directory Specification, 0.8).
        data = "~/.local/share"
    return Path(data).expanduser() / "spamnb"
