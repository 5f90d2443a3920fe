"""The events of the daemon's log, read from the source, and the meaning of their keys."""

import ast
from pathlib import Path
from typing import NamedTuple

import spamnb

PACKAGE = Path(spamnb.__file__).parent
FACTS = {
    "message": ("smtp/relay", "milter", "scan/scanner.py"),
    "delivery": ("smtp/delivery",),
}
"""event -> the modules in which its line includes variables named `facts` or `found`"""

KEYS = {
    "action": "what happened to the message: `relay`, `keep` (quarantine), `refuse`, `defer`, "
    "`advise` (the client of a scanner decides)",
    "address": "address that is bound",
    "after": "threshold of junk after a change of the costs or of the site's scores",
    "age_days": "age of the deleted entry",
    "again_in_s": "seconds until the next attempt",
    "before": "what a change replaced: the word of a sender (`wanted`, `unwanted` or null), or the "
    "threshold of junk",
    "bytes": "number of bytes",
    "caller": "user of a token",
    "client": "address of the original client, as the mail server reports it",
    "closed_ms": "milliseconds in which requests to the learner waited",
    "code": "code of the reply to the client; 0 without a reply",
    "command": "command of a scanner's client",
    "corrections": "number of corrections",
    "decision": "`deliver`, `unsure`, `junk` or `reject`",
    "digest": "digest of the message, as `spamnb history` shows it",
    "do": "`choose` for other costs, `take_back` for those before them",
    "duplicate_likely": "the client left before it got the 250, and will send the message again",
    "error": "the error, in one line",
    "file": "path of a file",
    "files": "number of files",
    "folder": "`inbox`, `junk`, or `both` for recipients with different verdicts",
    "from": "envelope sender",
    "helo": "name that the client gave",
    "hint": "what to do about the error",
    "how": "way of a report: forwarded, attached, by reference",
    "id": "name in the quarantine",
    "ident": "queue id at the mail server",
    "incident": "number of an internal fault; the line `fault` with this number has the details",
    "instead_of": "the action of the verdict, which was not possible here",
    "known_crashers": "number of messages that were being scanned at the time",
    "label": "label of a report",
    "left_out": "users who get no digest on this day",
    "lines": "number of log lines",
    "listener": "name of the listener",
    "login": "name of the authenticated user",
    "mail_action": "`headers`, `tag`, `redirect`, `quarantine` or `reject`",
    "messages": "number of messages",
    "ms": "milliseconds from the first command of the message to its end",
    "name": "name in the review queue",
    "observed": "the message was scanned and not marked",
    "observed_by": "the setting because of which a message is not marked",
    "auth": "results of SPF, DKIM, DMARC and ARC that are believed",
    "list": "`person`, `domain` or `site`: whose list of senders",
    "of": "name of the library",
    "operation": "operation of the HTTP API",
    "peer": "address of the connection, usually of your mail server",
    "pid": "number of a process",
    "probability": "probability of spam",
    "processes": "number of processes",
    "quarantine": "name in the quarantine",
    "reason": "why the decision is not the model's, or why the message was not scanned",
    "receipt": "what became of the receipt",
    "owner": "the person or domain of a list of senders",
    "recipients": "number of recipients",
    "reference": "number that the client's reply contains, to find this line",
    "replies": "codes of the replies, one for each recipient of LMTP",
    "reply": "first line of the reply to the client",
    "result": "what was learnt from a report",
    "role": "role of a process: worker, learner, delivery, console, imap",
    "rule": "entry of a list that decided",
    "scan_ms": "milliseconds of the scan",
    "sender": "address or domain in a list of senders",
    "settings": "names of settings",
    "signature": "the message's signature",
    "silent_s": "seconds since the last heartbeat",
    "size": "bytes of the message",
    "slot": "number of a worker",
    "status": "status of the reply, as in HTTP",
    "step": "step of the conversation with the next hop",
    "text": "the warning",
    "to": "the first recipients",
    "trace": "the last calls before the fault",
    "trust": "rights of a report's sender: admin, user, stranger",
    "uid": "owner of a file in the spool",
    "upstream": "address of the next hop",
    "upstream_id": "queue id of the next hop",
    "upstream_ms": "milliseconds until the next hop's reply to the whole message",
    "upstream_reply": "`none`: the next hop closed the connection before its reply",
    "user": "name of a user",
    "verdict": "label of the model, or `unscanned`",
    "webhook": "name of a webhook in the settings",
    "word": "`wanted`, `unwanted` or null: removed from the list",
    "warnings": "number of warnings in a mail to the administrator",
    "where": "place in the source",
}


class Event(NamedTuple):
    """An event with its levels, as far as the source shows them, and its own keys."""

    name: str
    levels: tuple[str, ...]
    keys: tuple[str, ...]


def _constants(node):
    """Give the keys of a dict display -> their values; other keys are left out."""
    pairs = zip(node.keys, node.values, strict=True)
    return {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}


def _texts(node):
    """Return the possible texts of an expression that consists of constants."""
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return [node.value] if is_text else []


def _records(tree):
    """Yield the constants of each expression that makes a record, joined over `|`."""
    inner = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and node not in inner:
            parts = [part for part in ast.walk(node) if isinstance(part, ast.Dict | ast.BinOp)]
            inner.update(parts)
            found = [_constants(part) for part in parts if isinstance(part, ast.Dict)]
            yield {key: value for part in found[::-1] for key, value in part.items()}
        elif isinstance(node, ast.Dict) and node not in inner:
            yield _constants(node)


def _warnings(tree):
    """Yield the events that helpers named `_warn` log."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "_warn":
            yield from _texts(node.args[0])


def _facts(tree):
    """Yield the keys that are set in variables and attributes named `facts` or `found`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            of = target.value if isinstance(target, ast.Subscript) else target
            if _is_facts(of) and isinstance(target, ast.Subscript):
                yield from _texts(target.slice)
            elif _is_facts(of) and isinstance(node.value, ast.Dict):
                yield from _constants(node.value)
        elif isinstance(node, ast.BinOp) and _is_facts(getattr(node.left, "right", None)):
            yield from _constants(node.right) if isinstance(node.right, ast.Dict) else ()


def _is_facts(node):
    return {getattr(node, "id", ""), getattr(node, "attr", "")} & {"facts", "found"} != set()


def _trees():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text("utf-8"))


def events():
    """Return all events by name; an event has the keys of all places that log it."""
    levels, keys = {}, {}
    for name, tree in _trees():
        for record in _records(tree):
            for event in _texts(record.get("event")):
                levels.setdefault(event, set()).update(_texts(record.get("level")))
                keys.setdefault(event, set()).update(record.keys() - {"event", "level"})
        for event in _warnings(tree):
            levels[event], keys[event] = {"warning"}, {"error"}
        for event, places in FACTS.items():
            keys.setdefault(event, set()).update(_facts(tree) if name.startswith(places) else ())
    keys["message"].discard("event")
    order = sorted(keys, key=lambda one: (one not in FACTS, one.lower()))
    return [Event(one, tuple(sorted(levels[one])), tuple(sorted(keys[one]))) for one in order]
