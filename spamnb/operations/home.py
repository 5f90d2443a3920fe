"""The configuration of an opened model, and its feedback service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from spamnb.engine.filter import ONE_IN, Filter, new_recipe
from spamnb.engine.learner import Learner
from spamnb.feedback.review import ReviewQueue
from spamnb.feedback.service import FeedbackService
from spamnb.fleet.log import host_mark
from spamnb.fleet.outbox import Outbox, OutboxReader
from spamnb.fleet.store import FleetStore, Member
from spamnb.fleet.waiting import FleetCommitter
from spamnb.mail.envelope import LocalHosts
from spamnb.maintenance.expiry import ExpiryRules, newest_us
from spamnb.maintenance.home_files import ClockMark, CostRules, expiry_mark
from spamnb.model.costs import Costs
from spamnb.model.events import Recipe
from spamnb.operations.status import QUIET_DAYS
from spamnb.policy.recipients import PersonNames, RecipientCosts
from spamnb.records.verdicts import History
from spamnb.settings.values import HistoryLimits, ReviewLimits, TeachingRules
from spamnb.store.contract import Store
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
        )
    except BaseException:
        model.close()
        raise


def read_clock(config: ModelConfig, model: Filter, *, trust: bool = False) -> ClockMark:
    """Return the clock mark; without a record in the home, the newest event gives the time."""
    return expiry_mark(config.home, newest_us(model.store), trust=trust, log=config.log)
