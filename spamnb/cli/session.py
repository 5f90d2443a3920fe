"""What a command works with: settings, log, home, model, user, and the daemon of the home.

Each is loaded on first use, so that a command without a model opens none. If root runs a command on
another user's home, the process takes that user's id before it opens the home, because the daemon
could not write files of root. Files named on the command line are still opened as root
(`store.files`).

Only the daemon writes a model that it serves, so commands that write check for it first. A user
without access to the home reaches only the socket, and trains under the own name. Without a daemon
`LocalClient` runs the same operations in this process.

Failure: SettingsError, StoreError; StoreBusyError for a daemon that does not answer; nothing is
written then.
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
from spamnb.errors import RefusedError, StoreBusyError

if TYPE_CHECKING:
    from spamnb.daemon.logs import DaemonLog
    from spamnb.engine.filter import Filter
    from spamnb.engine.values import Source
    from spamnb.feedback.review import SenderLists
    from spamnb.feedback.values import Answer, Feedback
    from spamnb.model.costs import Costs, OwnCosts
    from spamnb.operations.home import ModelConfig
    from spamnb.operations.protocol import ControlClient
    from spamnb.operations.request import AdminClient
    from spamnb.operations.table import LocalClient
    from spamnb.policy.actions import PersonNames, RecipientCosts
    from spamnb.policy.rulings import Ruling
    from spamnb.records.verdicts import History
    from spamnb.settings import Settings

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
    def log(self) -> DaemonLog:
        """The log of a command: on stderr, as text."""
        from spamnb.daemon.logs import DaemonLog
        from spamnb.settings.schema import LogSettings

        return DaemonLog(LogSettings(level="debug" if self.verbose else self.settings.log.level))

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
        from spamnb.engine.filter import Filter
        from spamnb.fleet.outbox import OutboxReader

        settings = self.settings
        model = Filter.open(
            self.home,
            readonly=readonly,
            history=False,
            local=settings.site,
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
        from spamnb.fleet.administration import renewing
        from spamnb.fleet.membership import open_member

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
        from spamnb.records.verdicts import History

        history = History.open(self.home / "history", self.settings.history)
        if history.warning:
            warn(history.warning)
        return history

    def model_config(self) -> ModelConfig:
        """Return the configuration for operations on the home without a daemon."""
        from spamnb.operations.home import ModelConfig, model_options

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
        from spamnb.policy.actions import named_person

        return model.person(named_person(self.persons, name)) if name else 0

    def own_costs(self, name: str) -> OwnCosts | None:
        """Return the costs of a person; None for an empty name or a person without own costs."""
        from spamnb.policy.actions import named_person

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
        from spamnb.engine.lookup import find_entry
        from spamnb.operations.listings import verdict_facts

        entry = find_entry(model.store, model.history, ref)
        if entry is None:
            return Listed()
        found = self._sender_lists(model).naming(entry, name, self._domain_of(name))
        return Listed(entry.notes.get("list", ""), found, verdict_facts(entry))

    def _sender_lists(self, model: Filter) -> SenderLists:
        from spamnb.feedback.review import SenderLists

        return SenderLists(model, self.persons, self.settings.feedback)

    def _domain_of(self, name: str) -> str:
        from spamnb.mail.envelope import domain_of

        return (domain_of(name) or self.recipient_costs.login_domain) if name else ""

    def source(self) -> Source:
        """Return the source of this user's training: user name and channel."""
        from spamnb.engine.values import Source

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
    from spamnb.operations.request import login_of

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


@contextmanager
def as_root() -> Iterator[None]:
    """Have the rights of root again if root runs this, to start a program of the mail server."""
    uid = os.geteuid()
    os.seteuid(os.getuid())
    try:
        yield
    finally:
        os.seteuid(uid)


def one_thread() -> None:
    """Disable the threads of numpy's libraries: the arrays here are too small for them."""
    for variable in THREADS:
        os.environ.setdefault(variable, "1")


WELL_KNOWN = Path("/run/spamnb/control.sock")
"""socket of the shipped systemd unit"""
PING_S = 5.0


class RunningDaemon(NamedTuple):
    """The daemon that serves the home."""

    control: Path
    role: str
    login: str
    client: ControlClient
    """the connection by which it was found"""


def served(session: CliSession) -> RunningDaemon | None:
    """Find the daemon that serves the home; None if there is none. Its client is closed."""
    if found := _connected(session):
        found.client.close()
    return found


def _connected(session: CliSession) -> RunningDaemon | None:
    """Connect to the daemon that serves the home; None if there is none."""
    from spamnb.settings import control_of

    home = os.path.realpath(session.home)
    of_home = [control_of(session.settings, session.home), session.home / "control.sock"]
    for path in dict.fromkeys(of_home):
        if found := _ping(path, home):
            return found
    if WELL_KNOWN in of_home or not _exists(WELL_KNOWN):
        return None
    if _roaming(session):
        return _ping(WELL_KNOWN, "")
    found = _ping(WELL_KNOWN, home)
    if found is None:
        _warn_of_another(WELL_KNOWN, home)
    return found


def _warn_of_another(path: Path, home: str) -> None:
    """Warn if a daemon serves another home that this user may write."""
    if not (found := _ping(path, "")):
        return
    served_home = str(found.client.ask("ping").header.get("home", ""))
    found.client.close()
    if served_home != home and os.access(served_home, os.W_OK):
        warn(
            f"the daemon serves {served_home}, and this command uses {home} - add --home "
            f"{served_home}, or name one of them as `home` in the settings"
        )


def _roaming(session: CliSession) -> bool:
    """Return True if no home is set and the default one has no model: use the system's daemon."""
    return not session.settings.home and not _exists(session.home / "data.mdb")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _ping(path: Path, home: str) -> RunningDaemon | None:
    """Ping the daemon at a socket; None if there is none, or if it serves another home."""
    from spamnb.operations.protocol import ControlClient

    try:
        caller = ControlClient(path, PING_S)
    except StoreBusyError as error:
        if isinstance(error.__cause__, TimeoutError | BlockingIOError):
            raise
        return None
    try:
        reply = caller.ask("ping").header
    except BaseException:
        caller.close()
        raise
    if home and reply.get("home") != home:
        caller.close()
        return None
    return RunningDaemon(path, str(reply.get("role")), str(reply.get("login")), caller)


def refuse_while_served(session: CliSession, what: str) -> None:
    """Raise RefusedError if a daemon serves the home: the command needs exclusive access."""
    if served(session):
        raise RefusedError(
            f"a daemon serves {session.home}",
            hint=f"stop it, then {what}; sending servers queue mail in the meantime",
        )


@contextmanager
def asking(session: CliSession, *, long: bool = False) -> Iterator[AdminClient]:
    """Yield a client of the daemon, or one that runs the operations here without a daemon.

    `long`: the operation may take minutes.
    """
    with _client(session, _connected(session), long=long) as client:
        yield client


def _client(
    session: CliSession, daemon: RunningDaemon | None, *, long: bool = False
) -> ControlClient | LocalClient:
    if daemon is not None:
        from spamnb.operations.protocol import ANSWER_S, LONG_S

        daemon.client.wait_s = LONG_S if long else ANSWER_S
        return daemon.client
    from spamnb.operations.table import LocalClient

    return LocalClient(session.model_config(), speaker(), warn)


@contextmanager
def teacher(session: CliSession) -> Iterator[tuple[AdminClient, Feedback]]:
    """Yield a client, and a `Feedback` to fill in with this user's name."""
    from spamnb.feedback.values import Feedback

    daemon = _connected(session)
    me = Feedback("", user=speaker(), channel="cli", trust="admin")
    if daemon is not None and daemon.role != "admin":
        me = Feedback("", channel="cli", trust="user")
    with _client(session, daemon) as client:
        yield client, me


def source_fields() -> dict[str, Any]:
    """Return the fields that name this user as the source of a change."""
    return {"channel": "cli", "trust": "admin", "for": speaker()}


def checked(answer: Answer) -> Answer:
    """Return the answer; raise the error of a refused one."""
    if answer.state == "refused":
        from spamnb.operations.request import failed

        raise failed({"error": answer.reason, **answer.facts})
    return answer
