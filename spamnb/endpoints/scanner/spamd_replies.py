"""Replies of spamd's protocol and of rspamd's old one. Pure.

From version 1.3 of the protocol on, a reply has its length and the verdict. In earlier versions it
has either the length (PROCESS, HEADERS) or the verdict: Exim's reader refuses a reply with both.
"""

from __future__ import annotations

from typing import Final

from spamnb.core.policy.verdict_headers import REQUIRED_SCORE
from spamnb.endpoints.scanner.message import header_of, marked, message_id_in, original
from spamnb.endpoints.scanner.report import ScanReport, report_of
from spamnb.endpoints.scanner.request import ClientRequest, Problem
from spamnb.service.scanning.types import ScanResult

CODES: Final[dict[Problem, tuple[int, str]]] = {
    "usage": (64, "EX_USAGE"),
    "method": (64, "EX_USAGE"),
    "data": (65, "EX_DATAERR"),
    "size": (65, "EX_DATAERR"),
    "media": (65, "EX_DATAERR"),
    "protocol": (76, "EX_PROTOCOL"),
}
TEMPORARY: Final = (75, "EX_TEMPFAIL")
NO_PERMISSION: Final = (77, "EX_NOPERM")
PONG: Final = b"SPAMD/1.5 0 PONG\r\n"
OK: Final = b"SPAMD/1.1 0 EX_OK\r\n"
SCANNED: Final = ("CHECK", "SYMBOLS", "REPORT", "REPORT_IFSPAM", "PROCESS", "HEADERS")
_REWRITES: Final = ("PROCESS", "HEADERS")
_WITH_LENGTH: Final = (1, 3)


def failure(code: tuple[int, str], text: str, dialect: str = "spamd") -> bytes:
    """An error; the text is for people who read the connection."""
    number, name = code
    if dialect == "rspamc":
        return f"RSPAMD/1.3 {number} {name}\r\n\r\n".encode()
    words = " ".join(text.split())[:200]
    return f"SPAMD/1.1 {number} {name} {words}".rstrip().encode("ascii", "replace") + b"\r\n"


def scanned(request: ClientRequest, result: ScanResult) -> bytes:
    """The reply to a command of `SCANNED`."""
    if result.action == "defer":
        return failure(TEMPORARY, "try again later", request.dialect)
    report = report_of(result)
    if request.dialect == "rspamc":
        return _old_rspamd(request, report)
    body = _BODIES[request.verb](request, result, report)
    verdict = f"Spam: {report.spam_line}\r\n".encode()
    length = b"Content-length: %d\r\n" % len(body)
    if request.version >= _WITH_LENGTH:
        head = length + verdict
    else:
        head = length if request.verb in _REWRITES else verdict
    return OK + head + b"\r\n" + body


def taught(*, did_set: bool, did_remove: bool) -> bytes:
    """The reply to TELL."""
    done = b"DidSet: local\r\n" * did_set + b"DidRemove: local\r\n" * did_remove
    return OK + done + b"Content-length: 0\r\n\r\n"


def _old_rspamd(request: ClientRequest, report: ScanReport) -> bytes:
    scores = f"{report.score:.1f} / {REQUIRED_SCORE:.1f} / {report.reject_score:.1f}"
    lines = [
        "RSPAMD/1.3 0 EX_OK",
        f"Metric: default; {report.spam}; {scores}",
        f"Action: {report.action}",
        *(f"Symbol: {name}({score:.1f})" for name, (score, _) in report.symbols().items()),
        f"Message-ID: {message_id_in(header_of(request))}",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii", "replace")


def _nothing(_request: ClientRequest, _result: ScanResult, _report: ScanReport) -> bytes:
    return b""


def _symbols(request: ClientRequest, _result: ScanResult, report: ScanReport) -> bytes:
    names = ",".join(report.symbols())
    return names.encode() + (b"" if request.version >= _WITH_LENGTH else b"\r\n")


def _report(_request: ClientRequest, _result: ScanResult, report: ScanReport) -> bytes:
    return report.text.encode("ascii", "replace")


def _report_if_spam(request: ClientRequest, result: ScanResult, report: ScanReport) -> bytes:
    return _report(request, result, report) if report.spam else b""


def _header(request: ClientRequest, result: ScanResult, _report: ScanReport) -> bytes:
    return marked(original(request), result.add, result.tag)[0]


def _message(request: ClientRequest, result: ScanResult, _report: ScanReport) -> bytes:
    return b"".join(marked(original(request), result.add, result.tag))


_BODIES: Final = {
    "CHECK": _nothing,
    "SYMBOLS": _symbols,
    "REPORT": _report,
    "REPORT_IFSPAM": _report_if_spam,
    "HEADERS": _header,
    "PROCESS": _message,
}
