"""Table of all settings: name, type and help text. Defaults are in `schema`.

`config example` prints it, and files and environment variables are checked against it.
"""

from __future__ import annotations

from spamnb.core.model.kinds import KINDS
from spamnb.settings.daemon_table import (
    DOMAINS_FAMILY,
    LISTENERS,
    MAILBOXES,
    PERSONS_FAMILY,
    SERVING,
)
from spamnb.settings.fleet_table import FLEET
from spamnb.settings.schema import VERSION
from spamnb.settings.setting import MASKED, PREFIX, NamedSections, Setting, toml_of
from spamnb.settings.types import (
    DAYS,
    DOMAINS,
    FLAG,
    LABELS,
    PAIR,
    TEXT,
    TEXTS,
    choice,
    number,
    whole,
)
from spamnb.settings.webhook_table import WEBHOOKS

__all__ = ["BY_NAME", "BY_VARIABLE", "FAMILIES", "MASKED", "PREFIX", "SETTINGS", "setting_of",
           "toml_of"]  # fmt: skip

SETTINGS: tuple[Setting, ...] = (
    Setting("settings_version", whole(VERSION, VERSION),
        "Version of this file. A program that reads another version refuses the file, so an "
        "upgrade or a downgrade cannot change the meaning of a setting unnoticed."),
    Setting("home", TEXT,
        "Folder of the model, for the daemon and all commands. Empty: $STATE_DIRECTORY if systemd "
        "sets it, else /var/lib/spamnb if it exists and the user may write it, else spamnb in the "
        "XDG data folder (~/.local/share)."),
    Setting("labels", LABELS,
        "Labels of messages. Fixed when a model is created."),
    Setting("model.kind", choice(*KINDS),
        "corrected learns from its own errors and is the most accurate; multinomial and bernoulli "
        "are the classical models, exact and simple. Fixed when a model is created."),
    Setting("model.vocabulary", FLAG,
        "Store the words behind the features, so that a verdict can be explained without the "
        "message. Needs more disk space. Fixed when a model is created."),
    Setting("model.prior", FLAG,
        "A new model of ham and spam begins with weights of common words and forms, learnt from "
        "public mail. They do not count as messages; `spamnb undo 1` removes them."),
    Setting("local.hosts", TEXTS,
        "Names of the site's own mail servers, as written after `by` in Received. Headers that "
        "they add are ignored, so a message has the same features before and after delivery."),
    Setting("local.authserv_ids", TEXTS,
        "Names of the site's own servers in Authentication-Results. Results under other names are "
        "ignored. Results under these names count only where the place of the field proves that "
        "the server wrote it: see `Results of authentication` in docs/postfix.md."),
    Setting("local.domains", DOMAINS,
        "Domains with mailboxes on this site. Mail to other domains gets no signature, because the "
        "recipients could use the signature to train the model; and senders of other domains "
        "cannot train by mail. Empty: the domains of feedback.domains, delivery.domains and the "
        "recipient_domains of all listeners; in that case only mail from scan.own_clients to other "
        "domains goes without a signature."),
    Setting("costs.deliver", PAIR,
        "Cost of each decision: [if the message is ham, if it is spam]. The unit is one spam read "
        "in the inbox. The decision with the lowest expected cost is taken."),
    Setting("costs.unsure", PAIR,
        "Delivered and marked: the user has to look at the message in both cases."),
    Setting("costs.junk", PAIR, "Filed as junk: a ham there is seen late or never."),
    Setting("costs.reject", PAIR, "Rejected: the recipient cannot recover a ham."),
    Setting("store.limit_bytes", whole(0),
        "Maximum size of the model file; 0 is a quarter of the disk. A twentieth of the disk "
        "always stays free. At the limit training is refused and scoring continues."),
    Setting("journal.keep_days", DAYS,
        "How long a training step can be undone; `spamnb expire` merges older ones into the "
        "checkpoint. The default is a year and a month, because some mail comes once a year."),
    Setting("history.keep_days", DAYS,
        "How long a verdict can be corrected by its message id or signature, without the message."),
    Setting("history.limit_bytes", whole(1 << 20),
        "Maximum size of the history; the oldest verdicts are deleted first."),
    Setting("history.keep_subject", FLAG,
        "Store the sender, subject, size and listener of each message with its verdict, so that a "
        "search can find the verdict. The recipients and the client are always stored: they prove "
        "which user may correct the verdict."),
    Setting("ham_loss.one_in", whole(2, 10**9),
        "Target: lose at most one in this many good messages. `spamnb evaluate` reports which "
        "costs meet the target on your own mail, or that there is not enough evidence. With "
        "--apply it stores these costs in the home; they apply unless [costs] sets others. The "
        "threshold that the site's own mail sets aims at this target, too."),
    Setting("ham_loss.site_threshold", FLAG,
        "Let the scores of the site's own mail set the threshold of junk, at most the one that "
        "follows from the costs of a new home. false: only the costs set it."),
    Setting("ham_loss.junk_from", number(0, 30),
        "A fixed threshold of junk in nats (log-odds of spam), such as 3.4. It replaces costs.junk "
        "and the threshold of the site's mail; with 0 these decide. 3.4 nats are a probability of "
        "96.8 %, 5.2 of 99.45 %."),
    Setting("expire.after_days", DAYS,
        "`spamnb expire` deletes rare features that were not trained for this many days: most "
        "words occur once and never again."),
    Setting("expire.max_messages", whole(0, 1 << 31),
        "`spamnb expire` deletes only features that at most this many messages contain."),
    Setting("log.level", choice("debug", "info", "warning", "error"),
        "Lowest level that is logged. At info the daemon logs one line per message."),
    Setting("log.format", choice("text", "json"),
        "Format of the daemon's log lines: text, or json for programs."),
    Setting("log.file", TEXT,
        "Log file of the daemon. Empty: stderr, which systemd writes to the journal. A rotated "
        "file is reopened on reload."),
    *SERVING,
    *FLEET,
)  # fmt: skip

FAMILIES: dict[str, NamedSections] = {
    family.name: family
    for family in (LISTENERS, DOMAINS_FAMILY, PERSONS_FAMILY, MAILBOXES, WEBHOOKS)
}

BY_NAME = {setting.name: setting for setting in SETTINGS}
BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}
_OF_FAMILIES = {s.name: s for family in FAMILIES.values() for s in family.settings}


def setting_of(name: str) -> Setting | None:
    """Find a setting by its full name; in named sections by the key after the chosen name."""
    family, _, rest = name.partition(".")
    if family in FAMILIES:
        return _OF_FAMILIES.get(f"{family}.*.{rest.rpartition('.')[2]}") if "." in rest else None
    return BY_NAME.get(name)
