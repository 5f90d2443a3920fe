"""All English text of the pages, so that it can be translated; `{name}` stands for a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

TEXTS: Final[Mapping[str, str]] = {
    "brand": "spamnb",
    "skip": "Skip to the content",
    "nav": "Pages",
    "log_out": "Log out",
    "logged_in_as": "Logged in as {login}, {role}",
    "role.admin": "administrator",
    "role.auditor": "auditor, who may look and not change",
    "role.user": "user",
    "utc": "{time} UTC",
    "notices": "What has happened",
    "undo": "Undo",
    "unknown": "unknown",
    "no_subject": "no subject",
    "no_sender": "no sender",
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
    "action.keep": "passed on",
    "action.advise": "answered",
    "action.reject": "rejected",
    "action.defer": "deferred",
    "action.quarantine": "in quarantine",
    "action.discard": "dropped",
    "column.choose": "Choose",
    "column.time": "Time",
    "column.verdict": "Decision, probability of spam",
    "column.mail": "Message",
    "column.fate": "What became of it",
    # live
    "live.title": "Live",
    "live.caption": "The newest messages",
    "live.empty": "No message has come yet.",
    "live.on": "New messages appear here as they come.",
    "live.off": "Load the page again to see new messages.",
    "live.paused": "Paused: new messages wait.",
    "live.lost": "The connection is lost; it will be tried again.",
    "live.pause": "Pause",
    # keys
    "keys.title": "Keys",
    "keys.j": "next message",
    "keys.k": "message before",
    "keys.o": "open the message",
    "keys.h": "teach as ham",
    "keys.s": "teach as spam",
    "keys.u": "undo what was just taught",
    "keys.?": "show these keys",
    "keys.close": "Close",
    # login
    "login.title": "Log in",
    "login.name": "Login or mail address",
    "login.password": "Password",
    "login.act": "Log in",
    "login.help": "An administrator of the mail server makes logins with “spamnb passwd LOGIN”.",
    "login.needed": "Log in to see this page.",
    "open.title": "Open the console",
    "open.text": "This link logs you in as an administrator. It can be used once, within a minute.",
    "open.act": "Log in",
    # errors
    "error.title": "This did not work",
    "error.back": "Go back to the first page",
    "error.incident": "The log of the daemon has the details under the number {incident}.",
    "error.no_page": "there is no such page",
    "error.form": "this form is too old: it belongs to another login",
    "error.foreign": "this form was sent by another site",
    "error.readonly": "an auditor may look and not change",
}


def text(key: str, /, **values: Any) -> str:
    """Return a text with its values."""
    return TEXTS[key].format(**values)


def word(kind: str, name: str) -> str:
    """Return the word for a name of the model or the log; the name itself if there is none."""
    return TEXTS.get(f"{kind}.{name}", name)
