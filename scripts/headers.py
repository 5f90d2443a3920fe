"""The table of all header fields that spamnb writes, reads or ignores.

`scripts/man` makes spamnb-headers(7) from this table, and `scripts/site` a page. If the filter
itself has a table of the names, the names come from that table.
"""

import re
from typing import NamedTuple

from spamnb.mail.headers import (
    DELIVERY_STARTS,
    EXACT,
    MAILBOX_STARTS,
    VERDICT_PARTS,
    VERDICT_STARTS,
)
from spamnb.model.tokens import HEADER_RULES, TokenLocation
from spamnb.policy.headers import REASONS


class Header(NamedTuple):
    """A field, or several with the same meaning; `*` in a name stands for any text."""

    names: str
    text: str


class Group(NamedTuple):
    """Fields that one part of the program treats in the same way."""

    title: str
    text: str
    headers: tuple[Header, ...]


_CAPITALS = re.compile(r"\b(Arc|Dkim|Id|Mime|Spf)\b")


def _listed(names, before="", after=""):
    """Join names as they are usually written."""
    written = (
        _CAPITALS.sub(lambda word: word[0].upper(), n.decode().title()) for n in sorted(names)
    )
    return ", ".join(f"{before}{name}{after}" for name in written)


READ_AS = {
    TokenLocation.SUBJECT: "Words of the subject.",
    TokenLocation.FROM: "Name, address and domain of the author.",
    TokenLocation.REPLY: "Addresses for answers besides the author's.",
    TokenLocation.TO: "Addresses of the recipients.",
    TokenLocation.RECEIVED: "Hosts and networks of the transport, without times and queue ids. "
    "Lines by a host in `local.hosts` are ignored, because delivery adds more of them.",
    TokenLocation.ID: "Hosts alone, without the random part.",
    TokenLocation.CONTENT: "Type and encoding, without the random part of boundaries.",
    TokenLocation.AUTH: "Results of SPF, DKIM and DMARC, if a server of `local.authserv_ids` wrote "
    "them; all others may be forged and are ignored.",
}
"""location -> what is read; locations that keep the name of the field are in `_reduced`"""


def _read():
    rows = [
        Header(
            _listed(name for name, rule in HEADER_RULES.items() if rule.location == location), text
        )
        for location, text in READ_AS.items()
    ]
    kept = [name for name, rule in HEADER_RULES.items() if rule.location is TokenLocation.HEADER]
    dates = [name for name in kept if b"date" in name]
    return (
        *rows,
        Header(_listed(dates), "The time zone alone."),
        Header(_listed(set(kept) - set(dates)), "Domain, selector and algorithm of the signature."),
        Header(
            "*",
            "Every other field that is not ignored: its words, under the name of the field. "
            "The order of all fields is read, too.",
        ),
    )


ADDED = (
    Header(
        "X-Spam-Flag", "`YES` for the decisions junk and reject, else `NO`. Mailboxes file by it."
    ),
    Header(
        "X-Spam-Status",
        "`Yes` or `No`, then score, required score, `tests=SPAMNB_` with the "
        "decision, and the version, in the format of SpamAssassin.",
    ),
    Header(
        "X-Spam-Score",
        "The score with one digit: 5.0 is the threshold of junk; each 1.0 more "
        "multiplies the odds of spam by e.",
    ),
    Header("X-Spam-Level", "An asterisk for each whole point of the score, at most 50."),
    Header(
        "X-Spamnb-Verdict",
        "`deliver`, `unsure`, `junk` or `reject`, with `label=`, `p=` (the "
        "probability of spam) and, if a list or a rule decided, `reason=`; `released` after a "
        "release from quarantine; or `unscanned` with one of the reasons "
        f"{', '.join(f'`{reason}`' for reason in sorted(REASONS))}.",
    ),
    Header(
        "X-Spamnb-Redirect",
        "The text of `scan.redirect`, with the action `redirect`: the server behind "
        "spamnb acts on it.",
    ),
    Header("X-Spamnb-Clues", "The strongest words with their weights, if `scan.clues` is set."),
    Header(
        "X-Spamnb-Signature",
        "128 random bits that prove that this server received the message. "
        "A later correction needs nothing else. Also added with `observe = true`.",
    ),
    Header(
        "X-Spamnb-Results, X-Spamnb-Border",
        "With `local.authserv_ids`: prove which results of authentication the site's own servers "
        "wrote. The second is added by a milter listener with `border = true`.",
    ),
    Header(
        "X-Spamnb-Place",
        "Never in mail: a milter passes the queue id to the parser by it.",
    ),
    Header("Subject", "Only with the action `tag`: the text of `scan.tag` before the subject."),
)

WRITTEN_BY_DELIVERY = (
    Header("Return-Path", "The envelope sender."),
    Header("Delivered-To", "The recipient, one for each copy."),
    Header("Received", "Client, host and time, if spamnb does not stand behind a mail server."),
)

RECEIPT = (
    Header(
        "From, To, Subject, Date, Message-ID, In-Reply-To",
        "From `postmaster@` the own host to the sender of the report.",
    ),
    Header(
        "Auto-Submitted, X-Auto-Response-Suppress",
        "`auto-replied` and `All`, so that no program answers.",
    ),
)

DIGEST = (
    Header(
        "List-Unsubscribe, List-Unsubscribe-Post",
        "The signed link at which the user turns these mails off, with one request (RFC 8058).",
    ),
    Header("Auto-Submitted", "`auto-generated`."),
)

REPORT = (
    Header("X-Spamnb-Signature", "Names the message and proves that the sender received it."),
    Header(
        "Message-ID, X-Forwarded-Message-Id, In-Reply-To, References",
        "Name the message if its text was not attached whole.",
    ),
    Header(
        "Auto-Submitted, Precedence, List-Id, X-Autoreply, X-Auto-Response-Suppress",
        "Mail by programs gets no receipt.",
    ),
)

REQUEST = (
    Header(
        "From, Deliver-To, Rcpt, User", "Envelope sender, recipients and user of a scanned message."
    ),
    Header("IP, Hostname, Helo, Queue-Id", "The client as the mail server saw it."),
    Header("Password", "A token with the scope `teach`, for corrections over TCP."),
    Header("Class, Message-Class, Set, Remove", "The label to learn, and what to do with it."),
    Header(
        "Compress, Compression, Content-Encoding",
        "Compressed messages are refused, except with spamc's zlib.",
    ),
    Header(
        "Content-Length, Transfer-Encoding, Connection, Expect",
        "The end of the request, as in HTTP.",
    ),
    Header("File, Path, Shm", "Refused: messages are never read from files."),
    Header("Spamnb-Outcome", "Written into the reply of `/v1/message`: the verdict as JSON."),
)

GROUPS = (
    Group(
        "Added to each message",
        "Forged copies of these fields, and of every `X-Spamnb-*`, are "
        "removed from all mail, in every spelling that some program accepts. `[actions]` decides "
        "whether a message gets them; an unscanned message gets `X-Spamnb-Verdict` alone.",
        ADDED,
    ),
    Group(
        "Read by the model",
        "These fields are evidence. `spamnb explain` shows their words.",
        _read(),
    ),
    Group(
        "Ignored by the model",
        "They are passed on unchanged. Verdicts of other filters would teach "
        "the model to copy them, and fields that delivery or a mail program adds would make the "
        "message a different one when a user corrects it.",
        (
            Header(
                _listed(VERDICT_PARTS, "*", "*"),
                "Names with these parts: other filters and scanners.",
            ),
            Header(_listed(VERDICT_STARTS, after="*"), "Names that begin so: the same."),
            Header(_listed(MAILBOX_STARTS, after="*"), "Flags of mailboxes and mail programs."),
            Header(
                f"{_listed(DELIVERY_STARTS, after='*')}, {_listed(EXACT)}", "Added at delivery."
            ),
        ),
    ),
    Group(
        "Written by the delivery agent",
        "Above each message in a Maildir, with `delivery.address`.",
        WRITTEN_BY_DELIVERY,
    ),
    Group("Read in reports to spam@ and ham@", "Beside the attached messages.", REPORT),
    Group("Written into receipts", "The answer to a report by an authenticated user.", RECEIPT),
    Group("Written into digests", "The daily mail of `[digest]`.", DIGEST),
    Group(
        "Requests to a scanner listener",
        "Fields of the protocols of spamd and rspamd, and of HTTP; they are no part of a message.",
        REQUEST,
    ),
)
