"""Settings, home, model and user of one run of the command line.

Each is loaded on first use, so that a command without a model opens none. If root runs a command
on another user's home, the process takes that user's id before it opens the home, because the
daemon could not write files of root. Files named on the command line are still opened as root
(`store.paths`).
Failure: SettingsError, StoreError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spamnb.cli.import_ahead import import_ahead
from spamnb.cli.printing import warn

if TYPE_CHECKING:
    from spamnb.core.model.costs import Costs, OwnCosts
    from spamnb.core.persons.names import PersonNames
    from spamnb.core.persons.recipient_costs import RecipientCosts
    from spamnb.core.policy.rulings import Ruling
    from spamnb.daemon.processes.logs import Log
    from spamnb.service.admin.model_config import ModelConfig
    from spamnb.service.engine.filter import Filter
    from spamnb.service.engine.requests import Source
    from spamnb.service.feedback.sender_lists import SenderLists
    from spamnb.settings import Settings
    from spamnb.store.history.verdict_history import History

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Listed(NamedTuple):
    """What lists of senders say about a message in the history."""

    then: str = ""
    """the list that decided when it was scanned; empty if none did"""
    now: Sequence[Ruling] = ()
    """of each list that names the sender"""
    verdict: dict[str, Any] | None = None
    """the verdict and the notes of the history"""


@dataclass
class CliSession:
    """State of one run of the command line."""

    home_flag: str | None = None
    config_flag: str | None = None
    verbose: bool = False

    @cached_property
    def settings(self) -> Settings:
        """The settings in force."""
        from spamnb.settings import load

        return load(self.config_flag, flags={"home": self.home_flag})

    def tolerate_mistakes(self) -> str:
        """Go on if the settings have a mistake; return it, after a warning.

        Only the home and the control socket are then known.
        """
        from spamnb.errors import SettingsError
        from spamnb.settings import essential

        try:
            self.settings  # noqa: B018 - reads them
        except SettingsError as error:
            hint = f" - {error.hint}" if error.hint else ""
            warn(f"the settings have a mistake: {error}{hint}")
            self.__dict__["settings"] = essential(self.config_flag, flags={"home": self.home_flag})
            return str(error)
        return ""

    def warn_of_other_homes(self) -> None:
        """Warn of a second home with a model."""
        from spamnb.settings import home_of, other_homes

        for other in other_homes(self.settings):
            warn(two_homes(home_of(self.settings), other))

    @cached_property
    def log(self) -> Log:
        """The log of a command: on stderr, as text."""
        from spamnb.daemon.processes.logs import Log
        from spamnb.settings.schema import LogSettings

        return Log(LogSettings(level="debug" if self.verbose else self.settings.log.level))

    @cached_property
    def home(self) -> Path:
        """The model's folder. The first use takes the user id of its owner if root runs this."""
        from spamnb.settings import home_of

        home = home_of(self.settings)
        self.warn_of_other_homes()
        become_owner(home)
        return home

    def open(self, *, readonly: bool = False, history: bool = False) -> Filter:
        """Open the model of the home; for reading, with the history only if there is one."""
        from spamnb.service.engine.filter import Filter
        from spamnb.store.fleet.outbox import OutboxReader

        settings = self.settings
        model = Filter.open(
            self.home,
            readonly=readonly,
            history=False,
            local=settings.local,
            costs=settings.costs,
            one_in=settings.ham_loss.aimed_at,
            limit_bytes=settings.store.limit_bytes,
        )
        if settings.fleet.url and readonly:
            model.pins = OutboxReader(self.home)
        if history and (not readonly or (self.home / "history").is_dir()):
            try:
                model.history = self.open_history()
            except BaseException:
                model.close()
                raise
        return model

    @contextmanager
    def whole_model(self) -> Iterator[bool]:
        """Let the block change the whole model; in a fleet a new history begins.

        The log is closed meanwhile. Yields whether it had entries that this host lacked.
        """
        if not self.settings.fleet.url:
            yield False
            return
        from spamnb.endpoints.fleet.membership import open_member
        from spamnb.service.fleet.renewal import renewing

        member = open_member(self.settings.fleet, self.home)
        with closing(member.log):
            before = member.log.head()
            with renewing(self.home, member) as moved:
                yield moved
            after = member.log.head()
        if before and after and before.epoch != after.epoch:
            warn("a new history of the fleet begins: run `spamnb fleet join --force` on all others")

    def open_history(self) -> History:
        """Open the history in the home, with the limits of the settings."""
        from spamnb.store.history.verdict_history import History

        history = History.open(self.home / "history", self.settings.history)
        if history.warning:
            warn(history.warning)
        return history

    def model_config(self) -> ModelConfig:
        """Return the configuration for operations on the home without a daemon."""
        from spamnb.service.admin.model_config import ModelConfig
        from spamnb.settings.model import model_options

        options = model_options(self.settings, self.home)
        return ModelConfig(
            **options, persons=self.persons, recipient_costs=self.recipient_costs, log=self.log
        )

    @cached_property
    def persons(self) -> PersonNames | None:
        """The rules for names of persons; None if persons are not enabled."""
        from spamnb.settings.persons import person_names

        return person_names(self.settings)

    @cached_property
    def recipient_costs(self) -> RecipientCosts:
        """The costs of recipients that have their own."""
        from spamnb.settings.persons import recipient_costs

        return recipient_costs(self.settings, self.persons)

    def person(self, model: Filter, name: str) -> int:
        """Return the id of a person in a model; UserError for an address of no person."""
        from spamnb.core.persons.names import named_person

        return model.person(named_person(self.persons, name)) if name else 0

    def own_costs(self, name: str) -> OwnCosts | None:
        """Return the costs of a person; None for an empty name or a person without own costs."""
        from spamnb.core.persons.names import named_person

        if not name:
            return None
        return self.recipient_costs.of(name, named_person(self.persons, name))

    def costs_of_label(self, user: str) -> Costs | None:
        """Return the costs for learning a person's label, in addition to those of the model."""
        return self.recipient_costs.of_label(user, self.persons)

    def ruling(self, model: Filter, raw: bytes, name: str) -> Ruling | None:
        """Return what the lists of senders decide about a message, for a person or for all."""
        return self._sender_lists(model).ruling_on(raw, name, self._domain_of(name))

    def listed(self, model: Filter, ref: str, name: str) -> Listed:
        """Return what lists of senders say about a message that a reference names."""
        from spamnb.service.admin.listings import verdict_facts
        from spamnb.service.engine.lookup import find_entry

        entry = find_entry(model.store, model.history, ref)
        if entry is None:
            return Listed()
        found = self._sender_lists(model).naming(entry, name, self._domain_of(name))
        return Listed(entry.notes.get("list", ""), found, verdict_facts(entry))

    def _sender_lists(self, model: Filter) -> SenderLists:
        from spamnb.service.feedback.sender_lists import SenderLists

        return SenderLists(model, self.persons, self.settings.feedback)

    def _domain_of(self, name: str) -> str:
        from spamnb.core.mail.domains import domain_of

        return (domain_of(name) or self.recipient_costs.login_domain) if name else ""

    def source(self) -> Source:
        """Return the source of this user's training: user name and channel."""
        from spamnb.service.engine.requests import Source

        return Source(user=speaker(), channel="cli")


def two_homes(used: Path, other: Path) -> str:
    """Say which of two homes is in use, and what to do."""
    return (
        f"there are two models: {used} is used, {other} is not - delete the one that is not "
        "wanted; `home` in the settings names another folder than the default"
    )


pass_session = click.make_pass_decorator(CliSession, ensure=True)


def speaker() -> str:
    """Return the name of the user; under sudo, of the user that called sudo."""
    from spamnb.service.admin.request import login_of

    uid = os.getuid()
    if uid == 0 and os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    return login_of(uid)


def become_owner(home: Path) -> bool:
    """Take the user id of a home's owner if root runs this; return True if it was changed."""
    if os.geteuid() != 0:
        return False
    try:
        owner = home.stat()
    except OSError:
        return False
    if owner.st_uid == 0:
        return False
    import_ahead()
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    return True


def one_thread() -> None:
    """Disable the threads of numpy's libraries: the arrays here are too small for them."""
    for variable in THREADS:
        os.environ.setdefault(variable, "1")
