"""Every setting: name, type and help text. Defaults are in `schema`.

`config example` prints the table, and files and environment variables are checked against it.
"""

from __future__ import annotations

from spamnb.mail.other_filters import ANY, FILTERS
from spamnb.model.costs import KINDS
from spamnb.policy.actions import MAIL_ACTIONS
from spamnb.settings.schema import VERSION
from spamnb.settings.types import (
    ADDRESS,
    DAYS,
    DOMAINS,
    FLAG,
    LABELS,
    MASKED,
    NETS,
    OWN_PAIR,
    PAIR,
    PREFIX,
    TEXT,
    TEXTS,
    NamedSections,
    Setting,
    choice,
    number,
    some_of,
    toml_of,
    whole,
)
from spamnb.settings.values import EVENTS

_BYTES = whole(1 << 10)
_SECONDS = number(0.1, 86_400)
_MAIL_ACTION = choice(*MAIL_ACTIONS)


def _actions(section: str) -> tuple[Setting, ...]:
    return (
        Setting(f"{section}.deliver", _MAIL_ACTION,
            "Action for messages with this decision. headers adds headers; tag also marks the "
            "subject; redirect adds a header for the server behind spamnb; quarantine keeps the "
            "message; reject refuses it while the sender waits."),
        Setting(f"{section}.unsure", _MAIL_ACTION, "Action for messages with the decision unsure."),
        Setting(f"{section}.junk", _MAIL_ACTION, "Action for messages with the decision junk."),
        Setting(f"{section}.reject", _MAIL_ACTION,
            "Action for messages with the decision reject: rejection has the lowest expected cost, "
            "although a rejected ham costs most."),
    )  # fmt: skip


def _costs(section: str) -> tuple[Setting, ...]:
    return (
        Setting(f"{section}.deliver_costs", OWN_PAIR,
            "Costs of this decision for these recipients, in place of costs.deliver. If the "
            "section sets only some of the four costs, [costs] supplies the others; if it sets "
            "none, it changes no costs."),
        Setting(f"{section}.unsure_costs", OWN_PAIR, "In place of costs.unsure."),
        Setting(f"{section}.junk_costs", OWN_PAIR,
            "In place of costs.junk: the higher the first number, the surer the model must be "
            "before it files a message as junk."),
        Setting(f"{section}.reject_costs", OWN_PAIR, "In place of costs.reject."),
    )  # fmt: skip


DOMAINS_FAMILY = NamedSections(
    "domain",
    "example.org",
    "Different actions and costs for recipients of one domain. If a message has several "
    "recipients, the mildest of their actions applies to all.",
    (*_actions("domain.*"), *_costs("domain.*")),
)

PERSONS_FAMILY = NamedSections(
    "person",
    "ann",
    "Different costs for one person, an address or a login; they come before those of the domain. "
    "Needs persons.enabled.",
    _costs("person.*"),
)

SERVING: tuple[Setting, ...] = (
    Setting("serve.user", TEXT,
        "User that the daemon runs as when root starts it. Empty: the owner of the home, else the "
        "user spamnb. The daemon handles mail as root only if this is set to root.", restart=True),
    Setting("serve.group", TEXT,
        "Group that the daemon runs as. Empty: the user's primary group.", restart=True),
    Setting("serve.workers", whole(0, 256),
        "Number of worker processes; 0 is one per core.", restart=True),
    Setting("serve.uvloop", FLAG,
        "Use uvloop if it is installed: a third less CPU time per message.", restart=True),
    Setting("serve.hostname", TEXT,
        "Host name in greetings, where the next hop's greeting is not passed on. Empty: the name "
        "of the machine."),
    Setting("serve.control", TEXT,
        "Unix socket for commands and programs that talk to the daemon. Empty: control.sock in "
        "$RUNTIME_DIRECTORY if systemd sets it, else in the home.", restart=True),
    Setting("serve.delegates", TEXTS,
        "Users, by name or number, that may send corrections on behalf of others: for example "
        "vmail, if your IMAP server delivers as this user."),
    Setting("serve.drain_s", _SECONDS,
        "How long open sessions may continue after the daemon is told to stop, or their listener "
        "is removed by a reload."),
    Setting("serve.watchdog_s", number(2, 3600),
        "A process that does not respond for this long is killed and restarted. When the messages "
        "that it was scanning are sent again, listener.*.known_crasher handles them. Keep "
        "systemd's WatchdogSec above this value."),
    Setting("serve.unscanned_percent", number(0, 100),
        "Warn, in the log and in `spamnb status`, when more than this share of the messages of the "
        "last ten minutes, and at least five messages, were not scanned. Without faults all "
        "messages are scanned; 1 % separates a fault or an attack from a single odd message. "
        "`spamnb status --prometheus` counts them by reason."),
    Setting("limits.connections", whole(1, 1 << 20),
        "Maximum number of connections; each worker gets an equal share."),
    Setting("limits.busy_share", number(0.1, 1),
        "Share of the connections, next-hop connections and memory that may be used before idle "
        "and slow clients are disconnected sooner (see timeouts.first_mail_busy_s and "
        "timeouts.data_busy_s). By default a fifth stays free for new clients."),
    Setting("limits.reserved", number(0, 0.9),
        "Share of the connections, next-hop connections and memory that only trusted clients (a "
        "listener's peers) can use. A fifth is 20 of Postfix's 100 connections, more than a mail "
        "server on the same machine needs. Set it higher if trusted clients use more at the same "
        "time."),
    Setting("limits.connections_an_address", whole(1, 1 << 20),
        "Maximum number of connections from one address (64 bits of IPv6), counted over all "
        "workers; trusted peers are exempt. 50 is the value of Postfix's "
        "smtpd_client_connection_count_limit."),
    Setting("limits.upstream_connections", whole(1, 1 << 20),
        "Number of connections that the next hop accepts at the same time, counted over all "
        "workers. 100 is the value of Postfix's default_process_limit. Untrusted clients together "
        "get this number less limits.reserved. One network of untrusted clients (24 bits of IPv4, "
        "48 of IPv6) gets at most as many connections as it leaves free: half of them if there is "
        "no other network. Further clients are answered with 421. Trusted clients are not "
        "counted."),
    Setting("limits.memory_bytes", whole(1 << 20),
        "Bytes of message data that each worker keeps in memory. Above it the worker stops "
        "reading; it refuses no message. While clients wait for memory, a sixteenth of it is "
        "freed each second: if messages that end do not free enough, the worker ends the sessions "
        "that have used the most memory for the longest time, with 421."),
    Setting("limits.errors", whole(1, 1 << 20),
        "Number of refused commands after which a session is ended."),
    Setting("limits.commands", whole(4, 1 << 20),
        "Maximum number of commands of an untrusted client between its connection or last accepted "
        "message and the next one; accepted recipients are not counted. A message needs three. 100 "
        "is the value of Postfix's smtpd_junk_command_limit."),
    Setting("limits.recipients", whole(100, 1 << 20),
        "Maximum number of recipients per message of an untrusted client; further ones are "
        "answered with 452, and the client sends them with its next message. 1000 is the value of "
        "Postfix's smtpd_recipient_limit; RFC 5321, 4.5.3.1.8, requires at least 100."),
    Setting("timeouts.connect_s", _SECONDS,
        "Time to connect to the next hop, while the client waits for the reply to its EHLO."),
    Setting("timeouts.first_mail_s", _SECONDS,
        "Time from the connection of a client, and again from the reply to its first EHLO, to its "
        "first MAIL command."),
    Setting("timeouts.first_mail_busy_s", _SECONDS,
        "The same time when more than limits.busy_share of the connections, or of the next-hop "
        "connections that untrusted clients may use, are in use. "
        "Untrusted clients must then get from MAIL to DATA within timeouts.first_mail_s."),
    Setting("timeouts.message_s", _SECONDS,
        "Time from the connection or the last accepted message of an untrusted client to its next "
        "DATA, regardless of other commands; the time that the next hop takes to reply is not "
        "counted. RFC 5321, 4.5.3.2, allows 300 seconds for a single command, and Postfix reuses a "
        "connection for the same time."),
    Setting("timeouts.command_s", _SECONDS,
        "Time between commands (RFC 5321, 4.5.3.2)."),
    Setting("timeouts.data_s", _SECONDS,
        "Time for each read of message data."),
    Setting("timeouts.data_busy_s", _SECONDS,
        "When more than limits.busy_share of the connections or of the memory is in use, a client "
        "must send message data at 500 bytes a second or faster (Postfix's smtpd_min_data_rate); "
        "data that it sent faster before counts as credit for at most this many seconds. Postfix "
        "waits for 10 seconds under stress."),
    Setting("timeouts.reply_s", _SECONDS,
        "Time for each reply of the next hop, except the final one."),
    Setting("timeouts.final_s", number(1, 3600),
        "Time from the end of a message to the reply to the client. Postfix waits for 100 "
        "seconds."),
    Setting("timeouts.scan_s", number(0.1, 3600),
        "Part of timeouts.final_s for the scan of one message, from the start of the scan. If it "
        "is exceeded, listener.*.overrun applies."),
    Setting("timeouts.scan_wait_s", number(1, 3600),
        "Part of timeouts.final_s that a message may wait for its scan to start while other large "
        "messages are scanned. If it is exceeded, listener.*.busy applies. Scan and wait together "
        "take at most 60 % of timeouts.final_s, so that the next hop has time to reply."),
    Setting("scan.clues", whole(0, 50),
        "Write this many of the strongest clues into a header. They show words of the message and "
        "cost a little time."),
    Setting("scan.tag", TEXT, "Prefix of the subject for the action tag."),
    Setting("scan.redirect", TEXT,
        "Value of the X-Spamnb-Redirect header for the action redirect; the server behind spamnb "
        "decides what it means."),
    Setting("scan.own_clients", NETS,
        "Networks of the site's own users. Their mail is scanned and logged, but passed on "
        "without verdict headers and actions."),
    Setting("scan.local", choice("observe", "enforce"),
        "Treatment of mail that the mail server reports as local (XFORWARD SOURCE=LOCAL): observe "
        "treats it like mail from scan.own_clients, enforce like all other mail. Postfix reports "
        "local_header_rewrite_clients as local, by default its own machine. Set enforce if mail "
        "from outside also arrives from there, as with fetchmail."),
    Setting("scan.large_bytes", whole(0),
        "Messages above this size are scanned in a separate process that can be killed at its "
        "time limit."),
    Setting("auth.verify", FLAG,
        "Check SPF, DKIM, DMARC and ARC of mail from outside, where another server of the site has "
        "not done so. It needs the packages of the extra `auth` and a name server that answers; "
        "without them nothing changes."),
    Setting("auth.resolvers", TEXTS,
        "Addresses of the name servers that are asked, such as 127.0.0.1 or 127.0.0.1:5353. Empty: "
        "those of the system. A caching resolver on the same machine answers fastest."),
    Setting("auth.wait_s", number(0.1, 30),
        "Maximum time for the checks of one message. A check without an answer by then is "
        "temperror, and the message is scanned without it."),
    Setting("auth.client_lists", DOMAINS,
        "Zones of lists by DNS that are asked for the client's address, such as zen.spamhaus.org. "
        "What an answer means is learnt, so lists of wanted clients serve as well. Read the terms "
        "of a list first: many are free for small sites only."),
    Setting("auth.domain_lists", DOMAINS,
        "Zones that are asked for the domains of the author, of the sender and of links, such as "
        "dbl.spamhaus.org."),
    Setting("auth.correspondents", FLAG,
        "Remember, as keyed hashes, whom each person writes to (without persons.enabled: whom the "
        "site writes to). Mail of the site's own clients teaches it, and `spamnb train --sent`. "
        "Authentic mail of these authors, and answers, have features of their own."),
    Setting("auth.add_results", FLAG,
        "Add the results to the message as an Authentication-Results field under the first of "
        "local.authserv_ids, by default spamnb.HOSTNAME. Other programs can read it, and "
        "a message has the same features when it is trained later."),
    Setting("rules.allow", TEXT,
        "File of clients, senders, domains and recipients: their mail is always delivered. One "
        "entry per line: `client 192.0.2.0/24`. Senders and domains need a DKIM or SPF pass from "
        "one of local.authserv_ids; or add the client's network to the entry, as in `sender "
        "me@example.org 192.0.2.0/24`, or the word `unauthenticated`: then every message that "
        "claims this sender address is delivered."),
    Setting("rules.block", TEXT, "The same kind of file for mail that is always rejected."),
    Setting("rules.exempt", TEXTS,
        "Recipients that opted out: their mail gets headers but no other action. "
        "user@example.org, @example.org or user@. postmaster and abuse are always exempt."),
    Setting("quarantine.keep_days", DAYS,
        "How long messages stay in quarantine: as long as the history by default, so that the "
        "model can still learn from a release."),
    Setting("quarantine.limit_bytes", whole(1 << 20),
        "Maximum size of the quarantine; when it is full, messages are delivered with headers."),
    *_actions("actions"),
    Setting("delivery.address", ADDRESS,
        "Address of the built-in delivery agent, which writes Maildirs and accepts reports. "
        "Empty: 127.0.0.1:10026 if it is the next hop of a listener, else it is not started. The "
        "prefix lmtp: selects LMTP.",
        restart=True),
    Setting("delivery.domains", DOMAINS,
        "Domains that mail is accepted for. Empty: all domains, on loopback only."),
    Setting("delivery.root", TEXT,
        "Mail is written to ROOT/USER/Maildir. Empty: the folder mail in the home, unless "
        "delivery.users is set."),
    Setting("delivery.users", TEXT,
        "File of lines `ADDRESS FOLDER`; its entries override delivery.root. `@domain` stands for "
        "all other users of a domain."),
    Setting("delivery.delimiter", TEXT,
        "Separates the user from the address extension in the local part: mail to user+anything "
        "goes to user. Empty: no extensions."),
    Setting("delivery.spam", TEXT,
        "Local part of the address for spam reports. Empty: no such address."),
    Setting("delivery.ham", TEXT,
        "Local part of the address for reports of mail that is not spam. Empty: no such address."),
    Setting("delivery.wanted", TEXT,
        "Local part of the address for messages of senders that the user always wants: the author "
        "of each attached message is added to the user's list. Empty: no such address."),
    Setting("delivery.unwanted", TEXT,
        "The same for senders that the user never wants."),
    Setting("delivery.passwords", TEXT, "File of logins, as written by `spamnb passwd`."),
    Setting("delivery.certificate", TEXT,
        "PEM file of the certificate for STARTTLS. Without it, logins are disabled."),
    Setting("delivery.key", TEXT,
        "PEM file of the private key, if it is not in delivery.certificate."),
    Setting("delivery.plain_login", FLAG,
        "Accept passwords without TLS: for tests on loopback."),
    Setting("delivery.peers", NETS,
        "Clients that may name the original client (XFORWARD): spamnb's own listeners and your "
        "mail server."),
    Setting("delivery.trusted", NETS,
        "Clients that may report without a login. Loopback addresses are never "
        "trusted: behind a mail server all mail comes from loopback."),
    Setting("delivery.trust_local", FLAG,
        "Trust clients that your mail server reports as local (XFORWARD SOURCE=LOCAL). With "
        "Postfix, set local_header_rewrite_clients to permit_sasl_authenticated first: its "
        "default includes every program on this machine. Mail from the sendmail command is never "
        "trusted."),
    Setting("delivery.received", FLAG,
        "Add a Received line. If you set this, list this host in local.hosts; otherwise the "
        "message has different features after delivery."),
    Setting("delivery.receipts", FLAG, "Reply to reports from logged-in users."),
    Setting("delivery.size_limit_bytes", _BYTES, "Maximum size of a message."),
    Setting("feedback.limit_bytes", _BYTES,
        "Maximum size of a message that the model learns from."),
    Setting("feedback.user_per_day", whole(1),
        "Changes by one user per day. A user who moves a whole folder can make a thousand changes; "
        "the limit stops a faulty program before it damages the model."),
    Setting("feedback.user_bytes_per_day", _BYTES,
        "Bytes that the changes of one user add to the model per day: a new word takes about 70, "
        "a known one 7. A thousand ordinary messages add 9 MB to an empty model, 5,000 add 28 MB."),
    Setting("feedback.stranger_per_day", whole(0),
        "Changes per day by one unauthenticated sender with a valid signature; 0 ignores such "
        "reports. The same number of reports without a signature is queued for review, counted "
        "separately and per network of origin."),
    Setting("feedback.strangers_per_day", whole(0),
        "Changes per day by all unauthenticated senders together, because a sender address costs "
        "nothing. Reports without a signature are counted separately, up to the same number."),
    Setting("feedback.sure", number(0.5, 1),
        "Spam traps and reports do not override a verdict with at least this probability: they "
        "are queued for review."),
    Setting("feedback.unproven", choice("review", "refuse", "learn"),
        "What happens to a user's label for a message that is not known to be the user's own: "
        "review queues it, refuse refuses it, learn learns it."),
    Setting("feedback.domains", DOMAINS,
        "Domains in which an address is the login of a local user. Empty: all domains that mail is "
        "delivered for."),
    Setting("feedback.traps", TEXTS,
        "Spam trap addresses: unused addresses, published where only harvesters find them. Mail "
        "to them is learnt as spam, with half the usual step, unless the verdict is ham with at "
        "least the probability feedback.sure."),
    Setting("feedback.spool", TEXT,
        "Folder into which programs write corrections as files. The daemon learns them "
        "immediately, or after its next start. It belongs to the daemon's user and has mode 1733. "
        "Empty: spool in the home, and /var/spool/spamnb if the daemon's user owns it.",
        restart=True),
    Setting("review.max_messages", whole(8, 100_000),
        "Maximum number of entries in the review queue; one user may fill an eighth of it. A full "
        "queue refuses new entries, so that a flood does not displace earlier ones."),
    Setting("review.limit_bytes", whole(1 << 20),
        "Maximum size of the review queue with its messages; one user may fill an eighth of it."),
    Setting("review.keep_days", DAYS,
        "How long entries wait for review; then they are deleted without being learnt."),
    Setting("spool.each_owner", whole(1),
        "Maximum number of files of one owner per pass over a spool, so that other owners get "
        "their turn."),
    Setting("spool.max_invalid", whole(0),
        "Maximum number of invalid entries kept as .aside-... for inspection; further ones are "
        "deleted."),
    Setting("persons.enabled", FLAG,
        "A user's label changes the verdicts on mail to that user until the verdicts agree with "
        "the label; for all other users the label is evidence. See docs/persons.md."),
    Setting("persons.aliases", TEXT,
        "File of lines `ALIAS TARGET`, such as Postfix's virtual table: they name the person who "
        "receives the mail to an address. Empty: no aliases."),
    Setting("trial.ask", TEXT,
        "Another filter that is asked about a share of the mail, for `spamnb trial report`: "
        "rspamd:HOST:PORT, spamd:HOST:PORT, bogofilter or bogofilter:DIR. It is asked after the "
        "client has its reply, with the message alone. See docs/trial.md."),
    Setting("trial.share", number(0, 1),
        "Share of the scanned messages that trial.ask is asked about, at most ten a second for "
        "each worker."),
    Setting("console.address", ADDRESS,
        "Address of the HTTP API and the pages: host:port, or unix:/path. Empty: no console. An "
        "address that other machines can reach needs console.certificate or console.proxies. The "
        "console needs the extra `console`. See docs/console.md.", restart=True),
    Setting("console.url", TEXT,
        "URL at which browsers find the pages, of this daemon or of the web server in front. Links "
        "begin with this URL. The console refuses requests for hosts other than the host of this "
        "URL and this machine."),
    Setting("console.certificate", TEXT,
        "PEM file of the certificate for HTTPS. A reload reads it again. Empty: no TLS.",
        restart=True),
    Setting("console.key", TEXT,
        "PEM file of the private key, if it is not in console.certificate.", restart=True),
    Setting("console.proxies", NETS,
        "Web servers in front of console.address: their X-Forwarded-For names the client. Without "
        "console.certificate only they and this machine may connect. Every program that can "
        "connect from these servers is trusted: see docs/console.md.", restart=True),
    Setting("console.proxy_header", TEXT,
        "Header field in which the proxies name the user that they have logged in, such as "
        "Remote-User; the field is ignored if it comes from other clients. The proxies must remove "
        "this field from the requests of clients.",
        restart=True),
    Setting("console.passwords", TEXT,
        "File of the logins of the pages, as written by `spamnb passwd`. Empty: "
        "delivery.passwords, or `passwords` in the home."),
    Setting("console.admins", TEXTS,
        "Logins that may see and change everything on the pages."),
    Setting("console.auditors", TEXTS,
        "Logins that may see everything on the pages, and change nothing."),
    Setting("console.users", FLAG,
        "Let all other logins see and correct the mail that was delivered to their addresses."),
    Setting("console.users_release", choice("all", "junk", "no"),
        "Which messages in quarantine users may release to themselves: all; junk, those with a "
        "decision other than reject; or no, none."),
    Setting("digest.at", TEXT,
        "Time of the day at which users get a mail about new messages in quarantine, such as "
        '"07:00". Empty: no mails. This needs the console with console.url.'),
    Setting("digest.smtp", ADDRESS,
        "The server that delivers these mails. It must not pass them to spamnb."),
    Setting("digest.sender", TEXT,
        "Sender of these mails, such as postmaster@example.org."),
    Setting("digest.admin", TEXT,
        "Address that gets each new warning of `spamnb status` by mail, and that a listener which "
        "only observes can mark mail. Empty: none. This needs the console."),
    Setting("digest.links", choice("act", "login"),
        "Where the links in these mails lead. act: to one message, which the recipient of the mail "
        "can release without a login. login: to the login page."),
)  # fmt: skip

LISTENERS = NamedSections(
    "listener",
    "postfix",
    "Listeners: where mail is accepted, and where it is passed on. Any number of sections, each "
    "with a name of your choice. Without any, mail is accepted at 127.0.0.1:10025 and passed to "
    "the built-in delivery agent.",
    (
        Setting("listener.*.protocol", choice("smtp", "milter", "scanner"),
            "smtp: a mail server sends its mail through spamnb, by SMTP or LMTP. milter: a mail "
            "server asks spamnb about each message (smtpd_milters of Postfix, INPUT_MAIL_FILTER "
            "of Sendmail). scanner: programs ask about single messages and act themselves (spamc, "
            "rspamc, Exim's spam condition, HTTP)."),
        Setting("listener.*.address", ADDRESS,
            "Address for clients: host:port, [IPv6]:port or unix:/path; the prefix lmtp: selects "
            "LMTP. With socket activation, the section name is the name of the file descriptor. A "
            "reload binds new addresses with the rights of serve.user, without those of root."),
        Setting("listener.*.upstream", ADDRESS,
            "The next hop, which receives all mail of this listener; the prefix lmtp: selects "
            "LMTP. Empty: the built-in delivery agent. With the protocol milter: the server that "
            "released messages are sent to, which must not ask this listener again; necessary if "
            "an action is quarantine."),
        Setting("listener.*.queue", choice("before", "after"),
            "before: the sending server waits for the reply, so spam can be rejected. after: the "
            "mail comes from a queue of your mail server; spam is never rejected, because the "
            "queue would send bounces."),
        Setting("listener.*.peers", NETS,
            "Trusted clients: they may send to any domain, and name the original client "
            "(XFORWARD)."),
        Setting("listener.*.proxies", NETS,
            "Load balancers in front of this listener. If any are set, only they may connect, and "
            "each connection must begin with a PROXY header."),
        Setting("listener.*.recipient_domains", DOMAINS,
            "Domains that untrusted clients may send to. Empty: untrusted clients may not "
            "connect."),
        Setting("listener.*.teachers", NETS,
            "With the protocol scanner: TCP clients that may name recipients and users, and send "
            "corrections on behalf of any user, such as a mail server. All others may only scan, "
            "unless they show a token with the scope teach. "
            "The users of a unix socket have the rights that they have at the control socket."),
        Setting("listener.*.scan_limit_bytes", _BYTES,
            "Larger messages are streamed to the next hop and not buffered."),
        Setting("listener.*.oversize", choice("unscanned", "head"),
            "head: a larger message is scored by its header and by the parts within "
            "scan_limit_bytes, so that a sender cannot avoid the filter by size alone; text "
            "behind the limit is not read. unscanned: it is delivered unscanned."),
        Setting("listener.*.header_limit_bytes", _BYTES,
            "Maximum size of the header; forged spamnb headers are removed from all of it."),
        Setting("listener.*.size_limit_bytes", whole(0),
            "Maximum size of a message; 0 leaves the limit to the next hop."),
        Setting("listener.*.bare_newlines", choice("normalise", "refuse"),
            "A lone CR or LF in a message is never passed on, because servers disagree about the "
            "meaning (SMTP smuggling): normalise makes it a line end, refuse rejects the message."),
        Setting("listener.*.on_fault", choice("deliver", "defer"),
            "If no model can be used, or the scanner fails: deliver the message unscanned, or "
            "defer it (451). Such a fault lasts until the administrator repairs it, and senders "
            "give up after days, so deferral can lose mail."),
        Setting("listener.*.busy", choice("defer", "deliver"),
            "If a scan could not start within timeouts.scan_wait_s: defer the message (451), or "
            "deliver it unscanned. Any sender can cause this with a burst of large messages, and "
            "the burst is over soon, so the default is defer."),
        Setting("listener.*.overrun", choice("defer", "deliver"),
            "If a scan takes longer than timeouts.scan_s: defer the message (451), or deliver it "
            "unscanned. listener.*.known_crasher handles the next attempt, so the message is "
            "deferred only once."),
        Setting("listener.*.known_crasher", choice("head", "deliver", "defer"),
            "How a message is handled after a scan of it exceeded the time limit, or crashed its "
            "process twice. head: it is scored by its header only; if that fails too, it is "
            "delivered unscanned, because it would fail at each attempt. deliver: it is delivered "
            "unscanned. defer: it is deferred until the sender gives up."),
        Setting("listener.*.observe", FLAG,
            "Scan and log, but change nothing except for adding the signature header."),
        Setting("listener.*.border", FLAG,
            "This milter comes before all other milters and scans nothing. It removes results of "
            "authentication under local.authserv_ids that a stranger sent, and marks where the "
            "sender's fields begin; a later listener believes the results above this mark."),
        Setting("listener.*.other", choice("", ANY, *FILTERS),
            "With observe: the spam filter in front of this listener, which must remove the marks "
            "that mail arrives with. Its fields, such as X-Spam-Flag, stay in the mail, and its "
            "verdict is recorded for `spamnb trial report`."),
    ),
)  # fmt: skip

MAILBOXES = NamedSections(
    "imap",
    "alice",
    "Mailboxes on IMAP servers: new mail is judged, junk is moved, and moves by the user are "
    "learnt. The daemon reads them; without a daemon, `spamnb imap` does. See docs/imap.md.",
    (
        Setting("imap.*.host", TEXT, "Name of the IMAP server.", restart=True),
        Setting("imap.*.port", whole(0, 65_535), "Its port; 0 is 993, or 143 without implicit TLS.",
            restart=True),
        Setting("imap.*.tls", choice("implicit", "starttls", "none"),
            "Encryption: from the first byte, or by STARTTLS. none is allowed for a server on this "
            "machine. The certificate must be valid for the host.",
            restart=True),
        Setting("imap.*.ca_file", TEXT,
            "PEM file of the authorities that certificates are checked with. Empty: those of the "
            "system.",
            restart=True),
        Setting("imap.*.user", TEXT,
            "Login at the server; also the user's name in the journal.", restart=True),
        Setting("imap.*.auth", choice("password", "xoauth2"),
            "xoauth2: the password is an access token (OAuth 2), as password_command prints it.",
            restart=True),
        Setting("imap.*.password_file", TEXT,
            "File with the password in its first line; only its owner may have access (mode 0600).",
            restart=True),
        Setting("imap.*.password_command", TEXTS,
            'Program that prints the password, as a list of words: ["pass", "mail/alice"]. It is '
            "run at each login, without a shell.",
            restart=True),
        Setting("imap.*.inbox", TEXT, "Folder in which new mail arrives.", restart=True),
        Setting("imap.*.junk", TEXT,
            "Folder for junk, which must exist. Empty: the one that the server marks (RFC 6154), "
            "else Junk or Spam.",
            restart=True),
        Setting("imap.*.act", choice("move", "flag", "nothing"),
            "What happens to junk: move moves it to the junk folder, flag sets the flag $Junk, "
            "nothing only logs the verdict.",
            restart=True),
        Setting("imap.*.poll_s", number(5, 540),
            "Seconds between two looks at the user's other folders; also at the inbox if the "
            "server cannot report new mail (IDLE). Servers close connections that are idle for "
            "longer than 9 minutes.",
            restart=True),
    ),
)  # fmt: skip


FLEET: tuple[Setting, ...] = (
    Setting("fleet.url", TEXT,
        "Server that keeps the log of a fleet: several hosts with one model. "
        "valkeys://USER@HOST:PORT (Valkey or Redis, with TLS), unix://PATH, or "
        "postgresql://USER@HOST/DATABASE. Empty: this host is alone.",
        restart=True),
    Setting("fleet.name", TEXT,
        "Name of the fleet; fleets on the same server need different names.", restart=True),
    Setting("fleet.host", TEXT,
        "Name of this host, different from the names of all other hosts of the fleet. Empty: the "
        "name of the machine.",
        restart=True),
    Setting("fleet.key_file", TEXT,
        "File with the key of the fleet, the same on all hosts. Empty: fleet.key in the home.",
        restart=True),
    Setting("fleet.password_file", TEXT,
        "File with the password of the server; only its owner may have access (mode 0600).",
        restart=True),
    Setting("fleet.ca_file", TEXT,
        "PEM file of the authorities that the server's certificate is checked with, in addition to "
        "those of the system. The certificate must be valid for the host in the url.",
        restart=True),
    Setting("fleet.durable", choice("local", "replica", "trust"),
        "local: refuse a server that answers before an entry is on its disk. replica: also wait "
        "until a replica of the server has the entry, at most half of `fleet.append_s`; if no "
        "replica has the entry by then, the reply to the correction, the status and the log say "
        "so. PostgreSQL itself waits for the replica, so a PostgreSQL server without "
        "synchronous_standby_names is refused. trust: use a server that may lose entries; after a "
        "crash of the server, the hosts may have events that the server's log lacks, and then they "
        "stop learning.",
        restart=True),
    Setting("fleet.seal", choice("chacha20", "hmac"),
        "How entries are protected from the server: chacha20 encrypts them; hmac lets it read "
        "them, and needs no package. The same on all hosts.",
        restart=True),
    Setting("fleet.fold_s", number(0, 60),
        "Minimum time between two folds of new entries. The more entries a fold has, the less CPU "
        "time each entry needs: 1.2 ms with 16 entries, 0.4 ms with 2,048.",
        restart=True),
    Setting("fleet.append_s", number(0.1, 30),
        "How long the server may take to answer. Meanwhile the model is locked for other "
        "corrections, but not for mail.",
        restart=True),
    Setting("fleet.keep_events", whole(1000),
        "How many events the log keeps. A host that is further behind has to rejoin (`spamnb "
        "fleet rejoin`). 200,000 take 700 MB of the server's memory.",
        restart=True),
    Setting("fleet.outbox_bytes", whole(1 << 20),
        "Disk space for the corrections that wait while the log is away. When it is used up, "
        "further corrections are refused. A message takes 4 KB.",
        restart=True),
)  # fmt: skip


WEBHOOKS = NamedSections(
    "webhook",
    "chat",
    "Addresses that get events of the daemon by HTTP, signed (Standard Webhooks). They need the "
    "console. See docs/webhooks.md.",
    (
        Setting("webhook.*.url", TEXT,
            "The receiver: https://HOST/PATH. Its certificate must be valid for the host. With "
            "http:// all hosts on the way can read the events. The URL is not shown, because the "
            "URL of many receivers is also the password.", secret=True),
        Setting("webhook.*.secret_file", TEXT,
            "File with the secret in its first line, whsec_ and the base64 form of 24 to 64 random "
            "bytes; only its owner may have access (mode 0600)."),
        Setting("webhook.*.secret_command", TEXTS,
            "Program that prints the secret, as a list of words. It is run for each attempt, "
            "without a shell."),
        Setting("webhook.*.ca_file", TEXT,
            "PEM file of the authorities that the certificate is checked with. Empty: those of the "
            "system."),
        Setting("webhook.*.events", some_of(*EVENTS),
            "Events that the receiver gets. A verdict.reject is sent for each message with the "
            "decision reject."),
    ),
)  # fmt: skip


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
