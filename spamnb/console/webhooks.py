"""Webhooks: watch, keep and send events.

`WebhookWatch` finds events in the files of the home, `WebhookOutbox` keeps them on disk until a
receiver has taken them, `WebhookSender` sends those of one webhook (`post`), and `Webhooks` has all
webhooks of a home. Failure: StoreError; PeerError if a receiver does not reply.
"""

from __future__ import annotations

import hmac
import json
import re
import shutil
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path
from secrets import token_hex
from struct import Struct
from typing import Any, Final, NamedTuple

from spamnb.console.site import ConsoleSite
from spamnb.console.webhook_state import WebhookStanding, remove_standings, write_standings
from spamnb.errors import PeerError, SpamnbError
from spamnb.model.events import Event, EventKind
from spamnb.model.verdict import signature_text
from spamnb.settings.values import EVENTS, WebhookParams, WebhookTarget
from spamnb.store.codec import Buffer
from spamnb.store.model_store import LmdbTable, release, share_or_renew
from spamnb.telemetry import Log, incident, iso, now_us

MOST: Final = 1_000
"""events of one type for one webhook"""
FIRST_US: Final = 5_000_000
"""the pause after the first attempt; each attempt doubles it"""
KEPT_US: Final = 86_400_000_000
"""after this time an event is not tried again; each event gets at least one attempt"""
FOLDER: Final = "outbox"
_KEY: Final = Struct(">8sBQ")
_HEAD: Final = Struct(">QQH24s")
_STATE, _DROPPED = b"state", b"dropped"

Tables = dict[str, LmdbTable]
State = Mapping[str, Any]


class WebhookEvent(NamedTuple):
    """Something that has happened."""

    type: str
    """one of `EVENTS`"""
    time_us: int
    data: Mapping[str, Any]

    def body(self) -> bytes:
        """Return the body that a receiver gets."""
        value = {"type": self.type, "timestamp": iso(self.time_us), "data": dict(self.data)}
        return json.dumps(value).encode()


class WaitingEvent(NamedTuple):
    """An event that one receiver has not taken yet."""

    key: bytes
    id: str
    body: bytes
    made_us: int
    next_us: int
    """the time of the next attempt"""
    attempts: int = 0

    def encoded(self) -> bytes:
        """Return the stored form."""
        head = _HEAD.pack(self.next_us, self.made_us, self.attempts, self.id.encode())
        return head + self.body

    def after_failure(self, now_us: int) -> WaitingEvent | None:
        """Return it with the time of its next attempt; None if there is no further attempt."""
        next_us = now_us + FIRST_US * (1 << min(self.attempts, 20))
        if next_us > self.made_us + KEPT_US:
            return None
        return self._replace(next_us=next_us, attempts=self.attempts + 1)


class DueEvent(NamedTuple):
    """The oldest event that is due, or when the next one is."""

    event: WaitingEvent | None
    next_us: int
    """0 if none waits"""


class WebhookOutbox:
    """The waiting events of one home.

        waiting    webhook, 8 bytes of a hash | event type u8 | number u64    next u64 | made u64 |
                   attempts u16 | webhook-id, 24 characters | body
        meta       "state": what the events were made from; "dropped": numbers by webhook; JSON

    `put` stores events together with the state that they were made from, in one synced transaction:
    a killed process neither loses an event nor makes it twice, and the ID of the event stays the
    same. At most `MOST` events of each webhook and type wait, so a flood of one type does not
    displace others. Damaged files are replaced by empty ones. Failure: StoreError.
    """

    def __init__(self, home: Path) -> None:
        self._environment = share_or_renew(home / "console" / FOLDER, ("waiting", "meta"))

    def close(self) -> None:
        """Close the files."""
        release(self._environment)

    def state(self) -> State:
        """Return the state of the last `put`; empty before the first one."""
        with self._environment.read() as tables:
            return _json(tables["meta"].get(_STATE))

    def put(
        self,
        events: Sequence[WebhookEvent],
        state: State,
        wanted: Mapping[str, Collection[str]],
        now_us: int,
    ) -> None:
        """Store events for the webhooks that want them, and the state that they were made from."""
        named = [(event, f"msg_{token_hex(10)}".encode(), event.body()) for event in events]

        def run(tables: Tables) -> None:
            dropped: Counter[str] = Counter()
            for hook, types in wanted.items():
                for kind in types:
                    rows = [
                        _HEAD.pack(now_us, event.time_us, 0, name) + body
                        for event, name, body in named
                        if event.type == kind
                    ]
                    dropped[hook] += _add(tables["waiting"], hook, kind, rows)
            _count(tables["meta"], dropped)
            tables["meta"].put(_STATE, json.dumps(state).encode())

        self._environment.transact(run)

    def due(self, hook: str, now_us: int) -> DueEvent:
        """Return the oldest event of a webhook that is due."""
        oldest: WaitingEvent | None = None
        later = []
        with self._environment.read() as tables:
            for row in _of(tables["waiting"], _hash(hook)):
                if row.next_us > now_us:
                    later.append(row.next_us)
                elif oldest is None or row.made_us < oldest.made_us:
                    oldest = row
        return DueEvent(oldest, min(later, default=0))

    def taken(self, hook: str, event: WaitingEvent, now_us: int) -> None:
        """Delete an event that the receiver has accepted.

        If earlier attempts with this event failed, the receiver was away. Then its other events are
        due at once.
        """

        def run(tables: Tables) -> None:
            tables["waiting"].delete(event.key)
            rows = list(_of(tables["waiting"], _hash(hook))) if event.attempts else []
            for row in (one for one in rows if one.next_us > now_us):
                tables["waiting"].put(row.key, row._replace(next_us=now_us).encoded())

        self._environment.transact(run)

    def failed(self, hook: str, event: WaitingEvent, now_us: int) -> bool:
        """Postpone an event; whether there is a further attempt."""
        later = event.after_failure(now_us)

        def run(tables: Tables) -> None:
            if later is None:
                tables["waiting"].delete(event.key)
                _count(tables["meta"], {hook: 1})
            else:
                tables["waiting"].put(event.key, later.encoded())

        self._environment.transact(run)
        return later is not None

    def keep(self, hooks: Collection[str]) -> None:
        """Delete the events of webhooks that are not in the settings any more."""
        known = set(map(_hash, hooks))

        def run(tables: Tables) -> None:
            for key in [key for key, _ in tables["waiting"].scan() if key[:8] not in known]:
                tables["waiting"].delete(key)
            dropped = _json(tables["meta"].get(_DROPPED))
            kept = {hook: number for hook, number in dropped.items() if hook in hooks}
            tables["meta"].put(_DROPPED, json.dumps(kept).encode())

        self._environment.transact(run)

    def numbers(self, hook: str) -> tuple[int, int]:
        """Return how many events of a webhook wait, and how many were dropped."""
        with self._environment.read() as tables:
            waiting = sum(1 for _ in _keys(tables["waiting"], _hash(hook)))
            return waiting, int(_json(tables["meta"].get(_DROPPED)).get(hook, 0))


def _add(table: LmdbTable, hook: str, kind: str, rows: Sequence[bytes]) -> int:
    """Store events of one type; how many had no room."""
    head = _hash(hook) + bytes((EVENTS.index(kind),))
    keys = list(_keys(table, head)) if rows else []
    number = _KEY.unpack(keys[-1])[2] + 1 if keys else 0
    room = max(MOST - len(keys), 0)
    for at, row in enumerate(rows[:room], number):
        table.put(head + at.to_bytes(8, "big"), row)
    return len(rows[room:])


def _keys(table: LmdbTable, head: bytes) -> Iterator[bytes]:
    return (key for key, _ in _rows(table, head))


def _of(table: LmdbTable, head: bytes) -> Iterator[WaitingEvent]:
    for key, value in _rows(table, head):
        next_us, made_us, attempts, name = _HEAD.unpack_from(value)
        body = bytes(value[_HEAD.size :])
        yield WaitingEvent(key, name.decode(), body, made_us, next_us, attempts)


def _rows(table: LmdbTable, head: bytes) -> Iterator[tuple[bytes, Buffer]]:
    for key, value in table.scan(head):
        if not key.startswith(head):
            return
        yield key, value


def _count(meta: LmdbTable, dropped: Mapping[str, int]) -> None:
    if any(dropped.values()):
        total = Counter(_json(meta.get(_DROPPED)))
        total.update(dropped)
        meta.put(_DROPPED, json.dumps(total).encode())


def _json(value: Buffer | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(value)) if value is not None else {}
    return found


def _hash(hook: str) -> bytes:
    return blake2b(hook.encode("utf-8", "surrogatepass"), digest_size=8).digest()


CONNECT_S: Final = 5.0
"""for each address of the host"""
TOTAL_S: Final = 15.0
"""for the TLS handshake, the request and the status of the reply"""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r\n]")
_STATUS_BYTES: Final = 1_024


def signed(key: bytes, name: str, now_s: int, body: bytes) -> dict[str, str]:
    """Return the header fields of an attempt at this time."""
    mac = hmac.new(key, f"{name}.{now_s}.".encode() + body, sha256).digest()
    return {
        "webhook-id": name,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{b64encode(mac).decode()}",
    }


def post(params: WebhookParams, fields: Mapping[str, str], body: bytes) -> int:
    """Send a body; return the status of the reply.

    Redirects are not followed and proxies of the environment are not used: a request goes only to
    the address in the settings. Certificates are verified. Each step has a time limit. Only the
    status of the reply is read. Failure: PeerError if there is no reply.
    """
    target = params.target
    try:
        with _connected(params, target) as wire:
            until = time.monotonic() + TOTAL_S
            wire.settimeout(TOTAL_S)
            wire.sendall(_head(target, fields, len(body)) + body)
            return _status(wire, until)
    except (OSError, UnicodeError) as error:
        raise PeerError(f"{target.host}: {_reason(error)}") from error


def _connected(params: WebhookParams, target: WebhookTarget) -> socket.socket:
    raw = socket.create_connection((target.host, target.port), CONNECT_S)
    if not target.tls:
        return raw
    try:
        context = ssl.create_default_context(cafile=params.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context.wrap_socket(raw, server_hostname=target.host)
    except BaseException:
        raw.close()
        raise


def _head(target: WebhookTarget, fields: Mapping[str, str], size: int) -> bytes:
    all_fields = {
        "Host": target.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(size),
        "Connection": "close",
        "User-Agent": "spamnb",
        **fields,
    }
    lines = [f"{name}: {value}\r\n" for name, value in all_fields.items()]
    return f"POST {target.path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("ascii")


def _status(wire: socket.socket, until: float) -> int:
    """Read the status of the reply; the total time is limited even if it arrives slowly."""
    read = b""
    while b"\n" not in read and len(read) < _STATUS_BYTES:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        wire.settimeout(left)
        more = wire.recv(_STATUS_BYTES)
        if not more:
            break
        read += more
    found = _STATUS.match(read)
    if found is None:
        raise PeerError("the receiver does not reply in HTTP")
    return int(found[1])


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the receiver does not answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


_PAUSE_S: Final = FIRST_US / 1_000_000
_FAULT_S: Final = 60.0
_SECOND_US: Final = 1_000_000
_TAKEN: Final = 2
"""the first digit of the status"""


class WebhookSettings(NamedTuple):
    """One section of the settings."""

    name: str
    params: WebhookParams


class WebhookSender:
    """The thread of one webhook.

    An event is deleted after a reply with 2xx; any other reply, or none, is a failure. After each
    failure the webhook pauses, and the event waits twice as long as before.

    Each has its thread: a receiver that is away delays no other.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        outbox: WebhookOutbox,
        log: Log,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self.settings = settings
        self.error = ""
        """why the last attempt failed; empty if it did not"""
        self._outbox = outbox
        self._log = log
        self._clock = clock
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def wake(self) -> None:
        """Look for events now, but not during a pause after a failure."""
        self._wake.set()

    def stop(self) -> None:
        """Send no more events; the attempt in progress is repeated after the next start."""
        self._stop.set()
        self._wake.set()

    def join(self, wait_s: float) -> None:
        """Wait for the end of an attempt."""
        self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                wait_s = self.send_due()
            except Exception as error:  # noqa: BLE001 - a bug or a full disk must not end the thread
                incident(self._log, "webhook", error)
                self._stop.wait(_FAULT_S)
                continue
            if self.error:
                self._stop.wait(_PAUSE_S)
            else:
                self._wake.wait(wait_s)

    def send_due(self) -> float | None:
        """Send events until one fails; return the seconds until the next, None if none waits."""
        while not self._stop.is_set():
            now = self._clock()
            event, next_us = self._outbox.due(self.settings.name, now)
            if event is None:
                return (next_us - now) / _SECOND_US if next_us else None
            error = self._attempt(event)
            if self._stop.is_set():
                break
            self._report(error)
            if error:
                self._put_off(event)
                break
            self._outbox.taken(self.settings.name, event, self._clock())
        return 0.0

    def _attempt(self, event: WaitingEvent) -> str:
        """Send an event; return why that failed, empty if it did not."""
        params = self.settings.params
        try:
            fields = signed(params.key(), event.id, self._clock() // _SECOND_US, event.body)
            status = post(params, fields, event.body)
        except SpamnbError as error:
            return str(error)
        return "" if status // 100 == _TAKEN else f"the receiver replies {status}"

    def _report(self, error: str) -> None:
        """Log the first failure, a failure with another reason, and the end of failures."""
        if error != self.error:
            facts = {"level": "warning", "error": error} if error else {}
            self._log({"event": "webhook", "webhook": self.settings.name, **facts})
        self.error = error

    def _put_off(self, event: WaitingEvent) -> None:
        if not self._outbox.failed(self.settings.name, event, self._clock()):
            self._log({"event": "webhook dropped", "level": "warning", "id": event.id,
                       "webhook": self.settings.name})  # fmt: skip


FULL: Final = 0.95
"""share of `quarantine.limit_bytes` from which the quarantine counts as full"""
_ROOM_AGAIN: Final = 0.9
_AT_ONCE: Final = 500
_MOST_BATCHES: Final = 20
_MOST_TRAININGS: Final = 5_000
_MOST_CHARS: Final = 1_000
_NUMBERS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")

_STATUS_SHARE: Final = 50
"""The pause between two reads of the status is so many times as long as a read."""
_LONGEST_S: Final = 60.0

Facts = Mapping[str, Any]
Found = tuple[Any, list[WebhookEvent]]
"""the new part of the state, and the events"""


class WebhookWatch:
    """Looks for events of one home.

    Each watch compares the present with its part of the state that the last look stored on disk. So
    it also finds an event that happened while this process did not run. The first look only records
    the present, except for warnings. If one watch fails, the others go on, and it looks again the
    next time. The status reads all files of a large quarantine: the longer it takes, the less often
    it is asked for.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._status_due = 0.0

    def look(
        self, site: ConsoleSite, before: State, now_us: int
    ) -> tuple[State, list[WebhookEvent]]:
        """Return the new state, and the events since the last look."""
        watches: dict[str, Callable[[Any, int], Found]] = {
            name: partial(watch, site) for name, watch in _OF_HOME.items()
        }
        after, found = dict(before), list[WebhookEvent]()
        try:
            facts = self._status(site)
            if facts is not None:
                watches |= {name: partial(watch, facts) for name, watch in _OF_STATUS.items()}
        except SpamnbError as error:
            self._failed(error)
        for name, watch in watches.items():
            try:
                after[name], events = watch(before.get(name), now_us)
            except SpamnbError as error:
                self._failed(error)
                continue
            found += events
        return after, found

    def _status(self, site: ConsoleSite) -> Facts | None:
        """Return the facts of the status; None if it is not time for them."""
        began = time.monotonic()
        if began < self._status_due:
            return None
        facts = dict(site.ask("status").header["status"])
        limit = site.quarantine.limits.limit_bytes
        facts["quarantine"] = {**facts["quarantine"], "limit_bytes": limit}
        now = time.monotonic()
        self._status_due = now + min(_STATUS_SHARE * (now - began), _LONGEST_S)
        return facts

    def _failed(self, error: SpamnbError) -> None:
        self._log({"event": "webhooks cannot look", "level": "debug", "error": str(error)})


def _rejected(site: ConsoleSite, before: int | None, _: int) -> Found:
    """Return an event for each verdict with the decision reject."""
    last = site.history.seq_span()[1]
    if before is None or before > last:
        return last, []
    events, at = list[WebhookEvent](), before
    for _ in range(_MOST_BATCHES):
        batch = site.history.facts_after(at, _AT_ONCE)
        at = batch[-1][0] if batch else at
        for _, entry in batch:
            if entry is not None and entry.decision == "reject":
                facts = {
                    "signature": signature_text(entry.signature),
                    "time": iso(entry.time_us),
                    "probability": entry.probability,
                    "listener": entry.notes.get("listener", ""),
                }
                events.append(WebhookEvent("verdict.reject", entry.time_us, facts))
        if len(batch) < _AT_ONCE:
            break
    return at, events


def _review(site: ConsoleSite, before: str | None, now_us: int) -> Found:
    """Return an event if feedback has come into the review queue."""
    names = site.config.review_queue.names()
    newest = max([before or "", *names[-1:]])
    new = [name for name in names if before is not None and name > before]
    facts = {"new": len(new), "waiting": len(names)}
    return newest, [WebhookEvent("review.waiting", now_us, facts)] if new else []


def _warnings(status: Facts, before: Mapping[str, str] | None, now_us: int) -> Found:
    """Return an event for each warning of the status that is new or gone.

    A warning whose numbers have changed is the same one.
    """
    texts = [text[:_MOST_CHARS] for text in status["warnings"]]
    now = {_NUMBERS.sub("N", text): text for text in texts}
    old = before or {}
    raised = [now[key] for key in now if key not in old]
    cleared = [old[key] for key in old if key not in now]
    return now, [
        *(WebhookEvent("warning.raised", now_us, {"text": text}) for text in raised),
        *(WebhookEvent("warning.cleared", now_us, {"text": text}) for text in cleared),
    ]


def _quarantine(status: Facts, before: bool | None, now_us: int) -> Found:  # noqa: FBT001 - a part of the state
    """Return an event if the quarantine has become full."""
    used, limit = status["quarantine"]["bytes"], status["quarantine"]["limit_bytes"]
    full = used >= limit * (_ROOM_AGAIN if before else FULL)
    facts = {"bytes": used, "limit_bytes": limit}
    return full, [WebhookEvent("quarantine.full", now_us, facts)] if full and not before else []


def _model(site: ConsoleSite, before: list[Any] | None, now_us: int) -> Found:
    """Return an event for each import, and an event if the model was replaced."""
    with site.reading() as model, model.store.read() as view:
        last = view.totals().last_seq
        if before is None:
            return [last, _mark(view.event(last))], []
        seq, mark = before
        if seq > last or mark not in ("", _mark(view.event(seq)) or mark):
            facts = {"how": "replaced", "event": last}
            event = WebhookEvent("model.changed", now_us, facts)
            return [last, _mark(view.event(last))], [event]
        new = list(islice(view.events(seq + 1), _MOST_TRAININGS))
    if not new:
        return before, []
    return [new[-1].seq, _mark(new[-1])], list(_imports(new))


def _imports(events: list[Event]) -> Iterator[WebhookEvent]:
    for event in events:
        if event.kind == EventKind.IMPORT:
            facts = {"how": "import", "event": event.seq, "user": event.user}
            yield WebhookEvent("model.changed", event.time_us, facts)


def _mark(event: Event | None) -> str:
    """What distinguishes an event from another one with the same number; empty if there is none."""
    if event is None:
        return ""
    named = repr((event.kind, event.time_us, event.user, event.digest)).encode("utf-8", "replace")
    return blake2b(named + event.delta.steps.tobytes(), digest_size=12).hexdigest()


_OF_HOME: Final[Mapping[str, Callable[[ConsoleSite, Any, int], Found]]] = {
    "rejected": _rejected,
    "review": _review,
    "model": _model,
}
_OF_STATUS: Final[Mapping[str, Callable[[Facts, Any, int], Found]]] = {
    "warnings": _warnings,
    "quarantine": _quarantine,
}


_END_S: Final = 1.0
"""for the senders to end"""


class Webhooks:
    """Used by one thread at a time."""

    def __init__(self, home: Path, log: Log) -> None:
        self._home = home
        self._log = log
        self._watcher = WebhookWatch(log)
        self._outbox: WebhookOutbox | None = None
        self._hooks: Mapping[str, WebhookParams] | None = None
        self._senders: list[WebhookSender] = []
        self._standings: Sequence[WebhookStanding] | None = None

    def apply_settings(self, hooks: Mapping[str, WebhookParams]) -> None:
        """Send to these webhooks from now on; events for others are deleted."""
        if hooks == self._hooks:
            return
        self.stop()
        if hooks:
            self._begin(hooks)
        else:
            shutil.rmtree(self._home / "console" / FOLDER, ignore_errors=True)
            remove_standings(self._home)
        self._hooks = dict(hooks)

    def _begin(self, hooks: Mapping[str, WebhookParams]) -> None:
        self._outbox = outbox = WebhookOutbox(self._home)
        outbox.keep(hooks)
        for name, params in hooks.items():
            sender = WebhookSender(WebhookSettings(name, params), outbox, self._log)
            self._senders.append(sender)
            sender.start()

    def look(self, site: ConsoleSite) -> None:
        """Store what has happened since the last look, and wake the senders."""
        if self._outbox is None:
            return
        now = now_us()
        before = self._outbox.state()
        state, events = self._watcher.look(site, before, now)
        if events or state != before:
            wanted = {name: params.events for name, params in (self._hooks or {}).items()}
            self._outbox.put(events, state, wanted, now)
        for sender in self._senders if events else ():
            sender.wake()
        self._stand()

    def _stand(self) -> None:
        """Write the state of the webhooks for the status if it has changed."""
        found = [self._standing(one) for one in self._senders]
        if found != self._standings:
            write_standings(self._home, found)
            self._standings = found

    def _standing(self, sender: WebhookSender) -> WebhookStanding:
        assert self._outbox is not None, "there are senders"
        return WebhookStanding(
            sender.settings.name, *self._outbox.numbers(sender.settings.name), sender.error
        )

    def stop(self) -> None:
        """End the senders."""
        for sender in self._senders:
            sender.stop()
        for sender in self._senders:
            sender.join(_END_S / len(self._senders))
        self._senders = []
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None
