"""The configuration of a model, as the settings say and as opened, and its feedback service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from spamnb.engine.filter import ONE_IN, Filter, new_recipe
from spamnb.engine.learner import Learner
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.fleet.elsewhere import AllHosts
from spamnb.fleet.log import host_mark
from spamnb.fleet.membership import open_member
from spamnb.fleet.outbox import Outbox, OutboxReader
from spamnb.fleet.store import FleetStore, Member
from spamnb.fleet.waiting import FleetCommitter
from spamnb.mail.envelope import LocalHosts
from spamnb.maintenance.expiry import ExpiryRules, newest_us
from spamnb.maintenance.home_files import FILE, ClockMark, CostRules, expiry_mark
from spamnb.model.costs import Costs
from spamnb.model.events import Recipe
from spamnb.operations.status import QUIET_DAYS
from spamnb.policy.actions import PersonNames, RecipientCosts
from spamnb.records.verdicts import History
from spamnb.settings.persons import served_domains
from spamnb.settings.schema import Settings
from spamnb.settings.values import HistoryLimits, ReviewLimits, TeachingRules
from spamnb.store.table_views import Store
from spamnb.telemetry import Log, Meters, silent


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A home, and how its model is opened and taught."""

    home: Path
    recipe: Callable[[], Recipe] = new_recipe
    """makes the recipe of a missing model that an import creates"""
    local: LocalHosts = field(default_factory=LocalHosts)
    costs: Costs = field(default_factory=Costs)
    cost_rules: CostRules = field(default_factory=CostRules)
    one_in: int = ONE_IN
    """at most one in so many ham is to be filed; 0: the shipped threshold of junk"""
    store_limit_bytes: int = 0
    history: HistoryLimits = field(default_factory=HistoryLimits)
    teaching: TeachingRules = field(default_factory=TeachingRules)
    review: ReviewLimits = field(default_factory=ReviewLimits)
    expiry: ExpiryRules = field(default_factory=lambda: ExpiryRules(400, 400, 1))
    quarantine: Path | None = None
    """default: `quarantine` in the home; only its size is reported"""
    persons: PersonNames | None = None
    """the names of the persons that users' labels are for; None: users label for all"""
    recipient_costs: RecipientCosts = field(default_factory=RecipientCosts)
    """the persons whose labels are learnt with costs of their own"""
    quiet_days: int = QUIET_DAYS
    fleet: Callable[[], Member] | None = None
    """opens the log of the fleet; None: the host is alone"""
    log: Log = silent

    def __post_init__(self) -> None:
        """Tell the teaching rules which addresses with the delimiter are mailboxes of their own."""
        if self.persons is not None:
            rules = replace(self.teaching, exact=self.persons.exact)
            object.__setattr__(self, "teaching", rules)

    @property
    def review_queue(self) -> ReviewQueue:
        """The review queue of the home."""
        return ReviewQueue(self.home / "review", self.review, self.log)


def open_model(config: ModelConfig, *, readonly: bool = False) -> Filter:
    """Open the model without its history. A model of a fleet is written through the fleet's log.

    In a fleet, a message whose label waits to be learnt gets the verdict of that label.
    """
    member = config.fleet() if config.fleet and not readonly else None
    model = Filter.open(
        config.home,
        readonly=readonly,
        history=False,
        local=config.local,
        costs=config.costs,
        one_in=config.one_in,
        limit_bytes=config.store_limit_bytes,
    )
    if member is None:
        model.pins = OutboxReader(config.home) if config.fleet else None
        return model
    try:
        outbox = Outbox(config.home, member.outbox_bytes)
    except BaseException:
        model.close()
        raise
    store = FleetStore(model.store, member)

    def committer(_: Store, learner: Learner) -> FleetCommitter:
        return FleetCommitter(store, learner, outbox, config.log)

    shared = Filter(
        store,
        local=config.local,
        costs=config.costs,
        one_in=config.one_in,
        committer=committer,
    )
    shared.pins, shared.host_mark = outbox, host_mark(member.host)
    return shared


def open_service(
    config: ModelConfig, warn: Callable[[str], None], meters: Meters | None = None
) -> FeedbackService:
    """Open the model and its history for feedback; a fault of the history is a warning."""
    model = open_model(config)
    try:
        model.history = History.open(config.home / "history", config.history)
        if model.history.warning:
            warn(model.history.warning)
        return FeedbackService(
            model,
            config.review_queue,
            config.teaching,
            meters,
            persons=config.persons,
            recipient_costs=config.recipient_costs,
            hosts=AllHosts(model, config.teaching) if config.fleet else None,
        )
    except BaseException:
        model.close()
        raise


def read_clock(config: ModelConfig, model: Filter, *, trust: bool = False) -> ClockMark:
    """Return the clock mark; without a record in the home, the newest event gives the time."""
    return expiry_mark(config.home, newest_us(model.store), trust=trust, log=config.log)


def model_options(settings: Settings, home: Path) -> dict[str, Any]:
    """Return the arguments of `ModelConfig`."""
    expire, fleet = settings.expire, settings.fleet
    served, delimiter = served_domains(settings), settings.delivery.delimiter
    model = settings.model
    return {
        "home": home,
        "recipe": partial(new_recipe, model.kind, settings.labels, vocabulary=model.vocabulary),
        "local": settings.site,
        "costs": settings.costs,
        "cost_rules": CostRules(_costs_set_at(settings, home), settings.ham_loss.one_in),
        "one_in": settings.ham_loss.aimed_at,
        "store_limit_bytes": settings.store.limit_bytes,
        "history": settings.history,
        "teaching": replace(settings.feedback, served=served, delimiter=delimiter),
        "review": settings.review,
        "expiry": ExpiryRules(settings.journal.keep_days, expire.after_days, expire.max_messages),
        "fleet": partial(open_member, fleet, home) if fleet.url else None,
    }


def _costs_set_at(settings: Settings, home: Path) -> str:
    """Return where the file, a variable or a flag sets a cost; empty if none does."""
    set_at = [where for name, where in settings.positions.items() if name.startswith("costs.")]
    return next((where for where in set_at if where != str(home / FILE)), "")
