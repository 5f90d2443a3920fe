"""The settings of the daemon: one table, as `table` is for the model."""

from __future__ import annotations

from spamnb.core.policy.actions import HANDLINGS
from spamnb.settings.setting import NamedSections, Setting
from spamnb.settings.types import (
    ADDRESS,
    DAYS,
    DOMAINS,
    FLAG,
    NETS,
    TEXT,
    TEXTS,
    choice,
    number,
    whole,
)

_BYTES = whole(1 << 10)
_SECONDS = number(0.1, 86_400)
_HANDLING = choice(*HANDLINGS)


def _actions(section: str) -> tuple[Setting, ...]:
    return (
        Setting(f"{section}.deliver", _HANDLING,
            "What becomes of a message by what was decided on it: headers say it; tag says it in "
            "the subject too; redirect adds a header for the server behind; quarantine keeps it; "
            "reject refuses it, where the sender still waits."),
        Setting(f"{section}.unsure", _HANDLING, "... for those that we are unsure of."),
        Setting(f"{section}.junk", _HANDLING, "... for junk."),
        Setting(f"{section}.reject", _HANDLING,
            "... for what costs less to refuse than to deliver, wrong as we may be."),
    )  # fmt: skip


DOMAINS_FAMILY = NamedSections(
    "domain",
    "example.org",
    "Recipients of one domain may have it otherwise. If a message has several recipients, the "
    "mildest of theirs holds for all.",
    _actions("domain.*"),
)

SERVING: tuple[Setting, ...] = (
    Setting("serve.user", TEXT,
        "Whom the daemon becomes when root starts it. Empty: the owner of the home, else the user "
        "spamnb. Mail is read as root only if this says root in as many words.", restart=True),
    Setting("serve.group", TEXT,
        "... and the group. Empty: the user's own.", restart=True),
    Setting("serve.workers", whole(0, 256),
        "Processes that take mail; 0 is one for each core.", restart=True),
    Setting("serve.uvloop", FLAG,
        "Use uvloop if it is installed: a third less work for each message.", restart=True),
    Setting("serve.hostname", TEXT,
        "Our name in greetings, where nobody else's is passed on. Empty: the machine's."),
    Setting("serve.control", TEXT,
        "Where commands and helpers reach the daemon: a unix socket. Empty: control.sock in "
        "$RUNTIME_DIRECTORY if systemd gives one, else in the home.", restart=True),
    Setting("serve.delegates", TEXTS,
        "Users, by name or number, that may teach in the name of others: the one that your IMAP "
        "server delivers as, such as vmail."),
    Setting("serve.drain_s", _SECONDS,
        "How long sessions may go on when the daemon is told to stop."),
    Setting("serve.watchdog_s", number(2, 3600),
        "A process that gives no sign of life for so long is killed and replaced; the message it "
        "had in hand passes unscanned afterwards. Keep systemd's WatchdogSec above it."),
    Setting("serve.unscanned_percent", number(0, 100),
        "Warn, in the log and in `spamnb status`, when more than this share of the last ten "
        "minutes' messages passed unscanned, and five at least. A site without faults passes none; "
        "1 % tells a fault or an attack from a single odd message. `spamnb metrics` counts them "
        "by reason."),
    Setting("limits.connections", whole(1, 1 << 20),
        "Connections in all; each worker takes its share of them."),
    Setting("limits.crowded", number(0.1, 1),
        "The part of connections, of those to the next hop and of memory that may be taken before "
        "idle and slow clients are ended sooner (the timeouts named crowded). The rest is what new "
        "clients find free meanwhile: a fifth."),
    Setting("limits.reserved", number(0, 0.9),
        "The part of connections, of those to the next hop and of memory that only trusted clients "
        "(a listener's peers) can take. A fifth is 20 of the 100 connections that Postfix takes, "
        "more than a mail server behind the same machine needs. Set it higher if trusted clients "
        "use more at once."),
    Setting("limits.connections_an_address", whole(1, 1 << 20),
        "Connections from one address (64 bits of IPv6), counted over all workers; trusted peers "
        "are exempt. 50 as Postfix's smtpd_client_connection_count_limit."),
    Setting("limits.upstream_connections", whole(1, 1 << 20),
        "Connections that the next hop takes at once, counted over all workers: 100 as Postfix's "
        "default_process_limit. Clients that are not trusted get these less limits.reserved, and "
        "one network of theirs (24 bits of IPv4, 48 of IPv6) no more than it leaves free; others "
        "are answered with 421. Trusted clients are not counted."),
    Setting("limits.memory_bytes", whole(1 << 20),
        "Bytes of messages that each worker holds. Above it, it stops reading; nothing is "
        "refused. While clients wait for room, a sixteenth of it is freed each second: where the "
        "messages that end give back less, those are ended with 421 that have held most bytes for "
        "longest."),
    Setting("limits.errors", whole(1, 1 << 20),
        "Commands that we refuse in one session, before it is ended."),
    Setting("limits.commands", whole(4, 1 << 20),
        "Commands of a client that is not trusted, from its connection or its last accepted "
        "message to the next; accepted recipients are not among them. A message takes three. 100 "
        "as Postfix's smtpd_junk_command_limit."),
    Setting("limits.recipients", whole(100, 1 << 20),
        "Recipients of one message of a client that is not trusted; more are answered with 452, "
        "and sent with the next message. 1000 as Postfix's smtpd_recipient_limit; RFC 5321, "
        "4.5.3.1.8, asks for 100."),
    Setting("timeouts.connect_s", _SECONDS,
        "To reach the next hop, while the client waits for the answer to its hello."),
    Setting("timeouts.first_mail_s", _SECONDS,
        "From a connection to its first MAIL."),
    Setting("timeouts.first_mail_busy_s", _SECONDS,
        "The same when most connections are taken, or most of what clients that are not trusted "
        "may hold at the next hop; such clients must then come from MAIL to DATA within "
        "timeouts.first_mail_s."),
    Setting("timeouts.message_s", _SECONDS,
        "From a connection or the last accepted message of a client that is not trusted to its "
        "next DATA, whatever commands come meanwhile, less the time that the next hop takes to "
        "answer them. 300 seconds are what RFC 5321, 4.5.3.2, grants a single command, and what "
        "Postfix reuses a connection for."),
    Setting("timeouts.command_s", _SECONDS,
        "Between commands (RFC 5321, 4.5.3.2)."),
    Setting("timeouts.data_s", _SECONDS,
        "Each read while a message comes."),
    Setting("timeouts.crowded_data_s", _SECONDS,
        "When most of the connections or of the memory is taken, a client that sends a message "
        "must send 500 bytes a second (Postfix's smtpd_min_data_rate), and what it sent before "
        "counts for this long at most: the 10 seconds that Postfix waits under stress."),
    Setting("timeouts.reply_s", _SECONDS,
        "The next hop's replies, but for the last."),
    Setting("timeouts.final_s", number(1, 3600),
        "From a message's end to our reply. Postfix waits for 100 seconds."),
    Setting("timeouts.scan_s", number(0.1, 3600),
        "Of these, for the scan of one message, from its beginning. Above it, see "
        "listener.*.overrun."),
    Setting("timeouts.scan_wait_s", number(1, 3600),
        "Of these, to wait until the scan begins, where other large messages are scanned first. "
        "Above it, see listener.*.busy. The scan and the wait for it take at most 60 % of "
        "timeouts.final_s, so that the next hop has time to answer."),
    Setting("scan.clues", whole(0, 50),
        "Write so many of the strongest clues into a header. They show words of the message, and "
        "cost a little time."),
    Setting("scan.tag", TEXT, "Stands before the subject where the handling is tag."),
    Setting("scan.redirect", TEXT,
        "Value of X-Spamnb-Redirect where the handling is redirect; the server behind decides "
        "what it means."),
    Setting("scan.own_clients", NETS,
        "Networks of our own people. What they send is judged, but leaves the house without our "
        "word on it."),
    Setting("scan.local", choice("observe", "judge"),
        "The same for what the mail server calls local (XFORWARD SOURCE=LOCAL). Postfix means "
        "local_header_rewrite_clients by that: as shipped, its own machine; judge, if strangers' "
        "mail comes from there too, as by fetchmail."),
    Setting("scan.large_bytes", whole(0),
        "Larger messages are judged by a helper process, which can be killed in time."),
    Setting("rules.allow", TEXT,
        "A file of clients, senders, domains and recipients whose mail is delivered, one entry a "
        "line: `client 192.0.2.0/24`. Senders and domains need a DKIM or SPF pass by one of "
        "local.authserv_ids; or write the network of the client behind the entry, as in `sender "
        "me@example.org 192.0.2.0/24`, or the word `unauthenticated`: every stranger who writes "
        "this address into a message is then let in."),
    Setting("rules.block", TEXT, "... and of those whose mail is rejected."),
    Setting("rules.exempt", TEXTS,
        "Recipients who get headers and nothing harsher: user@example.org, @example.org or user@. "
        "postmaster and abuse are always among them."),
    Setting("quarantine.keep_days", DAYS,
        "How long messages are kept in quarantine: as long as the history, so that a release can "
        "still teach."),
    Setting("quarantine.limit_bytes", whole(1 << 20),
        "Most that the quarantine may take; when it is full, messages are delivered with headers."),
    *_actions("actions"),
    Setting("delivery.address", ADDRESS,
        "Where the built-in post office listens, which writes Maildirs and takes reports. Empty: "
        "127.0.0.1:10026 if it is a listener's next hop, else nowhere. lmtp: in front speaks LMTP.",
        restart=True),
    Setting("delivery.domains", DOMAINS,
        "For whom mail is taken. Empty: for every domain, on loopback alone."),
    Setting("delivery.root", TEXT,
        "Mail goes to ROOT/USER/Maildir. Empty: the folder mail in the home, unless delivery.users "
        "says where mail goes."),
    Setting("delivery.users", TEXT,
        "A file of lines `ADDRESS FOLDER`; it comes before delivery.root, and `@domain` stands for "
        "the other users of a domain."),
    Setting("delivery.delimiter", TEXT,
        "What follows it in a recipient's local part is their own business; empty: nothing."),
    Setting("delivery.spam", TEXT,
        "Local part of the address that takes reports of spam; empty: there is none."),
    Setting("delivery.ham", TEXT, "... and of mail that is none."),
    Setting("delivery.passwords", TEXT, "A file of logins, as `spamnb passwd` writes it."),
    Setting("delivery.certificate", TEXT,
        "A PEM file, for STARTTLS. Without it there are no logins."),
    Setting("delivery.key", TEXT, "... and its key, if that is not in the same file."),
    Setting("delivery.plain_login", FLAG,
        "Take passwords without TLS: on loopback, for a try."),
    Setting("delivery.peers", NETS,
        "Who may say whom they speak for (XFORWARD): the front door and your mail server."),
    Setting("delivery.trusted", NETS,
        "Clients whose reports are believed without a login. Loopback is nobody even here: behind "
        "a mail server everybody comes from there."),
    Setting("delivery.trust_local", FLAG,
        "Believe clients that your mail server calls local (XFORWARD SOURCE=LOCAL). With Postfix, "
        "local_header_rewrite_clients must be permit_sasl_authenticated then: as shipped it names "
        "every program on this machine. The sendmail command is never believed."),
    Setting("delivery.received", FLAG,
        "Write a Received line. Name us in local.hosts then, or a message is another one after "
        "delivery."),
    Setting("delivery.receipts", FLAG, "Answer the reports of those who logged in."),
    Setting("delivery.size_limit_bytes", _BYTES, "The largest message."),
    Setting("feedback.limit_bytes", _BYTES, "The largest message that is learnt from."),
    Setting("feedback.user_per_day", whole(1),
        "Changes by one person. Moving a whole folder is a thousand; a program that has gone wild "
        "is stopped before it moved the model for good."),
    Setting("feedback.user_bytes_per_day", _BYTES,
        "Bytes that one person's changes add to the model: a new word takes some 70, a known one "
        "7. A thousand ordinary messages take 9 MB in an empty model, and 5,000 take 28."),
    Setting("feedback.stranger_per_day", whole(0),
        "Changes by one stranger with a signature; 0 hears none. So many words without one are "
        "kept for review, counted apart and by the network that they came from."),
    Setting("feedback.strangers_per_day", whole(0),
        "Changes by all strangers together: their names cost nothing. Words without a signature "
        "are counted apart, up to the same number."),
    Setting("feedback.sure", number(0.5, 1),
        "So sure a verdict is not contradicted by traps and reports: it waits for review."),
    Setting("feedback.unproven", choice("review", "refuse", "learn"),
        "What becomes of a user's word on a message that is not known to be theirs."),
    Setting("feedback.domains", DOMAINS,
        "Domains whose addresses are our users' logins. Empty: all that mail is delivered for."),
    Setting("feedback.traps", TEXTS,
        "Addresses that nobody uses, on pages where only robots look. Mail to one of them is "
        "learnt as spam, with half a step, unless we are very sure of the opposite."),
    Setting("feedback.spool", TEXT,
        "Where programs leave what people say, to be learnt at once or when we are back: a folder "
        "of ours with mode 1733. Empty: spool in the home, and /var/spool/spamnb if it is ours.",
        restart=True),
    Setting("review.most", whole(8, 100_000),
        "How many words of people may wait for an admin's; one person may fill an eighth of it. A "
        "full list takes nothing new, or a flood would wash honest ones out."),
    Setting("review.limit_bytes", whole(1 << 20),
        "Most that they and their messages may take, an eighth of it for one person."),
    Setting("review.keep_days", DAYS, "How long they wait; then they go, and nothing is learnt."),
    Setting("spool.each_owner", whole(1),
        "Files of one owner that one look at a spool takes, so that others get their turn."),
    Setting("spool.aside", whole(0),
        "Entries that are no feedback, kept as .aside-... for somebody to look at; more are "
        "removed."),
)  # fmt: skip

LISTENERS = NamedSections(
    "listener",
    "postfix",
    "Where mail comes in, and where it goes. Any number of them, each with a name of your choice; "
    "with none, mail is taken at 127.0.0.1:10025 and handed to the built-in post office.",
    (
        Setting("listener.*.address", ADDRESS,
            "Where clients connect: host:port, [IPv6]:port or unix:/path; lmtp: in front of it "
            "speaks LMTP. With socket activation, the name of the section is that of the "
            "descriptor.", restart=True),
        Setting("listener.*.upstream", ADDRESS,
            "The next hop, which takes all mail from here; lmtp: in front of it speaks LMTP. "
            "Empty: the built-in post office."),
        Setting("listener.*.queue", choice("before", "after"),
            "before: the sender waits for our reply, so spam can be refused. after: a queue in "
            "front of us waits; nothing is ever refused for what it is, or it would bounce."),
        Setting("listener.*.peers", NETS,
            "Who is trusted: they may send to anybody, and say whom they speak for (XFORWARD)."),
        Setting("listener.*.proxies", NETS,
            "Load balancers in front of us. If any are named, nobody else may connect, and each "
            "connection begins with a PROXY header."),
        Setting("listener.*.recipient_domains", DOMAINS,
            "Where those who are not trusted may send to. Empty: they may not connect."),
        Setting("listener.*.scan_limit_bytes", _BYTES,
            "Larger messages are passed on while they come, and not stored."),
        Setting("listener.*.oversize", choice("unscanned", "head"),
            "head: a larger message is judged by its header and the parts within "
            "scan_limit_bytes, so a spammer gains nothing by its size alone; text behind the limit "
            "is not read. unscanned: it passes unscanned."),
        Setting("listener.*.header_limit_bytes", _BYTES,
            "The largest header; forged headers of ours are taken out of all of it."),
        Setting("listener.*.size_limit_bytes", whole(0),
            "The largest message; 0 leaves it to the next hop."),
        Setting("listener.*.bare_newlines", choice("normalise", "refuse"),
            "Lone CR or LF in a message are never passed on, since servers disagree on them "
            "(SMTP smuggling): made line ends, or refused."),
        Setting("listener.*.on_fault", choice("deliver", "defer"),
            "If no model can be used, or the scanner fails: deliver the message unscanned, or "
            "defer it (451). Such a fault can last until the administrator mends it, and senders "
            "give up after days, so deferral loses mail."),
        Setting("listener.*.busy", choice("defer", "deliver"),
            "If a scan could not begin within timeouts.scan_wait_s. Any sender can bring that "
            "about by a burst of large messages, and it passes by itself, so the message is "
            "deferred (451)."),
        Setting("listener.*.overrun", choice("defer", "deliver"),
            "If a scan takes longer than timeouts.scan_s. The next attempt of the message is "
            "treated by listener.*.known_crasher, so deferral delays it once."),
        Setting("listener.*.known_crasher", choice("head", "deliver", "defer"),
            "What becomes of a message at the next attempt after its scan overran, or ended its "
            "process twice. head: it is judged by its header alone; if that fails too it is "
            "delivered unscanned, since it would fail as often as it came. deliver: unscanned. "
            "defer: until its sender gives up."),
        Setting("listener.*.observe", FLAG,
            "Judge and log, but change nothing: a header with the signature is all that is added."),
    ),
)  # fmt: skip
