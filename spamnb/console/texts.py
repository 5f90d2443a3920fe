"""The words of the pages for the names of events, graphs, actions and others.

Also texts of pages and notices that more than one place shows, or that are long. All other texts
are in the templates. `{name}` stands for a value, `{name:message|messages}` for a number with its
noun.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any, Final

TEXTS: Final[Mapping[str, str]] = {
    # fleet
    "fleet.host": "Host",
    # status
    "status.no_model": "The model cannot be used",
    "status.reloaded_more": "If they are not valid, the log says so and the old ones stay.",
    "status.live_on": "Mail is marked and filed from now on.",
    "status.live_off": "Mail is only observed from now on.",
    "status.bypass_on": "Scanning is off: all mail passes unscanned.",
    "status.bypass_off": "Scanning is on.",
    # settings
    "menu": "Menu",
    # undo of several trainings
    "undo_plan.done": "{count:training is|trainings are} undone.",
    "undo_plan.left": "{count:is|are} left: press the button again.",
    # graphs
    "graphs.now": "What comes",
    "graphs.right": "Is the filter right?",
    "graphs.people": "Who teaches it?",
    "graphs.machine": "Does everything work?",
    "mark.started": "the daemon was started.",
    "mark.started.often": "the daemon was started {count:time|times}.",
    "mark.replaced": "the model was replaced (time machine).",
    "mark.replaced.often": "the model was replaced {count:time|times} (time machine).",
    "axis.log_odds": "Log-odds from",
    "axis.spread": "Log-odds from",
    "axis.calibration": "Said, from",
    "trend.week": "In the last 7 days people reported {share} mistakes of 1,000 messages "
    "({messages:was|were} judged).",
    "trend.better": "It is getting better: in the 30 days before there were {share}.",
    "trend.worse": "It is getting worse: in the 30 days before there were {share}.",
    "trend.same": "In the 30 days before there were {share}: the difference can be chance.",
    "period.day": "24 hours",
    "period.week": "7 days",
    "period.month": "30 days",
    "period.year": "A year",
    "unit.count": "",
    "unit.percent": ", %",
    "unit.per_mille": ", per 1,000",
    "unit.ms": ", ms",
    "unit.ms.short": " ms",
    "unit.count.short": "",
    "unit.percent.short": " %",
    "unit.per_mille.short": "",
    "graph.spread": "Where the messages lie",
    "graph.spread.help": "Each message stands at its log-odds (nats): ham to the left, spam to the "
    "right, unsure in the middle. Messages to the right of the line would be junk.",
    "series.said_ham": "labelled ham",
    "series.said_spam": "labelled spam",
    "series.unknown": "without a label",
    "graph.volume": "Messages",
    "graph.volume.help": "Messages by the decision on them, and those that were not scanned.",
    "graph.junk_share": "Share of junk",
    "graph.junk_share.help": "How much of the scanned mail is decided to be junk or rejected.",
    "graph.work": "What went wrong",
    "graph.work.help": "Messages that were not scanned, scans that took too long, deferred "
    "messages, and internal faults.",
    "graph.teaching": "Teaching",
    "graph.teaching.help": "Messages that were taught, by label, and trainings that were removed.",
    "graph.reasons": "Why messages were not scanned",
    "graph.reasons.help": "Such messages are passed on as if they were ham, or deferred, as the "
    "settings say. Each reason has a counter of its own.",
    "graph.scan_seconds": "Time to scan a message",
    "graph.scan_seconds.help": "Half of the messages take less than the first line says, and 99 of "
    "100 less than the second.",
    "graph.upstream_seconds": "Time of the next hop",
    "graph.upstream_seconds.help": "From the end of a message to the reply of the mail server "
    "behind the filter. If it is slow, mail is slow, whatever the filter does.",
    "graph.learn_seconds": "Time to learn a correction",
    "graph.learn_seconds.help": "Until the correction is safe on the disk.",
    "graph.channels": "Teaching by channel",
    "graph.channels.help": "How the labels came: by mail folders, by reports, by the pages, by "
    "commands. Counted over the newest 5,000 trainings.",
    "graph.teachers": "Teaching by user",
    "graph.teachers.help": "The five users that taught most, and all others together. Counted over "
    "the newest 5,000 trainings.",
    "graph.calibration": "Said and found",
    "graph.calibration.help": "Of messages with the same probability of spam, how many were spam? "
    "Where the two lines agree, the probabilities can be trusted. Only messages that people "
    "labelled after they were judged are counted; people label mistakes more often than other "
    "messages.",
    "graph.words": "Words that the filter knows",
    "graph.words.help": "The mean share of a message's features that were learnt before. It falls "
    "when a new kind of mail comes: then teach some of it.",
    "graph.spam_delivered": "Spam that was delivered",
    "graph.spam_delivered.help": "Of 1,000 messages decided as deliver or unsure: those that "
    "people taught as spam. Mistakes that are not reported are not counted.",
    "graph.ham_filed": "Ham that was filed as junk",
    "graph.ham_filed.help": "Of 1,000 messages decided as junk or reject: those that people taught "
    "as ham. Mistakes that are not reported are not counted.",
    "graph.log_odds": "How sure the filter is",
    "graph.log_odds.help": "The spread of the log-odds (nats) over the last 7 days by decision, "
    "and over the 30 days before. Before mistakes increase, more messages lie in the middle.",
    "series.deliver": "deliver",
    "series.unsure": "unsure",
    "series.junk": "junk",
    "series.reject": "reject",
    "series.unscanned": "not scanned",
    "series.scan_overruns": "scan took too long",
    "series.deferred": "deferred",
    "series.faults": "internal faults",
    "series.learned_ham": "ham",
    "series.learned_spam": "spam",
    "series.learned_other": "other labels",
    "series.forgotten": "removed",
    "series.share": "reported",
    "series.interval": "95 % interval",
    "series.before": "30 days before",
    "series.said": "said",
    "series.found": "found",
    "series.known": "known",
    "series.p50": "half take less",
    "series.p99": "99 of 100 take less",
    "series.rank_other": "others",
    "series.unscanned_bypass": "bypass was on",
    "series.unscanned_large": "too large",
    "series.unscanned_busy": "too busy",
    "series.unscanned_overrun": "took too long",
    "series.unscanned_known_crasher": "an earlier scan crashed",
    "series.unscanned_model": "no usable model",
    "series.unscanned_fault": "another fault",
    # time machine
    "timemachine.act": "Preview",
    "timemachine.days": "Trainings by day",
    "timemachine.before_day": "Preview of the model before {day}",
    "timemachine.users": "Trainings by user",
    "timemachine.without_one": "Preview of the model without {user}",
    "timemachine.kept": "Models that were replaced",
    "timemachine.bring_back_one": "Bring back the model that was replaced on {time}",
    "timemachine.rewind": "The state of {time}",
    "timemachine.relearn": "Without the training by {names}",
    "timemachine.of_kept": "The model that was replaced, {name}",
    "timemachine.begun": "The preview has begun",
    # what-if
    "whatif.now": "Now messages are junk above {line}.",
    "whatif.applied": "The threshold of junk is {after} now; before, it was {before}.",
    "whatif.taken_back": "The threshold of junk is {after} again; before, it was {before}.",
    "whatif.changed": "With junk above {line} ({nats} nats), {changed:message gets|messages get} "
    "another decision.",
    "whatif.junk": "{junk} more are junk or rejected",
    "whatif.clean": "{clean} are no longer junk or rejected",
    "whatif.junk_known": "People labelled {junk_known} of them; {junk_wrong} of these as ham.",
    "whatif.clean_known": "People labelled {clean_known} of them; {clean_wrong} of these as spam.",
    "whatif.junk_expected": "By their probabilities, {junk_expected} of them are ham.",
    "whatif.clean_expected": "By their probabilities, {clean_expected} of them are spam.",
    "whatif.bound": "Of {ham} ham that were judged before they were taught, {filed} would be junk: "
    "at most {share} of all ham, with 95 % confidence.",
    "whatif.little": "Not enough evidence: there are {ham} ham that were judged before they were "
    "taught, and a bound needs {needed}.",
    "whatif.counts": "Decisions now, and with the other threshold",
    "whatif.new": "Then",
    "whatif.reliability": "How accurate the probabilities are",
    "brand": "spamnb",
    "skip": "Skip to the content",
    "nav": "Pages",
    "role.admin": "administrator",
    "role.auditor": "auditor (read only)",
    "role.user": "user",
    "utc": "{time} UTC",
    "notices": "What has happened",
    "undo": "Undo",
    "unknown": "unknown",
    "nats": "nats",
    "no_subject": "no subject",
    "no_sender": "no sender",
    "go_on": "Go on",
    "no_recipient": "no recipient",
    "choose": "Choose “{subject}”",
    "taught": "taught as {label}",
    "unscanned": "not scanned: {reason}",
    # verdicts and what became of messages
    "decision.deliver": "deliver",
    "decision.unsure": "unsure",
    "decision.junk": "junk",
    "decision.reject": "reject",
    "decision.unscanned": "unscanned",
    "action.relay": "passed on",
    "action.keep": "in quarantine",
    "action.refuse": "refused",
    "action.defer": "deferred",
    "action.advise": "answered",
    "column.time": "Time",
    "column.verdict": "Decision, spam",
    "column.mail": "Message",
    # live
    "live.empty": "No message has come yet. Messages appear here when a mail server sends them to "
    "a listener of spamnb.",
    # people
    "people.made": "The token {name} is made. Its text is shown only now:",
    "role.": "none",
    # search
    "search.act": "Search",
    "search.clear": "Start again",
    "search.empty": "No message was found.",
    "any": "any",
    "yes": "yes",
    "no": "no",
    "chosen": "Teach the chosen messages:",
    "pager": "Parts of the list",
    "field.q": "Words of the subject",
    "field.header_from": "From",
    "field.envelope": "Sender of the envelope",
    "field.from": "Sender",
    "field.to": "Recipient",
    "field.decision": "Decision",
    "field.corrected": "Corrected",
    "field.since": "From day",
    "field.until": "To day",
    "field.client": "Client's address",
    "field.listener": "Listener",
    "field.label": "Label",
    "field.channel": "Channel",
    "field.user": "User",
    "field.address": "Your address",
    "field.queue": "Queue ID",
    "field.auth": "SPF, DKIM, DMARC",
    "field.size": "Size",
    "field.message_id": "Message-ID",
    "field.signature": "Signature",
    # own mail
    "mail.empty": "No message for {address} has been judged yet.",
    # a message
    "message.then": "When it came,",
    "sender.checked": "SPF, DKIM and DMARC say:",
    "sender.before": "From {domain} since {day}: {count} messages, {filed} of them filed, the "
    "label of {corrected} corrected.",
    "sender.before_part": "The last {count} messages from {domain}, since {day}: {filed} of them "
    "filed, the label of {corrected} corrected.",
    "sender.show": "Show them",
    "sender.none": "No list names {sender}.",
    "sender.help": "Mail from a wanted sender is delivered, whatever the filter says, if the mail "
    "is authentic; mail from an unwanted sender is junk. A change applies to new messages only.",
    "sender.choose": "The sender",
    "sender.for": "For",
    "sender.wanted": "Always wanted",
    "sender.unwanted": "Never wanted",
    "sender.remove": "Remove",
    "sender.by_list": "A list decided this message when it came: {reason}.",
    "senders.none": "Your login has no list: an administrator enables lists by [persons].",
    "field.lines": "The senders",
    "list.own": "me",
    "list.person": "{name}",
    "list.domain": "all recipients at {name}",
    "list.site": "all recipients",
    "listed.entry": "{sender} is {word} for",
    "listed.wanted": "always wanted",
    "listed.unwanted": "never wanted",
    "listed.none": "no longer on the list",
    "by.test-message": "`spamnb doctor` sent it, to see where marked mail is filed",
    "by.wanted-by-person": "the sender is on the recipient's list of wanted senders",
    "by.wanted-by-domain": "the sender is on the list of wanted senders of the recipient's domain",
    "by.wanted-by-site": "the sender is on the list of wanted senders for all recipients",
    "by.unwanted-by-person": "the sender is on the recipient's list of unwanted senders",
    "by.unwanted-by-domain": "the sender is on the list of unwanted senders of the recipient's "
    "domain",
    "by.unwanted-by-site": "the sender is on the list of unwanted senders for all recipients",
    "teach": "It is {label}",
    "plain.ham": "Not junk",
    "plain.spam": "Junk",
    # trainings
    "column.training": "Training",
    "column.user": "User, channel",
    "event.learn": "taught as {after}",
    "event.move": "{before} became {after}",
    "event.forget": "forgotten",
    "event.undo": "undid event {undoes}",
    "event.import": "counts imported",
    "event.expire": "old words deleted",
    "event.scores": "scores of this site's mail counted",
    "event.erased": "event of an erased person",
    "event.number": "event {event}",
    # receipts
    "receipt.learnt": "taught as {label}.",
    "receipt.in_force": "In force for this message: {label} ({why}).",
    "receipt.listed": "{sender} is {word}.",
    "receipt.unchanged": "nothing has changed.",
    "receipt.several": "{count:message is|messages are} taught as {label}.",
    "receipt.several_undone": "{count:change is|changes are} undone.",
    # quarantine
    "kept.delete": "Delete",
    "kept.released": "Released to {names}.",
    "kept.not_released": "Not released to {name}.",
    "kept.deleted": "The message is deleted.",
    "kept.several_deleted": "{count:message is|messages are} deleted.",
    "kept.restored": "The message is in quarantine again.",
    "kept.several_restored": "{count:message is|messages are} in quarantine again.",
    "kept.several_released": "{count:message is|messages are} released and taught as ham.",
    "kept.still": "The message is still in quarantine.",
    "kept.not_junk": "Not junk",
    "kept.no_recipient": "No recipient is chosen.",
    # the mail of the digest
    "digest.help": "These messages to you were kept, because they look like spam. Open a link to "
    "look at a message, to release it or to delete it.",
    "digest.from": "from {sender}, {time} UTC",
    "digest.why": "probability of spam: {percent}",
    "notice.foot": "`spamnb status` shows the whole state. {url}",
    "digest.more": "{count:more message is|more messages are} in the quarantine.",
    "digest.foot.act": "Each link shows one message and can release it to you, without a login, "
    "for 14 days: forward this mail only to people who may read these messages.",
    "digest.foot.login": "The links ask for your login.",
    # review
    "review.verdict": "Verdict",
    "review.accept_all": "Accept all {count}",
    "review.refused": "The correction is refused, and nothing is learnt.",
    "review.several_accept": "{count:correction is|corrections are} accepted.",
    "review.several_refuse": "{count:correction is|corrections are} refused, and nothing is "
    "learnt.",
    # keys
    "keys.j": "next message",
    "keys.k": "previous message",
    "keys.o": "open the message",
    "keys.h": "teach as ham; in quarantine: release and learn",
    "keys.s": "teach as spam",
    "keys.d": "delete the message in quarantine",
    "keys.u": "undo what was just done",
    "keys.a": "accept the correction",
    "keys.r": "refuse the correction",
    "keys.?": "show these keys",
    "keys.close": "Close",
    # login
    "login.title": "Log in",
    # errors
    "error.title": "This did not work",
    "error.incident": "The log of the daemon has the details under the number {incident}.",
    "error.no_page": "there is no such page",
    "error.choose": "choose at least one message",
    "error.readonly": "an auditor may look but not change anything",
}


def text(key: str, /, **values: Any) -> str:
    """Return a text with its values."""
    return _FORMATTER.format(TEXTS[key], **values)


def of(number: object, one: str, more: str) -> str:
    """Return a number with its noun."""
    return f"{number} {one if str(number) == '1' else more}"


class _Formatter(Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        one, bar, more = spec.partition("|")
        return of(value, one, more) if bar else str(super().format_field(value, spec))


_FORMATTER: Final = _Formatter()


def word(kind: str, name: str) -> str:
    """Return the word for a name of the model or the log; the name itself if there is none."""
    return TEXTS.get(f"{kind}.{name}", name)
