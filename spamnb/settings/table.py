"""The one table of settings: names, what is allowed, and the reasons. Defaults are the tree's.

The settings file that `config example` prints comes from here, and so does every check of a file or
variable. A setting that does nothing has no place here.
"""

from __future__ import annotations

from spamnb.core.model.kinds import KINDS
from spamnb.settings.daemon_table import DOMAINS_FAMILY, LISTENERS, SERVING
from spamnb.settings.setting import MASKED, PREFIX, NamedSections, Setting, toml_of
from spamnb.settings.types import DAYS, DOMAINS, FLAG, LABELS, PAIR, TEXT, TEXTS, choice, whole

__all__ = ["BY_NAME", "BY_VARIABLE", "FAMILIES", "MASKED", "PREFIX", "SETTINGS", "setting_of",
           "toml_of"]  # fmt: skip

SETTINGS: tuple[Setting, ...] = (
    Setting("home", TEXT,
        "The folder that holds the model. Empty: $STATE_DIRECTORY if systemd gives one, else "
        "spamnb in the XDG data folder (~/.local/share)."),
    Setting("labels", LABELS,
        "What people call messages. Fixed when a model is made."),
    Setting("model.kind", choice(*KINDS),
        "corrected learns from its mistakes and is the most accurate; multinomial and bernoulli "
        "are the classical models, exact and simple. Fixed when a model is made."),
    Setting("model.vocabulary", FLAG,
        "Keep the words behind the features, so that verdicts can be explained without the "
        "message, at the price of disk. Fixed when a model is made."),
    Setting("local.hosts", TEXTS,
        "Our own mail servers, as they stand after `by` in Received. What they add is not part of "
        "a message, so it is the same before and after delivery."),
    Setting("local.authserv_ids", TEXTS,
        "Our own names in Authentication-Results; results by others may be forged and are not "
        "believed."),
    Setting("local.domains", DOMAINS,
        "The domains whose mailboxes are here. Mail to others gets no signature, since its "
        "recipients could teach with it, and no sender of another domain teaches by mail. Empty: "
        "those of feedback.domains, delivery.domains and the recipient_domains of all listeners; "
        "mail of our own clients to others gets no signature then, all other mail does."),
    Setting("costs.deliver", PAIR,
        "What each decision costs: [if the message is ham, if it is spam]. The unit is one spam "
        "read in the inbox; the decision that is expected to cost least is taken."),
    Setting("costs.unsure", PAIR, "Delivered and marked: a glance either way."),
    Setting("costs.junk", PAIR, "Filed as junk: a ham there is seen late or never."),
    Setting("costs.reject", PAIR, "Refused: nobody can fetch a ham back."),
    Setting("store.limit_bytes", whole(0),
        "Most that the model's file may take; 0 is a quarter of the disk, and a twentieth of the "
        "disk stays free. At the limit teaching is refused, scoring goes on."),
    Setting("journal.keep_days", DAYS,
        "How long a training can be undone; `spamnb expire` folds older ones into the checkpoint. "
        "A year and a month, so that what comes once a year was seen before."),
    Setting("history.keep_days", DAYS,
        "How long a verdict can be corrected by its id or signature alone."),
    Setting("history.limit_bytes", whole(1 << 20),
        "Most that the history may take; the oldest verdicts go first."),
    Setting("ham_loss.one_in", whole(2, 10**9),
        "At most one in so many good messages shall be lost. `spamnb evaluate` tells from your own "
        "mail with which costs that holds, or that the evidence is too thin; with --apply they "
        "are kept in the home and are in force wherever [costs] sets none."),
    Setting("expire.after_days", DAYS,
        "`spamnb expire` lets go of features that nobody taught for so long and that few messages "
        "held: most words are seen once and never again."),
    Setting("expire.max_messages", whole(0, 1 << 31), "... held by at most so many messages."),
    Setting("log.level", choice("debug", "info", "warning", "error"),
        "How much is told on the way. The daemon says a line for each message at info."),
    Setting("log.format", choice("text", "json"),
        "How the daemon's lines look: for people, or for programs."),
    Setting("log.file", TEXT,
        "Where the daemon's lines go. Empty: stderr, which systemd leads into the journal. A file "
        "that was turned over is opened anew at a reload."),
    *SERVING,
)  # fmt: skip

FAMILIES: dict[str, NamedSections] = {family.name: family for family in (LISTENERS, DOMAINS_FAMILY)}

BY_NAME = {setting.name: setting for setting in SETTINGS}
BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}
_OF_FAMILIES = {s.name: s for family in FAMILIES.values() for s in family.settings}


def setting_of(name: str) -> Setting | None:
    """The setting of a full name; in a family, of the key after the name that the user chose."""
    family, _, rest = name.partition(".")
    if family in FAMILIES:
        return _OF_FAMILIES.get(f"{family}.*.{rest.rpartition('.')[2]}") if "." in rest else None
    return BY_NAME.get(name)
